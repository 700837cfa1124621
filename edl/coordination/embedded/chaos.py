"""A fault to plan on the embedded coordinator: a session that ends behind its store's back.

Owns: what tests and benchmarks need for it. Nothing of the product imports it.
"""

from __future__ import annotations

import asyncio

from edl.coordination.embedded.wire import EndSession, Told
from edl.coordination.settings import Coordinator
from edl.coordination.store import Store
from edl.transport.errors import PipeClosed
from edl.transport.pipe import LoopClient

_END_S = 10.0


async def end_session(store: Store, through: Coordinator) -> None:
    """End it by another client; nothing where no server answers."""
    gone = asyncio.Event()
    client = LoopClient(through.socket, Told, lambda *_: None, lambda _: gone.set())
    try:
        connection = await client.connect()
    except PipeClosed:
        return
    connection.send(EndSession(store.session))
    async with asyncio.timeout(_END_S):
        await gone.wait()
