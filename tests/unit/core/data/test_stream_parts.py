"""Who reads which shard of a stream, and what a step waits for: `edl.core.data.stream_parts`, by the ledger."""

from __future__ import annotations

from collections import Counter

import pytest

from edl.core.data.ledgers import new_ledger, restored_ledger
from edl.core.data.resume_position import rebased
from edl.core.data.sample_ledger import Ledger
from edl.core.data.stream_parts import StreamParts
from edl.protocol.data_nouns import ITEMS, DataSpec, Mark, Range, ShardPart


def ledger_of(*workers: str, shards: int = 4, at_once: int = 1, batch: int = 2, epochs: int = 1) -> Ledger:
    spec = DataSpec(shards * ITEMS, epochs, batch, shards=shards, at_once=at_once)
    ledger = new_ledger(spec, workers)
    ledger.grant(100)
    return ledger


def found(part: int, items: int, *, ended: bool = False) -> ShardPart:
    return ShardPart(part, known=items, ended=ended, marks=(Mark(0, b""),))


def holders(ledger: Ledger) -> dict[int, str]:
    stream = ledger.snapshot().stream
    assert stream is not None
    return {one.part: one.holder for one in stream.parts}


def test_each_worker_reads_so_many_and_gets_the_next_as_one_ends():
    ledger = ledger_of("a", "b", shards=5, at_once=2)
    assert holders(ledger) == {0: "a", 1: "b", 2: "a", 3: "b"}
    assert ledger.learn([found(1, 8, ended=True)])
    assert holders(ledger)[4] == "b"


def test_a_step_waits_until_each_reader_has_a_whole_batch():
    ledger = ledger_of("a", "b", shards=2)
    ledger.learn([found(0, 9)])
    ledger.grant(100)
    assert (ledger.covered_step, ledger.reading) == (0, ("b",))
    ledger.learn([found(1, 5)])
    ledger.grant(100)
    assert ledger.covered_step == 2
    assert [total.samples for total in ledger.totals()] == [4]
    ledger.learn([found(1, 5, ended=True)])
    ledger.grant(100)
    assert [(total.until_step, total.samples) for total in ledger.totals()] == [(2, 4), (3, 3), (4, 2)]


def test_a_newcomer_takes_waiting_shards_and_then_some_of_the_others():
    ledger = ledger_of("a", shards=4, at_once=0)
    assert set(holders(ledger).values()) == {"a"}
    ledger.enter(["a", "b"], 0)
    ledger.grant(10)
    assert sorted(holders(ledger).values()) == ["a", "a", "b", "b"]


def test_shards_move_to_a_worker_that_has_fewer_to_train_not_to_one_that_has_read_to_their_end():
    ledger = ledger_of("a", "b", shards=8, at_once=4)
    before = holders(ledger)
    ledger.learn(found(part, 20, ended=True) for part, holder in before.items() if holder == "a")
    assert holders(ledger) == before
    ledger.learn(found(part, 20) for part, holder in before.items() if holder == "b")
    ledger.grant(100)  # all that is known
    assert ledger.learn([found(1, 22)])
    assert sorted(holders(ledger)[part] for part, holder in before.items() if holder == "b") == ["a", "a", "b", "b"]


def test_of_two_marks_of_an_item_the_one_told_last_counts():
    """A filter may have left out all records between them."""
    ledger = ledger_of("a", shards=1)
    for state in (b"early", b"late"):
        ledger.learn([ShardPart(0, known=0, marks=(Mark(0, state),))])
    stream = ledger.snapshot().stream
    assert stream is not None
    assert [mark.state for mark in stream.parts[0].marks] == [b"late"]


def parts_of(*workers: str, shards: int, virtual: int = 0) -> StreamParts:
    parts = StreamParts(DataSpec(shards * ITEMS, 1, 4, shards=shards, at_once=4, virtual=virtual), 1)
    parts.assign(workers)
    return parts


def test_a_shard_that_is_read_to_its_end_stays_where_it_is_at_hand():
    parts = parts_of("a", shards=2)
    parts.learn([found(0, 20), found(1, 20, ended=True)])
    parts.assign(["a", "b"])
    assert {one.part: one.holder for one in parts.parts} == {0: "b", 1: "a"}


def test_a_mark_before_what_came_back_is_kept():
    parts = parts_of("a", shards=1)
    parts.learn([ShardPart(0, known=20, marks=(Mark(0, b""), Mark(10, b"ten")))])
    parts.take("a", 20, 0, 20)
    parts.give_back([Range(0, 2, 4)])
    parts.settle([Range(0, 15, 20)])
    assert [mark.item for one in parts.parts for mark in one.marks] == [0, 10]


def test_a_virtual_worker_s_step_waits_until_its_shard_has_ended_or_has_enough():
    parts = parts_of("a", shards=2, virtual=2)
    parts.learn([found(0, 3), found(1, 3)])
    assert parts.take_by_lane(4, 5, 0)[0] == 1, "the second step may yet be whole"
    parts.learn([found(0, 3, ended=True), found(1, 3, ended=True)])
    assert parts.take_by_lane(4, 5, 0)[0] == 1


def test_a_virtual_worker_s_short_step_is_the_last_of_a_lease():
    parts = parts_of("a", shards=2, virtual=2)
    parts.learn([found(0, 5, ended=True), found(1, 3, ended=True)])
    assert parts.take_by_lane(4, 5, 0)[0] == 2
    assert parts.take_by_lane(4, 5, 0) == (1, (Range(0, 4, 5),))


def test_a_worker_s_items_of_an_earlier_epoch_come_first():
    parts = StreamParts(DataSpec(2 * ITEMS, 2, 2, shards=2), 2)
    parts.assign(["a"])
    parts.learn([found(0, 4), found(1, 4), found(2, 4), found(3, 4)])
    assert parts.take("a", 4, 1, 2) == (Range(0, 0, 2), Range(0, ITEMS, ITEMS + 2))
    assert {piece.epoch for piece in parts.take("a", 4, 1, 2)} == {0}


def test_what_is_told_late_does_not_open_a_shard_that_has_ended():
    parts = StreamParts(DataSpec(ITEMS, 1, 2, shards=1), 1)
    parts.assign(["a"])
    assert parts.learn([found(0, 6, ended=True)])
    assert not parts.learn([found(0, 4)])
    assert not parts.is_awaited("a", 0)
    assert parts.available("a", 0) == 6


def test_what_is_told_late_of_a_shard_that_has_ended_makes_it_no_longer():
    """With `unreadable="skip"` a holder may end a shard before items that the one before it still tells of."""
    ledger = ledger_of("a", shards=1)
    ledger.learn([found(0, 6, ended=True)])
    ledger.learn([found(0, 8)])
    ledger.grant(100)
    assert (ledger.covered_step, ledger.fully_leased) == (3, True)


def test_the_parts_of_a_dead_worker_go_to_the_others_where_they_were():
    ledger = ledger_of("a", "b", shards=2)
    ledger.learn([found(0, 20), found(1, 20)])
    ledger.grant(5)
    ledger.commit(2)
    ledger.enter(["a"], 2)
    ledger.grant(3)
    assert set(holders(ledger).values()) == {"a"}
    stream = ledger.snapshot().stream
    assert stream is not None
    assert {one.part: one.next for one in stream.parts}[1] == 4  # two steps of two items are trained


def test_what_came_back_is_left_though_all_behind_it_is_leased():
    """Of a worker that had leases of a shard which another one reads by now."""
    parts = StreamParts(DataSpec(ITEMS, 1, 2, shards=1), 1)
    parts.assign(["a"])
    parts.learn([found(0, 8, ended=True)])
    first = parts.take("a", 4, 0, 2)
    parts.rename({"a": "b"})
    then = parts.take("b", 4, 0, 2)
    parts.give_back(first)
    parts.settle(then)
    parts.settle([])
    assert (parts.first_epoch, parts.available("b", 0)) == (0, 4)
    assert parts.take("b", 4, 0, 2) == first
    parts.settle([])
    assert (parts.first_epoch, parts.parts) == (1, ())


def test_another_life_of_as_many_workers_reads_as_the_one_before():
    ledger = ledger_of("a", "b", shards=4, at_once=2)
    ledger.learn([found(part, 8) for part in range(4)])
    ledger.grant(3)
    before = {part: "ab".index(holder) for part, holder in holders(ledger).items()}
    again = restored_ledger(rebased(ledger.snapshot()))
    again.hand_over(["c", "d"])
    again.enter(["c", "d"], 0)
    assert {part: "cd".index(holder) for part, holder in holders(again).items()} == before


def test_an_epoch_ends_with_its_last_shard_and_the_next_is_read_before():
    ledger = ledger_of("a", shards=2, at_once=2, epochs=2)
    ledger.learn([found(0, 2, ended=True), found(1, 2, ended=True)])
    assert holders(ledger) == {0: "a", 1: "a", 2: "a", 3: "a"}
    ledger.grant(10)
    assert ledger.commit(2) == (0,)
    assert not ledger.exhausted
    ledger.learn([found(2, 0, ended=True), found(3, 1, ended=True)])
    ledger.grant(10)
    assert ledger.commit(3) == (1,)
    assert ledger.exhausted


@pytest.mark.parametrize("virtual", [0, 2])
def test_no_step_reaches_into_another_epoch_however_many_there_are(virtual):
    """The rounds of an epoch are many, and so are the epochs after the first one that ended."""
    lengths = (14, 4, 6, 2)
    ledger = new_ledger(DataSpec(4 * ITEMS, 5, 2, shards=4, at_once=8, virtual=virtual), ["a"])
    ledger.grant(1)
    taken, step = Counter[int](), 0
    while not ledger.exhausted:
        ledger.learn([found(part, lengths[part % 4], ended=True) for part in holders(ledger)])
        for lease in ledger.grant(step + 1)["a"]:
            assert {piece.epoch for piece in lease.ranges} == {lease.epoch}
            taken[lease.epoch] += len(lease)
        step = ledger.covered_step
        ledger.commit(step)
    assert taken == dict.fromkeys(range(5), sum(lengths))


@pytest.mark.parametrize("count", [0, 7])
def test_status_counts_what_is_known(count):
    ledger = ledger_of("a", shards=3)
    ledger.learn([found(0, count, ended=True)])
    ledger.grant(2)
    told = ledger.counts()
    assert (told.total, told.leased, told.unassigned) == (count, min(count, 4), count - min(count, 4))
    assert told.stream is not None
    assert told.stream.done + told.stream.in_hand + told.stream.waiting == 3
