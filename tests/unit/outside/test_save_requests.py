"""What `edl preempt` hears of a job whose coordinator ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from edl.errors import JobFailed, StoreUnavailable
from edl.outside.job_client import preempted
from edl.protocol.record import JobState

RUNNING, GONE, OVER = (
    SimpleNamespace(job="j", state=state, reason="saved at step 7")
    for state in (JobState.RUNNING, JobState.PREEMPTED, JobState.FINISHED)
)
NO_COORDINATOR = StoreUnavailable("not connected to the coordinator")


class Client:
    """Of a job that answers so, look after look."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[tuple[str, float]] = []
        self._answers: Iterator[Any] = iter(answers)

    async def preempt(self, reason: str, deadline_s: float) -> None:
        self.asked.append((reason, deadline_s))

    async def status(self) -> Any:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def hear(client: Any, *kept: Any) -> Any:
    known = iter(kept)
    return asyncio.run(preempted(client, "because", 5.0, lambda: next(known)))


def test_the_end_is_told_by_the_job() -> None:
    client = Client(RUNNING, GONE)
    assert hear(client) is GONE
    assert client.asked == [("because", 5.0)]


def test_the_end_is_told_by_the_launcher_where_the_coordinator_went_with_the_job() -> None:
    assert hear(Client(RUNNING, NO_COORDINATOR), GONE) is GONE


def test_a_launcher_that_has_not_seen_the_end_yet_is_asked_again() -> None:
    assert hear(Client(NO_COORDINATOR, NO_COORDINATOR), RUNNING, GONE) is GONE


def test_another_machine_has_no_launcher_to_ask() -> None:
    with pytest.raises(StoreUnavailable, match="not connected"):
        hear(Client(RUNNING, NO_COORDINATOR), None)


def test_a_job_that_was_over_before_is_said_to_be() -> None:
    with pytest.raises(JobFailed, match="job j was over before it could be preempted: it finished"):
        hear(Client(OVER))
