"""Streams on the ledger against a naive twin: a plain dictionary of which item was trained in which step.

Workers find items at their own pace, come and go, die with what they have found, and are told late. Whatever happens,
each item of each shard is trained in exactly one step, in the order of the shard for as long as it has one holder.
"""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.core.data.ledgers import new_ledger, restored_ledger
from edl.core.data.resume_position import projected, rebased
from edl.core.data.sample_ledger import Ledger
from edl.core.data.stream_parts import thinned
from edl.protocol.data_nouns import ITEMS, DataSpec, Mark, ShardPart


def parts_of(ledger: Ledger) -> tuple[ShardPart, ...]:
    stream = ledger.snapshot().stream
    assert stream is not None
    return stream.parts


class World:
    """A job that trains on a stream, without a job: what workers find, lose and train."""

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(seed)
        self.shards = chance.randint(1, 9)
        self.epochs = chance.randint(1, 3)
        self.lengths = [chance.choice((0, 1, 3, chance.randint(0, 60))) for _ in range(self.shards)]
        self.spec = DataSpec(
            total=self.shards * ITEMS,
            epochs=self.epochs,
            batch=chance.randint(1, 4),
            whole_epochs=chance.random() < 0.7,
            shards=self.shards,
            at_once=chance.choice((0, 1, 2, 8)),
        )
        self.names = 0
        self.roster = [self.newcomer() for _ in range(chance.randint(1, 4))]
        self.ledger = new_ledger(self.spec, self.roster)
        self.ledger.grant(4)
        self.found: dict[tuple[str, int], int] = {}
        self.trained: dict[tuple[int, int], int] = {}
        self.step = 0

    def newcomer(self) -> str:
        self.names += 1
        return f"w{self.names}"

    def length(self, part: int) -> int:
        return self.lengths[part % self.shards]

    def read(self, worker: str) -> None:
        """A worker reads on in its parts, and tells: now and then only some of it is heard."""
        told = []
        for one in parts_of(self.ledger):
            if one.holder != worker:
                continue
            base = max((mark.item for mark in one.marks if mark.item <= one.next), default=0)
            found = min(max(one.next, base) + self.random.randint(0, 9), self.length(one.part))
            marks = tuple(Mark(item, b"") for item in range(base, found + 1, 4))
            ended = found == self.length(one.part)
            told.append(ShardPart(one.part, known=found, ended=ended, marks=marks))
        if self.random.random() < 0.9:
            self.ledger.learn(told)

    def train(self, steps: int) -> None:
        ahead = min(steps, self.ledger.covered_step - self.step)
        for step in range(self.step + 1, self.step + ahead + 1):
            samples = [
                (piece.epoch * self.shards + place // ITEMS, place % ITEMS)
                for worker in self.roster
                for lease in self.ledger.leases(worker)
                for piece in lease.between(step - 1, step)
                if lease.after_step < step <= lease.until_step
                for place in range(piece.start, piece.stop)
            ]
            total = next(total.samples for total in self.ledger.totals() if step <= total.until_step)
            assert total == len(samples)
            for sample in samples:
                assert sample not in self.trained, f"{sample} in {self.trained[sample]} and {step}"
                self.trained[sample] = step
            self.step = step
            self.ledger.commit(step)

    def change(self) -> None:
        """Some die, some come."""
        roster = [worker for worker in self.roster if self.random.random() < 0.7]
        roster += [self.newcomer() for _ in range(self.random.randint(0 if roster else 1, 2))]
        self.ledger.enter(roster, self.step)
        self.roster = roster
        self.ledger.grant(self.step + self.random.randint(1, 8))

    def restart(self) -> None:
        """All die; another life goes on from what was saved."""
        saved = projected(self.ledger, self.step)
        self.roster = [self.newcomer() for _ in range(self.random.randint(1, 4))]
        again = msgspec.json.decode(msgspec.json.encode(rebased(saved)), type=type(saved))
        self.ledger = restored_ledger(again)
        self.trained = dict.fromkeys(self.trained, 0)
        self.step = 0
        self.ledger.hand_over(self.roster)
        self.ledger.enter(self.roster, 0)
        self.ledger.grant(4)

    def recut(self) -> None:
        self.ledger.rebatch(self.random.randint(self.step, self.ledger.covered_step))
        if self.random.random() < 0.5:
            self.ledger.resize([self.random.randint(1, 4) for _ in self.roster])
        self.ledger.grant(self.step + 4)

    def act(self) -> None:
        what = self.random.random()
        if what < 0.45:
            self.read(self.random.choice(self.roster))
        elif what < 0.85:
            self.ledger.grant(self.step + self.random.randint(1, 90))
            self.train(self.random.randint(1, 5))
        elif what < 0.92:
            self.change()
        elif what < 0.94:
            self.restart()
        else:
            self.recut()
        self.ledger.validate()
        counts = self.ledger.counts()
        assert counts.lost == counts.repeated == 0
        assert counts.trained + counts.leased + counts.unassigned == counts.total
        assert counts.trained == len(self.trained)
        self.each_reader_can_begin()

    def each_reader_can_begin(self) -> None:
        """From a mark that is known, whatever is untrained can be read; at first, that is the beginning."""
        ledger = self.ledger.snapshot()
        assert ledger.stream is not None
        untrained = {
            (piece.epoch * self.shards + piece.start // ITEMS, piece.start % ITEMS)
            for member in ledger.members
            for lease in member.leases
            for piece in lease.left(ledger.step)
        }
        known = {one.part: one for one in ledger.stream.parts}
        assert {part for part, _ in untrained} <= known.keys()
        for part, item in untrained:
            first = known[part].marks[0].item if known[part].marks else 0
            assert first <= item, "no mark is left to read it from"

    def finish(self) -> None:
        for _ in range(3000):
            if self.ledger.exhausted:
                return
            for worker in self.roster:
                self.read(worker)
            self.ledger.grant(self.step + 8)
            self.train(8)
        raise AssertionError(f"it never ends: {self.ledger.snapshot()}")


def all_items(world: World) -> set[tuple[int, int]]:
    return {(part, item) for part in range(world.epochs * world.shards) for item in range(world.length(part))}


@given(st.integers(0, 10**9))
@settings(deadline=None)
def test_each_item_is_trained_in_one_step_whatever_happens(seed: int) -> None:
    world = World(seed)
    for _ in range(world.random.randint(0, 80)):
        world.act()
    world.finish()
    assert world.trained.keys() == all_items(world)


@pytest.mark.parametrize("seed", range(40))
def test_plain_seeds(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.act()
    world.finish()
    assert world.trained.keys() == all_items(world)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=40, unique=True), st.integers(0, 500))
def test_a_mark_at_or_before_what_is_needed_is_kept(items: list[int], low: int) -> None:
    marks = [Mark(item, b"") for item in sorted(items)]
    kept = thinned(marks, low)
    assert len(kept) <= 5 and set(kept) <= set(marks)
    before = [mark.item for mark in marks if mark.item <= low]
    assert kept[0].item == (before[-1] if before else marks[0].item)
    assert kept[-1] == marks[-1]
