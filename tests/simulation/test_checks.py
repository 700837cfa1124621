"""The checks can fail: each mutant here breaks one rule of edl, and the simulation must notice.

A mutant is a rule replaced in the real code, not a fault told to the simulation. It must be caught within SEEDS jobs
that nothing is wrong with as they are.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from mutants import Mutant, Patch, Play, expect_noticed, full, later

from edl.core.data import lease_holder, lease_recut, sample_ledger
from edl.core.data import ledger_versions as ledgers
from edl.core.data.unassigned import Unassigned
from edl.core.job import deadlines, member_states
from edl.core.job import leader_machine as job
from edl.core.job import leader_state as working
from edl.core.resize import scale_requests, target_size
from edl.core.switch import next_generation, ring_blame, ring_forming
from edl.core.worker import agreement, next_move, observed_trainer, worker_machine
from edl.core.worker.worker_inputs import Command
from edl.protocol.data_nouns import DataSpec
from edl.protocol.job_policy import Batching, BatchRule
from edl.protocol.record import JobState, Record, WorkerState
from tests.model import Moment, Planned, SimFault, SimJob, model_daemons, scenario
from tests.model.model_trainers import SimShells
from tests.model.model_worker import SimWorker

SEEDS = 200
SPEC = DataSpec(total=400, epochs=1, batch=4)
LONG = DataSpec(total=2000, epochs=1, batch=2)  # not all of it is leased yet when a newcomer comes


def plans_with_workers_that_boot(patch: Patch) -> None:
    patch.setattr(next_generation, "_could_enter", lambda _record, member: member.state not in scale_requests.GOING)
    transitions = member_states.moved

    def moved(member, cause):  # the table of states would notice first
        booting = member.state in scale_requests.BOOTING and cause is member_states.Cause.PLANNED
        return msgspec.structs.replace(member, state=WorkerState.SWITCHING) if booting else transitions(member, cause)

    patch.setattr(working, "moved", moved)


def leaves_its_ring_too_early(patch: Patch) -> None:
    patch.setattr(next_move, "_is_due", lambda _where, _assignment: True)
    patch.setattr(observed_trainer, "attention_step", lambda _generation, _orders, _copied: 0)


def takes_stale_orders(patch: Patch) -> None:
    patch.setattr(model_daemons, "are_newer", lambda _orders, _known: True)


def takes_overtaken_reports(patch: Patch) -> None:
    patch.setattr(job, "overtaken", lambda _heard, _last: False)


def never_asks_who_is_behind(patch: Patch) -> None:
    patch.setattr(agreement, "doubts", lambda *_args, **_more: False)


def follows_the_lowest_step(patch: Patch) -> None:
    def newness(step: int, rank: int, *, has_state: bool) -> int:
        return ((10_000 - step) << agreement.RANK_BITS) + rank if has_state else 0

    def agreed(highest: int) -> agreement.Agreed | None:
        step = 10_000 - (highest >> agreement.RANK_BITS)
        return agreement.Agreed(step, highest & agreement.RANKS) if highest else None

    patch.setattr(agreement, "newness", newness)
    patch.setattr(agreement, "agreed", agreed)


def takes_half_a_state_for_that_of_its_step(patch: Patch) -> None:
    def says(entering: agreement.Entering) -> agreement.Vote | None:
        vote = right(entering)
        return None if vote is None else vote._replace(behind=-entering.step)

    right = agreement.says
    patch.setattr(worker_machine, "says", says)


def takes_itself_for_as_far_as_all(patch: Patch) -> None:
    def begins(entering: agreement.Entering, heard: agreement.Vote | None) -> agreement.Beginning:
        return replace(right(entering, heard), current=True)

    right = agreement.begins
    patch.setattr(worker_machine, "begins", begins)


def forgets_what_the_dead_held(patch: Patch) -> None:
    patch.setattr(Unassigned, "give_back", lambda _self, _ranges: None)


def forgets_superseded_plans(patch: Patch) -> None:
    patch.setattr(ledgers.LedgerVersions, "go_by", lambda _self, _generation, _plans: None)


def remembers_plans_that_are_no_more(patch: Patch) -> None:
    change = working.WorkingState.change

    def keep(self, **changes):
        if changes.get("superseded") == ():
            del changes["superseded"]
        change(self, **changes)

    patch.setattr(working.WorkingState, "change", keep)


def never_notices_a_broken_ring(patch: Patch) -> None:
    patch.setattr(next_generation, "is_broken", lambda _now: False)


def waits_for_those_that_hang(patch: Patch) -> None:
    patch.setattr(deadlines.Waits, "overdue", lambda _self, _now: [])


def loses_requests_during_a_switch(patch: Patch) -> None:
    take = target_size.TargetSize.take

    def forgetful(self: target_size.TargetSize, asked, change, why, lacking) -> None:
        if self._working.record.plan is None:
            take(self, asked, change, why, lacking)

    patch.setattr(target_size.TargetSize, "take", forgetful)


def admits_more_than_the_maximum(patch: Patch) -> None:
    patch.setattr(scale_requests, "staying", lambda _record: [])


def leaves_no_worker_out(patch: Patch) -> None:
    judged = msgspec.structs.replace
    patch.setattr(
        ring_blame, "judge", lambda trials, found: ring_blame.RingBlame(judged(trials, judged=found.generation))
    )


def blames_the_first_member(patch: Patch) -> None:
    patch.setattr(ring_blame, "accused", lambda evidence, _proven: {evidence.roster[0]: "it is the first"})


def uses_a_generation_twice(patch: Patch) -> None:
    change = working.WorkingState.change

    def again(self: working.WorkingState, **changes) -> None:
        plan = changes.get("plan")
        if plan is not None and not plan.prepared:
            used = max(self.record.generation + 1, plan.generation - 1)
            changes |= {"plan": msgspec.structs.replace(plan, generation=used), "planned": used}
        change(self, **changes)

    patch.setattr(working.WorkingState, "change", again)


def leaves_leased_what_no_worker_can_have_begun(patch: Patch) -> None:
    """One of these rules would do for the end of a job; each alone: `tests/unit/core/data/test_sample_ledger.py`."""
    patch.setattr(sample_ledger.Ledger, "_withdraw", lambda _self: None)
    patch.setattr(lease_holder, "overtaking", lambda *_: iter(()))


def cuts_what_a_worker_has_read(patch: Patch) -> None:
    follows = lease_recut.follows

    def hasty(record, ledger, seen, mark):
        change = follows(record, ledger, seen, mark)
        if isinstance(change, lease_recut.Cut):
            return lease_recut.Cut(max(ledger.step, min(step for _, step in map(seen.marked, record.roster))))
        return change

    patch.setattr(lease_recut, "follows", hasty)


def cuts_before_all_have_told(patch: Patch) -> None:
    def hasty(record, ledger, seen, mark):
        step = mark() if ledger is not None and record.generation and record.plan is None else 0
        due = step and ledger.step < step < ledger.outdated_until and all(map(ledger.leases, record.roster))
        return lease_recut.Cut(step) if due else None

    patch.setattr(lease_recut, "follows", hasty)


def never_lifts_a_mark(patch: Patch) -> None:
    change, follows = working.WorkingState.change, lease_recut.follows

    def keep(self: working.WorkingState, **changes) -> None:
        if "plan" in changes and changes.get("rebatch", "") is None:
            del changes["rebatch"]
        change(self, **changes)

    def unlifted(*given):
        found = follows(*given)
        return None if isinstance(found, lease_recut.Lift) else found

    patch.setattr(working.WorkingState, "change", keep)
    patch.setattr(lease_recut, "follows", unlifted)


def leaves_a_working_ring_for_a_newcomers_sake(patch: Patch) -> None:
    patch.setattr(next_generation, "kept_step", lambda _now: None)


def announces_a_ring_whose_members_have_not_met(patch: Patch) -> None:
    patch.setattr(ring_forming.RollCalling, "stands", lambda _self, _roster: True)


MUTANTS: dict[Mutant, set[str]] = {
    plans_with_workers_that_boot: {"I4"},
    leaves_its_ring_too_early: {"I3"},
    takes_stale_orders: {"I10"},
    takes_overtaken_reports: {"I10"},
    never_asks_who_is_behind: {"I5"},
    follows_the_lowest_step: {"I3", "I5"},
    takes_half_a_state_for_that_of_its_step: {"I5"},
    takes_itself_for_as_far_as_all: {"I5"},
    forgets_what_the_dead_held: {"I6"},
    forgets_superseded_plans: {"I5", "I6", "I7"},
    remembers_plans_that_are_no_more: {"I6"},
    never_notices_a_broken_ring: {"I12"},
    waits_for_those_that_hang: {"I12", "I14"},
    loses_requests_during_a_switch: {"requests"},
    admits_more_than_the_maximum: {"limits"},
    uses_a_generation_twice: {"I2"},
    leaves_no_worker_out: {"I14", "I12"},
    blames_the_first_member: {"I14"},
    leaves_leased_what_no_worker_can_have_begun: {"I6"},
    cuts_what_a_worker_has_read: {"I7"},
    cuts_before_all_have_told: {"I7"},
    never_lifts_a_mark: {"I12", "I7"},
    leaves_a_working_ring_for_a_newcomers_sake: {"I14"},
    announces_a_ring_whose_members_have_not_met: {"I14"},
}


def leaver_dies(seed: int) -> SimJob:
    """In the very step after which it would have left."""
    job = SimJob(SPEC, seed=seed, workers=3)
    job.plan([Planned(SimFault.LEAVE, 0.1), Planned(SimFault.KILL, Moment.LAST_STEP)])
    return job


class NewestDie(SimJob):
    """All that have made the newest step, once the others are about to get their state."""

    def happens(self, moment: Moment, worker: SimWorker | None = None) -> None:
        super().happens(moment, worker)
        steps = {one: one.step for one in self.workers.values() if one.alive and one.has_state}
        if moment is Moment.FORMING and len(set(steps.values())) > 1 and not self.struck[SimFault.VANISH]:
            for newest in [one for one, step in steps.items() if step == max(steps.values())]:
                self.inflict(SimFault.VANISH, newest)


def newest_die(seed: int) -> SimJob:
    job = NewestDie(LONG, seed=seed, workers=4)
    job.plan([Planned(SimFault.LEAVE, 0.1), Planned(SimFault.KILL, Moment.LAST_STEP)])
    return job


class DyingShells(SimShells):
    def stepped(self, worker: SimWorker, commands: list[Command]) -> None:
        super().stepped(worker, commands)
        if worker.generation > 1 and worker.step == worker.entered + 1 and not self.job.struck[SimFault.VANISH]:
            self.job.inflict(SimFault.VANISH, worker)


class DiesEarly(SimJob):
    """A host vanishes right after the first step of a new ring, of which the leader may know nothing yet."""

    shells_class = DyingShells


def survivor_dies(seed: int) -> SimJob:
    job = DiesEarly(LONG, seed=seed, workers=3)
    job.plan([Planned(SimFault.JOIN, 0.1)])
    return job


class AskedInASwitch(SimJob):
    """For another size, while one is being reached."""

    asked = False

    def make_durable(self, record: Record) -> None:
        super().make_durable(record)
        if record.generation and record.plan is not None and not self.asked:
            self.asked = True
            self.after(0.001, self.requests.demand, 4)


def asked_in_a_switch(seed: int) -> SimJob:
    job = AskedInASwitch(LONG, seed=seed, workers=3)
    job.plan([Planned(SimFault.LEAVE, 0.1)])
    return job


class LeavesAtAMark(SimJob):
    """A worker wants to leave while others wait at a mark, for one who has not heard of it."""

    def make_durable(self, record) -> None:
        before = self.durable
        super().make_durable(record)
        if record.sizing.rebatch is not None and before.sizing.rebatch is None and not self.struck[SimFault.DEAFEN]:
            self.inflict(SimFault.DEAFEN)
            self.after(0.1, self.inflict, SimFault.LEAVE)


def leaves_at_a_mark(seed: int) -> SimJob:
    spec = DataSpec(total=6000, epochs=1, batch=12)
    job = LeavesAtAMark(spec, seed=seed, workers=3, batching=Batching(BatchRule.GLOBAL))
    job.plan([Planned(SimFault.JOIN, 0.1)])
    return job


def cut_off(seed: int) -> SimJob:
    """One can be part of no ring any more, and then another dies, so that all need one."""
    job = SimJob(LONG, seed=seed, workers=4)
    job.plan([Planned(SimFault.CUT_OFF, Moment.STEPPING, 5), Planned(SimFault.KILL, Moment.STEPPING, 6)])
    return job


class VoidCounter(SimShells):
    """Counts the mini-batches that are void: each once for each worker."""

    voids = 0

    def broken(self, worker: SimWorker, reason: str, awaited: str = "", waited_s: float = 0.0) -> None:
        self.voids += worker.sits
        super().broken(worker, reason, awaited, waited_s)


class NewcomerFails(SimJob):
    """As soon as its switch is announced. No word comes late, which would void a mini-batch by itself."""

    fault = SimFault.KILL
    shells: VoidCounter
    shells_class = VoidCounter

    def delay(self) -> float:
        return 0.001

    def make_durable(self, record: Record) -> None:
        super().make_durable(record)
        new = [] if record.plan is None or not record.generation else set(record.plan.roster) - set(record.roster)
        for worker in new:
            if not self.struck[self.fault]:
                self.inflict(self.fault, self.workers[worker])


def newcomer_fails(seed: int) -> NewcomerFails:
    job = NewcomerFails(LONG, seed=seed, workers=3)
    job.plan([Planned(SimFault.JOIN, 0.1)])
    return job


@pytest.mark.parametrize("fault", [SimFault.KILL, SimFault.CUT_OFF])
def test_a_newcomer_that_fails_once_its_switch_is_announced_voids_nothing(fault: SimFault) -> None:
    for seed in range(4):
        job = newcomer_fails(seed)
        job.fault = fault
        job.run()
        assert (job.durable.state, job.shells.voids) == (JobState.FINISHED, 0), job.story("")


def hangs_on_its_way(seed: int) -> SimJob:
    """A worker hangs as it enters the ring with a newcomer."""
    job = SimJob(LONG, seed=seed, workers=3)
    job.plan([Planned(SimFault.JOIN, 0.1), Planned(SimFault.STALL, Moment.ENTERING, 4)])
    return job


RARE: dict[Mutant, Play] = {  # what few seeds of `scenario` come across soon
    admits_more_than_the_maximum: full,
    never_notices_a_broken_ring: hangs_on_its_way,
    never_asks_who_is_behind: leaver_dies,
    follows_the_lowest_step: leaver_dies,
    takes_half_a_state_for_that_of_its_step: newest_die,
    takes_itself_for_as_far_as_all: newest_die,
    forgets_superseded_plans: survivor_dies,
    remembers_plans_that_are_no_more: survivor_dies,
    loses_requests_during_a_switch: asked_in_a_switch,
    never_lifts_a_mark: leaves_at_a_mark,
    leaves_leased_what_no_worker_can_have_begun: later(scenario, SEEDS + 90),
    waits_for_those_that_hang: later(scenario, 25),
    cuts_before_all_have_told: later(scenario, 20),
    cuts_what_a_worker_has_read: later(scenario, 20),
    leaves_no_worker_out: cut_off,
    blames_the_first_member: cut_off,
    leaves_a_working_ring_for_a_newcomers_sake: newcomer_fails,
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant: Mutant, monkeypatch: Patch) -> None:
    expect_noticed(mutant, RARE.get(mutant, scenario), MUTANTS[mutant], SEEDS, monkeypatch)
