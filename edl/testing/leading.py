"""A simulated leader: the real machine, with a shell that takes time to write and may die at any instruction.

Owns: what `edl.daemon.leader` owns: that decisions are durable before anybody hears of them (I9), and that only the
newest term's are (I1). Does not own: the decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edl.core.inputs import Command, Input, Refuse, Tell, TimePassed
from edl.core.orders import OrderBook
from edl.core.patience import END_OF_TIME
from edl.protocol.job import Record

if TYPE_CHECKING:
    from edl.testing.simulation import SimJob

TICK_S = 0.1
Answer = Callable[[bool], None]  # told whether what was asked was taken, once that is durable


class SimLeader:
    """The leader of one term."""

    def __init__(self, job: SimJob, term: int) -> None:
        self.job = job
        self.term = term
        self.machine = job.new_machine(job.durable)
        self.book = OrderBook(job.durable, term)
        self.kept = job.durable
        self.published = False
        self.alive = True
        self.writing = False
        self._inbox: list[tuple[Input, Answer | None]] = []
        self._busy = False
        job.after(TICK_S, self._tick)

    def receive(self, happened: Input, answer: Answer | None = None) -> None:
        """A call of a daemon or of the command line arrives."""
        self._inbox.append((happened, answer))
        if not self._busy:
            self._busy = True
            self.job.after(0.0002, self._work)

    def crash(self, *, written: bool) -> None:
        """The process dies. Its last write may have been carried out."""
        if (
            self.alive
            and self.writing
            and written
            and self.term == self.job.term
            and self.machine.record is not self.kept
        ):
            self.job.make_durable(self.machine.record)
        self.alive = False

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
        commands: list[Command] = []
        answers: list[tuple[Answer, bool]] = []
        for left, (happened, answer) in zip(range(len(batch) - 1, -1, -1), batch, strict=True):
            follows = self.machine.handle(happened, self.job.now, more=left > 0)
            self.job.checks.handled(self.machine, self.term, happened)
            commands += follows
            if answer is not None:
                answers.append((answer, not any(isinstance(command, Refuse) for command in follows)))
        record = self.machine.record
        if record.version != self.kept.version or any(isinstance(command, Tell) for command in commands):
            self.writing = True
            self.job.after(self.job.random.random() * 0.003, self._settle, record, commands, answers)
            self.job.decided()
        else:
            self._settle(record, commands, answers)

    def _settle(self, record: Record, commands: list[Command], answers: list[tuple[Answer, bool]]) -> None:
        """Durable first, then everybody may know."""
        self.writing = False
        if not self.alive:
            return
        if record is not self.kept:
            if self.term != self.job.term:  # the fence of its reign (I1)
                self.alive = False
                return
            self.job.make_durable(record)
            self.job.checks.records.told(self.kept, record, commands)
        if record is not self.kept or not self.published:
            pressing = not self.published or self.machine.pressing > self.kept.version
            self.kept, self.published = record, True
            self.book = OrderBook(record, self.term, self.book)
            self.job.publish(self, pressing=pressing)
        for answer, taken in answers:
            answer(taken)
        self._busy = False
        if (wake_at := self.machine.wake_at) < END_OF_TIME:
            self.job.after(max(0.0, wake_at - self.job.now), self._wake, wake_at)
        if self._inbox:
            self._busy = True
            self.job.after(0.0002, self._work)
