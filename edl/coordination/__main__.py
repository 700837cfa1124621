"""A ZooKeeper, or an etcd, for jobs of this machine: `python -m edl.coordination [--etcd] FOLDER [PORT]`.

It listens on 127.0.0.1 only and runs until it is interrupted. Its data stay in FOLDER for the next start.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from edl.coordination.coordinator_settings import DEFAULT_PORTS, ETCD, ZOOKEEPER
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.coordination.zookeeper_server import LocalServer
from edl.errors import EdlError


async def serve(kind: str, folder: Path, port: int) -> int:
    server = await (LocalEtcd if kind == ETCD else LocalServer).start(folder, port=port)
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
        raise EdlError(f"the server ended by itself; see {server.log}")
    finally:
        await server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m edl.coordination", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where it keeps its data; made if need be")
    parser.add_argument("port", metavar="PORT", type=int, nargs="?", help="default: 2181, or 2379 of an etcd")
    parser.add_argument("--etcd", action="store_const", dest="kind", const=ETCD, default=ZOOKEEPER, help="an etcd")
    options = parser.parse_args()
    port = DEFAULT_PORTS[options.kind] if options.port is None else options.port
    try:
        return asyncio.run(serve(options.kind, options.folder, port))
    except EdlError as error:
        print(f"edl: {error}", file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    sys.exit(main())
