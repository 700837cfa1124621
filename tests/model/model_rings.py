"""Simulated rings that stand: their members reduce in lockstep, step after step, and find out that one is gone.

A ring has no time-out. Each trainer has a clock of its own (`edl.trainer.wait_bounds`): the first that has waited for
too long gives the ring up, and the others find it broken.

Owns: what Horovod and gloo do between trainers, and what each has of a step: samples, the mean of all, a portion of a
state. Does not own: how a ring comes to stand (`tests.model.model_meetings`, `tests.model.model_beginnings`), nor what
a trainer does about one that broke (`tests.model.model_trainers`).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from edl.core.worker.worker_inputs import BatchBegins, CopyState, StateCopied
from edl.core.worker.worker_states import TrainerState
from edl.protocol.leader_messages import GRADIENTS
from tests.model.model_faults import Moment
from tests.model.model_worker import SimWorker
from tests.model.models import mean, of_own, of_sample

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

Sample = tuple[int, int]  # epoch, position

STEP_S = 0.01
LONG_STEP = 3  # times as long
NOTICED_S = 1.4 * (1 + LONG_STEP) * STEP_S  # at most, from a member's end until those that have samples find it
STEP_TIMEOUT_S = 0.3
SETTLED_S = STEP_TIMEOUT_S / 32  # who has waited for longer was not about to be through
# What a script does between two steps, or until the end of a void one, takes no longer, where others may wait for it:
# in a step, or at the next ring. Each has as long as a step may take for both, and as long again to form that ring.
AWAITED_S = STEP_TIMEOUT_S / 2
TAKE_TIME = 0.5  # of the times that some are
ELSEWHERE = "a collective of its own"


class SimRing:
    def __init__(self, generation: int, members: list[SimWorker]) -> None:
        self.generation = generation
        self.members = members
        self.armed = False  # its next step is about to be taken
        self.waiting: dict[str, float] = {}  # since when those wait that have come to its step, and others have not
        self.tarries = False  # it is broken, and some have taken their time to notice
        self.timed_out = False  # it is broken, and some of its members may not notice soon


class Rings:
    def __init__(self, job: SimJob, seed: int) -> None:
        self.job = job
        self._parting = random.Random(f"parting {seed}")
        self.rings: dict[int, SimRing] = {}  # by generation

    def arm(self, ring: SimRing, within_s: float = STEP_S) -> None:
        if not ring.armed:
            ring.armed = True
            self.job.after(within_s * (0.6 + 0.8 * self.job.random.random()), self._step, ring)

    def arm_at(self, ring: SimRing, at: float) -> None:
        self.job.after(at - self.job.now, self.arm, ring)

    def missed(self, worker: SimWorker) -> None:
        """Notify members connected to a worker that died, hangs, or has left."""
        self.job.meetings.missed(worker)
        self.left(worker)
        self.job.beginnings.missed(worker)

    def left(self, worker: SimWorker) -> None:
        """The ring it sat in last: the others come to a step that it does not take."""
        ring = self.rings.get(worker.generation)
        if ring is not None:
            self.arm(ring)

    def _step(self, ring: SimRing) -> None:
        ring.armed = False
        here = [w for w in ring.members if w.alive and w.sits and w.generation == ring.generation and not w.is_void]
        able = [w for w in here if w.doing is TrainerState.TRAINING and not w.stalled]
        late = [w for w in ring.members if w not in here and self.job.beginnings.awaits(w, ring)]
        whole = len(here) + len(late) == len(ring.members)
        busy = [worker for worker in able if worker.busy_until > self.job.now]
        astray = [worker for worker in able if worker.astray and worker not in busy]
        if len(astray) == len(ring.members):  # then they come to the same
            astray = []
        if busy:
            self.arm_at(ring, min(worker.busy_until for worker in busy))
        supplied = []
        for worker in (one for one in able if one not in busy and one not in astray):
            if self._is_at_end(worker):
                self.job.shells.end_script(worker)
            elif self._has_batch(worker):
                supplied.append(worker)
            else:
                self.job.checks.pace.waits(worker)
                self.job.shells.wait_on(worker)
        if not whole and supplied + astray and self.job.random.random() < 0.4 and not ring.tarries:
            ring.tarries = True  # some notice late, once: their mini-batch is long
            self.arm(ring, LONG_STEP * STEP_S)
        elif not whole:
            self._find_broken(ring, supplied + astray)  # others wait for samples
        elif len(supplied) == len(ring.members):
            self._train(ring)
        else:
            self._wait(ring, supplied + astray)
            if busy or late or astray or any(worker.stalled for worker in here):
                for worker in supplied + astray:
                    self.job.after(STEP_TIMEOUT_S, self._give_up, ring, worker, worker.step)

    def _wait(self, ring: SimRing, came: list[SimWorker]) -> None:
        """Note members that have come to a collective of a step while others have not."""
        ring.waiting = {one.id: ring.waiting.get(one.id, self.job.now) for one in came}

    def waited_for(self, worker: SimWorker) -> float:
        """Return for how long another member of its ring has waited for the step that the worker has yet to make."""
        waiting = self.rings[worker.generation].waiting if worker.generation in self.rings else {}
        return self.job.now - min((at for one, at in waiting.items() if one != worker.id), default=self.job.now)

    def _find_broken(self, ring: SimRing, came: list[SimWorker]) -> None:
        """A peer is gone: their mini-batch fails, and is void (I8)."""
        if came:
            self._hold_up(ring, min(worker.step for worker in came))
        for worker in came:
            if worker.sits:  # and was not killed as another one found that out
                waits = self.job.now - ring.waiting.get(worker.id, self.job.now) >= SETTLED_S
                self.job.shells.broken(worker, "connection reset by peer", _awaits(worker) if waits else "")

    def _has_batch(self, worker: SimWorker) -> bool:
        if self.job.spec is None:
            return True
        worker.read_on()
        self.job.checks.reads(worker)
        return worker.step + 1 in worker.read

    def _is_at_end(self, worker: SimWorker) -> bool:
        """Tell whether no sample is left for the script. If it asks for epochs, it has begun the one that is due."""
        spec = self.job.spec
        if spec is None:
            return worker.step >= self.job.steps
        while pass_is_over(worker):
            if worker.wanted == spec.epochs:
                return True
            self.job.shells.begin_pass(worker)
        return False

    def _give_up(self, ring: SimRing, worker: SimWorker, step: int) -> None:
        """Give the ring up at a member, by its own clock."""
        here = worker.alive and not worker.stalled and worker.sits and worker.doing is TrainerState.TRAINING
        if here and not worker.is_void and worker.generation == ring.generation and worker.step == step:
            self._hold_up(ring, step)
            self.job.shells.broken(worker, "not all members came to a collective", _awaits(worker), STEP_TIMEOUT_S)

    def _train(self, ring: SimRing) -> None:
        """Carry out one all-reduce of all members, and each member's act on its result."""
        members, step = ring.members, ring.members[0].step + 1
        ring.waiting = {}
        self._begin_equal(members)
        self.job.savings.wish(members, step)
        hands = {worker.id: samples_of(worker, step) for worker in members}
        victim = members[step % len(members)]
        self.job.happens(Moment.STEPPING, victim)
        if any(worker.attention == step for worker in members):
            victim = next((worker for worker in members if worker.leaving), victim)
            self.job.happens(Moment.LAST_STEP, victim)
        sender, awaiting = members[0], [worker for worker in members if worker.machine.model.is_awaited]
        if awaiting:
            self.job.happens(Moment.SENDING, self.job.senders.choice([sender, *awaiting]))
        applied = members
        if any(not worker.alive or worker.stalled for worker in members):
            # In this very step: some have the result already, others never get it.
            applied = [worker for worker in members if self.job.random.random() < 0.5]
        samples = [sample for hand in hands.values() for sample in hand]
        breaking = [one for one in applied if one.breaks]
        if breaking and any(self._ends_after(one, step) for one in applied):
            breaking = applied  # those that have such a step are at their end, and give no other their state
        applied = [one for one in applied if one not in breaking]
        stateful = [one for one in applied if not (one.machine.model.is_awaited and one.machine.model.portions.follow)]
        self.job.checks.training.trained(ring.generation, members, step, samples, done=bool(stateful))
        parts = [part for one in members if (part := self._gradient(one, step, hands[one.id])) is not None]
        reduced = mean(parts, of=1) if parts else None
        torn = [worker for worker in breaking if worker.tear()]
        applied = [worker for worker in members if worker in applied or worker in set(breaking) - set(torn)]
        lacking = [worker for worker in awaiting if not self._comes(worker, sender)]
        applied = [worker for worker in applied if worker not in lacking]
        ends = {worker.id: worker.end_batch() for worker in applied}
        for worker in applied:
            worker.model = worker.model.after(step, reduced)
        self.job.checks.training.applied(
            [one for one in applied if not _is_over(one) and not one.machine.model.is_awaited]
        )
        for worker in applied:
            self.job.shells.stepped(worker, ends[worker.id])
        if any(worker.stalled for worker in members):
            self._part(members, applied)
        for worker in torn:
            if worker.alive and not worker.stalled:
                self.job.shells.broken(worker, "the ring of another process of this worker has failed")
        for worker in lacking:
            if worker.alive and not worker.stalled and worker not in torn:
                self.job.shells.broken(worker, "its state did not come")
        self.arm(ring)

    def _ends_after(self, worker: SimWorker, step: int) -> bool:
        return step >= self.job.steps if self.job.spec is None else worker.leases.ends_before(step + 1)

    def _part(self, members: list[SimWorker], applied: list[SimWorker]) -> None:
        """Occupy members that have the result for a while, where others wait for a member that hangs."""
        here = [worker for worker in members if not worker.stalled and worker.doing is TrainerState.TRAINING]
        ahead = [worker for worker in here if worker in applied]
        if 0 < len(ahead) < len(here) and self._parting.random() < TAKE_TIME:
            for worker in ahead:
                self.job.shells.occupy(worker, STEP_TIMEOUT_S + 2 * STEP_S)

    def _hold_up(self, ring: SimRing, step: int) -> None:
        """Members that are ahead of `step` are at something of their own still, as others give up waiting in it."""
        ahead = [worker for worker in ring.members if worker.step > step and worker.busy_until > self.job.now]
        if ahead and not ring.timed_out:
            ring.timed_out, for_s = True, AWAITED_S * self._parting.random()
            for worker in ahead:
                self.job.shells.occupy(worker, for_s)

    def _comes(self, worker: SimWorker, sender: SimWorker) -> bool:
        """Tell whether the state for `worker` is there before this step's update. False: it never will be."""
        if not worker.alive or worker.stalled or worker.unsent or sender.unsent:
            worker.unsent, worker.lost_state = False, True
            return False
        gone = not sender.alive or sender.stalled
        if gone and self.job.senders.random() < 0.5:
            return False
        self._take(worker, sender)
        return True

    def _take(self, worker: SimWorker, sender: SimWorker) -> None:
        """Take the portion of this step; with the last one, the worker's model is that of the sender."""
        if not worker.machine.model.portions.follow:
            worker.model = sender.model
        self.job.shells.carry_out(worker, worker.machine.handle(StateCopied()))
        self.job.checks.training.sat(worker)

    def complete(self, members: list[SimWorker]) -> None:
        """Complete the models between two steps of a ring, where the scripts need all of them."""
        for worker in members:
            ring = self.rings.get(worker.generation)
            if not worker.machine.model.is_awaited or ring is None:
                continue
            sender = ring.members[0]
            if sender in members and (sender.generation, sender.step) == (worker.generation, worker.step):
                self._take(worker, sender)  # else one of the two has trained on without the other

    @staticmethod
    def _begin_equal(members: list[SimWorker]) -> None:
        """Begin from rank 0's model where no member has trained before."""
        for worker in members:
            for command in worker.machine.handle(BatchBegins()) if worker.machine.model.may_differ else ():
                assert isinstance(command, CopyState)
                worker.model = members[command.root].model
                worker.machine.handle(StateCopied())

    def _gradient(self, worker: SimWorker, step: int, samples: list[Sample]) -> int | None:
        if self.job.spec is None:
            return mean((of_own(worker.id, step),), of=worker.machine.size)
        worker.weigh(step)
        self.job.checks.weighs(worker, step, len(samples))
        return mean(map(of_sample, samples), of=worker.leases.samples(step))


def _awaits(worker: SimWorker) -> str:
    return ELSEWHERE if worker.astray else GRADIENTS


def samples_of(worker: SimWorker, step: int) -> list[Sample]:
    lease = worker.leases.at(step)
    pieces = lease.between(step - 1, step) if lease else ()
    return [(piece.epoch, position) for piece in pieces for position in range(piece.start, piece.stop)]


def pass_is_over(worker: SimWorker) -> bool:
    """Tell whether all epochs that the worker's script has begun are over."""
    over = worker.leases.epochs_before(worker.step + 1)
    return over is not None and over >= worker.wanted


def _is_over(worker: SimWorker) -> bool:
    """Tell whether the worker has heard that its job is over without the present step."""
    return worker.machine.orders is not None and worker.machine.orders.resumable
