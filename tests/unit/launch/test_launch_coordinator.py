"""The coordinator of a launch is started again, and why it cannot be is said once."""

from __future__ import annotations

import asyncio
from typing import Any

from edl.errors import ConfigError
from edl.launch import coordinator


class Dying:
    """A server that ends at once, and starts again on some tries only."""

    def __init__(self, *refusals: str) -> None:
        self.refusals = list(refusals)
        self.done = asyncio.Event()

    async def wait_exit(self) -> int:
        if not self.refusals:
            self.done.set()
            await asyncio.Event().wait()
        return 1

    async def restart(self) -> None:
        if refusal := self.refusals.pop(0):
            raise ConfigError(refusal)


async def test_why_it_does_not_start_again_is_said_once_and_again_after_it_did(monkeypatch):
    monkeypatch.setattr(coordinator, "RESTART_PAUSE_S", 0)
    said: list[str] = []
    server: Any = Dying("damaged", "damaged", "no room", "", "no room")
    keeping = asyncio.create_task(coordinator._keep_alive(server, said.append))
    async with asyncio.timeout(20):
        await server.done.wait()
    keeping.cancel()
    assert said == ["damaged", "no room", "no room"]
