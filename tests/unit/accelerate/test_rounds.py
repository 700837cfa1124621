"""The rounds of an evaluation whose loop is the script's: each batch of one worker, whichever worker dies."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from edl.accelerate import shared_loader as subject
from edl.errors import JobFailed
from edl.torch.shared_batches import shared_batches

Script = Callable[[int, subject.SharedLoader], Any]


class Died(Exception):
    """A worker has."""


class Ring:
    """Of workers in threads of one process. `dies`: that worker does, as it says something for the so manieth time."""

    def __init__(self, size: int, dies: tuple[int, int] | None) -> None:
        self.members = list(range(size))
        self._dies, self._said = dies, Counter[int]()
        self._words: dict[int, bytes] = {}
        self._heard: list[bytes] = []
        self._turn = threading.Condition()
        self._turns = 0

    def exchange(self, worker: int, word: bytes) -> list[bytes]:
        with self._turn:
            self._said[worker] += 1
            dead = self._dies == (worker, self._said[worker])
            if dead:
                self.members.remove(worker)
            else:
                self._words[worker] = word
            turn = self._turns
            if set(self._words) >= set(self.members):
                self._heard = [self._words[one] for one in self.members]
                self._words, self._turns = {}, turn + 1
                self._turn.notify_all()
            if dead:
                raise Died
            assert self._turn.wait_for(lambda: self._turns > turn, timeout=20)
            return self._heard


def ran(monkeypatch: Any, size: int, dies: tuple[int, int] | None, script: Script, rows: int = 33) -> dict[int, Any]:
    """What the script of each worker that lives returned, or raised."""
    ring, worker = Ring(size, dies), threading.local()

    class Seat:
        def rank(self) -> int:
            return ring.members.index(worker.number)

        def size(self) -> int:
            return len(ring.members)

        def evaluate_shared(self, work: Any) -> list[bytes]:
            return ring.exchange(worker.number, work.found())

    monkeypatch.setattr(subject, "seat", Seat())
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        worker.number = number
        loader: Any = DataLoader(list(range(rows)), 4)  # type: ignore[arg-type]
        batches = shared_batches(loader)
        assert batches is not None
        try:
            found[number] = script(number, subject.SharedLoader(loader, batches, lambda batch: batch, lambda: False))
        except JobFailed as error:
            found[number] = error
        except Died:
            pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def gathers(_: int, loader: subject.SharedLoader) -> list[int]:
    rows: list[int] = []
    for batch in loader:
        assert loader.round is not None
        told = subject.joined((batch, {"twice": 2 * batch}), loader.round.gathered((batch, {"twice": 2 * batch})))
        assert torch.equal(told[1]["twice"], 2 * told[0])
        rows += told[0].tolist()
    return rows


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12])
def test_all_get_each_sample_once(monkeypatch: Any, size: int) -> None:
    found = ran(monkeypatch, size, None, gathers)
    assert len(found) == size and all(rows == list(range(33)) for rows in found.values())


@pytest.mark.parametrize("moment", range(1, 5))
def test_what_a_dead_worker_has_not_told_comes_again(monkeypatch: Any, moment: int) -> None:
    found = ran(monkeypatch, 3, (1, moment), gathers)
    assert len(found) == 2
    assert found[0] == found[2] and sorted(found[0]) == list(range(33))


def test_a_death_in_the_last_round_leaves_something_to_gather(monkeypatch: Any) -> None:
    """With the only worker for which a batch was left."""
    assert ran(monkeypatch, 2, (0, 6), gathers) == {1: list(range(33))}


def test_a_loss_that_is_repeated_for_a_usual_batch_counts_once_for_each_sample(monkeypatch: Any) -> None:
    """33 samples, 4 in a batch: the last one has one."""

    def repeats(_: int, loader: subject.SharedLoader) -> list[float]:
        rows: list[float] = []
        for batch in loader:
            assert loader.round is not None
            mine = {"losses": batch.float().mean().repeat(4), "made": torch.zeros(7), "one": torch.tensor(1.0)}
            told = subject.joined(mine, loader.round.gathered(loader.round.cut(mine)))
            assert len(told["made"]) % 7 == 0, "what has another number of rows is left alone"
            rows += told["losses"].tolist()
        return rows

    assert all(len(rows) == 33 and rows[-1] == 32.0 for rows in ran(monkeypatch, 2, None, repeats).values())


def test_a_script_that_gathers_nothing_gets_a_share(monkeypatch: Any) -> None:
    found = ran(monkeypatch, 3, None, lambda _, loader: [int(batch[0]) for batch in loader])
    assert sorted(one for rows in found.values() for one in rows) == list(range(0, 33, 4))


def test_two_gatherings_of_a_batch_lose_nothing_in_silence(monkeypatch: Any) -> None:
    def twice(_: int, loader: subject.SharedLoader) -> None:
        for batch in loader:
            assert loader.round is not None
            loader.round.gathered(batch)
            loader.round.gathered(batch)

    assert all(one is None for one in ran(monkeypatch, 3, None, twice).values())
    found = ran(monkeypatch, 3, (1, 3), twice)  # it makes sure of the model, tells the first half, and dies
    assert len(found) == 2
    assert all("in one call" in str(one) for one in found.values())


@pytest.mark.parametrize("moment", range(2, 8))
def test_a_death_between_padding_and_gathering_repeats_its_batch(monkeypatch: Any, moment: int) -> None:
    def pads(_: int, loader: subject.SharedLoader) -> list[int]:
        rows: list[int] = []
        for batch in loader:
            assert loader.round is not None
            mine = batch[:, None].expand(-1, 1 + int(batch[0]) % 3)
            sizes = [*loader.round.told(subject.lengths(mine, 1)).values()]
            mine = subject.padded(mine, 1, sizes, -1, first=False)
            rows += subject.joined(mine, loader.round.gathered(mine))[:, 0].tolist()
        return rows

    found = ran(monkeypatch, 3, (1, moment), pads)
    assert found[0] == found[2] and sorted(found[0]) == list(range(33))


def test_rows_are_made_as_long_as_the_longest() -> None:
    mine = {"rows": torch.ones(2, 3), "flat": torch.ones(2)}
    sizes = [subject.lengths(mine, 1), {"rows": 5, "flat": 0}]
    for first in (False, True):
        found = subject.padded(mine, 1, sizes, -1, first=first)
        row = [-1.0, -1.0, 1.0, 1.0, 1.0] if first else [1.0, 1.0, 1.0, -1.0, -1.0]
        assert found["rows"].tolist() == [row, row] and found["flat"].tolist() == [1.0, 1.0]
