"""A ZooKeeper for jobs of this machine that need one beyond `edl run`: `python -m edl.coordination FOLDER [PORT]`.

It listens on 127.0.0.1 only and runs until it is interrupted. What it keeps in FOLDER is there again the next time.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from edl.coordination.server import LocalServer
from edl.coordination.settings import DEFAULT_PORT
from edl.errors import EdlError


async def serve(folder: Path, port: int) -> int:
    server = await LocalServer.start(folder, port=port)
    try:
        print(f"EDL_COORDINATOR={server.coordinator.hosts}", flush=True)  # noqa: T201 - a command's output
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        ended, asked = asyncio.create_task(server.wait_exit()), asyncio.create_task(stopped.wait())
        await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, asked):
            task.cancel()
        if stopped.is_set():
            return 0
        raise EdlError(f"ZooKeeper ended by itself; see {server.log}")
    finally:
        await server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m edl.coordination", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where it keeps its data; made if need be")
    parser.add_argument("port", metavar="PORT", type=int, nargs="?", default=DEFAULT_PORT, help="default: 2181")
    options = parser.parse_args()
    try:
        return asyncio.run(serve(options.folder, options.port))
    except EdlError as error:
        print(f"edl: {error}", file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    sys.exit(main())
