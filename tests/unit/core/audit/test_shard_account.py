"""`edl.core.audit`: the items of streams, each in one step that counts, by the lines of their workers."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest

from edl.cli.data_commands import show_account
from edl.core.audit.kept_steps import WorkerAudit
from edl.core.audit.sample_account import ItemSpan, account, shards_of
from edl.errors import UsageError
from edl.protocol.audit_lines import BatchGiven, Committed, DataEnded, DataOpened, Line, Sat, ShardEnded
from edl.protocol.data_nouns import ITEMS, DataSpec, Range

SPEC = DataSpec(2 * ITEMS, 1, 2, shards=2, unit=512, source="stream:2:x")


def given(step: int, shard: int, first: int, stop: int) -> BatchGiven:
    piece = Range(0, shard * ITEMS + first, shard * ITEMS + stop)
    return BatchGiven(step, 0, (piece,), zlib.crc32(np.arange(piece.start, piece.stop, dtype="<i8").data))


def worker(*lines: Line, steps: int = 2) -> list[WorkerAudit]:
    made = (Committed(1, step, 1.0) for step in range(1, steps + 1))
    return [WorkerAudit("w", "j", (DataOpened(SPEC), Sat(1, 0, 0, 1), *lines, *made))]


ENDS = (ShardEnded(0, 0, 2), ShardEnded(0, 1, 2))


def test_all_of_each_shard_in_one_step(capsys):
    found = account(worker(given(1, 0, 0, 2), given(2, 1, 0, 2), *ENDS, DataEnded(1, 2)))
    assert found.clean
    [epoch] = found.epochs
    assert (epoch.over, epoch.total, epoch.trained, epoch.lost, epoch.repeated) == (True, 4, 4, 0, 0)
    show_account(found)
    assert "epoch 0: 2 of 2 shards read to their ends, 2048 tokens trained" in capsys.readouterr().out


def test_items_that_are_lost_or_repeated_are_named_with_their_tokens(capsys):
    found = account(worker(given(1, 0, 0, 1), given(2, 0, 0, 1), *ENDS, DataEnded(1, 2)))
    assert not found.clean
    [epoch] = found.epochs
    assert (epoch.lost, epoch.repeated) == (3, 1)
    show_account(found)
    told = capsys.readouterr().out
    assert "epoch 0: items 1..1 (tokens 512..1023) of shard 0 are lost: no worker was given them" in told
    assert "epoch 0: items 0..1 (tokens 0..1023) of shard 1 are lost: no worker was given them" in told
    assert "epoch 0: items 0..0 (tokens 0..511) of shard 0 are repeated: w in step 1, w in step 2" in told


def test_what_is_not_read_yet_is_not_lost():
    [epoch] = account(worker(given(1, 0, 0, 2), given(2, 1, 0, 2), ENDS[0])).epochs
    assert (epoch.over, epoch.lost, epoch.total) == (False, 0, 4)


def test_a_shard_that_was_left_out_is_told(capsys):
    lines = (given(1, 0, 0, 2), given(2, 1, 0, 1), ENDS[0], ShardEnded(0, 1, 1, skipped=True), DataEnded(1, 2))
    show_account(account(worker(*lines)))
    assert "without the rest of what could not be read: shard 1" in capsys.readouterr().out


def test_a_shard_with_two_ends_is_told():
    with pytest.raises(UsageError, match="shard 0 has ended after 2 items and after 3"):
        account(worker(given(1, 0, 0, 2), ShardEnded(0, 0, 2), ShardEnded(0, 0, 3)))


@pytest.mark.parametrize("seed", range(30))
def test_spans_are_those_that_counting_each_item_finds(seed):
    chance = random.Random(seed)
    lengths = [chance.randint(0, 12) for _ in range(3)]
    pieces, times = list[Range](), {(shard, item): 0 for shard, end in enumerate(lengths) for item in range(end)}
    for shard, end in enumerate(lengths):
        for _ in range(chance.randint(0, 4)):
            first = chance.randint(0, end)
            stop = chance.randint(first, end)
            if first < stop:
                pieces.append(Range(0, shard * ITEMS + first, shard * ITEMS + stop))
            for item in range(first, stop):
                times[shard, item] += 1
    ends = [ShardEnded(0, shard, end) for shard, end in enumerate(lengths)]
    found = shards_of(0, 3, 1, pieces, ends)
    assert (found.total, found.trained) == (len(times), sum(count > 0 for count in times.values()))
    assert _items(found.lost) == {at for at, count in times.items() if not count}
    assert _items(found.repeated) == {at for at, count in times.items() if count > 1}


def _items(spans: tuple[ItemSpan, ...]) -> set[tuple[int, int]]:
    return {(one.shard, item) for one in spans for item in range(one.first, one.last + 1)}
