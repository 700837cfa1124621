"""Simulated rings: workers meet, agree on a state, reduce in lockstep, and find out that somebody is gone.

Owns: what Horovod, gloo and the rendezvous do between trainers. Does not own: what a trainer does about it
(`edl.testing.simulation`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl.core.agreement import agreed, doubts, vote
from edl.protocol.assignment import Assignment
from edl.protocol.data import DataSpec
from edl.testing.faults import Moment
from edl.testing.worker import Doing, SimWorker, lease_at

if TYPE_CHECKING:
    from edl.testing.simulation import SimJob

Sample = tuple[int, int]  # epoch, position

STEP_S = 0.01
STEP_TIMEOUT_S = 0.3
FORM_S = 0.004


class Meeting:
    """The rendezvous of a planned generation, at one leader."""

    def __init__(self, generation: int, roster: tuple[str, ...]) -> None:
        self.generation = generation
        self.roster = roster
        self.arrived: set[str] = set()
        self.open = True
        self.forming = False


class SimRing:
    """A ring that stands, or did."""

    def __init__(self, generation: int, members: list[SimWorker]) -> None:
        self.generation = generation
        self.members = members
        self.armed = False  # its next step is about to be taken


class Rings:
    """All meetings and all rings of a job."""

    def __init__(self, job: SimJob) -> None:
        self.job = job
        self.meetings: dict[tuple[int, int], Meeting] = {}  # by term and generation
        self.rings: dict[int, SimRing] = {}

    # --------------------------------------------------------------------------------------------- the rendezvous

    def host(self, term: int, generation: int, roster: tuple[str, ...]) -> None:
        for other in [key for key in self.meetings if key[0] == term]:
            self._shut(other)
        self.meetings[term, generation] = Meeting(generation, roster)

    def close(self, term: int, generation: int) -> None:
        if (term, generation) in self.meetings:
            self._shut((term, generation))

    def abandon(self, term: int) -> None:
        """The leader's process is gone, and its rendezvous with it."""
        for key in [key for key in self.meetings if key[0] == term]:
            self._shut(key)

    def _shut(self, key: tuple[int, int]) -> None:
        meeting = self.meetings.pop(key)
        meeting.open = False
        if not meeting.forming:
            for worker in sorted(meeting.arrived):
                self._later(self.job.workers[worker], meeting.generation, "the rendezvous was closed")

    def arrive(self, worker: SimWorker, assignment: Assignment) -> None:
        worker.doing, worker.assignment, worker.sits = Doing.ENTERING, assignment, False
        self._left(worker)
        self.job.happens(Moment.ENTERING, worker)
        place = assignment.place
        meeting = self.meetings.get((place.rendezvous_port, place.generation))
        if meeting is None:
            self._later(worker, place.generation, "nobody answers at the rendezvous")
            return
        if worker.alive and not worker.stalled:
            meeting.arrived.add(worker.id)
        if len(meeting.arrived) == len(meeting.roster):
            meeting.forming = True
            self.job.after(FORM_S, self._form, meeting)
        else:
            self.job.after(STEP_TIMEOUT_S, self.fail, worker, place.generation, "the others did not come in time")

    def _later(self, worker: SimWorker, generation: int, reason: str) -> None:
        self.job.after(self.job.random.random() * 0.005, self.fail, worker, generation, reason)

    def fail(self, worker: SimWorker, generation: int, reason: str) -> None:
        """`worker` could not enter, unless it has meanwhile."""
        entering = worker.doing is Doing.ENTERING and worker.assignment is not None
        if entering and worker.assignment and worker.assignment.place.generation == generation and worker.alive:
            for meeting in self.meetings.values():
                if meeting.generation == generation and not meeting.forming:
                    meeting.arrived.discard(worker.id)
            worker.assignment, worker.failed_generation = None, generation
            self.job.broken(worker, reason)

    def missed(self, worker: SimWorker) -> None:
        """It died or hangs: who is connected to it notices."""
        for meeting in list(self.meetings.values()):
            if worker.id in meeting.arrived and not worker.alive and not meeting.forming:
                for other in sorted(meeting.arrived - {worker.id}):
                    self._later(self.job.workers[other], meeting.generation, "connection reset by peer")
        self._left(worker)

    def _left(self, worker: SimWorker) -> None:
        ring = self.rings.get(worker.generation)
        if ring is not None:
            self.arm(ring)

    # ---------------------------------------------------------------------------------------------- a new state

    def _form(self, meeting: Meeting) -> None:
        """All are connected: they agree on the newest step, and whoever is behind receives its state (I5)."""
        members = [self.job.workers[worker] for worker in meeting.roster]
        victim = self.job.random.choice(members)
        self.job.happens(Moment.FORMING, victim)
        living = [worker for worker in members if worker.alive and not worker.stalled]
        if len(living) < len(members):
            self._break_off(members, living, meeting.generation)
            return
        votes = [vote(worker.step, rank, has_state=worker.has_state) for rank, worker in enumerate(members)]
        newest, assignment = agreed(max(votes)), members[0].assignment
        assert assignment is not None
        if newest is None and any(worker.step for worker in members):
            for worker in members:
                self.job.fail_script(worker, "nobody in the ring has the model's state: its owner died in the copying")
            return
        step = newest.step if newest else 0
        asked = assignment.after_step is None or any(self._doubts(worker) for worker in members)
        self.job.checks.formed(meeting.generation, members, step, asked)
        self.rings[meeting.generation] = SimRing(meeting.generation, members)
        for worker in members:
            worker.tainted = False
            self.job.sit(worker, meeting.generation, step)
        self.job.note(f"ring {meeting.generation} of {meeting.roster} stands after step {step}")

    @staticmethod
    def _doubts(worker: SimWorker) -> bool:
        assignment = worker.assignment
        assert assignment is not None
        return doubts(assignment, worker.generation, worker.step, has_state=worker.has_state)

    def _break_off(self, members: list[SimWorker], living: list[SimWorker], generation: int) -> None:
        """Somebody dies in the middle: some of the others may be through, others have half a state, or none."""
        source = self.job.random
        votes = [vote(worker.step, rank, has_state=worker.has_state) for rank, worker in enumerate(members)]
        newest = agreed(max(votes))
        copying = newest is not None and source.random() < 0.7  # all agreed: it happened in what comes after
        ring = SimRing(generation, members)
        for worker in living:
            behind = newest is not None and (not worker.has_state or worker.step < newest.step)
            through = copying and source.random() < 0.3
            if newest is not None and through and (not behind or members[newest.root] in living):
                self.rings[generation] = ring
                worker.tainted = False
                self.job.sit(worker, generation, newest.step)
                continue
            worker.tainted = worker.tainted or (copying and behind)
            reason = "connection reset by peer" if len(living) + 1 >= len(members) else "several are gone"
            slow = STEP_TIMEOUT_S if any(one.stalled for one in members) else 0.005
            self.job.after(slow * source.random(), self.fail, worker, generation, reason)
        if generation in self.rings:
            self.arm(ring)

    # -------------------------------------------------------------------------------------------------- its steps

    def arm(self, ring: SimRing, within_s: float = STEP_S) -> None:
        if not ring.armed:
            ring.armed = True
            self.job.after(within_s * (0.6 + 0.8 * self.job.random.random()), self._step, ring)

    def _step(self, ring: SimRing) -> None:
        ring.armed = False
        here = [w for w in ring.members if w.alive and w.sits and w.generation == ring.generation]
        able = [w for w in here if w.doing is Doing.TRAINING and not w.stalled and w.share is not None]
        whole = len(here) == len(ring.members)
        supplied = []
        for worker in able:
            share = worker.share
            assert share is not None
            if self._is_at_end(worker):
                self.job.end_script(worker)
                continue
            worker.read_on()
            self.job.checks.reads(worker)
            if worker.step + 1 in worker.read:
                supplied.append(worker)
        if not whole:
            for worker in supplied:  # a peer is gone: the mini-batch fails, and is void (I8). Others wait for samples
                self.job.broken(worker, "connection reset by peer")
        elif len(supplied) == len(ring.members):
            self._train(ring)
        elif supplied and any(worker.stalled for worker in here):
            for worker in supplied:
                self.job.after(STEP_TIMEOUT_S, self._give_up, ring, worker, worker.step)

    def _is_at_end(self, worker: SimWorker) -> bool:
        """No sample is left for its script. If it asks for each epoch by itself, it has begun the one that is due."""
        spec, share = self.job.spec, worker.share
        assert share is not None
        if not spec.open_ended:
            return share.covered_step <= worker.step and (share.last or sees_the_end(worker, spec))
        while pass_is_over(worker):
            if worker.wanted == spec.epochs:
                return True
            self.job.begin_pass(worker)
        return False

    def _give_up(self, ring: SimRing, worker: SimWorker, step: int) -> None:
        here = worker.alive and not worker.stalled and worker.sits and worker.doing is Doing.TRAINING
        if here and worker.generation == ring.generation and worker.step == step:
            self.job.broken(worker, "the all-reduce timed out")

    def _train(self, ring: SimRing) -> None:
        """One all-reduce of all members, and what each does with its result."""
        members, step = ring.members, ring.members[0].step + 1
        samples: list[Sample] = []
        for worker in members:
            samples += samples_of(worker, step)
        victim = members[step % len(members)]
        self.job.happens(Moment.STEPPING, victim)
        if any(worker.attention == step for worker in members):
            victim = next((worker for worker in members if worker.leaving), victim)
            self.job.happens(Moment.LAST_STEP, victim)
        applied = members
        if not victim.alive or victim.stalled:  # in this very step: some have the result already, others never get it
            applied = [worker for worker in members if self.job.random.random() < 0.5]
        self.job.checks.trained(ring.generation, members, step, samples, done=bool(applied))
        for worker in applied:
            worker.step = step
        for worker in applied:
            self.job.stepped(worker)
        self.arm(ring)


def samples_of(worker: SimWorker, step: int) -> list[Sample]:
    """What `worker` trains in `step`, by its leases (I7)."""
    lease = lease_at(worker, step)
    pieces = lease.between(step - 1, step) if lease else ()
    return [(piece.epoch, position) for piece in pieces for position in range(piece.start, piece.stop)]


def sees_the_end(worker: SimWorker, spec: DataSpec) -> bool:
    """A script that cuts batches itself has ended with its last short one, whatever comes back later."""
    lease = lease_at(worker, worker.step) if spec.by_sample else None
    last = lease is not None and lease.final and lease.until_step == worker.step
    return last and lease is not None and (lease.epoch == spec.epochs - 1 or not spec.whole_epochs)


def pass_is_over(worker: SimWorker) -> bool:
    """All samples of the epochs that its script has begun are trained."""
    lease, share = lease_at(worker, worker.step + 1), worker.share
    if lease is not None:
        return lease.epoch >= worker.wanted
    return share is not None and share.last and share.epochs >= worker.wanted
