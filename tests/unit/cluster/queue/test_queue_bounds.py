"""What a queue holds has bounds: of each job, of each user and of all together, told with the figure and the remedy."""

from __future__ import annotations

import msgspec
import pytest

from edl.cluster.queue.agent_machine import AgentMachine, OrdersCame, WorkerFound, WorkerGone
from edl.cluster.queue.end_causes import TAIL_BYTES, EndEvidence
from edl.cluster.queue.queue_entries import WorkerOrder, WorkerWish
from edl.cluster.queue.submission import (
    OF_ALL,
    OF_USER,
    PATH_BYTES,
    WORKERS,
    JobWish,
    QueueAccount,
    QueueFull,
    QueueShare,
    submission,
)
from edl.errors import ConfigError

ONE = QueueShare(1, 1000, 25_000)


@pytest.mark.parametrize("part", range(3))
def test_a_user_has_a_bound_and_all_users_together_have_one(part: int) -> None:
    words = ("jobs", "bytes of jobs", "bytes of variables")[part]
    full = QueueShare(*(most - 1 if number == part else 0 for number, most in enumerate(OF_USER)))
    more = QueueShare(*(2 if number == part else 0 for number in range(3)))
    last = QueueShare(*(1 if number == part else 0 for number in range(3)))
    account = QueueAccount([("ann", full)])
    account.check("ann", last)
    account.check("bob", more)
    with pytest.raises(
        QueueFull, match=rf"user ann has {full[part]:,} {words} in it, and {OF_USER[part]:,} are allowed: wait"
    ):
        account.check("ann", more)
    for user in ("bob", "cid"):
        account.take(user, full)
    with pytest.raises(QueueFull, match=rf"all users together have .* {words} in it, and {OF_ALL[part]:,} are allowed"):
        account.check("dan", more)


def test_ten_thousand_jobs_of_a_user_with_25_kilobytes_of_variables_have_room() -> None:
    account = QueueAccount(("ann", ONE) for _ in range(9_999))
    account.check("ann", ONE)
    account.take("ann", ONE)
    with pytest.raises(QueueFull):
        account.check("ann", ONE)


@pytest.mark.parametrize("field", ["folder", "checkpoint"])
def test_a_path_has_a_bound_as_it_is_kept(field: str) -> None:
    fits = "/" + "a" * (PATH_BYTES - 3)
    wish = JobWish("a", ("train",), "/")
    submission(msgspec.structs.replace(wish, **{field: fits}), "ann", 1.0)
    for long in (fits + "a", "/" + '"' * (PATH_BYTES // 2)):
        with pytest.raises(ConfigError, match=rf"{field}: a path of .* bytes, and 1,024 are allowed: name a shorter"):
            submission(msgspec.structs.replace(wish, **{field: long}), "ann", 1.0)


def test_a_job_has_so_many_workers_at_most() -> None:
    submission(JobWish("a", ("train",), "/", max_np=WORKERS), "ann", 1.0)
    with pytest.raises(ConfigError, match="a job has 2,000 workers at most"):
        submission(JobWish("a", ("train",), "/", max_np=WORKERS + 1), "ann", 1.0)


@pytest.mark.parametrize("text", ["tail", "refused", "taken"])
def test_whatever_an_engine_tells_of_an_end_an_agent_reports_it_in_brief(text: str) -> None:
    known = msgspec.structs.replace(EndEvidence(), **{text: "x" * 400_000})
    machine = AgentMachine()
    machine.handle(WorkerFound("a-1", (1,), 0, known), 0.0)
    machine.handle(
        OrdersCame((WorkerOrder("a-1", "a", 0, WorkerWish.RUN), WorkerOrder("a-2", "a", 1, WorkerWish.RUN))), 0.0
    )
    machine.handle(WorkerGone("a-2", known), 0.0)
    for seen in machine.report:
        assert seen.evidence is not None
        assert len(getattr(seen.evidence, text)) == TAIL_BYTES
