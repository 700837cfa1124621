"""A planned fault on the embedded coordinator: a session that ends without its store's knowledge.

Owns: the means for tests and benchmarks. No module of the product imports it.
"""

from __future__ import annotations

import asyncio

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.embedded.embedded_wire import EndSession, Told
from edl.coordination.store import Store
from edl.transport.call_errors import PipeClosed
from edl.transport.pipe import LoopClient

_END_S = 10.0


async def end_session(store: Store, through: Coordinator) -> None:
    """End the store's session by another client; do nothing if no server answers."""
    gone = asyncio.Event()
    client = LoopClient(through.socket, Told, lambda *_: None, lambda _: gone.set())
    try:
        connection = await client.connect()
    except PipeClosed:
        return
    connection.send(EndSession(store.session))
    async with asyncio.timeout(_END_S):
        await gone.wait()
