"""Errors that are no broken ring, met at a call of the ring: newcomers go, and those who trained without them train on.

At each call with each error: tests/unit/trainer/test_worker_shell.py, tests/unit/torch/test_faulty_averaging.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from elastic_job import Job

from edl.errors import FAULT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

# soak: what follows is the leader's, and the shell's, whose tests are named above
RING = pytest.mark.parametrize("ring", ["horovod", pytest.param("torch", marks=pytest.mark.soak)])
STEPS_ON = 15
# Each ends the newcomer's script, but the last one, of which it tells: the second time it is unfit.
NEWCOMERS = ("begin ValueError", "wait MemoryError", "expect KeyboardInterrupt", "prepare RuntimeError")


class FaultyJob(Job):
    def __init__(self, edl: Any, out: Any, ring: str, restarts: int) -> None:
        out.mkdir(parents=True)
        self.faults = out / "faults"
        environ: dict[str, Any] = {
            "EDL_RING": ring,
            "EDL_TEST_FAULTS": str(self.faults),
            "EDL_MAX_RESTARTS": str(restarts),
        }
        super().__init__(edl, out, 2, script=("torch_faulty.py",), EDL_SESSION_TIMEOUT="5", **environ)
        self.first = {worker["id"] for worker in self.wait_size(2)["workers"]}

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["kind"] == kind]

    def expect_survivors(self, size: int) -> None:
        """They end with the others, all with the same weights, and each sample was trained once."""
        self.wait_steps(STEPS_ON)
        assert self.first <= {worker["id"] for worker in self.status()["workers"]}
        self.finish()
        assert len(self.results()) == size
        self.expect_equal_models()
        self.expect_exactly_once()


@RING
@pytest.mark.soak  # the next test and tests/unit/trainer have each part of it
def test_newcomers_that_raise_go_and_the_survivors_train_on(edl: Any, tmp_path: Any, ring: str) -> None:
    job = FaultyJob(edl, tmp_path / "out", ring, len(NEWCOMERS))
    job.faults.write_text("\n".join(NEWCOMERS))
    job.scale(3)
    gone = lambda: len(job.told("worker_lost") + job.told("worker_unfit")) == len(NEWCOMERS)  # noqa: E731
    edl.wait(gone, "all that raise are gone", timeout_s=180)
    job.wait_size(3)
    lost = {event["worker"]: event["reason"] for event in job.told("worker_lost")}
    unfit = {event["worker"]: event["reason"] for event in job.told("worker_unfit")}
    assert not job.first & {*lost, *unfit}
    assert sorted(reason.partition(":")[0] for reason in lost.values()) == ["MemoryError", "ValueError", "interrupted"]
    assert list(unfit.values()) == [f"{FAULT}RuntimeError: as the test wants it"]
    job.expect_survivors(3)


@pytest.mark.slow
@RING
def test_what_a_survivor_raises_in_the_first_step_with_a_newcomer_ends_no_survivor(
    edl: Any, tmp_path: Any, ring: str
) -> None:
    """The newcomer is tried once more, alone: this time it goes well."""
    job = FaultyJob(edl, tmp_path / "out", ring, 0)
    old = job.faults.with_suffix(".old")
    old.write_text("begin ValueError once")
    job.scale(3)
    faulty = lambda: [event for event in job.told("batch_voided") if FAULT in event["reason"]]  # noqa: E731
    edl.wait(faulty, "the step in which it is raised is void", timeout_s=90)
    assert "ValueError: as the test wants it" in faulty()[0]["reason"]
    job.wait_size(3)
    assert job.told("worker_lost") == job.told("worker_unfit") == []
    job.expect_survivors(3)


@pytest.mark.slow
@RING
def test_what_a_survivor_raises_while_the_next_ring_is_prepared_puts_the_switch_off(
    edl: Any, tmp_path: Any, ring: str
) -> None:
    job = FaultyJob(edl, tmp_path / "out", ring, 0)
    old = job.faults.with_suffix(".old")
    old.write_text("prepare MemoryError")
    job.scale(3)
    edl.wait(lambda: job.told("switch_put_off"), "the switch is put off", timeout_s=90)
    [told] = job.told("switch_put_off")
    assert f"{FAULT}MemoryError: as the test wants it" in told["reason"]
    job.wait_steps(STEPS_ON)
    assert job.told("batch_voided") == []
    old.unlink()
    job.wait_size(3)  # it was left out for a while
    job.expect_survivors(3)
