"""What must hold in a simulated job after every event, whatever went wrong; named by the invariants of the design.

Owns: the truth about what was trained, kept sample by sample beside the ledger that never sees it. Cheap, because it
runs after every event: each check looks only at what the event could have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NoReturn

from edl.core.checkpoint.requests import is_saved
from edl.core.data.ledger import Ledger
from edl.core.job.inputs import Command, Input, Reported
from edl.core.job.machine import JobMachine
from edl.core.worker.states import TrainerState
from edl.errors import InvalidTransition
from edl.protocol.assignment import Assignment, Orders
from edl.protocol.job import OVER, JobState, Plan, Record, WorkerState
from edl.protocol.messages import Phase
from edl.testing.account_checks import AccountChecks
from edl.testing.faults import SimFault
from edl.testing.models import learn, mean, of_own, of_sample
from edl.testing.pace import Pace
from edl.testing.record_checks import RecordChecks
from edl.testing.rings import SimRing
from edl.testing.saving_checks import SavingChecks
from edl.testing.tally_checks import TallyChecks
from edl.testing.worker import SimWorker
from edl.testing.writing_checks import WritingChecks

if TYPE_CHECKING:
    from edl.testing.simulation import SimJob

Sample = tuple[int, int]  # epoch, position
SOON = 16  # steps: what is leased for these may be about to be read when a switch is wanted
PLANS = 20  # without a step between them, besides what members and faults may cause


class Violation(AssertionError):
    """An invariant does not hold. The message has the transcript of the job."""


class Checks:
    """The invariants of one job."""

    def __init__(self, job: SimJob) -> None:
        self.job = job
        self.records = RecordChecks(self.violated)
        self.tallies = TallyChecks(self.violated)
        self.accounts = AccountChecks(self.violated)
        self.writing = WritingChecks(job)
        self.pace = Pace(job, self.violated)
        self.savings = SavingChecks(job)
        self._before = frozenset[Sample]() if job.inherits is None else job.inherits.trained  # in lives before
        self._rosters: dict[int, tuple[str, ...]] = {}
        self._durable: dict[int, Record] = {job.durable.version: job.durable}
        self._steps: dict[int, list[Sample]] = {}  # what was trained in each step, in the line of states that lives
        self._trained_in: dict[Sample, int] = dict.fromkeys(self._before, 0)
        self._trained_until: list[int] = [len(self._before)]  # samples in all steps up to this one
        self._newcomers: dict[tuple[int, int], set[str]] = {}  # by the generation of their plan, and its first step
        self._first = 0  # generation on record
        self._stable = 0  # by the ledger in force
        self._learned: dict[int, int] = {}  # by each step, as its samples make it
        self._reported: dict[str, tuple[int, int, int]] = {}  # worker -> term, generation, step
        self._plans, self._planned_at = 0, 0  # so many since this step
        self._ledger: tuple[Ledger | None, int, int] = (None, 0, 0)
        self._farthest, self.moved_on_at = 0, 0.0  # a step with samples, and when it was trained

    @property
    def steps(self) -> int:
        """Trained so far."""
        return len(self._steps)

    def learned_by(self, step: int) -> int | None:
        """What a model is after that step; None: none was made."""
        return self._learned.get(step)

    def trained_up_to(self, step: int) -> set[Sample]:
        """With all lives before."""
        return {*self._before, *(sample for at, hand in self._steps.items() if at <= step for sample in hand)}

    def samples_of_steps(self) -> list[list[Sample]]:
        """Of each step of this life, rank by rank."""
        return [self._steps[step] for step in sorted(self._steps)]

    def violated(self, invariant: str, complaint: str) -> NoReturn:
        raise Violation(self.job.story(f"{invariant}: {complaint}"))

    # --------------------------------------------------------------------------------------------------- the leader

    def handled(self, machine: JobMachine, term: int, happened: Input, follows: list[Command]) -> None:
        """The machine has taken an input; nothing of it is durable yet."""
        self.writing.handled(term, follows)
        if isinstance(happened, Reported):
            self._never_goes_back(machine, term, happened.worker)
        ledger = machine.ledger
        if ledger is None:
            return
        self._is_stable(machine.record, ledger.step)
        known = (ledger, ledger.covered_step, machine.record.generation)
        if self._ledger != known:  # else it has only moved on by whole steps, which its leases know how to count
            self._ledger = known
            self._accounts_for_every_sample(ledger)

    def _never_goes_back(self, machine: JobMachine, term: int, worker: str) -> None:
        observation = machine.seen.observation(worker)
        if observation is not None:
            now = (term, observation.generation, observation.step)
            if now < self._reported.get(worker, now):
                self.violated("I10", f"an old report of {worker} counts: {now} after {self._reported[worker]}")
            self._reported[worker] = now

    def _is_stable(self, record: Record, step: int) -> None:
        """What counts as trained is trained by all, whichever of them may die next."""
        if step == self._stable:
            return
        self._stable = step
        members = {member.identity.id for member in record.members}
        for worker in (self.job.workers[worker] for worker in record.roster if worker in members):
            if worker.alive and worker.step < step:
                self.violated("I5", f"step {step} counts as stable, and {worker.id} has applied {worker.step}")

    def _accounts_for_every_sample(self, ledger: Ledger) -> None:
        try:
            untrained = ledger.validate()
        except InvalidTransition as error:
            self.violated("I6", str(error))
        if ledger.step >= len(self._trained_until):
            self.violated("I5", f"step {ledger.step} counts as stable, and no worker has trained it")
        trained = ledger.spec.total * ledger.spec.epochs - untrained
        if trained != self._trained_until[ledger.step]:
            truth = self._trained_until[ledger.step]
            self.violated("I6", f"{trained} samples count as trained after step {ledger.step}, and {truth} are")

    def durable(self, before: Record, record: Record) -> None:
        """A record was written."""
        if record.version <= before.version:
            self.violated("I9", f"version {record.version} was written over {before.version}")
        self._durable[record.version] = record
        self.records.durable(before, record)
        self.tallies.durable(before, record)
        self.savings.durable(before, record)
        if record.trials.unfit is not before.trials.unfit:
            self._only_who_is_cut_off_is_unfit(before, record)
        if record.plan is not None and (before.plan is None or record.plan.generation > before.plan.generation):
            self._comes_to_steps(record)
        if record.gone is not before.gone:
            self._gives_up_only_who_hangs(before, record)
        if record.arrivals > before.arrivals:
            self._admits_no_more_than_may_train(record)
        if record.muster is not None:
            self.job.next_rings.called(record.muster, record.roster)
        if record.plan is not before.plan and record.plan is not None:
            self._note_plan(before, record, record.plan)
            self._have_met(before, record, record.plan)
            self.job.next_rings.planned(before, record, record.plan)
            self._roster(record.plan.generation, record.plan.roster)
            self._respects_limits(record, record.plan.roster)
            if record.generation:
                self._holds_only_the_ready(record.plan.roster)
        self._first = self._first or record.generation
        if record.roster is not before.roster:
            self._roster(record.generation, record.roster)
            if record.generation <= before.generation:
                self.violated("I2", f"generation {record.generation} follows {before.generation}")

    def _have_met(self, before: Record, record: Record, plan: Plan) -> None:
        """No worker is told to leave a ring that trains for one whose members do not reach each other."""
        called = before.muster.number if before.muster is not None else 0
        instead = before.plan is not None and before.plan.after_step == plan.after_step  # of those who had met
        if not record.generation or plan.after_step is None or len(plan.roster) == 1 or instead:
            return
        members = [self.job.workers[one] for one in plan.roster]
        if away := [one.id for one in members if not called or (called,) not in {one.met, one.met_before}]:
            self.violated("I14", f"generation {plan.generation} is announced, and {away} have not met the others")

    def _note_plan(self, before: Record, record: Record, plan: Plan) -> None:
        """Where all have told in time how far they have read, there are samples for the newcomers of a switch."""
        in_time = before.rebatch is None or record.rebatch is not None
        newcomers = set(plan.roster) - set(record.roster)
        cut = plan.ledger is not None or self.job.spec is None  # else it takes another's place, after the same step
        if record.generation and plan.after_step is not None and newcomers and in_time and cut:
            self._newcomers[plan.generation, plan.after_step + plan.beside + 1] = newcomers

    def _gives_up_only_who_hangs(self, before: Record, record: Record) -> None:
        for gone in record.gone:
            worker = self.job.workers[gone.worker]
            hangs = gone not in before.gone and "hangs" in gone.reason
            if hangs and not worker.is_odd and (worker.sits or "beside" in gone.reason):
                self.violated("I12", f"{worker.id} is given up as one that hangs: {gone.reason}")

    def _only_who_is_cut_off_is_unfit(self, before: Record, record: Record) -> None:
        """Where two sound ones of the ring before are left. Of a pair it is not known, and its newcomer is doubted. Nor
        is it known of one whose state did not come, whatever the reason: that is its own failure. Nor, where all say
        the same, which member is at fault of a ring that does not come to stand beside the one that trains: that one
        trains, and its members are given credit for it.
        """
        here = {member.identity.id for member in record.members} | {one.worker for one in record.trials.unfit}
        ring = [self.job.workers[worker] for worker in record.roster if worker in here]
        if sum(worker.alive and not worker.stalled and not worker.cut_off for worker in ring) < 2:
            return
        all_sound = all(worker.alive and not worker.cut_off and not worker.is_odd for worker in ring)
        for one in record.trials.unfit:
            if one in before.trials.unfit:
                continue
            worker = self.job.workers[one.worker]
            sound = not (worker.cut_off or worker.lost_state)
            known = all_sound or "beside the one that trains" not in one.reason
            if worker.alive and sound and known and not worker.is_odd:
                self.violated("I14", f"{worker.id} is held to be unfit: {one.reason}")

    def _comes_to_steps(self, record: Record) -> None:
        """Rings that come to nothing are not planned again and again."""
        self._plans = self._plans + 1 if self._planned_at == self.steps else 1
        self._planned_at = self.steps
        if self._plans > PLANS + 3 * len(record.members) + 2 * sum(self.job.struck.values()):
            self.violated("I14", f"{self._plans} rings were planned, and none has made a step")

    def _roster(self, generation: int, roster: tuple[str, ...]) -> None:
        if self._rosters.setdefault(generation, roster) != roster or len(set(roster)) != len(roster):
            self.violated("I2", f"generation {generation} is {self._rosters[generation]} and {roster}")

    def _respects_limits(self, record: Record, roster: tuple[str, ...]) -> None:
        minimum, maximum = record.limits.minimum, record.limits.maximum
        minimum = 1 if record.preemption is not None else minimum  # those that are left save it
        if len(roster) < minimum or (maximum and len(roster) > maximum):
            self.violated("limits", f"{roster} is not {minimum} to {maximum or 'any number of'} workers")

    def _admits_no_more_than_may_train(self, record: Record) -> None:
        outside = record.migration.newcomers if record.migration is not None else ()
        members = [one for one in record.members if one.identity.id not in outside]
        staying = [one for one in members if one.state not in (WorkerState.LEAVING, WorkerState.DONE)]
        if record.limits.maximum and len(staying) > record.limits.maximum:
            self.violated("limits", f"{len(staying)} workers were let in, of at most {record.limits.maximum}")

    def _holds_only_the_ready(self, roster: tuple[str, ...]) -> None:
        for worker in roster:
            one = self.job.workers[worker]
            if not one.booted:
                self.violated("I4", f"{worker} is planned for, and {one.doing.value}")

    # -------------------------------------------------------------------------------------------------- the workers

    def heard(self, worker: SimWorker, orders: Orders, record: Record) -> None:
        """Orders have reached a worker."""
        if self._durable.get(record.version) is not record:
            self.violated("I9", f"{worker.id} is told version {record.version}, which is not durable")
        self.pace.hears(worker, orders)
        self.pace.hears_of_saving(worker, orders)
        known = worker.orders
        if known is not None and (orders.term, orders.version) <= (known.term, known.version):
            self.violated("I10", f"{worker.id} takes version {orders.version} of term {orders.term} after newer orders")
        if orders.assignment is not None and record.plan is not None:
            place, members = orders.assignment.place, record.plan.roster
            self._roster(place.generation, members)
            if (place.rank, place.size) != (members.index(worker.id), len(members)):
                self.violated("I2", f"{worker.id} is rank {place.rank} of {place.size} in {members}")

    def reads(self, worker: SimWorker) -> None:
        """What its pipeline has read is what it is to train."""
        for step, batch in worker.read.items():
            lease = worker.leases.at(step)
            if lease is None or lease.between(step - 1, step) != batch:
                self.violated("I7", f"{worker.id} has read {batch} for step {step}, which was taken back: {lease}")

    def weighs(self, worker: SimWorker, step: int, samples: int) -> None:
        """What it brings into the reduction of `step` counts as much as its samples; and nothing without a state."""
        if worker.machine.awaits_state and (samples or worker.weight):
            self.violated("I5", f"{worker.id} has no state, and brings {samples} samples into step {step}")
        self._weighs(worker, step, samples)

    def _weighs(self, worker: SimWorker, step: int, samples: int) -> None:
        own, total = worker.leases.own(step), worker.leases.samples(step)
        if own != samples or worker.weight != (samples / total if total else 0.0):
            told = f"{own} of {total} samples, weight {worker.weight}"
            self.violated("I7", f"{worker.id} trains {samples} samples in step {step}, and takes that for {told}")

    def enters(self, worker: SimWorker, before: TrainerState, assignment: Assignment) -> None:
        """A worker goes to the rendezvous of its next ring; `before`: where it was."""
        after_step = assignment.after_step
        if before is not TrainerState.BETWEEN:
            return
        others = any(one.sits and one.generation == worker.generation for one in self.job.workers.values())
        if others and after_step is not None and worker.step < after_step:
            self.violated("I3", f"{worker.id} leaves its ring after step {worker.step}, which goes on to {after_step}")
        ring = self.job.rings.rings.get(worker.generation)
        if ring is not None and after_step is None and self._works(ring, worker):
            self.violated("I14", f"{worker.id} leaves ring {ring.generation} at once, and no member of it is gone")

    def _works(self, ring: SimRing, leaver: SimWorker) -> bool:
        """All of it are in it, stay, and can go on; the word of a switch has reached them in time."""
        known = {member.identity.id for member in self.job.durable.members}
        return known.issuperset(one.id for one in ring.members) and all(
            one.alive
            and (one.sits or one is leaver)
            and one.generation == ring.generation >= one.machine.missed
            and not one.is_odd
            and not one.leaving
            for one in ring.members
        )

    def leaves(self, worker: SimWorker, before: TrainerState, orders: Orders) -> None:
        """A worker obeys, and goes; `before`: where it was."""
        if before is TrainerState.BETWEEN and worker.step < orders.leave_after_step:
            last = orders.leave_after_step
            self.violated("I3", f"{worker.id} leaves after step {worker.step}, and its ring needs it up to {last}")

    def formed(
        self, generation: int, members: list[SimWorker], had: Mapping[str, int], booted: Collection[str]
    ) -> None:
        """A ring stands, and each member has found how it begins. `had`: the steps of those who had a state before."""
        self._roster(generation, tuple(worker.id for worker in members))
        begins = {worker.machine.begins_after for worker in members}
        if had and begins != {max(had.values())}:
            self.violated("I5", f"generation {generation} begins after step {begins} of {had}")
        if had and any(worker.id not in booted for worker in members):
            self.violated("I4", f"generation {generation} has members that were not ready")

    def sat(self, worker: SimWorker) -> None:
        """It begins in a new ring, with the newest model of its members; unless it gets that beside the first steps."""
        if worker.machine.awaits_state:
            return
        if worker.step and worker.model.learned != self._learned.get(worker.step):
            self.violated("I5", f"{worker.id} goes on after step {worker.step} with another model than that step's")
        if worker.step and not worker.has_state:
            self.violated("I5", f"{worker.id} goes on after step {worker.step}, and would give its model to no other")

    def applied(self, workers: list[SimWorker]) -> None:
        """Some members of a ring have applied one step: it is as if one had trained all samples of all steps."""
        if len({worker.model for worker in workers}) > 1:
            models = {worker.id: worker.model for worker in workers}
            self.violated("I5", f"after step {workers[0].step} models differ: {models}")
        if workers:
            self.sat(workers[0])

    def trained(self, ring: int, members: list[SimWorker], step: int, samples: list[Sample], done: bool) -> None:
        """A ring has been through an all-reduce. `done`: some have its result, else it is void."""
        if any(worker.step != step - 1 or worker.generation != ring for worker in members):
            at = {worker.id: (worker.generation, worker.step) for worker in members}
            self.violated("I3", f"ring {ring} takes step {step} and its members are at {at}")
        told = {worker.leases.samples(step) for worker in members}
        if self.job.spec is not None and told != {len(samples)}:
            self.violated("I7", f"step {step} has {len(samples)} samples, and the workers were told {told}")
        self._newcomers_take_part(ring, members, step)
        if not done:
            return
        if step == 1 and self._is_lost_without_a_trace(ring, members):
            self._steps, self._learned = {}, {}
            self._trained_in, self._trained_until = dict.fromkeys(self._before, 0), [len(self._before)]
            self._farthest = 0
        if step < len(self._trained_until) - 1 or step > len(self._trained_until):
            self.violated("I5", f"step {step} is trained again, and {len(self._trained_until) - 1} was before")
        if step in self._steps:  # the workers that had applied it are dead: it is void
            self._void(step, members)
        for sample in samples:
            if self._trained_in.setdefault(sample, step) != step:
                self.violated("I6", f"{sample} is trained in step {self._trained_in[sample]} and in step {step}")
        if len(set(samples)) != len(samples):
            self.violated("I6", f"step {step} has a sample twice: {samples}")
        self._steps[step] = samples
        if step > self._farthest and (samples or self.job.spec is None):
            self._farthest, self.moved_on_at = step, self.job.now
        self._trained_until.append(self._trained_until[step - 1] + len(samples))
        if step == 1:
            self.savings.begins(members[0].model)
        before = self._learned[step - 1] if step > 1 else members[0].model.learned
        self._learned[step] = learn(before, self._gradient(members, step, samples))

    def _is_lost_without_a_trace(self, ring: int, members: list[SimWorker]) -> bool:
        """No ring before this one was on record, and all that had trained are gone: the job begins anew, with all its
        samples. This ring itself may be on record before its first step.
        """
        holders = (worker for worker in self.job.workers.values() if self._holds(worker, 1) and worker not in members)
        return self._first in (0, ring) and not any(holders)

    def _gradient(self, members: list[SimWorker], step: int, samples: list[Sample]) -> int | None:
        """Of all that was trained in `step`, each sample of equal weight."""
        if self.job.spec is None:
            return mean((of_own(worker.id, step) for worker in members), of=len(members))
        return mean(map(of_sample, samples), of=len(samples))

    def _newcomers_take_part(self, ring: int, members: list[SimWorker], step: int) -> None:
        """From their first step, where samples are left that no pipeline has read, enough of them for all.

        Where the word came too late for the planned step, all begin with leases of before: they are cut anew soon.
        """
        new = self._newcomers.pop((ring, step), ())
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
                self.violated(
                    "newcomers",
                    f"{worker.id} has no samples in its first step {step}, and {left} of those leased were not read",
                )

    def _void(self, step: int, members: list[SimWorker]) -> None:
        out = self.job.durable.trials.left_out  # of a pair it is not known which is cut off: what it has goes with it
        others = (worker for worker in self.job.workers.values() if worker not in members and worker.id != out)
        holders = [worker.id for worker in others if self._holds(worker, step)]
        if holders:
            self.violated("I5", f"step {step} is trained again, and {holders} have applied it")
        for sample in self._steps.pop(step):
            del self._trained_in[sample]
        self._trained_until.pop()

    @staticmethod
    def _holds(worker: SimWorker, step: int) -> bool:
        """A worker whose script has ended is no survivor: it cannot give its state away. Nor is one that is cut off."""
        lives = worker.alive and not worker.stalled and not worker.cut_off and worker.doing is not TrainerState.OVER
        return lives and worker.has_state and worker.step >= step

    def missed(self, worker: SimWorker) -> None:
        """Its daemon has had no session for long."""
        if any(one.identity.id == worker.id and one.state is not WorkerState.DONE for one in self.job.durable.members):
            self.violated("I12", f"{worker.id} is gone, host and all, and still is a member")

    # ------------------------------------------------------------------------------------------------------ the end

    def reached(self, size: int) -> None:
        """`size` was the last that was asked for, long ago, and nothing has happened since."""
        record = self.job.durable
        if self.job.hangs() or self.job.struck[SimFault.CUT_OFF]:  # then hosts may be refused for a while
            return
        if record.state not in OVER and (record.target, len(record.roster)) != (size, size):
            self.violated(
                "requests", f"{size} workers were asked for, and generation {record.generation} has {record.roster}"
            )

    def over(self) -> None:
        """Nothing happens any more."""
        self.job.next_rings.over()
        record, spec = self.job.durable, self.job.spec
        if record.state not in OVER:
            self.violated("I12", "nothing happens any more, and the job is not over")
        if record.state is JobState.FAILED:
            self._has_to_fail(record.reason)
        elif record.state is JobState.PREEMPTED:
            self._has_to_go(record)
        elif unended := [one for one in record.roster if self.job.workers[one].phase is not Phase.DONE]:
            self.violated("ends", f"the job is finished, and {unended} of its ring did not come to their ends")
        elif spec is None:
            if self.steps < self.job.steps:
                self.violated("I5", f"the job is finished after step {self.steps} of {self.job.steps}")
        elif len(self._trained_in) != spec.total * spec.epochs:
            lost = {(epoch, at) for epoch in range(spec.epochs) for at in range(spec.total)} - self._trained_in.keys()
            self.violated("I6", f"the job is finished, and no worker has trained {sorted(lost)[:9]}")

    def _has_to_go(self, record: Record) -> None:
        """A job goes only where it was asked to, and says what is saved."""
        if record.preemption is None:
            self.violated("I16", "the job is preempted, and it was not asked to go")
        if " is saved: " in record.reason and not is_saved(record):
            self.violated("I16", f"the job says: {record.reason}; and no checkpoint was begun after it was asked to go")
        self.savings.has_gone(record)

    def _has_to_fail(self, reason: str) -> None:
        """A job may fail, but only where nothing else was left to do."""
        if "did not come to the end of its script" in reason:
            self._did_not_end(self.job.workers[reason.split()[1]])
            return
        if "before their data did" in reason and self.job.spec is not None and self.job.spec.by_sample:
            return  # the one case that the documentation admits
        if self.job.struck[SimFault.CUT_OFF] and reason.startswith(("no ring of the workers", "the first ring")):
            return
        here = (self.job.workers[member.identity.id] for member in self.job.durable.members)
        if not self._trained_in and reason.startswith("no ring of the workers") and not all(one.alive for one in here):
            return  # before the first step members died one after the other, sooner than their sessions ended
        if "workers are left and the job needs" in reason and self.job.durable.limits.minimum > 1:
            return
        if "has the model's state" not in reason:
            self.violated("I6", f"the job failed: {reason}")
        record = self.job.durable
        staying = [member.identity.id for member in record.members if member.state is not WorkerState.LEAVING]
        left = [worker for worker in staying if worker in record.roster]
        able = [worker for worker in left if self._could_go_on(self.job.workers[worker])]
        if able:
            self.violated("I5", f"the job failed: {reason}; and {able} could have gone on")
        leavers = [one.identity.id for one in record.members if one.state is WorkerState.LEAVING]
        givers = [one for one in leavers if one in record.roster and self._could_give(self.job.workers[one])]
        if givers and any(self._could_take(self.job.workers[one]) for one in staying):
            self.violated("I5", f"the job failed: {reason}; and {givers} could have handed on what they have")

    def _did_not_end(self, worker: SimWorker) -> None:
        """Or it did, and its host was gone before that could be told."""
        if worker.phase is Phase.DONE and worker.daemon:
            self.violated("ends", f"the job failed, as {worker.id} is said not to have come to its end")

    @staticmethod
    def _could_give(worker: SimWorker) -> bool:
        return worker.alive and not worker.stalled and worker.has_state and worker.phase is not Phase.DONE

    @staticmethod
    def _could_take(worker: SimWorker) -> bool:
        """Not once its script has come to its end: then it goes into no ring any more."""
        return worker.alive and not worker.stalled and worker.phase is not Phase.DONE

    @staticmethod
    def _could_go_on(worker: SimWorker) -> bool:
        return worker.alive and not worker.stalled and not worker.leaving and worker.has_state


def leased(worker: SimWorker, epoch: int, after_step: int) -> int:
    """Samples of `epoch` that it holds for steps after that."""
    held = worker.leases.leases
    return sum(len(piece) for lease in held if lease.epoch == epoch for piece in lease.left(after_step))
