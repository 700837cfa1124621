"""Which numbers in a script's objects are the same on all workers, and where they are found."""

from __future__ import annotations

from typing import Any

import pytest

from edl.torchrun.script_files import SourceFile
from edl.torchrun.script_numbers import CountNames, places, put

SCRIPT = """
import time
from dataclasses import dataclass


@dataclass
class State:
    step: int = 0
    best: float = 9.0
    size: int = 4


class Slotted:
    __slots__ = ("updates",)

    def __init__(self):
        self.updates = 0

    def more(self):
        self.updates = self.updates + 1


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = self.avg = self.total = 0.0
        self.times = 0

    def update(self, value, n=1):
        self.val = value
        self.total += value * n
        self.times += 1
        self.avg = self.total / self.times


class Trainer:
    def __init__(self, rank):
        self.state, self.meters, self.rank_step = State(), {"loss": AverageMeter()}, 0
        self.global_step, self.tokens, self.calls, self.width, self.began = 0, 0, 0, 8, 0.0
        self.place = {"epoch": 0, "seen": 0, "name": "x", "limit": 3}
        self.slotted = Slotted()
        self.itself = self

    def train(self, batches):
        self.began = time.time()
        self.place["seen"] = 0
        for batch in batches:
            self.global_step += 1
            self.rank_step += 1
            self.calls += 1
            self.tokens += batch
            self.state.step += 1
            if batch < self.state.best:
                self.state.best = float(batch)
            self.place["epoch"] = 1
            self.place["seen"] += batch
            self.meters["loss"].update(batch)
            self.slotted.more()
"""


def trained(batches: list[int]) -> tuple[Any, CountNames]:
    names, module = CountNames(), dict[str, Any]()
    names.read(SourceFile("train.py", SCRIPT).tree)
    exec(compile(SCRIPT, "train.py", "exec", dont_inherit=True), module)
    for kind in ("State", "AverageMeter", "Trainer", "Slotted"):
        module[kind].__module__ = "train"
    trainer = module["Trainer"](0)
    trainer.train(batches)
    return trainer, names


def is_own(kind: type) -> bool:
    return kind.__module__ == "train"


def test_counts_are_found_in_objects_and_sums_are_not() -> None:
    trainer, names = trained([5, 3, 4])
    found = {path: getattr(owner, "__getitem__", lambda name, one=owner: getattr(one, name))(name)
             for path, owner, name in places({"trainer": trainer}, names, is_own)}  # fmt: skip
    assert {path: value for path, value in found.items() if "itself" not in path} == {
        "trainer.global_step": 3,
        "trainer.state.step": 3,
        "trainer.state.best": 3.0,
        "trainer.place[epoch]": 1,
        "trainer.slotted.updates": 3,
    }


def test_they_are_put_where_they_are_found_elsewhere() -> None:
    theirs, names = trained([5, 3, 4])
    mine, _ = trained([7])
    there = {path: getattr(owner, name) if hasattr(owner, name) else owner[name]
             for path, owner, name in places({"trainer": theirs}, names, is_own)}  # fmt: skip
    for place in places({"trainer": mine}, names, is_own):
        put(place, there[place[0]])
    assert (mine.global_step, mine.state.step, mine.state.best, mine.slotted.updates) == (3, 3, 3.0, 3)
    assert (mine.tokens, mine.place["seen"], mine.meters["loss"].times, mine.calls) == (7, 7, 1, 1)


@pytest.mark.parametrize("size", [100, 101])
def test_large_mappings_are_data(size: int) -> None:
    _, names = trained([])
    rows = {"epoch": 1, **{f"row {number}": 0 for number in range(size - 1)}}
    assert len([*places({"rows": rows}, names, is_own)]) == (size == 100)


def test_objects_of_libraries_are_left_alone() -> None:
    trainer, names = trained([1])
    assert not [*places({"trainer": trainer}, names, lambda _kind: False)]
