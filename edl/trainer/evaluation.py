"""Evaluations that all workers of a ring share: each unit is computed by one of them, whatever becomes of the ring.

Owns: asking the ring, computing this worker's units, the way through a broken ring, and the results of the evaluations
after the present step, for a worker that has missed them. Does not own: who computes what
(`edl.core.worker.evaluation`), nor what units are (`edl.trainer.measuring`, `edl.tensorflow.validation`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from edl.collectives.ring import Ring, of_all_members
from edl.core.worker.evaluation import AssembleAgain, AssemblyWord, Compute, Finished, HandOver, Outcome, outcome
from edl.errors import JobFailed, RingBroken

Results = list[tuple[bytes, ...]]


class Between(Protocol):
    """What an evaluation asks of the trainer, between two mini-batches."""

    @property
    def committed(self) -> int:
        """The newest step."""

    @property
    def round_s(self) -> float:
        """For so long a worker computes before it says what it has: no other one waits for it much longer."""

    @property
    def given_up(self) -> bool:
        """The ring is: the next one waits for this worker."""

    def begin_evaluation(self) -> None:
        """In a ring in which no member has computed yet: all members evaluate the same model. Raises RingBroken."""

    def renew_ring(self, error: RingBroken) -> None:
        """It is broken: into the next one, and nowhere else. No member has begun the coming mini-batch."""


class Work(Protocol):
    """What is evaluated."""

    @property
    def units(self) -> int:
        """So many."""

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:
        """These, or the first of them: it asks whether it `goes_on` after each. Returns those that are done."""

    def found(self) -> bytes:
        """What came of all that was computed so far."""


class Evaluations:
    """Of one trainer; belongs to the training thread."""

    def __init__(self, ring: Callable[[], Ring], between: Between) -> None:
        """`ring`: asked for when it is needed, as it is chosen late."""
        self._chosen_ring = ring
        self._between = between
        self._step = 0  # that the results are of
        self._results: Results = []
        self._asked = 0  # evaluations that the script has asked for since the end of its mini-batch

    @property
    def results(self) -> Results:
        """Of the evaluations after the present step, in order."""
        return self._results if self._step == self._between.committed else []

    def take(self, step: int, results: Any) -> None:
        """A newcomer gets those of the worker whose state it gets."""
        self._step, self._results = step, [tuple(found) for found in results]

    def begin_batch(self) -> None:
        """What the script asks for from here on it asks for after this mini-batch."""
        self._asked = 0

    def make(self, work: Work) -> tuple[bytes, ...]:
        """All workers, after the same step: what each of them has found, by its rank at the end. Together that is each
        unit once. Comes back with the same on all. Raises JobFailed where the others have gone on without this worker.
        """
        if self._step != self._between.committed:
            self._step, self._results, self._asked = self._between.committed, [], 0
        step, number, self._asked = self._step, self._asked, self._asked + 1
        done: list[int] = []
        while number >= len(self._results):
            try:
                self._assemble(work, done)
            except RingBroken as error:
                self._between.renew_ring(error)
                if self._between.committed != step:  # no other member will ever come to it
                    raise JobFailed("the others have gone on beyond this evaluation") from error
        return self._results[number]

    def settle(self) -> None:
        """After a broken ring, at the begin of a mini-batch: others may lack results that this worker has. Raises
        RingBroken.
        """
        if self.results:
            said = self._say(AssemblyWord(len(self._results), evaluates=False))
            self._hand_over(outcome(said, self._rank, 0))

    def _assemble(self, work: Work, done: list[int]) -> None:
        if self._between.given_up:
            raise RingBroken("the ring was given up during an evaluation")
        said = self._say(AssemblyWord(len(self._results), evaluates=True, done=tuple(done), found=work.found()))
        match follows := outcome(said, self._rank, work.units):
            case HandOver():
                self._hand_over(follows)
            case AssembleAgain():
                pass
            case Compute(units):
                self._between.begin_evaluation()
                until = time.monotonic() + self._between.round_s
                done += work.compute(units, lambda: time.monotonic() < until and not self._between.given_up)
            case Finished(found):
                self._results.append(found)

    def _hand_over(self, follows: Outcome) -> None:
        if not isinstance(follows, HandOver):
            return
        mine = msgspec.msgpack.encode(self._results) if self._rank == follows.root else None
        self._results = msgspec.msgpack.decode(self._ring.broadcast(mine, follows.root), type=Results)

    def _say(self, word: AssemblyWord) -> list[AssemblyWord]:
        said = of_all_members(self._ring, msgspec.msgpack.encode(word))
        return [msgspec.msgpack.decode(one, type=AssemblyWord) for one in said]

    @property
    def _ring(self) -> Ring:
        return self._chosen_ring()

    @property
    def _rank(self) -> int:
        place = self._ring.place
        return 0 if place is None else place.rank
