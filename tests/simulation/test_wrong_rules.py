"""More mutants (`test_checks`): each breaks a rule of edl, and is tried in a job where that rule is needed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from mutants import LosesTheNewest, Mutant, Patch, Prompt, ReadsUnevenly, expect_noticed

from edl.core.data import lease_grants, sample_ledger
from edl.core.data import ledger_versions as ledgers
from edl.core.data.ledgers import restored_ledger
from edl.core.job import deadlines, lead_times, leader_inputs, local_ranks, observations
from edl.core.job import leader_machine as job
from edl.core.job import leader_state as working
from edl.core.switch import next_generation
from edl.core.worker import model_state, observed_trainer, worker_machine
from edl.core.worker import next_move as seat
from edl.protocol.assignment import Verdict
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import Register
from edl.protocol.record import WorkerState
from tests.model import Moment, Planned, SimFault, SimJob
from tests.model.fault_actions import SimFaults
from tests.model.model_worker import SimWorker

SEEDS = 60
DATA = DataSpec(total=1200, epochs=1, batch=2)
EPOCHS = DataSpec(total=90, epochs=6, batch=2)
PASSES = DataSpec(total=30, epochs=8, batch=2, by_sample=True)  # short ones: each asks for its epoch
LEASED = DataSpec(total=900, epochs=1, batch=4)  # all of it is leased when a newcomer comes


def counts_as_trained_what_one_worker_has_applied(patch: Patch) -> None:
    def stable(seen, workers):
        return max((seen.step(worker) for worker in workers if seen.get(worker)), default=None)

    patch.setattr(observations.Observations, "stable_step", stable)


def counts_as_trained_what_all_who_were_heard_have_applied(patch: Patch) -> None:
    def stable(seen, workers):
        return min((seen.step(worker) for worker in workers if seen.get(worker)), default=None)

    patch.setattr(observations.Observations, "stable_step", stable)


def goes_on_with_half_a_copy(patch: Patch) -> None:
    patch.setattr(model_state, "has_state", lambda step, *, tainted: step > 0)


def forgets_who_is_gone(patch: Patch) -> None:
    patch.setattr(working.WorkingState, "gone", lambda _working, _worker: None)


def takes_over_and_misses_no_worker(patch: Patch) -> None:
    handle = job.JobMachine.handle

    def took_over(machine, happened, *now, **more):
        if isinstance(happened, leader_inputs.TookOver):
            members = frozenset(member.identity.id for member in machine.record.members)
            happened = dataclasses.replace(happened, alive=members)
        return handle(machine, happened, *now, **more)

    patch.setattr(job.JobMachine, "handle", took_over)


def waits_for_the_session_of_the_dead(patch: Patch) -> None:
    handle = job.JobMachine.handle

    def reported(machine, happened, *now, **more):
        if isinstance(happened, leader_inputs.Reported):
            seen = msgspec.structs.replace(happened.observation, dead=())
            happened = dataclasses.replace(happened, observation=seen)
        return handle(machine, happened, *now, **more)

    patch.setattr(job.JobMachine, "handle", reported)


def lets_no_leaver_hand_on_the_model(patch: Patch) -> None:
    is_so = next_generation._is

    def never_leaving(now, worker, state):
        return state is not WorkerState.LEAVING and is_so(now, worker, state)

    patch.setattr(next_generation, "_is", never_leaving)


def leaves_before_its_step(patch: Patch) -> None:
    move, attention = seat.next_move, seat.attention_step
    leave = Verdict.LEAVE
    patch.setattr(
        worker_machine, "next_move", lambda at, told: seat.Leave() if told.verdict is leave else move(at, told)
    )
    patch.setattr(
        observed_trainer, "attention_step", lambda ring, told, _: 0 if told.verdict is leave else attention(ring, told)
    )


def gives_all_of_a_host_the_same_local_rank(patch: Patch) -> None:
    patch.setattr(job, "free_local_rank", lambda _members, _identity: 0)


def tells_of_nothing(patch: Patch) -> None:
    patch.setattr(working.WorkingState, "tell", lambda _working, _fact: None)


def counts_a_sample_too_many(patch: Patch) -> None:
    totals = sample_ledger.Ledger.totals

    def more(self):
        return tuple(msgspec.structs.replace(one, samples=one.samples + 1) for one in totals(self))

    patch.setattr(sample_ledger.Ledger, "totals", more)


def ends_no_epoch(patch: Patch) -> None:
    patch.setattr(sample_ledger.Ledger, "_end_epochs", lambda _ledger: ())


def gives_up_a_worker_awaited_for_a_moment(patch: Patch) -> None:
    overdue = deadlines.Waits.overdue
    patch.setattr(deadlines.Waits, "overdue", lambda waits, _now: overdue(waits, deadlines.END_OF_TIME))


def takes_who_is_ahead_for_one_that_hangs(patch: Patch) -> None:
    def late(waits, record, seen):
        ring = record.generation
        here = [one for one in record.roster if seen.trains(one, ring) and not seen.failed(one, ring)]
        return here if waits._waited(record, seen) else []

    patch.setattr(deadlines.Waits, "_late", late)


def gives_up_who_is_ahead_with_another_word(patch: Patch) -> None:
    takes_who_is_ahead_for_one_that_hangs(patch)
    patch.setattr(deadlines.Awaited, "told", property(lambda _wait: "it is not heard of"))


def bounds_the_wait_for_the_first_ring_by_that_for_a_boot(patch: Patch) -> None:
    look = deadlines.Waits.look

    def at_all(waits, record, *given, **more):
        look(waits, msgspec.structs.replace(record, begun=True), *given, **more)

    patch.setattr(deadlines.Waits, "look", at_all)


def plans_a_switch_without_a_mark(patch: Patch) -> None:
    def crossing(self, roster, **_):
        step = self.switch_step()
        data = None if step is None else self._working.ledgers.planned(roster, step, self._lease_steps())
        return None if step is None else lease_grants.Crossing(step, data and data.snapshot(), None)

    patch.setattr(lease_grants.LeaseGrants, "crossing", crossing)


def cuts_at_the_first_step_told(patch: Patch) -> None:
    planned = ledgers.LedgerVersions.planned

    def hasty(self, roster, after_step, ahead, read=None, **how):
        return planned(self, roster, after_step, ahead, None if read is None else after_step, **how)

    patch.setattr(ledgers.LedgerVersions, "planned", hasty)


def lifts_the_mark_with_the_plan(patch: Patch) -> None:
    crossing = lease_grants.LeaseGrants.crossing

    def unmarked(self, *given, **more):
        found = crossing(self, *given, **more)
        return found and dataclasses.replace(found, rebatch=None)

    patch.setattr(lease_grants.LeaseGrants, "crossing", unmarked)


def switches_at_the_newest_step(patch: Patch) -> None:
    patch.setattr(lead_times.LeadTimes, "switch_step", lambda _lead_times, newest, *_: newest)


def puts_off_a_switch_that_some_have_made(patch: Patch) -> None:
    def passed(now, plan):
        here = [now.seen.step(one) for one in now.record.roster if now.seen.get(one)]
        return plan.after_step is not None and now.record.generation > 0 and plan.after_step in here

    patch.setattr(next_generation, "_is_passed", passed)


def leases_for_one_step(patch: Patch) -> None:
    patch.setattr(lead_times.LeadTimes, "lease_steps", lambda _lead_times, _step_time_s: 1)


def takes_any_first_ring_for_the_first_try(patch: Patch) -> None:
    def first(now, roster):
        if len(roster) >= now.record.target:
            return next_generation.Follow(local_ranks.grouped(roster[: now.record.target], now.members), False)
        return next_generation.RestartWait() if now.record.plan is not None else None

    patch.setattr(next_generation, "_first", first)


def forgets_the_epochs_asked_for_since_the_plan(patch: Patch) -> None:
    def take(self, snapshot):
        self.ledger = restored_ledger(snapshot)

    patch.setattr(ledgers.LedgerVersions, "_take", take)


class ReturningFaults(SimFaults):
    def die(self, worker: SimWorker) -> None:
        super().die(worker)
        self.job.after(0.5, self.job.call, Register(worker.identity(), *self.job.limits))


class ComesBack(SimJob):
    """A worker that is gone is presented once more, by a call that was under way for long."""

    faults_class = ReturningFaults


class TwofoldFaults(SimFaults):
    def expire(self, worker: SimWorker) -> None:
        self.job.inflict(SimFault.CRASH_LEADER)
        super().expire(worker)


class LeaderDiesToo(SimJob):
    """Just when it would have heard that a host is gone."""

    faults_class = TwofoldFaults


@dataclass(frozen=True)
class Case:
    """Where a rule is needed, and which complaint there is without it."""

    noticed: str
    faults: tuple[Planned, ...] = ()
    spec: DataSpec = DATA
    workers: int = 3
    job: type[SimJob] = SimJob
    lease_s: float = 0.6

    def play(self, seed: int) -> SimJob:
        job = self.job(self.spec, seed=seed, workers=self.workers, lease_s=self.lease_s)
        job.plan(list(self.faults))
        return job


JOIN = Planned(SimFault.JOIN, 0.05)
IN_A_STEP = Planned(SimFault.KILL, Moment.STEPPING, 8)
HANGS_IN_A_STEP = Planned(SimFault.STALL, Moment.STEPPING, 8)
NEWCOMER: dict[str, Any] = {"faults": (JOIN,), "spec": LEASED, "workers": 2, "job": ReadsUnevenly, "lease_s": 5.0}

WRONG: dict[Mutant, Case] = {
    counts_as_trained_what_one_worker_has_applied: Case("I5", (IN_A_STEP,)),
    counts_as_trained_what_all_who_were_heard_have_applied: Case(
        "I5", (IN_A_STEP, Planned(SimFault.CHANGE_LEADER, Moment.STEPPING, 8))
    ),
    goes_on_with_half_a_copy: Case("I5", (IN_A_STEP,), workers=4, job=LosesTheNewest),
    forgets_who_is_gone: Case("ids", (Planned(SimFault.KILL, 0.1),), job=ComesBack),
    takes_over_and_misses_no_worker: Case("I12", (Planned(SimFault.VANISH, 0.1),), job=LeaderDiesToo),
    waits_for_the_session_of_the_dead: Case("I12", (Planned(SimFault.KILL_WORKER, 0.1),)),
    lets_no_leaver_hand_on_the_model: Case("I5", (JOIN, Planned(SimFault.LEAVE, 0.1)), workers=1),
    leaves_before_its_step: Case("I3", (Planned(SimFault.LEAVE, 0.1),)),
    gives_all_of_a_host_the_same_local_rank: Case("local ranks"),
    tells_of_nothing: Case("events"),
    counts_a_sample_too_many: Case("I7"),
    ends_no_epoch: Case("I6", spec=EPOCHS),
    gives_up_a_worker_awaited_for_a_moment: Case("I12", (JOIN,)),
    takes_who_is_ahead_for_one_that_hangs: Case("I5", (HANGS_IN_A_STEP,)),
    gives_up_who_is_ahead_with_another_word: Case("I5", (HANGS_IN_A_STEP,)),
    bounds_the_wait_for_the_first_ring_by_that_for_a_boot: Case(
        "I12", (JOIN, Planned(SimFault.STALL, Moment.ENTERING))
    ),
    plans_a_switch_without_a_mark: Case("newcomers", **NEWCOMER),
    cuts_at_the_first_step_told: Case("I7", **NEWCOMER),
    lifts_the_mark_with_the_plan: Case("I7", **NEWCOMER),
    switches_at_the_newest_step: Case("I11", (JOIN,), workers=2, job=Prompt, lease_s=0.2),
    puts_off_a_switch_that_some_have_made: Case("I6", (JOIN,), workers=2),
    leases_for_one_step: Case("I11", workers=2, job=Prompt),
    forgets_the_epochs_asked_for_since_the_plan: Case(
        "I12", (JOIN, Planned(SimFault.CRASH_LEADER, 0.2)), spec=PASSES, workers=2
    ),
    takes_any_first_ring_for_the_first_try: Case(
        "I7", (Planned(SimFault.KILL, Moment.SITTING), Planned(SimFault.KILL, Moment.STEPPING))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rule_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    case = WRONG[mutant]
    expect_noticed(mutant, case.play, {case.noticed}, SEEDS, monkeypatch)
