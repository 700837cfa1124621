"""Simulated meetings: the members of a planned ring find each other through their daemons, and notice that one is gone.

Owns: who has come to which meeting, in line or by a thread beside a void mini-batch, and whom a broken one fails. Does
not own: what members do once all are connected (`tests.model.model_beginnings`), nor rings that form beside one that
works (`tests.model.model_next_rings`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl.core.worker.worker_states import TrainerState
from edl.protocol.assignment import Assignment, Place
from tests.model.model_faults import Moment
from tests.model.model_rings import STEP_TIMEOUT_S
from tests.model.model_worker import SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

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


class Meetings:
    def __init__(self, job: SimJob) -> None:
        self.job = job
        self.meetings: dict[int, Meeting] = {}  # by generation

    # ---------------------------------------------------------------------------------------------------- in line

    def arrive(self, worker: SimWorker, assignment: Assignment) -> None:
        self.job.checks.goes_to(worker, assignment.place.generation)
        self.job.rings.left(worker)
        self.job.happens(Moment.ENTERING, worker)
        place = assignment.place
        if worker.cut_off and place.size > 1 and self.job.random.random() < 0.5:  # it notices by itself
            self.fail_later(worker, place.generation, "connect: no route to host")
            return
        self._come(self._meeting(place), worker, place)
        self._wait(worker, place.generation)

    def adopt(self, worker: SimWorker, assignment: Assignment, members: list[SimWorker]) -> None:
        """Enter a prepared ring: the others come after the same step, and the worker waits for them in a collective."""
        self.job.checks.goes_to(worker, assignment.place.generation)
        self.job.rings.left(worker)
        self.job.happens(Moment.ENTERING, worker)
        place = assignment.place
        if assignment.begins_as_planned:
            self.job.beginnings.begin_known(worker, place.generation, members)
            return
        self._come(self._meeting(place), worker, place, 0.0)
        self._wait(worker, place.generation)

    def give_up(self, worker: SimWorker, reason: str) -> None:
        """Stop asking for the other members."""
        if worker.doing is TrainerState.ENTERING and worker.assignment is not None:
            self.job.after(self._soon(), self._freed, worker, worker.assignment.place.generation, reason)

    def _freed(self, worker: SimWorker, generation: int, reason: str) -> None:
        meeting = self.meetings.get(generation)
        if meeting is not None and not meeting.forming:  # else it knows them already
            self.fail(worker, generation, reason)

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
        """Begin a ring in place of a broken one; members that wait for it in line meet with this one's thread."""
        if worker.cut_off and place.size > 1 and self.job.random.random() < 0.5:
            self._fail_soon(worker, place.generation, "connect: no route to host")
            return
        meeting = self._meeting(place)
        meeting.ahead.add(worker.id)
        self._come(meeting, worker, place)
        self.job.after(STEP_TIMEOUT_S, self.fail_begun, worker, place.generation, "the others did not come in time")

    def join(self, worker: SimWorker, assignment: Assignment) -> None:
        """Wait for the ring that this worker's thread has begun, as its mini-batch is over."""
        self.job.rings.left(worker)
        self.job.happens(Moment.ENTERING, worker)
        generation = assignment.place.generation
        meeting = self.meetings.get(generation)
        if meeting is None or worker.id not in meeting.ahead:
            self.fail_later(worker, generation, "connection reset by peer")
            return
        meeting.ahead.discard(worker.id)
        if meeting.connected and not meeting.ahead:
            self._end(meeting)
        else:
            self._wait(worker, generation)

    def leave_begun(self, worker: SimWorker, generation: int) -> None:
        """Leave a begun ring that is not wanted any more, or whose thread is gone."""
        meeting = self.meetings.get(generation)
        if meeting is not None and worker.id in meeting.ahead:
            self._part(meeting, worker)

    def fail_begun(self, worker: SimWorker, generation: int, reason: str) -> None:
        """Fail a begun ring, unless the worker is connected to all by now, or its trainer waits for the ring."""
        meeting = self.meetings.get(generation)
        if meeting is not None and not meeting.connected and worker.id in meeting.ahead:
            self._part(meeting, worker)
            self.job.next_rings.not_begun(worker, generation, reason)

    def _fail_soon(self, worker: SimWorker, generation: int, reason: str) -> None:
        self.job.after(self._soon(), self.job.next_rings.not_begun, worker, generation, reason)

    # ----------------------------------------------------------------------------------------------------- its ends

    def _connect(self, meeting: Meeting) -> None:
        """Note that all members are connected. Those at a mini-batch come once it is over."""
        if self.meetings.get(meeting.generation) is not meeting:
            return
        meeting.connected = True
        for one in sorted(meeting.ahead):
            self.job.next_rings.begun(self.job.workers[one], meeting.generation)
        if self.meetings.get(meeting.generation) is meeting and not meeting.ahead:
            self._end(meeting)

    def _end(self, meeting: Meeting) -> None:
        del self.meetings[meeting.generation]
        members = [self.job.workers[worker] for _, worker in sorted(meeting.arrived.items())]
        self.job.beginnings.begin(meeting.generation, members)

    def _part(self, meeting: Meeting, worker: SimWorker) -> None:
        """Take a connected member out: the others notice, those at a mini-batch when they come to the ring."""
        meeting.ahead.discard(worker.id)
        meeting.arrived = {rank: one for rank, one in meeting.arrived.items() if one != worker.id}
        if meeting.forming:
            self._break(meeting)

    def _break(self, meeting: Meeting) -> None:
        if self.meetings.pop(meeting.generation, None) is not meeting:
            return
        for one in sorted(meeting.arrived.values()):
            other = self.job.workers[one]
            if one not in meeting.ahead:
                self.fail_later(other, meeting.generation, "connection reset by peer")
            elif not meeting.connected:
                self._fail_soon(other, meeting.generation, "connection reset by peer")

    def fail_later(self, worker: SimWorker, generation: int, reason: str) -> None:
        self.job.after(self._soon(), self.fail, worker, generation, reason)

    def _soon(self) -> float:
        return self.job.random.random() * 0.005

    def fail(self, worker: SimWorker, generation: int, reason: str) -> None:
        """`worker` could not enter, unless it has meanwhile."""
        if worker.doing is TrainerState.ENTERING and worker.goes_to(generation):
            meeting = self.meetings.get(generation)
            if meeting is not None and not meeting.forming:
                meeting.arrived = {rank: one for rank, one in meeting.arrived.items() if one != worker.id}
            elif meeting is not None and meeting.connected:  # it waits for those who are at a mini-batch
                self._part(meeting, worker)
            self.job.shells.broken(worker, reason)

    def missed(self, worker: SimWorker) -> None:
        """Notify members connected to a worker that died; a worker that hangs or will not come is not noticed."""
        for meeting in list(self.meetings.values()):
            if worker.id in meeting.arrived.values() and not worker.alive and not meeting.forming:
                for other in sorted(set(meeting.arrived.values()) - {worker.id}):
                    fails = (self.job.workers[other], meeting.generation, "connection reset by peer")
                    self.fail_later(*fails)
                    self.job.after(self._soon(), self.fail_begun, *fails)
            elif worker.id in meeting.arrived.values() and not worker.alive and meeting.connected:
                self._part(meeting, worker)
