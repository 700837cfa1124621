"""The coordinator of a launch is started again, and why it cannot be is said once."""

from __future__ import annotations

import asyncio
from typing import Any

from edl.errors import ConfigError
from edl.launch import job_coordinator


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


async def test_each_start_is_said_and_why_there_is_none_is_said_once_until_it_did(monkeypatch):
    monkeypatch.setattr(job_coordinator, "RESTART_PAUSE_S", 0)
    said: list[str] = []
    server: Any = Dying("damaged", "damaged", "no room", "", "no room")
    keeping = asyncio.create_task(job_coordinator._keep_alive(server, said.append))
    async with asyncio.timeout(20):
        await server.done.wait()
    keeping.cancel()
    again = "the local coordinator had ended and is started again: sessions, and training, go on"
    assert said == ["damaged", "no room", again, "no room"]
