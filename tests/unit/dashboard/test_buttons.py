"""What each button asks of the job, and what is said of it."""

from __future__ import annotations

import re
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest

from edl.dashboard import page_server
from edl.errors import ConfigError, EdlError, ScaleRejected
from edl.launch import locate_job
from edl.outside.job_client import Ack, Retry


class AskedJob:
    """It notes what is asked, and answers with `answer`, or raises it."""

    def __init__(self, answer: Ack | Retry | EdlError) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    async def __aenter__(self) -> AskedJob:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.asked.append(("closed",))

    async def scale_out(self, workers: int, timeout_s: float) -> Ack | Retry:
        return self._answered("scale_out", workers, timeout_s)

    async def scale_in(self, workers: int, timeout_s: float) -> Ack | Retry:
        return self._answered("scale_in", workers, timeout_s)

    async def checkpoint(self, request: str, timeout_s: float) -> None:
        self._answered("checkpoint", request, timeout_s)

    def _answered(self, *asked: Any) -> Ack | Retry:
        self.asked.append(asked)
        if isinstance(self.answer, EdlError):
            raise self.answer
        return self.answer


async def pressed(what: str, job: AskedJob) -> str:
    where = SimpleNamespace(job="mnist", client=lambda: job)
    return await page_server.press(lambda: where, what)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(("what", "asks"), [("grow", "scale_out"), ("shrink", "scale_in")])
async def test_the_size_changes_by_one(what: str, asks: str) -> None:
    job = AskedJob(Ack(3))
    assert await pressed(what, job) == "3 workers are asked for"
    assert job.asked == [(asks, 1, page_server.ASK_S), ("closed",)]


async def test_one_worker_is_one() -> None:
    assert await pressed("shrink", AskedJob(Ack(1))) == "1 worker is asked for"


@pytest.mark.parametrize("what", ["grow", "shrink"])
async def test_a_request_that_was_not_taken_says_why(what: str) -> None:
    assert await pressed(what, AskedJob(Retry("no leader answered"))) == "no leader answered"


async def test_each_press_asks_for_a_checkpoint_of_its_own() -> None:
    job = AskedJob(Ack(0))
    assert [await pressed("checkpoint", job) for _ in range(2)] == ["a checkpoint is asked for"] * 2
    first, closed, second, _ = job.asked
    assert closed == ("closed",)
    assert first[0] == second[0] == "checkpoint"
    assert first[1] != second[1]
    assert re.fullmatch(r"page-[0-9a-f]{16}", first[1])


async def test_stop_is_a_stop_that_names_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []

    async def stop(where: SimpleNamespace, reason: str) -> str:
        told.append((where.job, reason))
        return "has ended"

    monkeypatch.setattr(locate_job, "stop", stop)
    assert await pressed("stop", AskedJob(Ack(0))) == "job mnist has ended"
    assert told == [("mnist", "stopped from its page")]


@pytest.mark.parametrize("what", ["", "GROW", "scale", "<script>"])
async def test_another_name_is_no_button(what: str) -> None:
    job = AskedJob(Ack(3))
    assert await pressed(what, job) == "there is no such button"
    assert job.asked == []


@pytest.mark.parametrize("what", ["grow", "shrink", "checkpoint"])
async def test_a_refusal_is_said_in_its_own_words(what: str) -> None:
    job = AskedJob(ScaleRejected("at most 3 workers"))
    assert await pressed(what, job) == "at most 3 workers"
    assert job.asked[-1] == ("closed",)


async def test_a_job_that_cannot_be_found_is_said_to_be() -> None:
    def locate() -> Any:
        raise ConfigError("no job mnist was started on this machine")

    assert await page_server.press(locate, "stop") == "no job mnist was started on this machine"
