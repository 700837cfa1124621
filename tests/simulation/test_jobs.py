"""Whole simulated jobs under planned faults, over many seeds; a failing seed prints its transcript.

EDL_SEEDS sets how many seeds are tried, of which those beyond 100 are soaks. `python -m benchmarks.simulation` tries
10,000 of them on all cores.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise

import pytest
from mutants import Prompt

from edl.core.worker.worker_inputs import Command
from edl.core.worker.worker_states import TrainerState
from edl.protocol.data_nouns import DataSpec
from edl.protocol.record import JobState
from tests.model import Moment, Planned, SimFault, SimJob, scenario
from tests.model.model_faults import ANY
from tests.model.model_rings import STEP_S
from tests.model.model_trainers import SimShells
from tests.model.model_worker import SimWorker

SEEDS = int(os.environ.get("EDL_SEEDS", "300"))
BLOCK = 50
BLOCKS = [
    pytest.param(first, marks=pytest.mark.soak) if first >= 2 * BLOCK else first for first in range(0, SEEDS, BLOCK)
]


@pytest.mark.slow
@pytest.mark.parametrize("first", BLOCKS)
def test_no_invariant_breaks_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        scenario(seed).run()


# Of a script that ends in a ring that is not on record yet, which is the first or the last one.
ENDS = (2017708, 2025894)
# Of who waits for the last samples of all in a ring that is broken.
WAITS = (2023027,)
# Of a newcomer in rings that failed for others' sake, with ends not known; of a daemon that dies in each first ring.
BLAME = (2025649, 4100754, 2056356)
# Of members that meet before a switch is announced, and of newcomers that fail: where too few are left without them,
# where the others keep the step of the switch; and of a worker that left its ring at once, for a late word.
CALLED = (2003124, 2008696, 2031035, 2014051, 2022615, 2024303, 7101179)
# Of the simulation: a job that begins anew, whose first ring on record is there before its first step; and a worker
# that is let in after a request for a size, and had come before it; one that is left out for trial with a newer state;
# and a newcomer in a ring that began after another step than the one planned; one that is started after a request was
# made and before it is on record; and of its launcher, which waited for a worker that had ended without being let in,
# and so started no other.
OWN = (2025225, 2026560, 2018951, 2030134, 4102040, 2039650, 7702043, 2054888)
# Of a report that another overtakes while all are held at a mark; of workers that wait for samples in a ring whose plan
# came to nothing; and of one that is held in a ring which the others have left for good.
HELD = (2075143, 2097720, 2086562, 2060929)
# Of workers that all stand in epochs of an instant, while a checkpoint is due.
STALLED = (2023776, 2086445)
# Of a worker that is judged by time in which its leader could write nothing; and of samples that come back, more than
# one round of them, after scripts had their last batch.
AWAY = (2002850, 2006393, 2009777)
LATER = (*ENDS, *WAITS, *BLAME, *CALLED, *OWN, *HELD, *STALLED, *AWAY)


# Of a leaver that hands on the model and counts; of a worker that has not booted, planned with others that have; of one
# that waits for the last samples of a pass in a ring that is given up, while a plan that came to nothing is remembered;
# of one that waits at the mark of a planned switch and misses it; of a newcomer that sat in a ring given up since;
# and of the simulation itself: of a worker that gives up just before the last one comes, of one that dies before the
# job has heard of it, of a job that begins anew, as all that had trained are gone before any ring was on record.
@pytest.mark.parametrize(
    "seed",
    [704850, 1003140, 1004991, 1006317, 1006832, 1014851, 3000796, 3002182, 2002621, 2015825, 2017369, *LATER],
)
def test_what_was_found_stays_mended(seed: int) -> None:
    scenario(seed, in_line=True).run()


LATEST = [9420329, 9457047, 9411185, 605214776, 2059212]


# Of a newcomer whose daemon died while its ring was prepared; of one that was left out, came into a ring after a
# broken one, and was left out of the next; of one that alone has applied a step, and cannot meet the other; of a worker
# whose planned ring came to nothing before it had left the one that stands; of the last one with the model, which is
# leaving and found unfit; of one that is to boot alone after it has failed in the first ring; of a leaver that alone
# has made a step as another one dies, and of one that is planned for with a worker that dies while all others are at
# their ends; of a leaver that never heard of the switch that it was to leave at; and of the simulation: a ring that is
# given up before its only member, which is stopped, has begun with it, a member that finds the state lost as the others
# begin, and a long job with small batches.
@pytest.mark.parametrize("seed", [7004416, 2030231, 2039859, 2051460, 2013466, 2002149, 2003987, 2082073, *LATEST])
def test_what_was_found_where_rings_are_prepared_stays_mended(seed: int) -> None:
    scenario(seed, saves=False).run()


# Of members that have long to train until a switch, for which a newcomer waits already; of a leaver that misses a
# switch and is called back, as of its ring only newcomers are left, and of one whose leader has yet to hear where it
# is; and of the simulation: of a newcomer that is taken for unfit in place of a member of the ring that trains, and can
# form no other one; of one that is killed as another one finds their ring broken. Of scripts with data of their own
# that boot alone after their first ring has failed.
@pytest.mark.parametrize("seed", [2090001, 9101001, 9104198, 9832100, 9855052, 9937568, 90005902, 90019408])
def test_what_was_found_of_late_stays_mended(seed: int) -> None:
    scenario(seed).run()


# Of newcomers whose state never came, before any worker had trained: alone, they could give theirs to no other.
@pytest.mark.parametrize("seed", [31007728, 31009097])
def test_where_none_has_trained_each_has_the_state(seed: int) -> None:
    scenario(seed).run()


OF_LATE = [45001044, 60007028, 70013352, 90015273, 150008092, 150009717]


# A new leader heard of the last ring, of one, as its script had ended: it had made a step anew that another had made.
def test_who_ended_after_a_step_that_the_last_ring_made_anew_is_compared_with_no_other() -> None:
    job = scenario(90009716)
    job.run()
    assert (job.durable.state, job.durable.began_step) == (JobState.FINISHED, 1)


# Of a member that is ahead of others, which have waited for one that hangs; of a newcomer that waits in `init` while
# the first ring comes to nothing again and again; of a member that went to a planned ring in time, as another one that
# heard of it late found the ring of before broken; of one that went there from a mark, as the others' ring lost one; of
# a newcomer that waits for the state of one that hangs; of a member that waited in its ring for a step that another one
# had made, which then hung, and after that in the next ring, for as long again; of a newcomer that boots after a first
# ring that failed; of members that waited in the next ring for one that had begun another step; of one that waits
# beyond a mark as its ring is given up; and of the simulation: workers had died unheard of, with three leaders, and
# nothing started others; daemons did not register anew with a new leader. The last two: of one that had waited in a
# planned ring, which failed before it was on record.
@pytest.mark.parametrize("seed", [803394, 20100243, 38, 31006599, 31018297, 819060, 31017023, 31029896, *OF_LATE])
def test_no_sound_worker_is_taken_for_one_that_hangs(seed: int) -> None:
    scenario(seed).run()


# It was cut off after the last step, in a collective of its own, and nothing was left to be trained without it.
def test_a_job_has_failed_whose_unfit_worker_did_not_come_to_the_end_of_its_script() -> None:
    job = scenario(160053499)
    job.run()
    assert job.durable.state is JobState.FAILED
    assert "did not come to the end of its script: it cannot be part of a ring" in job.durable.reason


# Of the simulation: scripts that end after fewer epochs than the job's, and a sender that trains in a later ring.
@pytest.mark.parametrize("seed", [140010442, 140018313])
def test_no_check_takes_a_right_story_for_a_wrong_one(seed: int) -> None:
    scenario(seed).run()


# Its other member was lost before anybody had told that the ring stood, and the coordinator was away.
def test_no_job_begins_anew_beside_a_script_that_has_ended_in_its_first_ring() -> None:
    job = scenario(60013443)
    job.run()
    assert job.durable.reason == "worker w1 did not come to the end of its script: killed"


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("total", [1, 7, 640, 1001])
def test_a_quiet_job_trains_every_sample_once(workers: int, total: int) -> None:
    job = SimJob(DataSpec(total=total, epochs=3, batch=8), seed=1, workers=workers)
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")


class TimedShells(SimShells):
    """Remembers when steps were made."""

    def __init__(self, job: SimJob) -> None:
        super().__init__(job)
        self.made: list[float] = []

    def stepped(self, worker: SimWorker, commands: list[Command]) -> None:
        self.made.append(self.job.now)
        super().stepped(worker, commands)


class Timed(SimJob):
    shells: TimedShells
    shells_class = TimedShells


@pytest.mark.parametrize("seed", range(20))
def test_training_goes_on_while_the_coordinator_is_away(seed: int) -> None:
    job = Timed(DataSpec(total=3000, epochs=1, batch=8), seed=seed, workers=2, lease_s=1.2)
    job.plan([Planned(SimFault.AWAY, 0.4)])
    job.run()
    gaps = [later - earlier for earlier, later in pairwise(job.shells.made)]
    assert job.durable.state is JobState.FINISHED
    assert job.node.away_until > 0.4
    assert max(gaps) < 5 * STEP_S, job.story(f"{max(gaps):.3f} s without a step")


@pytest.mark.parametrize("lease_s", [0.2, 0.6, 1.2])
@pytest.mark.parametrize("seed", range(3))
def test_while_workers_come_and_go_no_step_waits_for_leases_and_no_word_is_late(lease_s: float, seed: int) -> None:
    job = Prompt(DataSpec(total=2000, epochs=1, batch=2), seed=seed, workers=3, lease_s=lease_s)
    job.plan([Planned(SimFault.JOIN, 0.1), Planned(SimFault.LEAVE, 0.8), Planned(SimFault.JOIN, 1.5)])
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    assert job.durable.planned == 4, job.story("not all came and went")


LONG = DataSpec(total=1500, epochs=1, batch=4)
UNSEEN = [Moment.BOOTING, Moment.REHEARSING, Moment.READY, Moment.ENTERING]
SEEN = [Moment.FORMING, Moment.SITTING, Moment.STEPPING]  # the others have left their ring for one with the newcomer


def run(*faults: Planned, seed: int, workers: int = 3) -> SimJob:
    """A job in which just this goes wrong."""
    job = SimJob(LONG, seed=seed, workers=workers)
    job.plan(list(faults))
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    return job


class VoidShells(SimShells):
    """Counts the mini-batches of each worker that are void."""

    def __init__(self, job: SimJob) -> None:
        super().__init__(job)
        self.voids = Counter[str]()

    def broken(self, worker: SimWorker, reason: str, awaited: str = "", waited_s: float = 0.0) -> None:
        self.voids[worker.id] += worker.sits
        super().broken(worker, reason, awaited, waited_s)


class NewcomerHit(SimJob):
    """At its moment, whichever other comes to it. No word comes late, which would void a mini-batch by itself."""

    newcomer = "w3"
    shells: VoidShells
    shells_class = VoidShells

    def __init__(self, fault: SimFault, moment: Moment, seed: int) -> None:
        super().__init__(LONG, seed=seed, workers=3)
        self.fault, self.moment = fault, moment
        self.plan([Planned(SimFault.JOIN, 0.1)])

    def delay(self) -> float:
        return 0.001

    def happens(self, moment: Moment, worker: SimWorker | None = None) -> None:
        victim = self.workers.get(self.newcomer)
        if victim is not None and moment is self.moment and not self.struck[self.fault]:
            forms = moment is Moment.FORMING and victim.doing is TrainerState.ENTERING  # `worker` is any of that ring
            if forms or worker is victim:
                self.inflict(self.fault, victim)
        super().happens(moment, worker)


@pytest.mark.parametrize("fault", [SimFault.KILL, SimFault.VANISH, SimFault.STALL])
@pytest.mark.parametrize("moment", [*UNSEEN, *SEEN])
def test_a_newcomer_that_dies_or_hangs_costs_no_step_before_its_ring_forms_and_one_mini_batch_after(
    fault: SimFault, moment: Moment
) -> None:
    for seed in range(3):
        job = NewcomerHit(fault, moment, seed)
        job.run()
        assert job.durable.state is JobState.FINISHED, job.story("not finished")
        assert job.struck[fault] == 1
        assert not set(job.durable.roster) & {job.newcomer}, job.story("the newcomer was not dropped")
        assert max(job.shells.voids.values(), default=0) <= (moment in SEEN), job.story(f"{job.shells.voids}")


@pytest.mark.parametrize("moment", [moment for moment in ANY if moment is not Moment.BOOTING])
def test_of_a_worker_that_is_killed_whole_no_session_is_waited_for(moment: Moment) -> None:
    """Checked in each job: `tests.model.fault_actions`."""
    for seed in range(3):
        job = run(Planned(SimFault.JOIN, 0.1), Planned(SimFault.KILL_WORKER, moment), seed=seed)
        assert job.struck[SimFault.KILL_WORKER] <= 1


@pytest.mark.parametrize("seed", range(5))
def test_a_worker_may_be_killed_whole_with_the_leader_in_it(seed: int) -> None:
    at = 0.1 + 0.02 * seed
    job = run(Planned(SimFault.KILL_WORKER, at), Planned(SimFault.CRASH_LEADER, at), seed=seed)
    assert job.durable.losses == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_hang_in_the_boot_costs_the_others_no_step(seed: int) -> None:
    job = run(Planned(SimFault.JOIN, 0.1), Planned(SimFault.STALL, Moment.BOOTING), seed=seed)
    assert job.durable.planned == 1  # nothing was planned after the first generation: no worker paused


@pytest.mark.parametrize("fault", [SimFault.KILL, SimFault.VANISH, SimFault.STALL])
@pytest.mark.parametrize("seed", range(5))
def test_a_leaver_that_dies_or_hangs_while_it_leaves_holds_up_no_other(fault: SimFault, seed: int) -> None:
    run(Planned(SimFault.LEAVE, 0.1), Planned(fault, Moment.LEAVING), seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_word_that_comes_late_costs_a_void_mini_batch_and_no_hang(seed: int) -> None:
    job = SimJob(LONG, seed=seed, workers=3)
    job.plan([Planned(SimFault.JOIN, 0.1), Planned(SimFault.DEAFEN, Moment.SWITCHING, 2)])
    job.run()
    assert job.durable.state is JobState.FINISHED
    assert len(job.durable.roster) == 4, job.story("the newcomer is not in")


@pytest.mark.parametrize("fault", [SimFault.CRASH_LEADER, SimFault.CHANGE_LEADER])
@pytest.mark.parametrize("moment", [Moment.DECIDING, Moment.SWITCHING, Moment.ENTERING, Moment.SITTING])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_leader_may_die_at_any_time(fault: SimFault, moment: Moment, count: int) -> None:
    job = run(Planned(SimFault.JOIN, 0.1), Planned(fault, moment, count), seed=count)
    assert len(job.durable.roster) >= 3


@pytest.mark.parametrize("seed", range(5))
def test_the_last_size_asked_for_is_reached(seed: int) -> None:
    job = SimJob(DataSpec(total=6000, epochs=1, batch=2), seed=seed, workers=2)
    job.plan([Planned(SimFault.SCALE, Moment.SWITCHING, 2), Planned(SimFault.SCALE, Moment.ENTERING, 3)])
    job.after(0.1, job.requests.ask, 4)
    job.after(1.0, job.requests.demand, 1 + seed % 4)
    job.run()


@pytest.mark.parametrize("moment", [Moment.READY, Moment.ENTERING, Moment.STEPPING])
@pytest.mark.parametrize("seed", range(5))
def test_a_worker_that_can_be_part_of_no_ring_is_left_out_and_the_others_train_on(moment: Moment, seed: int) -> None:
    job = SimJob(LONG, seed=seed, workers=3)
    job.plan([Planned(SimFault.JOIN, 0.1), Planned(SimFault.CUT_OFF, moment, 4 if moment is Moment.ENTERING else 1)])
    job.run()
    assert job.durable.state is JobState.FINISHED, job.story("not finished")
    cut_off = {worker.id for worker in job.workers.values() if worker.cut_off}
    assert {one.worker for one in job.durable.trials.unfit} == cut_off
    assert len(job.durable.roster) >= 3
