"""Check a leader's plans: whom it lets in and leaves out, and of which members it makes rings.

Owns: the roster of each generation, and the limits of a job's size. Does not own: a record as a whole
(`tests.model.record_checks`), whom it loses (`tests.model.loss_checks`), nor rings that form beside others
(`tests.model.model_next_rings`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from edl.protocol.record import Plan, Record, WorkerState
from tests.model.model_faults import SimFault
from tests.model.model_worker import SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

SOON = 16  # steps: what is leased for these may be about to be read when a switch is wanted
PUT_OFF = 6  # switches in a row, as their word came too late for all
PLANS = 20  # without a step between them, besides what members and faults may cause


class PlanChecks:
    def __init__(self, job: SimJob) -> None:
        self._job = job
        self._rosters: dict[int, tuple[str, ...]] = {}  # by generation
        self._newcomers: dict[tuple[int, int], set[str]] = {}  # by the generation of their plan, and its first step
        self._plans, self._planned_at = 0, 0  # so many since this step
        self._put_off = 0  # so many in a row

    def durable(self, before: Record, record: Record) -> None:
        if record.trials.unfit is not before.trials.unfit:
            self._only_who_is_cut_off_is_unfit(before, record)
        if record.plan is not None and (before.plan is None or record.plan.generation > before.plan.generation):
            self._comes_to_steps(record)
        if record.plan is None and before.plan is not None:
            self._is_not_put_off_for_ever(before.plan, came=record.generation > before.generation)
        if record.arrivals > before.arrivals:
            self._admits_no_more_than_may_train(record)
        if record.roll_call is not None:
            self._job.next_rings.called(record.roll_call, record.roster)
        if record.plan is not before.plan and record.plan is not None:
            self._is_planned(before, record, record.plan)
        if record.roster is not before.roster:
            self.has_roster(record.generation, record.roster)
            if record.generation <= before.generation:
                self._violated("I2", f"generation {record.generation} follows {before.generation}")

    def has_roster(self, generation: int, roster: tuple[str, ...]) -> None:
        """Check that a generation has one roster, on record and as workers are told of it."""
        if self._rosters.setdefault(generation, roster) != roster or len(set(roster)) != len(roster):
            self._violated("I2", f"generation {generation} is {self._rosters[generation]} and {roster}")

    # ------------------------------------------------------------------------------------------------------- members

    def _only_who_is_cut_off_is_unfit(self, before: Record, record: Record) -> None:
        """Check that only cut-off workers count as unfit, where two sound members of the previous ring are left.

        Of a pair the culprit is not known, and its newcomer is doubted. Nor is it known of a worker whose state did not
        come, whatever the reason: that is its own failure. Nor, where all say the same, is it known which member is at
        fault for a prepared ring that does not stand beside the one that trains: that one trains, and its members are
        given credit for it.
        """
        here = {member.identity.id for member in record.members} | {one.worker for one in record.trials.unfit}
        ring = [self._job.workers[worker] for worker in record.roster if worker in here]
        if sum(worker.alive and not worker.stalled and not worker.cut_off for worker in ring) < 2:
            return
        if self._job.struck[SimFault.BREAK_LIMB]:  # rings broke, and who comes new is taken for the one they broke for
            return
        all_sound = all(worker.alive and not worker.cut_off and not worker.is_odd for worker in ring)
        for one in record.trials.unfit:
            if one in before.trials.unfit:
                continue
            worker = self._job.workers[one.worker]
            sound = not (worker.cut_off or worker.lost_state)
            known = all_sound or "beside the one that trains" not in one.reason
            if worker.alive and sound and known and not worker.is_odd:
                self._violated("I14", f"{worker.id} is held to be unfit: {one.reason}")

    def _admits_no_more_than_may_train(self, record: Record) -> None:
        outside = record.migration.newcomers if record.migration is not None else ()
        members = [one for one in record.members if one.identity.id not in outside]
        staying = [one for one in members if one.state not in (WorkerState.LEAVING, WorkerState.DONE)]
        if record.limits.maximum and len(staying) > record.limits.maximum:
            self._violated("limits", f"{len(staying)} workers were let in, of at most {record.limits.maximum}")

    # ---------------------------------------------------------------------------------------------------------- plans

    def _is_planned(self, before: Record, record: Record, plan: Plan) -> None:
        self._note_plan(before, record, plan)
        self._have_met(before, record, plan)
        self._job.next_rings.planned(before, record, plan)
        self._job.limb_rings.planned(plan)
        self.has_roster(plan.generation, plan.roster)
        self._respects_limits(record, plan.roster)
        if record.generation:
            self._holds_only_the_ready(plan.roster)

    def _is_not_put_off_for_ever(self, plan: Plan, *, came: bool) -> None:
        """A plan that is to follow a broken ring is never late: how often it may fail, the trials of workers bound."""
        if came:
            self._put_off = 0
        elif plan.after_step is not None:
            self._put_off += 1
        if self._put_off > PUT_OFF:
            self._violated("I12", f"{self._put_off} switches in a row were put off")

    def _note_plan(self, before: Record, record: Record, plan: Plan) -> None:
        """Note newcomers for which samples must be left, as all have told in time how far they have read."""
        in_time = before.sizing.rebatch is None or record.sizing.rebatch is not None
        newcomers = set(plan.roster) - set(record.roster)
        cut = plan.ledger is not None or self._job.spec is None  # else it takes another's place, after the same step
        in_time = in_time and not self._is_told_late(record)
        if record.generation and plan.after_step is not None and newcomers and in_time and cut:
            self._newcomers[plan.generation, plan.after_step + plan.beside + 1] = newcomers

    def _is_told_late(self, record: Record) -> bool:
        """Tell whether a worker of several processes has heard of the mark too late to keep to it: until all of them
        have, it may read all that it holds.
        """
        if record.sizing.rebatch is None:
            return False
        told = (self._job.workers[worker].machine.supply.marked for worker in record.roster)
        return any(
            number == record.sizing.rebatch.number and step > record.sizing.rebatch.mark + SOON for number, step in told
        )

    def newcomers_take_part(self, ring: int, members: list[SimWorker], step: int) -> None:
        """Check that newcomers train from their first step, where enough samples for all are left that no pipeline has
        read.

        Where the announcement came too late for the planned step, all begin with earlier leases: they are cut anew
        soon.
        """
        new = self._newcomers.pop((ring, step), ())
        if self._job.stream is not None:  # a newcomer has yet to read what it is to train
            return
        newcomers = [worker for worker in members if worker.id in new]
        at = {worker.id: worker.leases.at(step) for worker in members}
        batch = sum(lease.batch for lease in at.values() if lease is not None)
        read = max([step + SOON, *(last for one in members for last in one.read)])
        for worker in newcomers:
            lease = at[worker.id]
            if lease is None or lease.share(step) or not lease.batch:  # or these are batches of before
                continue
            left = sum(leased(one, lease.epoch, read) for one in members)
            if left > batch:
                self._violated(
                    "newcomers",
                    f"{worker.id} has no samples in its first step {step}, and {left} of those leased were not read",
                )

    def _have_met(self, before: Record, record: Record, plan: Plan) -> None:
        """Check that no worker is told to leave a ring that trains for one whose members do not reach each other."""
        called = before.roll_call.number if before.roll_call is not None else 0
        instead = before.plan is not None and before.plan.after_step == plan.after_step  # of those who had met
        if not record.generation or plan.after_step is None or len(plan.roster) == 1 or instead:
            return
        members = [self._job.workers[one] for one in plan.roster]
        if away := [one.id for one in members if not called or (called,) not in {one.met, one.met_before}]:
            self._violated("I14", f"generation {plan.generation} is announced, and {away} have not met the others")

    def _comes_to_steps(self, record: Record) -> None:
        """Rings that come to nothing are not planned again and again."""
        self._plans = self._plans + 1 if self._planned_at == self._job.checks.steps else 1
        self._planned_at = self._job.checks.steps
        if self._plans > PLANS + 3 * len(record.members) + 2 * sum(self._job.struck.values()):
            self._violated("I14", f"{self._plans} rings were planned, and none has made a step")

    def _respects_limits(self, record: Record, roster: tuple[str, ...]) -> None:
        minimum, maximum = record.limits.minimum, record.limits.maximum
        if record.checkpoints.preemption is not None or self._all_is_trained(record):
            minimum = 1  # those that are left save it, or only come to the ends of their scripts
        if len(roster) < minimum or (maximum and len(roster) > maximum):
            self._violated("limits", f"{roster} is not {minimum} to {maximum or 'any number of'} workers")

    def _all_is_trained(self, record: Record) -> bool:
        """Tell whether all samples are trained: of all epochs, or of those after which the script ends early."""
        spec, ledger = self._job.spec, record.ledger
        if spec is None:
            return False
        epochs = ledger.spec.epochs if ledger is not None and ledger.closed else spec.epochs
        return len(self._job.checks.training.samples) == self._job.samples_of(epochs)

    def _holds_only_the_ready(self, roster: tuple[str, ...]) -> None:
        for worker in roster:
            one = self._job.workers[worker]
            if not one.booted:
                self._violated("I4", f"{worker} is planned for, and {one.doing.value}")

    def _violated(self, invariant: str, complaint: str) -> NoReturn:
        self._job.checks.violated(invariant, complaint)


def leased(worker: SimWorker, epoch: int, after_step: int) -> int:
    """Samples of `epoch` that it holds for steps after that."""
    held = worker.leases.leases
    return sum(len(piece) for lease in held if lease.epoch == epoch for piece in lease.left(after_step))
