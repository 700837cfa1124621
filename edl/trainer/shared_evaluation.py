"""Evaluations that all workers of a ring share: a worker computes each unit, also if the ring breaks.

Owns: asking the ring, computing this worker's units, the way through a broken ring, and the results of the evaluations
after the present step, for a worker that has missed them. Does not own: who computes what
(`edl.core.worker.evaluation_shares`), nor what units are (`edl.trainer.script_metrics`,
`edl.tensorflow.keras_validation`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from edl.collectives.ring_port import Ring, of_all_members
from edl.core.worker.evaluation_shares import AssembleAgain, AssemblyWord, Compute, Finished, HandOver, Outcome, outcome
from edl.errors import JobFailed, RingBroken

Results = list[tuple[bytes, ...]]


class Between(Protocol):
    """The trainer as evaluations use it, between two mini-batches."""

    @property
    def committed(self) -> int: ...

    @property
    def round_s(self) -> float:
        """Seconds that a worker computes before it reports its results: no other worker waits for it much longer."""

    @property
    def given_up(self) -> bool:
        """Tell whether the ring is given up: the next one waits for this worker."""

    def begin_evaluation(self) -> None:
        """Give all members the same model, in a ring in which no member has computed yet. Raises RingBroken."""

    def renew_ring(self, error: RingBroken) -> None:
        """Enter the ring that follows a broken one. No member has begun the coming mini-batch."""


class Work(Protocol):
    """An evaluation, in units."""

    @property
    def units(self) -> int: ...

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:
        """Compute the first of these units, or all; ask after each whether it `goes_on`. Return those that are done."""

    def found(self) -> bytes:
        """Return the results of all that was computed so far."""


class SharedEvaluation:
    """Evaluate for one trainer, on the training thread."""

    def __init__(self, ring: Callable[[], Ring], between: Between) -> None:
        """Ask for `ring` when it is needed, as it is chosen late."""
        self._chosen_ring = ring
        self._between = between
        self._step = 0  # that the results are of
        self._results: Results = []
        self._asked = 0  # evaluations that the script has asked for since the end of its mini-batch

    @property
    def results(self) -> Results:
        """Results of the evaluations after the present step, in order."""
        return self._results if self._step == self._between.committed else []

    def take(self, step: int, results: Any) -> None:
        """Take the results of the worker whose state this newcomer gets."""
        self._step, self._results = step, [tuple(found) for found in results]

    def begin_batch(self) -> None:
        # What the script asks for from here on, it asks for after this mini-batch.
        self._asked = 0

    def make(self, work: Work) -> tuple[bytes, ...]:
        """Evaluate, on all workers after the same step. Return each worker's results, by its rank at the end.

        Together they have each unit once, and are the same on all workers. Raises JobFailed if the others have gone on
        without this worker.
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
        """Send others, after a broken ring and before a mini-batch, results that they lack. Raises RingBroken."""
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
