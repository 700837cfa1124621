"""What lies between two steps of a library's loop, in rings that break there: all come to the same, and none waits.

Each worker is its own loop: it evaluates twice, in between and afterwards callbacks ask all workers, and then it begins
the next step with a batch that it had fetched before all that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from breaking_rings import Fault, Member, Net, faults_of, play

from edl.errors import RingBroken, UsageError
from edl.torch.loop_collectives import LoopCollectives
from edl.torch.loop_steps import LoopState, LoopSteps, StepEnd

BATCHES = 3
CALLS = 40  # of a ring's collectives, in all that lies between


class State(LoopState):
    """Of a loop whose callbacks count the evaluations that they have heard of."""

    def __init__(self) -> None:
        self.heard = 0

    def read(self) -> dict[str, Any]:
        return {"ended": str(self.ended), "heard": self.heard}

    def take(self, found: Mapping[str, Any]) -> None:
        self.ended, self.heard = StepEnd(found["ended"]), found["heard"]


class Worker(Member):
    """It is its own share of an evaluation, too."""

    units = BATCHES

    def __init__(self, net: Net, number: int) -> None:
        super().__init__(net, number)
        self.state = State()
        self.steps = LoopSteps(self, self.state)  # type: ignore[arg-type]
        self.steps.registered = SimpleNamespace(loop=self.state)
        self.words = LoopCollectives(
            SimpleNamespace(ring=self), self, lambda: self.steps.ask if self.steps.between else None
        )
        self.done = list[int]()
        self.story: list[Any] = []

    def travels(self) -> list[Any]:
        return [dict(self.state.items())]

    def take(self, *more: Any) -> None:
        [self.steps.registered.loop] = more
        if self.new and not self.came:
            self.steps.take_over()

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:
        self.done += units
        return units

    def found(self) -> bytes:
        return bytes(self.done)

    # ---------------------------------------------------------------------------------------------------- the loop

    def script(self) -> None:
        self.steps.between = self.at_end
        self.steps.note_fetched()
        if self.at_end:
            self._between()
        self._train()

    def _between(self) -> None:
        for _ in range(2):
            self.done = []
            found = self.steps.ask(self)
            assert sorted(one for share in found for one in share) == list(range(BATCHES)), "each batch once"
            self.state.heard += 1
            self._callbacks()

    def _callbacks(self) -> None:
        words, heard = self.words, torch.tensor(float(self.state.heard))
        self.story.append(words.told({"path": f"by {self.number}"}, 0))
        self.story.append(words.decision(self.state.heard > 1, of_all=False))
        self.story.append(float(words.reduced(heard, "mean")))
        assert len({float(one) for one in words.gathered(heard)}) == 1
        self.story.append(words.by_rank("numbers", lambda: {"is": self.number}))
        words.meet()

    def _train(self) -> None:
        while True:
            self.steps.begin_step()
            try:
                if self.void:
                    raise RingBroken("this batch does not count")
                self.net.call(self.number, "training", 0, b"")
                return
            except RingBroken as error:
                self.evaluations.begin_batch()
                self.at_end = False
                self.renew_ring(error)
                self.settle()
                self.steps.take_over()
                self.steps.note_fetched()


def run_job(net: Net, workers: int) -> None:
    living = play(net, [Worker(net, number) for number in range(workers)], lambda number: Worker(net, number))
    stories = [one.story for one in living if one.story]
    assert all(story == stories[0] for story in stories)
    assert all(
        [said for said in story if not isinstance(said, (dict, list))] == [False, 1.0, True, 2.0] for story in stories
    )
    assert all(one.state.heard == 2 for one in living if one.came), (
        "no callback hears of an evaluation twice, or of none"
    )


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_all_come_to_the_same_whatever_breaks(first: int) -> None:
    for seed in range(first, first + 100):
        chance = random.Random(seed)
        workers = chance.randint(2, 4)
        try:
            run_job(Net(workers, faults_of(chance, workers, CALLS)), workers)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("moment", range(CALLS))
def test_a_newcomer_comes_for_a_worker_that_dies_at_any_moment(moment: int) -> None:
    """While one of the two that are left has been told what the others said, and the other one has not."""
    net = Net(3, {(1, moment): Fault({1}, {0}, newcomers=1)})
    run_job(net, 3)
    assert net.faulted


def test_workers_that_call_different_things_are_told_so() -> None:
    net = Net(1, {})
    worker = Worker(net, 0)
    worker.steps.between = True
    worker.evaluations.take(worker.committed, [(b"\x92\xa9broadcast\xc0",)])  # what another one has called there
    with pytest.raises(UsageError, match="this worker has called barrier, and another one broadcast"):
        worker.words.meet()


def test_a_worker_that_asks_while_another_one_evaluates_is_told_so() -> None:
    def ask(_work: Any) -> tuple[bytes, ...]:
        return (msgspec.msgpack.encode({"logged": 1}),)

    words = LoopCollectives(SimpleNamespace(ring=None), SimpleNamespace(rank=int, size=lambda: 2), lambda: ask)
    with pytest.raises(UsageError, match="called broadcast, and another one an evaluation"):
        words.told(True, 0)
