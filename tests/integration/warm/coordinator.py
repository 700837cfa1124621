"""A ZooKeeper for the jobs of many tests, each with a part of its own: `coordinator.py FOLDER`.

Where it can be reached is in FOLDER/hosts, as soon as it can be.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from edl.coordination.zookeeper_server import LocalServer


async def serve(folder: Path) -> None:
    server = await LocalServer.start(folder / "zookeeper")
    working = folder / "hosts.new"
    working.write_text(server.coordinator.hosts)
    working.rename(folder / "hosts")
    await server.wait_exit()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
