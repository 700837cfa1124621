"""Simulated rings: workers meet, agree on a state, reduce in lockstep, and find out that a member is gone.

Owns: what Horovod, gloo and the rendezvous do between trainers. Does not own: what a trainer does about it
(`edl.testing.simulation`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl.core.worker.inputs import (
    Agree,
    BatchBegins,
    Command,
    CopyRest,
    CopyState,
    FetchState,
    NumberHeard,
    RingFormed,
    StateComes,
    StateCopied,
)
from edl.core.worker.states import TrainerState
from edl.protocol.assignment import Assignment
from edl.protocol.data import DataSpec
from edl.protocol.ring import Place
from edl.testing.faults import Moment
from edl.testing.models import Model, mean, of_own, of_sample
from edl.testing.worker import SimWorker

if TYPE_CHECKING:
    from edl.testing.simulation import SimJob

Sample = tuple[int, int]  # epoch, position

STEP_S = 0.01
LONG_STEP = 3  # times as long
STEP_TIMEOUT_S = 0.3
FORM_S = 0.004


class Meeting:
    """The members of a planned generation as they find each other, through their daemons."""

    def __init__(self, generation: int, size: int) -> None:
        self.generation = generation
        self.size = size
        self.arrived: dict[int, str] = {}  # by rank
        self.ahead: set[str] = set()  # of these: whose threads form it, while they are at a mini-batch
        self.forming = False
        self.connected = False


class SimRing:
    """A ring that stands, or did."""

    def __init__(self, generation: int, members: list[SimWorker]) -> None:
        self.generation = generation
        self.members = members
        self.armed = False  # its next step is about to be taken
        self.coming: set[str] = set()  # each comes by itself, to a beginning that it knows
        self.had: dict[str, int] = {}  # of these: the steps of those who had a state
        self.ready: set[str] = set()
        self.fetching: dict[str, list[Command]] = {}  # newcomers, as long as rank 0 has not come


class Rings:
    """All meetings and all rings of a job."""

    def __init__(self, job: SimJob) -> None:
        self.job = job
        self.meetings: dict[int, Meeting] = {}  # by generation
        self.rings: dict[int, SimRing] = {}

    # --------------------------------------------------------------------------------------------- the rendezvous

    def give_up(self, worker: SimWorker, reason: str) -> None:
        """Its daemon does not ask for the others any more."""
        if worker.doing is TrainerState.ENTERING and worker.assignment is not None:
            self.job.after(self._soon(), self._freed, worker, worker.assignment.place.generation, reason)

    def _freed(self, worker: SimWorker, generation: int, reason: str) -> None:
        meeting = self.meetings.get(generation)
        if meeting is not None and not meeting.forming:  # else it knows them already
            self.fail(worker, generation, reason)

    def arrive(self, worker: SimWorker, assignment: Assignment) -> None:
        """In line: it forms the ring now."""
        self.job.checks.accounts.enters(worker, assignment.place.generation)
        self._left(worker)
        self.job.happens(Moment.ENTERING, worker)
        place = assignment.place
        if worker.cut_off and place.size > 1 and self.job.random.random() < 0.5:  # it notices by itself
            self._later(worker, place.generation, "connect: no route to host")
            return
        self._come(self._meeting(place), worker, place)
        self._wait(worker, place.generation)

    def adopt(self, worker: SimWorker, assignment: Assignment, members: list[SimWorker]) -> None:
        """Into a ring that stands: the others come to it after the same step, and it waits for them in a collective."""
        self.job.checks.accounts.enters(worker, assignment.place.generation)
        self._left(worker)
        self.job.happens(Moment.ENTERING, worker)
        place = assignment.place
        if assignment.beside:
            self._begin_known(worker, place.generation, members)
            return
        self._come(self._meeting(place), worker, place, 0.0)
        self._wait(worker, place.generation)

    def _begin_known(self, worker: SimWorker, generation: int, members: list[SimWorker]) -> None:
        """It knows how that ring begins, and begins, or does not come. A newcomer waits for what rank 0 gives."""
        ring = self.rings.setdefault(generation, SimRing(generation, members))
        if not ring.coming and not ring.had:
            ring.coming = {one.id for one in members}
        self.job.happens(Moment.FORMING, worker)
        self.job.after(STEP_TIMEOUT_S, self.fail, worker, generation, "what it waits for does not come")
        if not worker.alive or worker.stalled:
            return
        had, ready = worker.step if worker.generation and worker.has_state else None, worker.booted
        commands = worker.machine.handle(RingFormed())
        fetches = any(isinstance(command, FetchState) for command in commands)
        if not (fetches or worker.machine.sits):
            self.job.shells.carry_out(worker, commands)
            return
        ring.coming.discard(worker.id)
        ring.had |= {} if had is None else {worker.id: had}
        ring.ready |= {worker.id} if ready else set()
        if fetches:
            ring.fetching[worker.id] = commands
        else:
            self.job.shells.sit(worker, commands)
        if members[0].machine.sits and members[0].generation == generation and members[0].alive:
            self._give(ring)
        self._note_whole(ring)

    def _give(self, ring: SimRing) -> None:
        """To the newcomers that have come to rank 0's ring."""
        models = [one.model for one in ring.members]
        for one, commands in sorted(ring.fetching.items()):
            worker = self.job.workers[one]
            if self._came_to(worker, ring.generation) and worker.alive and not worker.stalled:
                self._begin(worker, commands, models)
        ring.fetching = {}

    def _note_whole(self, ring: SimRing) -> None:
        if all(worker.sits and worker.generation == ring.generation for worker in ring.members):
            self.job.checks.formed(ring.generation, ring.members, ring.had, ring.ready)

    def _meeting(self, place: Place) -> Meeting:
        return self.meetings.setdefault(place.generation, Meeting(place.generation, place.size))

    def _come(self, meeting: Meeting, worker: SimWorker, place: Place, form_s: float = FORM_S) -> None:
        if worker.alive and not worker.stalled:
            meeting.arrived[place.rank] = worker.id
        if len(meeting.arrived) == meeting.size and not meeting.forming:
            meeting.forming = True
            self.job.after(form_s, self._connect, meeting)

    def _wait(self, worker: SimWorker, generation: int) -> None:
        meeting = self.meetings.get(generation)
        if meeting is None or not meeting.forming or meeting.ahead:
            self.job.after(STEP_TIMEOUT_S, self.fail, worker, generation, "the others did not come in time")

    # ------------------------------------------------------------- begun by a thread, beside the mini-batch of before

    def begin(self, worker: SimWorker, place: Place) -> None:
        """In place of a ring that is broken; those who wait for it in line meet with this one's thread."""
        if worker.cut_off and place.size > 1 and self.job.random.random() < 0.5:
            self._fail_soon(worker, place.generation, "connect: no route to host")
            return
        meeting = self._meeting(place)
        meeting.ahead.add(worker.id)
        self._come(meeting, worker, place)
        self.job.after(STEP_TIMEOUT_S, self.fail_begun, worker, place.generation, "the others did not come in time")

    def join(self, worker: SimWorker, assignment: Assignment) -> None:
        """Its mini-batch is over, and it waits for what its thread has begun."""
        self._left(worker)
        self.job.happens(Moment.ENTERING, worker)
        generation = assignment.place.generation
        meeting = self.meetings.get(generation)
        if meeting is None or worker.id not in meeting.ahead:
            self._later(worker, generation, "connection reset by peer")
            return
        meeting.ahead.discard(worker.id)
        if meeting.connected and not meeting.ahead:
            self._form(meeting)
        else:
            self._wait(worker, generation)

    def leave_begun(self, worker: SimWorker, generation: int) -> None:
        """It is not wanted any more, or its thread is gone."""
        meeting = self.meetings.get(generation)
        if meeting is not None and worker.id in meeting.ahead:
            self._part(meeting, worker)

    def fail_begun(self, worker: SimWorker, generation: int, reason: str) -> None:
        """Unless it is connected to all by now, or its trainer waits for it."""
        meeting = self.meetings.get(generation)
        if meeting is not None and not meeting.connected and worker.id in meeting.ahead:
            self._part(meeting, worker)
            self.job.next_rings.not_begun(worker, generation, reason)

    def _fail_soon(self, worker: SimWorker, generation: int, reason: str) -> None:
        self.job.after(self._soon(), self.job.next_rings.not_begun, worker, generation, reason)

    def _part(self, meeting: Meeting, worker: SimWorker) -> None:
        """One that is connected to others leaves: they notice, those who are at a mini-batch when they come to it."""
        meeting.ahead.discard(worker.id)
        meeting.arrived = {rank: one for rank, one in meeting.arrived.items() if one != worker.id}
        if meeting.forming:
            self._break(meeting)

    def _break(self, meeting: Meeting) -> None:
        """It comes to nothing for all that have come."""
        if self.meetings.pop(meeting.generation, None) is not meeting:
            return
        for one in sorted(meeting.arrived.values()):
            other = self.job.workers[one]
            if one not in meeting.ahead:
                self._later(other, meeting.generation, "connection reset by peer")
            elif not meeting.connected:
                self._fail_soon(other, meeting.generation, "connection reset by peer")

    def _connect(self, meeting: Meeting) -> None:
        """All are connected. Those that are at a mini-batch come once it is over."""
        if self.meetings.get(meeting.generation) is not meeting:
            return
        meeting.connected = True
        for one in sorted(meeting.ahead):
            self.job.next_rings.begun(self.job.workers[one], meeting.generation)
        if self.meetings.get(meeting.generation) is meeting and not meeting.ahead:
            self._form(meeting)

    def _later(self, worker: SimWorker, generation: int, reason: str) -> None:
        self.job.after(self._soon(), self.fail, worker, generation, reason)

    def _soon(self) -> float:
        return self.job.random.random() * 0.005

    def fail(self, worker: SimWorker, generation: int, reason: str) -> None:
        """`worker` could not enter, unless it has meanwhile."""
        entering = worker.doing is TrainerState.ENTERING and worker.assignment is not None
        if entering and worker.assignment and worker.assignment.place.generation == generation and worker.alive:
            meeting = self.meetings.get(generation)
            if meeting is not None and not meeting.forming:
                meeting.arrived.pop(worker.assignment.place.rank, None)
            elif meeting is not None and meeting.connected:  # it waits for those who are at a mini-batch
                self._part(meeting, worker)
            self.job.shells.broken(worker, reason)

    def missed(self, worker: SimWorker) -> None:
        """It died or hangs: who is connected to it notices."""
        for meeting in list(self.meetings.values()):
            if worker.id in meeting.arrived.values() and not worker.alive and not meeting.forming:
                for other in sorted(set(meeting.arrived.values()) - {worker.id}):
                    self._later(self.job.workers[other], meeting.generation, "connection reset by peer")
                    fail = (self.job.workers[other], meeting.generation, "connection reset by peer")
                    self.job.after(self._soon(), self.fail_begun, *fail)
            elif worker.id in meeting.arrived.values() and not worker.alive and meeting.connected:
                self._part(meeting, worker)
        self._left(worker)
        for ring in self.rings.values():
            if worker.id in ring.coming and not self._is_to_come(worker, ring):
                self._miss(ring, worker)

    def _miss(self, ring: SimRing, worker: SimWorker) -> None:
        """It will not come to this one: the others notice, and those who wait for its state."""
        self.arm(ring)
        if worker is ring.members[0]:
            for one in sorted(ring.fetching):
                self._later(self.job.workers[one], ring.generation, "connection reset by peer")

    def _left(self, worker: SimWorker) -> None:
        ring = self.rings.get(worker.generation)
        if ring is not None:
            self.arm(ring)

    # ---------------------------------------------------------------------------------------------- a new state

    def _form(self, meeting: Meeting) -> None:
        """All are connected: they agree on the newest step, and members that are behind receive its state (I5)."""
        del self.meetings[meeting.generation]
        members = [self.job.workers[worker] for _, worker in sorted(meeting.arrived.items())]
        victim = self.job.random.choice(members)
        self.job.happens(Moment.FORMING, victim)
        came = [worker for worker in members if self._came_to(worker, meeting.generation)]
        living = [worker for worker in came if worker.alive and not worker.stalled]
        if len(living) < len(members):
            self._break_off(members, came, living, meeting.generation)
            return
        if len(members) > 1 and any(worker.cut_off for worker in members):
            for worker in members:
                self._later(worker, meeting.generation, "connection reset by peer")
            return
        had = {one.id: one.step for one in members if one.generation and one.has_state}
        ready = {one.id for one in members if one.booted}
        answers, models = self._agree(members), [one.model for one in members]
        begin = [one.machine.assignment is not None or one.sits for one in members]
        if all(begin):
            self.job.checks.formed(meeting.generation, members, had, ready)
        if any(begin):  # else all have found that it is not to stand; if some, the others say that the state is lost
            self.rings[meeting.generation] = SimRing(meeting.generation, members)
        for worker in members:
            self._begin(worker, answers[worker.id], models)
        self.job.note(f"ring {meeting.generation} of {[one.id for one in members]} stands after step {members[0].step}")

    @staticmethod
    def _came_to(worker: SimWorker, generation: int) -> bool:
        """It has not given up waiting for the others just as the last one came."""
        return worker.assignment is not None and worker.assignment.place.generation == generation

    def _agree(self, members: list[SimWorker]) -> dict[str, list[Command]]:
        """They agree, all at once: each number of theirs is an all-reduce of the highest. What each does then."""
        answers = {worker.id: worker.machine.handle(RingFormed()) for worker in members}
        while said := {one: command.number for one, (command, *_) in answers.items() if isinstance(command, Agree)}:
            if gone_on := answers.keys() - said.keys():
                self.job.checks.violated("I3", f"{sorted(said)} wait for numbers of {sorted(gone_on)}, who go on")
            highest = max(said.values())
            answers = {worker.id: worker.machine.handle(NumberHeard(highest)) for worker in members}
        return answers

    def _begin(self, worker: SimWorker, commands: list[Command], models: list[Model]) -> None:
        """What it is to begin with has come whole. `models`: of all members, by rank."""
        for command in commands:
            if isinstance(command, FetchState):
                if not worker.sends_state:
                    self.job.checks.violated("I14", f"{worker.id} is to fetch its state beside a step, and cannot")
                worker.model = worker.model.half_copied(models[command.root])
                commands = worker.machine.handle(StateComes())
            elif isinstance(command, CopyState | CopyRest):
                mine, theirs = worker.model, models[command.root]
                if isinstance(command, CopyState):
                    worker.model = theirs
                elif command.unsure:
                    worker.model = Model(mine.learned, theirs.carried)
                commands = worker.machine.handle(StateCopied())
        if worker.machine.sits:
            self.job.shells.sit(worker, commands)
        else:  # the members have found out that this ring is not to stand
            self.job.shells.carry_out(worker, commands)

    def _break_off(
        self, members: list[SimWorker], came: list[SimWorker], living: list[SimWorker], generation: int
    ) -> None:
        """A member dies in the middle: some of the others may be through, others have half a state, or none."""
        source = self.job.random
        copying = generation > 1 and any(one.has_state for one in came)
        copying = copying and source.random() < 0.7  # all agreed: it happened in what comes after
        answers = self._agree(came) if copying else {}
        models = [worker.model for worker in members]
        for worker in living:
            commands = answers.get(worker.id, [])
            fetch = next((one for one in commands if isinstance(one, FetchState)), None)
            comes = fetch is not None and members[fetch.root] in living and source.random() < 0.5
            if worker.machine.sits or comes:
                self.rings.setdefault(generation, SimRing(generation, members))
                self._begin(worker, commands, models)
                continue
            copy = next((one for one in commands if isinstance(one, CopyState | CopyRest)), None)
            if copy is not None and source.random() < 0.3 and self._has_come(copy, members, living):
                self.rings[generation] = SimRing(generation, members)
                self._begin(worker, commands, models)
                continue
            if copy is not None:
                self._take_half(worker, copy, models)
            elif commands and fetch is None:
                self._begin(worker, commands, models)
            reason = "connection reset by peer" if len(living) + 1 >= len(members) else "several are gone"
            slow = STEP_TIMEOUT_S if any(one.stalled for one in members) else 0.005
            self.job.after(slow * source.random(), self.fail, worker, generation, reason)
        if generation in self.rings:
            self.arm(self.rings[generation])

    @staticmethod
    def _has_come(copy: CopyState | CopyRest, members: list[SimWorker], living: list[SimWorker]) -> bool:
        """What is copied may be through, though a member is gone: unless that one was to give it."""
        copies = isinstance(copy, CopyState) or copy.unsure
        return not copies or members[copy.root] in living

    def _take_half(self, worker: SimWorker, copy: CopyState | CopyRest, models: list[Model]) -> None:
        """Of a whole state, or of what only may differ."""
        mine, theirs = worker.model, models[copy.root]
        if isinstance(copy, CopyRest) and copy.unsure:
            worker.model = Model(mine.learned, mine.half_copied(theirs).carried)
        elif isinstance(copy, CopyState) and not (copy.is_root or copy.current):
            worker.model = mine.half_copied(theirs)
        elif isinstance(copy, CopyState) and worker.step and not worker.has_state:
            self.job.checks.violated("I5", f"{worker.id} has the whole state of step {worker.step}, and gives it up")

    # -------------------------------------------------------------------------------------------------- its steps

    def arm(self, ring: SimRing, within_s: float = STEP_S) -> None:
        if not ring.armed:
            ring.armed = True
            self.job.after(within_s * (0.6 + 0.8 * self.job.random.random()), self._step, ring)

    def arm_at(self, ring: SimRing, at: float) -> None:
        """Or before, if something happens to it."""
        self.job.after(at - self.job.now, self.arm, ring)

    def _step(self, ring: SimRing) -> None:
        ring.armed = False
        here = [w for w in ring.members if w.alive and w.sits and w.generation == ring.generation]
        able = [w for w in here if w.doing is TrainerState.TRAINING and not w.stalled]
        late = [w for w in ring.members if w not in here and self._is_to_come(w, ring)]
        whole = len(here) + len(late) == len(ring.members)
        supplied, busy = [], [worker for worker in able if worker.busy_until > self.job.now]
        if busy:
            self.arm_at(ring, max(worker.busy_until for worker in busy))
        for worker in able:
            if worker in busy:
                pass
            elif self._is_at_end(worker):
                self.job.shells.end_script(worker)
            elif self._has_batch(worker):
                supplied.append(worker)
            else:
                self.job.checks.pace.waits(worker)
        if not whole and supplied and self.job.random.random() < 0.4:  # some notice late: their mini-batch is long
            self.arm(ring, LONG_STEP * STEP_S)
        elif not whole:
            for worker in supplied:  # a peer is gone: the mini-batch fails, and is void (I8). Others wait for samples
                self.job.shells.broken(worker, "connection reset by peer")
        elif len(supplied) == len(ring.members):
            self._train(ring)
        elif supplied and (busy or late or any(worker.stalled for worker in here)):
            for worker in supplied:
                self.job.after(STEP_TIMEOUT_S, self._give_up, ring, worker, worker.step)

    def _is_to_come(self, worker: SimWorker, ring: SimRing) -> bool:
        """It is on its way here from the ring of before, or a newcomer that waits for its state."""
        if worker.id in ring.coming:
            held = self.job.next_rings.held.get(worker.id) == ring.generation
            return worker.alive and (held or worker.stalled)
        return worker.alive and self._came_to(worker, ring.generation)

    def _has_batch(self, worker: SimWorker) -> bool:
        if self.job.spec is None:
            return True
        worker.read_on()
        self.job.checks.reads(worker)
        return worker.step + 1 in worker.read

    def _is_at_end(self, worker: SimWorker) -> bool:
        """No sample is left for its script. If it asks for each epoch by itself, it has begun the one that is due."""
        spec = self.job.spec
        if spec is None:
            return worker.step >= self.job.steps
        while pass_is_over(worker, spec):
            if worker.wanted == spec.epochs:
                return True
            self.job.shells.begin_pass(worker)
        return False

    def _give_up(self, ring: SimRing, worker: SimWorker, step: int) -> None:
        here = worker.alive and not worker.stalled and worker.sits and worker.doing is TrainerState.TRAINING
        if here and worker.generation == ring.generation and worker.step == step:
            self.job.shells.broken(worker, "the all-reduce timed out")

    def _train(self, ring: SimRing) -> None:
        """One all-reduce of all members, and what each does with its result."""
        members, step = ring.members, ring.members[0].step + 1
        self._begin_equal(members)
        self.job.savings.wish(members, step)
        hands = {worker.id: samples_of(worker, step) for worker in members}
        victim = members[step % len(members)]
        self.job.happens(Moment.STEPPING, victim)
        if any(worker.attention == step for worker in members):
            victim = next((worker for worker in members if worker.leaving), victim)
            self.job.happens(Moment.LAST_STEP, victim)
        sender, awaiting = members[0], [worker for worker in members if worker.machine.awaits_state]
        if awaiting:
            self.job.happens(Moment.SENDING, self.job.senders.choice([sender, *awaiting]))
        applied = members
        if any(not worker.alive or worker.stalled for worker in members):
            # In this very step: some have the result already, others never get it.
            applied = [worker for worker in members if self.job.random.random() < 0.5]
        samples = [sample for hand in hands.values() for sample in hand]
        stateful = [one for one in applied if not (one.machine.awaits_state and one.machine.portions.follow)]
        self.job.checks.trained(ring.generation, members, step, samples, done=bool(stateful))
        parts = [part for one in members if (part := self._gradient(one, step, hands[one.id])) is not None]
        reduced = mean(parts, of=1) if parts else None
        lacking = [worker for worker in awaiting if not self._comes(worker, sender)]
        applied = [worker for worker in applied if worker not in lacking]
        ends = {worker.id: worker.end_batch() for worker in applied}
        for worker in applied:
            worker.model = worker.model.after(step, reduced)
        self.job.checks.applied([one for one in applied if not _is_over(one) and not one.machine.awaits_state])
        for worker in applied:
            self.job.shells.stepped(worker, ends[worker.id])
        for worker in lacking:
            if worker.alive and not worker.stalled:
                self.job.shells.broken(worker, "its state did not come")
        self.arm(ring)

    def _comes(self, worker: SimWorker, sender: SimWorker) -> bool:
        """What `worker` gets beside this step is there before its update. False: it never will be."""
        if not worker.alive or worker.stalled or worker.unsent or sender.unsent:
            worker.unsent, worker.lost_state = False, True
            return False
        gone = not sender.alive or sender.stalled
        if gone and self.job.senders.random() < 0.5:
            return False
        self._take(worker, sender)
        return True

    def _take(self, worker: SimWorker, sender: SimWorker) -> None:
        """The portion of this step; with the last one, its model is that of the sender."""
        if not worker.machine.portions.follow:
            worker.model = sender.model
        self.job.shells.carry_out(worker, worker.machine.handle(StateCopied()))
        self.job.checks.sat(worker)

    def complete(self, members: list[SimWorker]) -> None:
        """Between two steps of their ring the scripts need all of the model, and the rest of it has followed."""
        for worker in members:
            ring = self.rings.get(worker.generation)
            if worker.machine.awaits_state and ring is not None and ring.members[0] in members:
                self._take(worker, ring.members[0])

    @staticmethod
    def _begin_equal(members: list[SimWorker]) -> None:
        """Where no member has trained before, all begin from rank 0's model."""
        for worker in members:
            for command in worker.machine.handle(BatchBegins()) if worker.machine.models_may_differ else ():
                assert isinstance(command, CopyState)
                worker.model = members[command.root].model
                worker.machine.handle(StateCopied())

    def _gradient(self, worker: SimWorker, step: int, samples: list[Sample]) -> int | None:
        """What it adds to the mean of all: its own, by its weight."""
        if self.job.spec is None:
            return mean((of_own(worker.id, step),), of=worker.machine.size)
        worker.weigh(step)
        self.job.checks.weighs(worker, step, len(samples))
        return mean(map(of_sample, samples), of=worker.leases.samples(step))


def samples_of(worker: SimWorker, step: int) -> list[Sample]:
    """What `worker` trains in `step`, by its leases (I7)."""
    lease = worker.leases.at(step)
    pieces = lease.between(step - 1, step) if lease else ()
    return [(piece.epoch, position) for piece in pieces for position in range(piece.start, piece.stop)]


def pass_is_over(worker: SimWorker, spec: DataSpec) -> bool:
    """All samples of the epochs that its script has begun are trained.

    A script that cuts batches itself has ended its pass with its last short one, whatever comes back later.
    """
    leases, step = worker.leases, worker.step
    if spec.by_sample and leases.ends_pass(step) and leases.epoch(step) == worker.wanted - 1:
        return True
    coming = leases.wanted_at(step + 1)
    return leases.ends_before(step + 1) if coming is None else coming.epoch >= worker.wanted


def _is_over(worker: SimWorker) -> bool:
    """Its job, that is, without the step that it is in, as it has heard."""
    return worker.machine.orders is not None and worker.machine.orders.resumable
