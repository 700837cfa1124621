"""With virtual workers the samples of a step follow from its place in the epoch alone, whatever became of workers, and
in whichever life.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.core.data.ledger_versions import ALL, LedgerVersions
from edl.core.data.sample_ledger import Ledger
from edl.protocol.checkpoint_record import Resumed
from edl.protocol.data_nouns import ITEMS, DataSpec, Mark, Range, ShardPart, held_by
from edl.protocol.job_policy import Batching, BatchRule
from edl.protocol.record import Plan
from examples import examples

FOUND = ["found", "found", "found"]
Draw = Callable[..., Any]
EVENTS = ["train", "train", "train", "planned", "forced", "resumed"]


def by_definition(total: int, batch: int, epochs: int) -> list[tuple[Range, ...]]:
    starts = range(0, total, batch)
    return [(Range(epoch, at, min(at + batch, total)),) for epoch in range(epochs) for at in starts]


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_a_step_has_the_same_samples_whatever_happened_before(data: st.DataObject) -> None:
    draw = data.draw
    virtual = draw(st.integers(1, 5))
    whole = draw(st.booleans())
    part = draw(st.integers(1, 3)) * (virtual if whole else 1)
    batching = Batching(BatchRule.GLOBAL if whole else BatchRule.LOCAL)
    total, epochs = draw(st.integers(1, 70)), draw(st.integers(1, 3))
    spec = DataSpec(total, epochs, part, virtual=virtual, open_ended=draw(st.booleans()))
    expected = by_definition(total, part if whole else part * virtual, epochs)
    names = iter(range(10**6))

    def roster(size: int) -> tuple[str, ...]:
        return tuple(f"w{next(names)}" for _ in range(size))

    ring = roster(draw(st.integers(1, virtual)))
    versions = LedgerVersions(None, batching, {})
    versions.open(ring[0], spec, ring, 0)
    generation, base, step, trained = 1, 0, 0, 0
    ahead = draw(st.integers(1, 20))
    versions.reach(step + ahead)
    for event in draw(st.lists(st.sampled_from(EVENTS), max_size=25)) + ["train"] * len(expected):
        ledger = versions.ledger
        assert ledger is not None
        if trained == len(expected):
            break
        if event == "train":
            versions.reach(step + ahead)
            step, trained = step + 1, trained + 1
            found = [lease.whole(step) for lease in ledger.leases(ALL) if lease.after_step < step <= lease.until_step]
            assert found == [expected[trained - 1]]
            versions.commit(step)
        elif event == "planned":
            ring, generation = (*ring[1:], *roster(1))[:virtual], generation + 1
            planned = versions.planned(ring, step, ahead)
            assert planned is not None
            plan = Plan(generation, ring, step, ledger=planned.snapshot())
            versions.enter(plan, step, generation, (), ahead)
        elif event == "forced":
            ring, generation = ring[1:] or roster(1), generation + 1
            versions.enter(Plan(generation, ring, None, None), step, generation - 1, (), ahead)
        elif event == "resumed":
            base += step
            saved = versions.projected(step)
            versions = LedgerVersions(None, batching, {}, Resumed(base, 1, "saved", saved, ledger.epoch))
            ring, step = roster(draw(st.integers(1, virtual))), 0
            versions.open(ring[0], spec, ring, 0)
        assert versions.ledger is not None
        assert versions.ledger.outdated_until == 0, "no lease is ever cut anew"
        versions.ledger.validate()
    assert trained == len(expected)


Item = tuple[int, int, int]  # epoch, shard, number


def of_shards(lengths: list[int], virtual: int, each: int, epochs: int) -> list[list[Item]]:
    """Return the items of each step by definition."""
    steps = list[list[Item]]()
    for epoch in range(epochs):
        lanes = [
            [(epoch, shard, item) for shard in range(lane, len(lengths), virtual) for item in range(lengths[shard])]
            for lane in range(virtual)
        ]
        longest = max(map(len, lanes))
        steps += [[one for lane in lanes for one in lane[at : at + each]] for at in range(0, longest, each)]
    return steps


class JobOnStream:
    """The data of a job with virtual workers, and what it has trained."""

    def __init__(self, draw: Draw, virtual: int, each: int, lengths: list[int], epochs: int) -> None:
        self.draw, self.virtual, self.lengths, shards = draw, virtual, lengths, len(lengths)
        self.spec = DataSpec(
            shards * ITEMS, epochs, each, shards=shards, at_once=8, virtual=virtual, open_ended=draw(st.booleans())
        )
        self.names, self.ahead = iter(range(10**6)), draw(st.integers(1, 20))
        self.generation, self.base, self.step, self.trained = 1, 0, 0, list[list[Item]]()
        self.versions = LedgerVersions(None, Batching(), {})
        self.begin()

    def begin(self) -> None:
        self.ring = self.roster(self.draw(st.integers(1, self.virtual)))
        self.versions.open(self.ring[0], self.spec, self.ring, 0)
        self.versions.reach(self.ahead)

    def roster(self, size: int) -> tuple[str, ...]:
        return tuple(f"w{next(self.names)}" for _ in range(size))

    @property
    def ledger(self) -> Ledger:
        assert self.versions.ledger is not None
        return self.versions.ledger

    def found(self, most: int) -> None:
        stream = self.ledger.snapshot().stream
        assert stream is not None
        for one in stream.parts:
            length = self.lengths[one.part % len(self.lengths)]
            now = min(length, one.known + (self.draw(st.integers(0, most)) if most < 100 else most))
            self.versions.learn([ShardPart(one.part, known=now, ended=now == length, marks=(Mark(0, b""),))])
        self.versions.reach(self.step + self.ahead)

    def train(self) -> None:
        self.versions.reach(self.step + self.ahead)
        if self.step == self.ledger.covered_step:
            assert self.ledger.fully_leased or self.versions.reading(self.ring)
            return
        self.step += 1
        pieces = [one for worker in self.ring for one in self.orders(worker)]
        self.trained.append(
            [(one.epoch, at // ITEMS, at % ITEMS) for one in pieces for at in range(one.start, one.stop)]
        )
        self.versions.commit(self.step)

    def orders(self, worker: str) -> tuple[Range, ...]:
        """Return what a worker trains in this step, as its orders say it."""
        part = (*held_by(self.ring.index(worker), len(self.ring), self.virtual), self.virtual)
        mine = (msgspec.structs.replace(lease, part=part) for lease in self.ledger.leases(ALL))
        [lease] = [one for one in mine if one.after_step < self.step <= one.until_step]
        pieces, bounds = lease.between(self.step - 1, self.step), lease.bounds(self.step)
        assert lease.share(self.step) == sum(map(len, pieces)) == bounds[-1] - bounds[0]
        return pieces

    def planned(self) -> None:
        self.ring, self.generation = (*self.ring[1:], *self.roster(1))[: self.virtual], self.generation + 1
        planned = self.versions.planned(self.ring, self.step, self.ahead)
        assert planned is not None
        plan = Plan(self.generation, self.ring, self.step, ledger=planned.snapshot())
        self.versions.enter(plan, self.step, self.generation, (), self.ahead)

    def forced(self) -> None:
        self.ring, self.generation = self.ring[1:] or self.roster(1), self.generation + 1
        self.versions.enter(Plan(self.generation, self.ring, None, None), self.step, self.generation - 1, (), 4)

    def resumed(self) -> None:
        self.base, saved = self.base + self.step, self.versions.projected(self.step)
        before = Resumed(self.base, 1, "saved", saved, self.ledger.epoch)
        self.versions, self.step = LedgerVersions(None, Batching(), {}, before), 0
        self.begin()


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_a_step_of_a_stream_has_the_same_items_whatever_happened_before_and_however_fast_they_were_found(
    data: st.DataObject,
) -> None:
    draw = data.draw
    virtual, each, epochs = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    lengths = draw(st.lists(st.sampled_from([0, 1, 3, 7, 12]), min_size=virtual, max_size=9).filter(any))
    expected = of_shards(lengths, virtual, each, epochs)
    job = JobOnStream(draw, virtual, each, lengths, epochs)
    events = draw(st.lists(st.sampled_from([*EVENTS, *FOUND]), max_size=40))
    for event in events + ["found all", *["train"] * 3] * (4 * len(expected) + 4 * len(lengths)):
        if len(job.trained) == len(expected):
            break
        match event:
            case "found" | "found all":
                job.found(6 if event == "found" else 100)
            case _:
                getattr(job, event)()
        assert job.ledger.outdated_until == 0, "no lease is ever cut anew"
        job.ledger.validate()
    assert job.trained == expected
    for _ in lengths:
        job.found(100)  # that the last shards have nothing may be all that is not known
    assert job.ledger.epoch == epochs
