"""What `edl scale` hears of a job in which no worker has called `edl.init()`, and so no leader answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.memory_store import MemoryServer
from edl.errors import NoSuchJob
from edl.outside.job_client import JobClient


def test_each_try_is_told_of_and_the_job_is_named_at_the_end() -> None:
    tried: list[Exception] = []

    async def connect(*_: Any) -> Any:
        return MemoryServer().connect()

    async def ask() -> None:
        async with JobClient(Coordinator("h:1"), "mnist", connect=connect) as job:
            await job.scale(2, 0.2, tried.append)

    with pytest.raises(NoSuchJob, match="there is no job mnist"):
        asyncio.run(ask())
    assert tried
    assert all(isinstance(error, NoSuchJob) for error in tried)
