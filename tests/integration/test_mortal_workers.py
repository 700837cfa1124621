"""Workers that are killed while they join or leave, and news that comes late: the others train on."""

from __future__ import annotations

import os
import signal
from collections import Counter
from itertools import pairwise

import pytest
from elastic_job import SAMPLES, Job
from pace import patient

from edl.core.job.lead_times import FIRST_STEPS
from edl.protocol.audit_lines import Committed
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

# Until the next ring stands at all members, the leader alone hears of a newcomer's death; then the survivors form
# another ring. One that dies just after it was READY may be in the switch by then, where a machine is slow.
UNSEEN = ("importing", "rehearsing", "called", "entering", "prepared")
ON_ITS_WAY = ("ready", "adopting", "adopting")
FORMING = ("connecting", "receiving the state")
STEPS_ON = 15  # that the job must make after each death


def voided(job: Job) -> Counter[str]:
    """How many mini-batches each worker had to do again."""
    return Counter(event["worker"] for event in job.events() if event["kind"] == "batch_voided")


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(UNSEEN, id="before its ring stands", marks=pytest.mark.soak),
        pytest.param(ON_ITS_WAY, id="on its way to the ring", marks=pytest.mark.soak),
        pytest.param(FORMING, id="in the ring that forms", marks=pytest.mark.soak),
    ],
)
def test_newcomers_may_die_at_any_moment_and_a_leaver_in_its_last(edl, tmp_path, moments):
    """`edl run` starts one after the other. Simulated jobs die at all these moments (tests/simulation/test_jobs.py)."""
    job = Job(edl, tmp_path / "out", workers=2, EDL_MAX_RESTARTS=str(len(moments)))
    first = {worker["id"] for worker in job.wait_size(2)["workers"]}
    job.grow(3, *moments, "leaving")
    [leaver] = [worker for worker in job.wait_size(3)["workers"] if worker["id"] not in first]
    before = voided(job)
    assert set(before) <= first
    assert max(before.values(), default=0) <= (0 if moments is UNSEEN else len(moments))
    os.kill(leaver["pid"], signal.SIGTERM)
    job.wait_size(2)
    job.wait_steps(STEPS_ON)
    assert max((voided(job) - before).values(), default=0) <= 1
    events = job.finish()
    if moments is ON_ITS_WAY:
        assert _keeps_its_step(events), "who dies on its way to its ring does so before the others are at the switch"
    lost = [event["worker"] for event in events if event["kind"] == "worker_lost" and event["worker"] != leaver["id"]]
    assert len(lost) == len(moments) - ("importing" in moments)  # who dies of that has not joined yet
    assert len(job.results()) == 2
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.slow
def test_a_worker_that_can_be_part_of_no_ring_is_left_out_and_the_others_train_on(edl, tmp_path):
    job = Job(edl, tmp_path / "out", workers=2, EDL_SESSION_TIMEOUT="5")  # it is called again after 12.5 s
    job.wait_size(2)
    job.grow(3, "cut off")
    edl.wait(lambda: job.status()["unfit"], "it is left out", timeout_s=60)
    job.wait_steps(STEPS_ON)
    job.wait_size(2)
    [unfit] = job.status()["unfit"]
    events = job.finish()
    [told] = [event for event in events if event["kind"] == "worker_unfit"]
    assert (told["worker"], told["host"]) == (unfit["worker"], unfit["host"])
    assert "no route to host" in told["reason"]
    pauses = [event["pause_ms"] for event in events if event["kind"] == "scaled"]
    assert pauses == [], "it never came to stand beside the ring of the others, who never left that one"
    assert len(job.results()) == 2
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.slow
def test_a_member_may_die_while_the_next_ring_forms(edl, tmp_path):
    """What is being prepared then is let go of, and holds up no survivor: they have another ring as soon as ever."""
    forms = tmp_path / "forms"
    job = Job(edl, tmp_path / "out", workers=3, EDL_TEST_DIED=str(forms))
    victim = job.wait_size(3)["workers"][1]
    job.grow(4, "holding up")
    edl.wait(forms.exists, "the next ring forms", timeout_s=60)
    job.wait_steps(STEPS_ON)  # beside that
    os.kill(victim["pid"], signal.SIGKILL)
    edl.wait(lambda: "worker_lost" in kinds(job), "its loss is known")
    job.wait_size(3)  # with the newcomer
    job.wait_steps(STEPS_ON)
    events = job.finish()
    [lost] = [event["ts"] for event in events if event["kind"] == "worker_lost"]
    [stands, *_] = [event for event in events if event["kind"] == "scaled"]
    # With the newcomer, unless that one was still busy with what was being prepared: then it comes with the next one.
    assert (stands["from"], stands["forced"]) == (3, True) and stands["to"] in (2, 3)
    assert stands["ts"] - lost < patient(5), "sooner than any time-out"
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.slow
def test_who_sends_its_state_to_a_newcomer_may_die(edl, tmp_path):
    died = tmp_path / "died"
    job = Job(edl, tmp_path / "out", workers=2, EDL_TEST_DIE="sending the state", EDL_TEST_DIED=str(died))
    job.wait_size(2)
    job.grow(3)
    edl.wait(died.exists, "the first of the survivors sends its state", timeout_s=60)
    lost = edl.wait(lambda: [event for event in job.events() if event["kind"] == "worker_lost"], "its loss is known")
    job.wait_size(2)
    job.wait_steps(STEPS_ON)
    events = job.finish()
    assert len(lost) == 1
    assert [(event["from"], event["to"]) for event in events if event["kind"] == "scaled"] == [(2, 2)]
    assert len(job.results()) == 2
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.parametrize("moment", ["computing", pytest.param("applied", marks=pytest.mark.soak), "committed"])
def test_the_last_step_of_all_may_be_hit(edl, tmp_path, moment):
    """Nothing comes after it that would tell whether the victim's samples are trained; all three know by themselves.

    Once they have that step, no other makes up for the rest of the victim's script: the job has failed with all
    trained. Those to which its result had not come, though the victim had it, make the step anew.
    """
    last_step = 2 * -(-SAMPLES // (3 * 4))
    job = Job(edl, tmp_path / "out", 3, epochs=2, EDL_TEST_DIE=moment, EDL_TEST_DIE_STEP=str(last_step))
    job.wait_size(3)
    events = job.finish(0, 1)
    assert [event["kind"] for event in events].count("worker_lost") == 1
    assert len(job.results()) == 2
    if not any("was not compared" in str(event.get("reason")) for event in events):  # one of them alone made it anew
        job.expect_equal_models()
    job.expect_exactly_once()
    ends = [event["reason"] for event in events if event["kind"] == "job_failed"]
    anew = any(event["kind"] == "scaled" and event["forced"] for event in events)
    # A ring of two may also form only for one to get that step from the other: then none makes it anew.
    assert (anew and not ends) if moment == "computing" else (len(ends) == 1 if not anew else len(ends) <= 1)
    assert all("did not come to the end of its script" in reason for reason in ends)


@pytest.mark.soak  # whom a switch waits for: tests/unit/core/switch/test_roll_call.py
def test_no_switch_is_announced_that_a_worker_cannot_hear_of(edl, tmp_path):
    """Its daemon is stopped, for less than a session time-out: the others train on, and grow once it is back."""
    job = Job(edl, tmp_path / "out", workers=2, EDL_SESSION_TIMEOUT="40")  # a newcomer may take long to boot
    status = job.wait_size(2)
    deaf = next(worker for worker in status["workers"] if worker["id"] != status["leader"])
    job.wait_steps(FIRST_STEPS + 1)  # those that a deaf worker has samples for, before it is leased seconds ahead
    os.kill(deaf["daemon_pid"], signal.SIGSTOP)  # before it can meet the newcomer: it prepares no ring
    try:
        newcomer = job.join()
        edl.wait(lambda: "switch_put_off" in kinds(job), "the switch is put off", timeout_s=60)
        step = _committed_step(job, deaf["id"]) + 20
        edl.wait(lambda: _committed_step(job, deaf["id"]) >= step, f"step {step}", timeout_s=60)
        assert "switch_scheduled" not in kinds(job)[kinds(job).index("worker_ready") :]
    finally:
        os.kill(deaf["daemon_pid"], signal.SIGCONT)
    job.wait_size(3)
    events = job.finish()
    assert newcomer.wait(patient(60)) == 0
    assert voided(job) == {}
    assert [(event["from"], event["to"], event["forced"]) for event in events if event["kind"] == "scaled"] == [
        (2, 3, False)
    ]
    job.expect_equal_models()
    job.expect_exactly_once()


def _keeps_its_step(events: list[dict]) -> bool:
    """A switch was planned anew without a newcomer, and after the same step."""
    steps = [event["after_step"] for event in events if event["kind"] == "switch_scheduled"]
    return any(one == next_one is not None for one, next_one in pairwise(steps))


def kinds(job: Job) -> list[str]:
    return [event["kind"] for event in job.events()]


def _committed_step(job: Job, worker: str) -> int:
    """The newest one of this worker, whose daemon does not tell of it."""
    (audit,) = [audit for audit in read(job.audit) if audit.worker == worker]
    return max((line.step for line in audit.lines if isinstance(line, Committed)), default=0)


def test_a_leader_whose_trainer_is_killed_leads_the_others_to_their_ring(edl, tmp_path):
    job = Job(edl, tmp_path / "out", workers=3)
    status = job.wait_size(3)
    job.wait_steps(STEPS_ON)
    os.kill(next(worker["pid"] for worker in status["workers"] if worker["id"] == status["leader"]), signal.SIGKILL)
    job.wait_size(2)
    job.wait_steps(STEPS_ON)
    kinds = [event["kind"] for event in job.finish()]
    since = kinds[kinds.index("worker_lost") :]
    assert since.count("switch_scheduled") == 1  # by the leader that follows it planned anew, while the survivors wait
    assert since.index("scaled") < since.index("leader_elected")
    job.expect_equal_models()
    job.expect_exactly_once()
