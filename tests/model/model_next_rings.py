"""Simulated rings that form beside others: what each member makes of one, and what it costs who trains: nothing.

Owns: what a trainer's preparing thread does, and what must hold of the rings it prepares. Does not own: how a ring
begins in line (`tests.model.model_meetings`), nor its steps (`tests.model.model_rings`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from edl.core.switch.ring_blame import ENOUGH
from edl.core.worker.worker_inputs import AdoptRing, EnterRing, PrepareRing, ReleaseRing, RingNotPrepared, RingPrepared
from edl.core.worker.worker_states import TrainerState
from edl.protocol.assignment import Assignment, Orders, Place
from edl.protocol.record import Plan, Record, RollCall
from tests.model.model_faults import Moment
from tests.model.model_rings import STEP_TIMEOUT_S
from tests.model.model_worker import SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

FORM_S = 0.03  # at most, on each side of a barrier
TRIES = 2  # in vain, before a ring is formed in line
HEARD_S = 1.0  # a leader has heard what a worker said so long ago, or another one has


class RingBeside:
    """A ring that is to stand beside the one of now."""

    def __init__(self, generation: int, size: int) -> None:
        self.generation = generation
        self.size = size
        self.came: dict[str, SimWorker] = {}
        self.ranks: dict[str, int] = {}
        self.stood: set[str] = set()  # those that it has come to stand at
        self.forms = False  # all have come

    @property
    def stands(self) -> bool:
        return len(self.stood) == self.size

    @property
    def members(self) -> list[SimWorker]:
        return sorted(self.came.values(), key=lambda worker: self.ranks[worker.id])

    @property
    def is_whole(self) -> bool:
        return all(worker.alive and worker.doing is not TrainerState.OVER for worker in self.came.values())


class NextRings:
    def __init__(self, job: SimJob, seed: int) -> None:
        self.job = job
        self.refuse = 0.0  # of all attempts so many fail in a way after which the process prepares no other ring
        self.attempts: dict[int, RingBeside] = {}
        self.held: dict[str, int] = {}  # by worker: the ring that its process forms, or has formed, beside its own
        self._begun: set[tuple[str, int]] = set()  # by whose threads, ever: a worker forms no ring twice
        self._called: set[int] = set()  # generations whose members were called to prepare their ring
        self._adopted = 0  # the newest
        self._alone: Counter[str] = Counter()  # rings that each newcomer was called to, and no other newcomer
        self._refusals = random.Random(f"refusals {seed}")
        self.refused: dict[str, float] = {}  # workers that can prepare no ring any more, and since when

    # ------------------------------------------------------------------------------------------- the trainers' hands

    def carry_out(self, worker: SimWorker, command: EnterRing | AdoptRing | PrepareRing | ReleaseRing) -> None:
        match command:
            case EnterRing(assignment, begun=True):
                self.join(worker, assignment)
            case EnterRing(assignment):
                self._is_to_form(worker, assignment.place.generation)
                self.job.meetings.arrive(worker, assignment)
            case AdoptRing(assignment):
                self.adopt(worker, assignment)
            case PrepareRing(place):
                self.prepare(worker, place)
            case ReleaseRing(generation):
                self.release(worker, generation)

    def prepare(self, worker: SimWorker, place: Place) -> None:
        """Let the worker's thread begin to form a ring."""
        if worker.id in self.held:
            self._violated(f"{worker.id} keeps ring {self.held[worker.id]}, and prepares ring {place.generation}")
        generation = self.held[worker.id] = place.generation
        if generation <= worker.generation:
            self._violated(f"{worker.id} prepares ring {generation}, and sits in {worker.generation}")
        self._begun.add((worker.id, generation))
        if generation not in self._called:  # in place of a ring that is broken
            self.job.happens(Moment.PREPARING, worker)
            self.job.meetings.begin(worker, place)
            return
        self.attempts.setdefault(generation, RingBeside(generation, place.size)).ranks[worker.id] = place.rank
        self.job.happens(Moment.PREPARING, worker)
        if self._refusals.random() < self.refuse:
            self.refused.setdefault(worker.id, self.job.now)
            worker.prepares = False
        if not worker.prepares:  # and says so, whether it was so before or is now
            self._fail_soon(worker, generation, "Horovod said no")
            return
        if worker.cut_off and place.size > 1 and self.job.random.random() < 0.5:  # it notices by itself
            self._fail_soon(worker, generation, "connect: no route to host")
            return
        self.job.after(FORM_S * self.job.random.random(), self._come, worker, generation)
        self.job.after(STEP_TIMEOUT_S, self._fail, worker, generation, "the others did not come in time")

    def release(self, worker: SimWorker, generation: int) -> None:
        """Release a ring that is not wanted any more: members that still form it find that out."""
        if self.held.get(worker.id) == generation:
            del self.held[worker.id]
            self._part(worker, generation)

    def join(self, worker: SimWorker, assignment: Assignment) -> None:
        """Wait for the ring that the worker's thread has begun in place of a broken one, as the mini-batch is over."""
        generation = assignment.place.generation
        if assignment.after_step is not None or self.held.pop(worker.id, 0) != generation:
            self._violated(f"{worker.id} waits for ring {generation}, which its thread does not form")
            return
        self.job.meetings.join(worker, assignment)

    def begun(self, worker: SimWorker, generation: int) -> None:
        """Report that a ring in place of a broken one stands at this worker."""
        if self._forms(worker, generation):
            self.job.happens(Moment.PREPARED, worker)
            if self._is_there(worker):
                self.job.shells.tell(worker, RingPrepared(generation))

    def not_begun(self, worker: SimWorker, generation: int, reason: str) -> None:
        """Report that a ring failed, unless the trainer waits for it by now, and so fails by itself."""
        if self._forms(worker, generation):
            del self.held[worker.id]
            self.job.shells.tell(worker, RingNotPrepared(generation, reason))

    def adopt(self, worker: SimWorker, assignment: Assignment) -> None:
        """Adopt a ring between two mini-batches: it stands at all members."""
        generation = assignment.place.generation
        attempt = self.attempts.get(generation)
        if attempt is None or not attempt.stands or self.held.pop(worker.id, 0) != generation:
            self._violated(f"{worker.id} leaves its ring for {generation}, which does not stand at all members")
            return
        self._adopted = generation
        if attempt.is_whole or self.job.random.random() < 0.5:
            self.job.meetings.adopt(worker, assignment, attempt.members)
        if not attempt.is_whole:  # some find out in their first collective there
            self.job.after(self._soon(), self.job.meetings.fail, worker, generation, "connection reset by peer")

    def stands_at(self, worker: SimWorker, generation: int) -> bool:
        attempt = self.attempts.get(generation)
        return self.held.get(worker.id) == generation and attempt is not None and worker.id in attempt.stood

    def missed(self, worker: SimWorker) -> None:
        """Drop the ring that a dead worker had prepared; members that wait for the worker in a collective notice."""
        generation = self.held.pop(worker.id, 0)
        if generation:
            self._part(worker, generation)
        for attempt in self.attempts.values():
            if attempt.stands and worker.id in attempt.came:
                for other in attempt.came.values():
                    if other is not worker and other.assignment is not None and other.assignment.prepared:
                        self.job.after(
                            self._soon(), self.job.meetings.fail, other, attempt.generation, "connection reset by peer"
                        )

    def give_up(self, worker: SimWorker) -> None:
        """Fail the ring of a worker whose daemon died, as it asked for the others' addresses."""
        generation = self.held.get(worker.id, 0)
        if generation and generation not in self.attempts:
            self.job.after(self._soon(), self.job.meetings.fail_begun, worker, generation, "its daemon died")
        elif generation and not self.attempts[generation].forms:
            self._fail_soon(worker, generation, "its daemon died")

    def _part(self, worker: SimWorker, generation: int) -> None:
        if generation in self.attempts:
            self._break(generation, worker)
        else:
            self.job.meetings.leave_begun(worker, generation)

    # ----------------------------------------------------------------------------------------------------- how it forms

    def _come(self, worker: SimWorker, generation: int) -> None:
        attempt = self.attempts[generation]
        if not self._forms(worker, generation):
            return
        attempt.came[worker.id] = worker
        if len(attempt.came) < attempt.size:
            return
        attempt.forms = True
        cut_off = attempt.size > 1 and any(one.cut_off for one in attempt.came.values())
        for one in attempt.came.values():
            if cut_off:
                self._fail_soon(one, generation, "connection reset by peer")
            else:
                self.job.after(FORM_S * self.job.random.random(), self._stand, one, generation)

    def _stand(self, worker: SimWorker, generation: int) -> None:
        if self._forms(worker, generation):
            attempt = self.attempts[generation]
            attempt.stood.add(worker.id)
            self.job.happens(Moment.PREPARED, worker)
            offer = 1 if worker.sends_state and not attempt.ranks[worker.id] else 0
            if self._is_there(worker):
                self.job.shells.tell(worker, RingPrepared(generation, offer))

    def _break(self, generation: int, leaver: SimWorker) -> None:
        """Let each member that still forms the ring be through with the leaver, or fail."""
        attempt = self.attempts[generation]
        for one in attempt.came.values():
            waits = one is not leaver and one.id not in attempt.stood
            if waits and (not attempt.forms or self.job.random.random() < 0.5):
                self._fail_soon(one, generation, "connection reset by peer")

    def _fail_soon(self, worker: SimWorker, generation: int, reason: str) -> None:
        self.job.after(self._soon(), self._fail, worker, generation, reason)

    def _fail(self, worker: SimWorker, generation: int, reason: str) -> None:
        """Fail the ring at a worker, unless it stands there by now."""
        if self._forms(worker, generation) and worker.id not in self.attempts[generation].stood:
            del self.held[worker.id]
            self.job.shells.tell(worker, RingNotPrepared(generation, reason, able=worker.prepares))
            self._break(generation, worker)

    def _forms(self, worker: SimWorker, generation: int) -> bool:
        return self.held.get(worker.id) == generation and self._is_there(worker)

    @staticmethod
    def _is_there(worker: SimWorker) -> bool:
        return worker.alive and not worker.stalled

    def _soon(self) -> float:
        return self.job.random.random() * 0.005

    # ------------------------------------------------------------------------------------------------ what must hold

    def heard(self, worker: SimWorker, orders: Orders) -> None:
        """Check that a worker that has followed its newest orders keeps no ring that they do not want."""
        place = None if orders.summons is None else orders.summons.place
        seat = None if orders.assignment is None else orders.assignment.place
        wanted = {one.generation for one in (place, seat) if one is not None}
        kept = self.held.get(worker.id, 0)
        if kept and self._is_there(worker) and kept not in wanted:
            self._violated(f"{worker.id} keeps ring {kept}, which is not wanted: {wanted}")

    def over(self) -> None:
        """Check that no ring is left over when nothing happens any more."""
        if left := {one: kept for one, kept in self.held.items() if self._is_there(self.job.workers[one])}:
            self._violated(f"at the end of all, rings are left over: {left}")

    def called(self, roll_call: RollCall, roster: Collection[str]) -> None:
        """Check the workers called on record. A stopped one may never begin. None is called with a worker that has said
        that it prepares no ring any more, nor again and again with a worker whose rings never stand.
        """
        if roll_call.generation and roll_call.generation not in self._called:
            self._called.add(roll_call.generation)
            self._count_alone(set(roll_call.roster).difference(roster))
        if roll_call.generation:
            for worker in map(self.job.workers.__getitem__, roll_call.roster):
                since = max(self.refused.get(worker.id, self.job.now), self.job.leader.since)
                told = self.job.now - since > HEARD_S
                if told and worker.alive and worker.daemon == 1 and not (worker.cut_off or worker.is_odd):
                    self._violated(f"ring {roll_call.generation} is to stand beside another, and {worker.id} cannot")

    def _count_alone(self, newcomers: set[str]) -> None:
        if len(newcomers) > 1 or self.job.hangs():  # the only one that trains: it is waited for
            return
        self._alone.update(newcomers)
        for one in newcomers:
            if self._alone[one] > ENOUGH + sum(self.job.struck.values()) + self.job.node.unanswered:
                self._violated(f"{one} alone is called to {self._alone[one]} rings, of which none stands")

    def planned(self, before: Record, record: Record, plan: Plan) -> None:
        """A switch is announced: its ring stands at all members, so that none waits for it to form. Unless it takes
        the place of another, after the same step; or could not be prepared. A new daemon never hears whether it can
        from a trainer that is dead.
        """
        if plan.prepared and not self.attempts[plan.generation].stands:
            self._violated(f"ring {plan.generation} is announced, and stands at {self.attempts[plan.generation].stood}")
        instead = before.plan is not None and before.plan.after_step == plan.after_step
        can = all(worker.prepares and worker.alive for worker in map(self.job.workers.__getitem__, plan.roster))
        if plan.prepared or plan.after_step is None or not record.generation or instead or not can:
            return
        vain = [one for one in self._called if one > self._adopted and not self._stands(one)]
        if len(vain) < TRIES:
            self._violated(f"ring {plan.generation} is formed in line, and {len(vain)} were tried beside training")
        ring = [self.job.workers[worker] for worker in record.roster]
        sound = not any(one.cut_off or one.is_odd or one.daemon != 1 for one in ring)
        if sound and set(plan.roster) - set(record.roster):
            self._violated(f"ring {plan.generation} is formed in line, for a newcomer's sake")

    def _stands(self, generation: int) -> bool:
        return generation in self.attempts and self.attempts[generation].stands

    def _is_to_form(self, worker: SimWorker, generation: int) -> None:
        """Check that a ring to be formed in line was not prepared."""
        if (worker.id, generation) in self._begun:
            self._violated(f"{worker.id} forms ring {generation} in line, which its thread has begun")
        planned = None if worker.orders is None else worker.orders.assignment
        if planned is not None and planned.prepared and planned.place.generation == generation:
            self._violated(f"{worker.id} forms ring {generation}, which stands")

    def _violated(self, complaint: str) -> None:
        self.job.checks.violated("I14", complaint)
