"""Jobs that are saved every so often, and jobs that die as a whole and are resumed (I16)."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from itertools import pairwise

import pytest
from mutants import Calm

from edl.core.checkpoint.due_times import COSTS_KEPT
from edl.protocol.checkpoint_record import Auto, Checkpointing
from edl.protocol.data_nouns import DataSpec
from edl.protocol.record import JobState
from tests.model import Moment, Planned, SimFault, SimJob, scenario
from tests.model.model_checkpoints import Savings
from tests.model.model_lives import lives, newest

SEEDS = int(os.environ.get("EDL_SEEDS", "300"))
BLOCK = 50
BLOCKS = [
    pytest.param(first, marks=pytest.mark.soak) if first >= 2 * BLOCK else first for first in range(0, SEEDS, BLOCK)
]
DATA = DataSpec(total=900, epochs=1, batch=2)


@pytest.mark.slow
@pytest.mark.parametrize("first", BLOCKS)
def test_no_invariant_breaks_in_jobs_that_are_saved(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        scenario(seed, saves=True).run()


@pytest.mark.slow
@pytest.mark.parametrize("first", BLOCKS)
def test_lives_that_are_resumed_train_each_sample_once(first: int) -> None:
    ends, resumed = Counter[str](), 0
    for seed in range(first, min(first + BLOCK, SEEDS)):
        for job in lives(seed):
            resumed += job.inherits is not None
        ends[job.end] += 1
    assert resumed > 0.5 * sum(ends.values())
    assert ends["finished"] > 0.8 * sum(ends.values()), ends


# Of a part that is stored so late that the part of the next saving is durable before it, and then counted for it.
@pytest.mark.parametrize("seed", [345])
def test_what_was_found_of_lives_stays_mended(seed: int) -> None:
    for _ in lives(seed):
        pass


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_where_nothing_goes_wrong_each_saving_is_durable_and_the_next_comes_in_time(seed: int, workers: int) -> None:
    every_s = 0.3
    job = Calm(DATA, seed=seed, workers=workers, checkpointing=Checkpointing("memory:", every_s=every_s, last=True))
    job.run()
    checks = job.checks.savings
    numbers = list(range(1, job.durable.checkpoints.saves + 1))
    assert list(checks.durable_at) == list(checks.begun_at) == numbers, job.story("one has failed")
    took = [checks.durable_at[number] - checks.begun_at[number] for number in numbers]
    assert max(took[:-1]) < 0.25
    assert took[-1] < 0.6  # the last one is announced early
    gaps = [after - before for before, after in pairwise(list(checks.begun_at.values())[:-1])]
    assert all(every_s - 0.02 <= gap < every_s + 0.25 for gap in gaps), gaps  # as seen by writes, which take time
    assert job.durable.checkpoints.saved is not None
    assert job.durable.checkpoints.saved.step == job.checks.steps  # the last one, of the last step
    assert job.durable.state is JobState.FINISHED


GOES_S = 1.0  # to see that workers stand, to try it again where one is at its update, and to write


def gone(job: SimJob) -> int:
    """The step that it is saved after."""
    assert job.durable.state is JobState.PREEMPTED, job.story("not preempted")
    assert job.durable.checkpoints.saved is not None, job.story("not saved")
    return job.durable.checkpoints.saved.step


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_job_that_is_to_go_is_saved_where_its_scripts_stand(seed: int, alone: bool) -> None:
    """For longer than its deadline; an evaluation of one worker is over before the others give up waiting for it."""
    job = SimJob(DATA, seed=seed, workers=3, checkpointing=Checkpointing("memory:"))
    job.savings.fails = False
    job.after(0.5, partial(job.shells.evaluate, 0.25 if alone else 8.0, alone=alone))
    job.after(0.5 + 0.01 * seed, job.requests.ask_to_go, 5.0)
    job.run()
    beyond = job.checks.steps - gone(job)  # a mini-batch that was begun already may come to its end
    assert 0 <= beyond <= alone, job.story("steps were trained that are not saved")
    assert job.now < 0.7 + GOES_S + 0.1 * seed, job.story("late")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_no_step_is_trained_beyond_that_which_is_saved(seed: int, workers: int) -> None:
    job = Calm(DATA, seed=seed, workers=workers, checkpointing=Checkpointing("memory:"))
    job.after(0.4 + 0.03 * seed, job.requests.ask_to_go, 5.0)
    job.run()
    assert gone(job) == job.checks.steps, job.story("steps were trained that are not saved")


@pytest.mark.parametrize(
    "fault", [SimFault.KILL, SimFault.VANISH, SimFault.CRASH_LEADER, SimFault.CHANGE_LEADER, SimFault.RENEW_DAEMON]
)
@pytest.mark.parametrize("moment", [Moment.SAVING, Moment.COPYING, Moment.STORING, Moment.PUBLISHING])
def test_whatever_strikes_while_workers_wait_to_go_it_is_saved_within_its_deadline(
    fault: SimFault, moment: Moment
) -> None:
    """It needs as many workers as it has, and no others come."""
    for seed in range(3):
        job = SimJob(DATA, seed=seed, workers=3, minimum=3, checkpointing=Checkpointing("memory:"))
        job.plan([Planned(fault, moment, 1)])
        job.after(0.5, job.requests.ask_to_go, 5.0)
        job.run()
        gone(job)
        assert job.now < 0.5 + 5.0, job.story("only the deadline ended it")


@pytest.mark.parametrize("seed", range(5))
def test_by_steps_it_is_saved_every_so_many(seed: int) -> None:
    job = Calm(DATA, seed=seed, workers=2, checkpointing=Checkpointing("memory:", every_steps=40))
    job.run()
    steps = [saving.after_step for saving in job.savings.store.manifests.values()]
    assert len(steps) >= 3
    assert all(40 <= after - before <= 60 for before, after in pairwise(steps)), steps


@pytest.mark.parametrize("seed", range(5))
def test_a_job_that_chooses_how_often_follows_its_choice(seed: int) -> None:
    """Here faults ask for one each 0.2 s, and it must not be sooner than 0.1 s."""
    auto = Auto(overhead=1.0, least_s=0.1, fault_s=2.0)
    job = Calm(DATA, seed=seed, workers=2, checkpointing=Checkpointing("memory:", auto=auto))
    job.run()
    begun = list(job.checks.savings.begun_at.values())
    gaps = [after - before for before, after in pairwise(begun)]
    assert begun[0] >= 0.1
    assert len(gaps) >= 3
    assert all(0.1 <= gap < 0.7 for gap in gaps), gaps
    assert len(job.durable.checkpoints.save_costs) == min(COSTS_KEPT, len(begun))


@pytest.mark.parametrize("seed", range(5))
def test_a_job_that_is_not_to_be_saved_is_not(seed: int) -> None:
    job = Calm(DATA, seed=seed, workers=2, checkpointing=Checkpointing("memory:"))
    job.run()
    assert not job.durable.checkpoints.saves


@pytest.mark.parametrize("seed", range(10))
def test_requests_are_answered_whatever_the_leaders_do(seed: int) -> None:
    job = SimJob(DATA, seed=seed, workers=2, checkpointing=Checkpointing("memory:"))
    for number in range(3):
        job.after(0.1 + 0.05 * number, job.requests.ask_checkpoint, f"r{number}")
    moments = (Moment.SAVING, Moment.COPYING, Moment.STORING, Moment.PUBLISHING)
    job.plan(
        [Planned(SimFault.CRASH_LEADER, moments[seed % 4], 1), Planned(SimFault.CHANGE_LEADER, moments[seed % 4], 2)]
    )
    job.run()
    assert all(one.path or one.failure for one in job.durable.checkpoints.save_requests), (
        job.durable.checkpoints.save_requests
    )
    assert {one.request for one in job.durable.checkpoints.save_requests} == {"r0", "r1", "r2"}
    assert newest(job.savings.store) is not None


@pytest.mark.parametrize(
    "fault", [SimFault.KILL, SimFault.VANISH, SimFault.LEAVE, SimFault.RENEW_DAEMON, SimFault.CRASH_LEADER]
)
@pytest.mark.parametrize("moment", [Moment.SAVING, Moment.COPYING, Moment.STORING, Moment.PUBLISHING])
@pytest.mark.parametrize("seed", range(4))
def test_after_a_fault_at_any_moment_a_durable_one_follows(fault: SimFault, moment: Moment, seed: int) -> None:
    job = SimJob(DATA, seed=seed, workers=3, checkpointing=Checkpointing("memory:", every_s=0.1))
    job.plan([Planned(fault, moment, 1)])
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    later = [number for number in job.checks.savings.durable_at if number > 1]
    assert later, job.story("no checkpoint is durable after the first")


@pytest.mark.parametrize("seed", range(5))
def test_a_saving_never_holds_up_the_end_of_a_job(seed: int) -> None:
    """But the last one, for which an end waits within bounds."""

    class Stuck(Calm):
        """What is to be published never is."""

        @property
        def savings(self) -> Savings:
            return self._savings

        @savings.setter
        def savings(self, savings: Savings) -> None:
            savings.publish = lambda leader, record: None  # type: ignore[method-assign]
            self._savings = savings

    for last in (False, True):
        job = Stuck(DATA, seed=seed, workers=2, checkpointing=Checkpointing("memory:", every_s=0.1, last=last))
        job.run()
        assert job.durable.state is JobState.FINISHED, job.story("not finished")
        assert not job.durable.checkpoints.saved


@pytest.mark.parametrize("on_all", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_what_scripts_ask_for_is_saved_at_once_and_once(seed: int, on_all: bool) -> None:
    job = Calm(DATA, seed=seed, workers=3, checkpointing=Checkpointing("memory:"))
    job.savings.wishes = {30: on_all, 90: on_all}
    job.run()
    steps = sorted(saving.after_step for saving in job.savings.store.manifests.values())
    assert len(steps) == 2
    assert 30 <= steps[0] <= 45 and 90 <= steps[1] <= 105, steps  # as soon as the word can reach all
    assert [one.step for one in job.durable.checkpoints.save_requests] == steps


# With less data the jobs of the later seeds end while a word of publishing is awaited, or before the next try is due.
@pytest.mark.parametrize("seed", [*range(10), 37, 38, 39, 49, 51, 52, 57, 63, 79])
def test_what_scripts_ask_for_is_answered_whatever_the_leaders_do(seed: int) -> None:
    """The store and its words fail now and then: the job trains on for long enough to try again."""
    job = SimJob(DataSpec(total=3600, epochs=1, batch=2), seed=seed, workers=3, checkpointing=Checkpointing("memory:"))
    job.savings.wishes = {step: bool(seed % 2) for step in range(20, 60)}  # at each step
    moments = (Moment.SAVING, Moment.COPYING, Moment.STORING, Moment.PUBLISHING)
    job.plan(
        [Planned(SimFault.CRASH_LEADER, moments[seed % 4], 1), Planned(SimFault.RENEW_DAEMON, moments[seed % 4], 2)]
    )
    job.run()
    assert all(one.path or one.failure for one in job.durable.checkpoints.save_requests), (
        job.durable.checkpoints.save_requests
    )
    assert len(job.durable.checkpoints.save_requests) < 20  # those that wait are served by one
    assert any(saving.after_step >= 59 for saving in job.savings.store.manifests.values()), job.story("not saved")
