"""A worker's id is never used twice, however many others were lost since it was."""

from __future__ import annotations

import msgspec
import pytest
from machine_job import Job

from edl.core.job.leader_inputs import Refuse, Vanished
from edl.core.job.leader_state import GONE_KEPT, PAST_KEPT
from edl.protocol.assignment import Verdict
from edl.protocol.leader_messages import Phase, Register
from edl.protocol.record import Identity


def a_job_without(lost: int) -> Job:
    """Two workers train; w1 was lost, and then so many others."""
    job = Job(np=3)
    for worker in ("w0", "w1", "w2"):
        job.join(worker)
    for worker in ("w0", "w1", "w2"):
        job.see(worker, Phase.TRAINING, 1, 0)
    job.feed(Vanished("w1", "its host is gone"))
    for number in range(lost):
        job.join(f"x{number}")
        job.feed(Vanished(f"x{number}", "its host is gone"))
    return job


@pytest.mark.parametrize("lost", [0, GONE_KEPT - 1, GONE_KEPT, 5 * GONE_KEPT])
def test_an_id_is_refused_after_many_were_lost_since(lost):
    job = a_job_without(lost)
    (refused,) = job.join("w1")
    assert isinstance(refused, Refuse) and "ids are used once" in refused.reason
    (told,) = job.see("w1", Phase.TRAINING, 1, 5)
    assert isinstance(told, Refuse) and told.retry, "it ends"
    assert job.orders("w1").verdict is Verdict.STOP


def test_a_trainer_that_was_a_member_is_refused_where_nothing_is_left_of_it():
    """Its daemon died, and its host was cut off for long; the next one registers."""
    job = a_job_without(1)
    record = msgspec.structs.replace(job.machine.record, gone=(), past=())
    job.machine = type(job.machine)(record, job.machine.lead_times)
    (refused,) = job.feed(Register(Identity("w1", "host", "127.0.0.1", 100, 102), 3, 1, 0, again=True))
    assert isinstance(refused, Refuse) and "ids are used once" in refused.reason


def test_a_member_whose_daemon_was_started_anew_is_known():
    job = a_job_without(0)
    assert job.feed(Register(Identity("w0", "host", "127.0.0.1", 100, 102), 3, 1, 0, again=True)) == []
    assert next(one.identity.daemon_pid for one in job.machine.record.members if one.identity.id == "w0") == 102


def test_what_is_kept_of_them_is_bounded():
    job = a_job_without(0)
    record = msgspec.structs.replace(job.machine.record, past=tuple(f"y{number}" for number in range(PAST_KEPT)))
    job.machine = type(job.machine)(record, job.machine.lead_times)
    for number in range(GONE_KEPT + 5):
        job.join(f"x{number}")
        job.feed(Vanished(f"x{number}", "its host is gone"))
    assert (len(job.machine.record.gone), len(job.machine.record.past)) == (GONE_KEPT, PAST_KEPT)
    assert job.machine.record.past[-1] == "x4"
