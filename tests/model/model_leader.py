"""A simulated leader: the real machines, with a shell that takes time to write and may die at any instruction.

Owns: what `edl.daemon.leader_shell` owns: the queue of what happens, and carrying out what the machines say. Does not
own: the decisions (`edl.core.job.leader_machine`), nor that they are durable before they are told
(`edl.core.job.commit`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from edl.core.job.commit import (
    BatchDecided,
    Commit,
    DeclareRest,
    ForgetSecret,
    GiveAnswer,
    Happened,
    InStore,
    Instruction,
    Publish,
    WriteManifest,
    Writing,
    WritingState,
    decide,
)
from edl.core.job.deadlines import END_OF_TIME
from edl.core.job.leader_inputs import Input, NotListening, TimePassed
from edl.core.job.leader_machine import JobMachine
from edl.core.job.orders import OrderBook
from edl.errors import Fenced, StoreUnavailable
from edl.protocol.leader_messages import Rejected
from edl.protocol.record import Identity

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

TICK_S = 0.1
KNOCK_S = 0.02
AGAIN_S = 0.1  # from a call that got no answer to the next term
LOOK_EACH = 8  # of so many writes, the job's status is asked for during one
Asker = Callable[[bool], None]  # told whether what was asked was taken, once that is durable


class LeaderInJob(Protocol):
    """One term of a leader, as the checks of a simulated job see it."""

    term: int
    alive: bool
    at_rest: bool

    @property
    def unanswered(self) -> list[Asker]: ...

    @property
    def machine(self) -> JobMachine: ...

    @property
    def writing(self) -> Writing[Any]: ...

    def receive(self, happened: Input, answer: Asker | None = None) -> None: ...


class SimLeader:
    def __init__(self, job: SimJob, term: int) -> None:
        self.job = job
        self.term = term
        self.machine = job.new_machine(job.durable, term)
        self.writing: Writing[Asker] = Writing(job.durable, job.node.version, term)
        self.book = OrderBook(job.durable, term)
        self.alive = True
        self.since = job.now
        self.at_rest = False
        self.unanswered: list[Asker] = []
        self._inbox: list[tuple[Input, Asker | None]] = []
        self._under_way: Commit | None = None
        self._busy = False
        self._knocks = False
        job.after(TICK_S, self._tick)

    def receive(self, happened: Input, answer: Asker | None = None) -> None:
        self._inbox.append((happened, answer))
        if not self._busy:
            self._busy = True
            self.job.after(0.0002, self._work)

    def crash(self, *, written: bool) -> None:
        """The process dies. Its last write may have been carried out."""
        if self.alive and written and self._under_way is not None:
            self.job.node.late(self._under_way, self.term)
        self.alive = False

    def _knock(self, silent: tuple[Identity, ...]) -> None:
        """Probe the daemons' addresses twice, so that it takes a moment."""
        self._knocks = False
        if not self.alive or self.term != self.job.term:
            return
        if gone := tuple(one for one in silent if self.job.daemons.refuses(one)):
            self.receive(NotListening(gone))
        self._look_for_silent()

    def _look_for_silent(self) -> None:
        if (silent := self.machine.silent) and not self._knocks:
            self._knocks = True
            self.job.after(KNOCK_S, self._knock, silent)

    def _tick(self) -> None:
        if self.alive and self.term == self.job.term:
            self.receive(TimePassed())
            self.job.after(TICK_S, self._tick)

    def _wake(self, wake_at: float) -> None:
        if self.alive and self.machine.wake_at == wake_at:
            self.receive(TimePassed())

    def _work(self) -> None:
        if not self.alive:
            return
        batch, self._inbox = self._inbox, []
        self.unanswered = [answer for _, answer in batch if answer is not None]
        decided: BatchDecided[Asker] = decide(self.machine, batch, self.job.now)
        self._carry_out(decided)

    def _carry_out(self, happened: Happened[Asker]) -> None:
        """Handle an event, and carry out all commands that follow from it at once."""
        if not self.alive:
            return
        due = deque(self.writing.handle(happened))
        while due:
            self._do(due.popleft())
        self.job.checks.writing.done(self)
        if self.writing.state is WritingState.IDLE:
            self._go_on()

    def _go_on(self) -> None:
        self._busy = False
        if (wake_at := self.machine.wake_at) < END_OF_TIME:
            self.job.after(max(0.0, wake_at - self.job.now), self._wake, wake_at)
        self._look_for_silent()
        if self._inbox:
            self._busy = True
            self.job.after(0.0002, self._work)

    def _do(self, command: Instruction[Asker]) -> None:
        match command:
            case Commit():
                self._under_way = command
                self.job.after(self.job.random.random() * 0.003, self._ask, command)
                self.job.decided()
                if command.version % LOOK_EACH == 0:
                    self.job.checks.writing.asked_for_status(self)
            case ForgetSecret():
                self.job.after(0.0, self._ask, command)
            case Publish(book, pressing):
                self.job.checks.writing.published(self, book)
                self.book = book
                self.job.daemons.publish(book, pressing=pressing)
            case GiveAnswer(asker, reply):
                self.job.checks.writing.answered(self)
                self.unanswered.remove(asker)
                asker(not isinstance(reply, Rejected))
            case WriteManifest(record):
                self.job.savings.publish(self, record)
            case DeclareRest(at_rest):
                self.at_rest = at_rest

    def _ask(self, command: InStore) -> None:
        if not self.alive:
            return
        self._under_way = None
        try:
            outcome = self.job.node.receives(command, self.term)
        except Fenced:
            self.alive = False
        except StoreUnavailable:
            self.alive = False
            self.job.after(AGAIN_S, self.job.elect, self)
        else:
            self._carry_out(outcome)
