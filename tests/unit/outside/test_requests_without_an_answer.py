"""What `edl scale` hears of a job in which no worker has called `edl.init()`, and so no leader answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.memory_store import MemoryServer
from edl.errors import NoSuchJob, ScaleRejected
from edl.outside.job_client import Ack, JobClient
from edl.protocol import leader_messages as say


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


class Answering(JobClient):
    """A client whose leader gives these answers, the last of them again and again."""

    def __init__(self, *answers: say.Reply) -> None:
        super().__init__(Coordinator("h:1"), "mnist")
        self.answers, self.asked = list(answers), list[say.Request]()

    async def _insist(self, body: say.Request, *_: object) -> say.Reply:
        self.asked.append(body)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


YOUNG = say.Rejected("none of its workers has joined yet", retry=True)


def test_a_job_that_is_too_young_is_asked_the_same_again() -> None:
    job = Answering(YOUNG, YOUNG, Ack(3))
    assert asyncio.run(job.scale(3)) == Ack(3)
    assert len(job.asked) == 3 and len(set(job.asked)) == 1  # of one id: it counts once


def test_a_job_that_is_too_young_to_be_saved_is_asked_the_same_again() -> None:
    told = say.SaveTold(7, "checkpoints/poet")
    job = Answering(YOUNG, told)
    assert asyncio.run(job.checkpoint("r")) == told
    assert len(job.asked) == 2 and len(set(job.asked)) == 1


def test_it_is_not_asked_for_longer_than_was_said() -> None:
    with pytest.raises(ScaleRejected, match="none of its workers has joined yet"):
        asyncio.run(Answering(YOUNG).scale(3, 0.3))
    refused = Answering(say.Rejected("at most 4", retry=False))
    with pytest.raises(ScaleRejected, match="at most 4"):
        asyncio.run(refused.scale(9))
    assert len(refused.asked) == 1
