"""Evaluations in rings that break at any moment, for some members and not for others: all come to the same."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from breaking_rings import TIMEOUT_S, Died, Fault, Net, Over, faults_of, play

from edl.errors import JobFailed, RingBroken
from edl.protocol.assignment import Place, solo
from edl.trainer.shared_evaluation import SharedEvaluation

STEP, UNITS = 7, 5


class Worker:
    """Two evaluations after a step, and the next step. It is its own ring, trainer and work."""

    committed, round_s, given_up = STEP, 0.0, False
    prepares = False

    def __init__(self, net: Net, number: int, units: int) -> None:
        self.net, self.number, self.units = net, number, units
        self.evaluations = SharedEvaluation(lambda: self, self)  # type: ignore[arg-type,return-value]
        self.results: list[tuple[bytes, ...]] = []
        self.done: list[int] = []
        self.gone_on = False
        self.at_end = True  # as the trainer tells it
        self.computed = Counter[int]()
        self.error: BaseException | None = None

    @property
    def place(self) -> Place:
        _, members = self.net.ring
        return msgspec.structs.replace(solo("w"), rank=members.index(self.number), size=len(members))

    def broadcast(self, payload: bytes | None, root: int) -> bytes:
        return self.net.call(self.number, "evaluation", root, payload)

    def begin_evaluation(self) -> None:
        self.net.call(self.number, "statistics", 0, b"")

    def renew_ring(self, error: RingBroken) -> None:
        self.net.enter(self.number, (self.at_end, list(self.evaluations.results)))

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:
        for count, unit in enumerate(units, 1):
            self.done.append(unit)
            self.computed[unit] += 1
            if not goes_on():
                return units[:count]
        return units

    def found(self) -> bytes:
        return bytes(self.done)

    def run(self) -> None:
        try:
            if self.number >= self.net.newcomers_from:
                self._come_in()
            self._script()
        except Died:
            pass
        except Over:
            assert self.gone_on or self.number >= self.net.newcomers_from, "a step was made without it"
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error
            with self.net.changed:
                self.net.changed.notify_all()

    def _come_in(self) -> None:
        self.at_end, results = self.net.enter(self.number, None)
        self.evaluations.take(STEP, results)
        self._settle()

    def _script(self) -> None:
        if self.at_end:  # else a newcomer begins with the next step
            for _ in range(2):
                self.done = []
                self.results.append(self.evaluations.make(self))
        self.gone_on = True
        while True:
            try:
                self.net.call(self.number, "training", 0, b"")
                return
            except RingBroken:
                self.evaluations.begin_batch()
                self.at_end = False
                self.renew_ring(RingBroken(""))
                self._settle()
                self._evaluate_again()

    def _evaluate_again(self) -> None:
        """As a script does that goes by the number of the step: after a void mini-batch that is the same again."""
        self.at_end = True
        again = [self.evaluations.make(self) for _ in range(2)]
        assert not self.results or again == self.results

    def _settle(self) -> None:
        while True:
            try:
                return self.evaluations.settle()
            except RingBroken as error:
                self.renew_ring(error)


def run_job(seed: int) -> None:
    chance = random.Random(seed)
    workers = chance.randint(2, 4)
    net = Net(workers, faults_of(chance, workers, 14))
    everyone = [Worker(net, number, chance.randint(0, UNITS)) for number in range(workers)]
    units = everyone[0].units
    for one in everyone:
        one.units = units
    living = play(net, everyone, lambda number: Worker(net, number, units))
    complete = [one.results for one in living if one.results]
    assert all(results == complete[0] for results in complete)
    for found in complete[0] if complete else ():
        assert sorted(unit for one in found for unit in one) == list(range(units)), "each unit once"


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_all_come_to_the_same_whatever_breaks(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            run_job(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_death_repeats_only_its_share() -> None:
    net = Net(2, {(1, 3): Fault({1}, {0})})  # in the second assembly: both have computed what was theirs
    workers = [Worker(net, number, UNITS) for number in range(2)]
    for one in workers:
        one.round_s = 60.0
    threads = [threading.Thread(target=one.run, daemon=True) for one in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert workers[0].error is None, workers[0].error
    assert workers[1].computed == Counter([1, 3])
    assert [workers[0].computed[unit] for unit in range(UNITS)] == [2] * UNITS, "once in each of the two evaluations"


def test_an_evaluation_that_the_others_have_left_behind_is_none_of_a_ring_of_its_own() -> None:
    """Else this worker would wait alone until the time-out of the step that the others are at."""
    net = Net(1, {})
    worker = Worker(net, 0, UNITS)
    between: Any = SimpleNamespace(committed=STEP, round_s=0.0, given_up=True)
    between.renew_ring = lambda error: setattr(between, "committed", STEP + 3)
    with pytest.raises(JobFailed, match="the others have gone on beyond this evaluation"):
        SharedEvaluation(lambda: worker, between).make(worker)  # type: ignore[arg-type,return-value]
