"""`edl.trainer.data.stream_reader`: what a worker reads, keeps and tells, on a real ledger."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edl.core.data.ledgers import new_ledger
from edl.core.data.sample_ledger import Ledger
from edl.errors import DataError, UsageError
from edl.protocol.data_nouns import ITEMS, DataSpec, Mark, ShardPart
from edl.sources.streams.elastic_stream import ElasticStream
from edl.sources.streams.stream_operators import Barrier
from edl.trainer.data import shard_feeds, stream_reader
from edl.trainer.data.audit_files import Audit
from edl.trainer.data.shards import ShardGenerator
from tests.model.one_worker_data import SoloFeed


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(stream_reader, "FIRST_TRY_S", 0.01)


def parts_of(ledger: Ledger) -> tuple[ShardPart, ...]:
    stream = ledger.snapshot().stream
    assert stream is not None
    return stream.parts


def generator(stream: ElasticStream, feed: SoloFeed | None = None, **how: Any) -> tuple[ShardGenerator[Any], SoloFeed]:
    port = feed or SoloFeed()
    return ShardGenerator(stream, port, step_timeout_s=2.0, **how), port


def drained(shards: ShardGenerator[Any], port: SoloFeed, batch: int = 4) -> list[list[Any]]:
    steps = []
    for items in shards.batches(batch):
        steps.append(items)
        port.commit()
    shards.close()
    return steps


def records(shard: int) -> list[bytes]:
    return [b"%d-%d" % (shard, number) for number in range(30 + 7 * shard)]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_each_item_of_each_epoch_once(processes):
    stream = ElasticStream(records, shards=3, at_once=2)
    shards, port = generator(stream, epochs=2)
    shards.read_by(processes)
    steps = drained(shards, port)
    assert Counter(one for step in steps for one in step) == Counter([*stream] * 2)
    assert {len(step) for step in steps} <= {1, 2, 3, 4}


def test_an_endless_stream_has_no_end():
    stream = ElasticStream(lambda shard: range(10**9), shards=2, endless=True)
    shards, port = generator(stream)
    found = []
    for items in shards.batches(4):
        found += items
        port.commit()
        if len(found) >= 400:
            break
    shards.close()
    assert max(Counter(found).values()) == 2  # of each shard once
    with pytest.raises(UsageError, match="an endless stream has none"):
        generator(stream, epochs=3)


def test_a_void_step_comes_again():
    shards, port = generator(ElasticStream(records, shards=2), epochs=1)
    batches = shards.batches(4)
    first = next(batches)
    port.commit()
    second = next(batches)
    assert shards.redeliver()
    assert next(batches) == second != first
    shards.close()


def test_samples_that_are_read_one_by_one_are_refused():
    shards, _ = generator(ElasticStream(records, shards=2), epochs=1)
    with pytest.raises(UsageError, match=r"a stream is given out in batches.*\.batches\(n\)"):
        iter(shards)
    with pytest.raises(UsageError, match=r"shuffle a stream by \.shuffle\(buffer\)"):
        generator(ElasticStream(records, shards=2), shuffle=True)


class Spoilt:
    """A shard that fails at an item, so many times."""

    def __init__(self, at: int, times: int) -> None:
        self.at, self.times = at, times

    def __call__(self, shard: int) -> Any:
        spoilt = self

        class Shard(list[bytes]):
            def __getitem__(self, number: Any) -> Any:
                if shard == 1 and number == spoilt.at and spoilt.times:
                    spoilt.times -= 1
                    raise OSError("input/output error")
                return super().__getitem__(number)

        return Shard(records(shard))


def test_a_shard_that_cannot_be_read_is_tried_again(caplog):
    stream = ElasticStream(Spoilt(20, times=3), shards=2)
    shards, port = generator(stream, epochs=1)
    with caplog.at_level(logging.WARNING):
        found = [one for step in drained(shards, port) for one in step]
    assert Counter(found) == Counter([*records(0), *records(1)])
    told = [one.message for one in caplog.records]
    assert told == ["shard Spoilt 1 cannot be read from item 20 on, trying again: input/output error"] * 3


def test_a_shard_that_cannot_be_read_is_named_at_last():
    shards, _ = generator(ElasticStream(Spoilt(20, times=99), shards=2), epochs=1)
    next(shards.batches(4))
    told = r"shard Spoilt 1 cannot be read from item 20 on: input/output error; mend it and resume.*unreadable='skip'"
    with pytest.raises(DataError, match=told):
        _wait_for_error(shards)
    shards.close()


def _wait_for_error(shards: ShardGenerator[Any]) -> None:
    until = time.monotonic() + 5
    while time.monotonic() < until:
        shards.check_read()
        time.sleep(0.01)


def test_the_job_goes_on_without_it_where_it_says_so(caplog):
    stream = ElasticStream(Spoilt(20, times=99), shards=2, unreadable="skip")
    shards, port = generator(stream, epochs=1)
    with caplog.at_level(logging.WARNING):
        found = [one for step in drained(shards, port) for one in step]
    assert Counter(found) == Counter([*records(0), *records(1)[:20]])
    assert "the job goes on without the rest of it, as unreadable='skip' says" in caplog.text


def test_a_shard_whose_items_others_have_found_is_not_given_up():
    class Inherited(SoloFeed):
        """As a worker that takes over from one that could read the shard."""

        def open(self, spec: DataSpec) -> None:
            super().open(spec)
            self.ledger.grant(1)
            self.ledger.learn([ShardPart(1, known=30)])

    shards, _ = generator(ElasticStream(Spoilt(20, times=99), shards=2, unreadable="skip"), Inherited(), epochs=1)
    next(shards.batches(4))
    told = (
        "shard Spoilt 1 cannot be read from item 20 on: .*30 items of it were found before, so it cannot be passed over"
    )
    with pytest.raises(DataError, match=told):
        _wait_for_error(shards)
    shards.close()


def test_no_mark_is_told_beyond_the_items_that_are_told(monkeypatch):
    """A shard that fails is opened anew: what was read of it before that, and not told, is read again."""
    monkeypatch.setattr(stream_reader, "FIRST_TRY_S", 1.0)
    monkeypatch.setattr(stream_reader, "TELL_S", 0.3)
    told: list[ShardPart] = []

    class Seen(SoloFeed):
        def found(self, parts: tuple[ShardPart, ...]) -> None:
            told.extend(parts)
            super().found(parts)

    failed: list[int] = []

    class Failing(list[int]):
        def __getitem__(self, number: Any) -> Any:
            if number == 200 and not failed:
                failed.append(number)
                raise OSError("input/output error")
            return super().__getitem__(number)

    shards, port = generator(ElasticStream(lambda shard: Failing(range(300)), shards=1), Seen(), epochs=1)
    assert len(drained(shards, port)) == 75
    assert failed
    assert max(mark.item for one in told for mark in one.marks) >= 64
    assert all(mark.item <= one.known for one in told for mark in one.marks)


def test_another_reader_goes_on_from_the_newest_mark():
    """And what it does not need it does not read: only what lies behind the mark."""
    read: list[int] = []

    class Told(list[int]):
        def __getitem__(self, number: Any) -> Any:
            read.append(number)
            return super().__getitem__(number)

    stream = ElasticStream(lambda shard: Told(range(1000)), shards=1).batch(2)
    shards, port = generator(stream, epochs=1)
    taken = 0
    for _ in shards.batches(4):
        port.commit()
        taken += 4
        if taken == 300:
            break
    shards.close()
    ledger = port.ledger
    ledger.enter(["other"], port.committed)
    ledger.grant(port.committed + 4)
    [part] = parts_of(ledger)
    assert part.holder == "other"
    mark = max((one for one in part.marks if one.item <= part.next), key=lambda one: one.item)
    assert 300 - mark.item <= 64
    read.clear()
    found = next(iter(_items(stream, mark)))
    assert found == [2 * mark.item, 2 * mark.item + 1]
    assert len(read) <= 64


def _items(stream: ElasticStream, mark: Any) -> Any:
    import msgspec

    place = msgspec.msgpack.decode(mark.state) if mark.state else None
    return (one for one in stream.items(0, place) if type(one) is not Barrier)


def test_a_factory_that_gives_something_else_is_noticed():
    """A reader that goes on where another one was finds other items before the place that was told."""
    chance = count()
    stream = ElasticStream(lambda shard: [np.array([next(chance)]) for _ in range(600)], shards=1)
    port = SoloFeed()
    first, _ = generator(stream, port, epochs=1)
    batches = first.batches(4)
    for _ in range(40):
        next(batches)
        port.commit()
    first.close()
    ledger = port.ledger
    snapshot = ledger.snapshot()
    assert snapshot.stream is not None
    [part] = snapshot.stream.parts
    assert len(part.marks) >= 2
    # All that was read ahead is wanted again, from the first mark on.
    reader = shard_feeds.ShardFeed(stream, 0, part.marks[0], {mark.item: mark.check for mark in part.marks})
    with pytest.raises(DataError, match=r"was read again, and its items up to .* are others than before"):
        _read_on(reader)


def _read_on(reader: shard_feeds.ShardFeed) -> None:
    while not reader.read(64).ended:
        pass


def test_two_epochs_of_a_single_iterable_are_whole():
    stream = ElasticStream(Counter200())
    shards, port = generator(stream, epochs=2)
    assert Counter(one for step in drained(shards, port) for one in step) == Counter([*range(200)] * 2)


class Counter200:
    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Any:
        while self.next < 200:
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> int:
        return self.next

    def load_state_dict(self, state_dict: int) -> None:
        self.next = state_dict


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced():
    """And no shard of its is given up, as with `unreadable="skip"` one could be."""
    feeds = shard_feeds.OtherFeeds(ElasticStream(records, shards=4, unreadable="skip"), 2)
    try:
        for shard in range(4):
            feeds.open(shard, shard, Mark(0, b""), {})
        assert [_answer(feeds, 0, 5), _answer(feeds, 2, 5)] == [(0, records(0)[:5]), (2, records(2)[:5])]
        os.kill(feeds._processes[0].pid, signal.SIGSTOP)
        feeds.ask(0, 5)
        _kill(feeds, 0)
        [(part, failed)] = _answers(feeds)
        assert isinstance(failed, shard_feeds.ReadFailed)
        assert (part, failed.at) == (0, 5)
        assert "the process that was reading it has ended (-9)" in str(failed.error)
        assert _answer(feeds, 2, 9) == (2, records(2)[:9])  # opened again, where it was opened before
        _kill(feeds, 1)
        assert _answer(feeds, 3, 9) == (3, records(3)[:9])
    finally:
        feeds.end()


@pytest.mark.slow
def test_what_was_asked_before_a_shard_was_opened_anew_is_not_answered():
    feeds = shard_feeds.OtherFeeds(ElasticStream(records, shards=1), 1)
    try:
        feeds.open(0, 0, Mark(0, b""), {})
        feeds.ask(0, 5)
        feeds.open(0, 0, Mark(0, b""), {})
        assert feeds.answers(20) == []
        assert _answer(feeds, 0, 2) == (0, records(0)[:2])
    finally:
        feeds.end()


def _kill(feeds: shard_feeds.OtherFeeds, number: int) -> None:
    process = feeds._processes[number]
    process.kill()
    process.join()


def _answers(feeds: shard_feeds.ShardFeeds) -> list[tuple[int, Any]]:
    until = time.monotonic() + 20
    while not (found := feeds.answers(0.1)):
        assert time.monotonic() < until
    return found


def _answer(feeds: shard_feeds.OtherFeeds, part: int, count: int) -> tuple[int, list[Any]]:
    """All that was asked for, as far as there is: one answer has what was read in a moment."""
    items, ended = list[Any](), False
    while len(items) < count and not ended:
        feeds.ask(part, count - len(items))
        [(part, answer)] = _answers(feeds)
        items, ended = items + answer.items, answer.ended
    return part, items


class Unlike(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} is not {other}")


@pytest.mark.slow
def test_what_comes_from_another_process_needs_no_open_files():
    torch = pytest.importorskip("torch")
    before = len([*Path("/proc/self/fd").iterdir()])
    feeds = shard_feeds.OtherFeeds(ElasticStream(records, shards=1).map(lambda _: torch.zeros(9)), 1)
    try:
        feeds.open(0, 0, Mark(0, b""), {})
        _, items = _answer(feeds, 0, 25)
        assert torch.equal(torch.stack(items), torch.zeros(25, 9))
        assert len([*Path("/proc/self/fd").iterdir()]) < before + 10
    finally:
        feeds.end()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(
    ("error", "told"), [(Unlike(1, 2), "1 is not 2"), (SystemExit(3), "calls sys.exit(3)")], ids=["own", "exit"]
)
def test_what_a_function_raises_is_told(processes, error, told):
    def fails(_: bytes) -> bytes:
        raise error

    stream = ElasticStream(records, shards=1).map(fails)
    feeds = shard_feeds.OtherFeeds(stream, processes) if processes else shard_feeds.OwnFeeds(stream)
    try:
        feeds.open(0, 0, Mark(0, b""), {})
        feeds.ask(0, 4)
        [(_, failed)] = _answers(feeds)
        assert isinstance(failed, shard_feeds.ReadFailed)
        assert isinstance(failed.error, UsageError), "of the script's function, not of the shard: never tried again"
        assert told in str(failed.error)
    finally:
        feeds.end()


def test_a_filter_that_leaves_nothing_does_not_hold_up_the_reader():
    stream = ElasticStream(lambda shard: range(10**9), shards=1, endless=True).filter(lambda _: False)
    chunk = shard_feeds.ShardFeed(stream, 0, Mark(0, b""), {}).read(4)
    assert (chunk.items, chunk.ended) == ([], False)


def test_a_stream_in_which_nothing_is_found_is_told_once(monkeypatch, caplog):
    monkeypatch.setattr(stream_reader, "BARREN_S", 0.01)
    stream = ElasticStream(lambda shard: range(10**9), shards=1, endless=True).filter(lambda number: number > 300_000)
    shards, _ = generator(stream)
    first = next(iter(shards.batches(2)))
    shards.close()
    assert first == [300_001, 300_002]
    assert [one.message for one in caplog.records if "see what its filter() keeps" in one.message]
    assert len(caplog.records) == 1


def test_wrong_processes_are_one_line():
    shards, _ = generator(ElasticStream(records, shards=1))
    for processes in (-1, "2", 1.5):
        with pytest.raises(UsageError, match=r"num_workers is .*: it must be a whole number, at least 0"):
            shards.read_by(processes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="multiprocessing_context='spam': it must be one of "):
        shards.read_by(1, "spam")
    with pytest.raises(UsageError, match="give functions of a module, no lambdas"):
        shard_feeds.OtherFeeds(ElasticStream(lambda shard: [shard], shards=1), 1, "spawn")


def test_processes_of_a_fork_server_answer():
    feeds = shard_feeds.OtherFeeds(ElasticStream(range, shards=[3]), 1, "forkserver")
    try:
        feeds.open(0, 0, Mark(0, b""), {})
        assert _answer(feeds, 0, 9) == (0, [0, 1, 2])
    finally:
        feeds.end()


def test_a_stream_without_an_item_is_told():
    shards, _ = generator(ElasticStream(lambda shard: [], shards=2), epochs=1)
    with pytest.raises(DataError, match="no shard has an item"):
        shards.example()


def test_the_ledger_of_a_stream_is_small():
    """Of a thousand shards in hand, with marks."""
    import msgspec

    spec = DataSpec(2000 * ITEMS, 1, 4, shards=2000, at_once=0)
    ledger = new_ledger(spec, [f"w{number}" for number in range(8)])
    ledger.grant(1)
    parts = parts_of(ledger)
    marks = tuple(Mark(item, b"x" * 40, 7) for item in range(0, 300, 60))
    ledger.learn([msgspec.structs.replace(one, known=300, marks=marks) for one in parts])
    ledger.grant(64)
    assert len(msgspec.json.encode(ledger.snapshot())) < 1_000_000


def test_what_map_raises_is_no_shard_that_cannot_be_read():
    """Whatever `unreadable` says: else a wrong line of the script would train on nothing, shard after shard."""

    def shout(record: bytes) -> Any:
        return record.upper() + "" if record.endswith(b"29") else record  # type: ignore[operator]

    shards, _ = generator(ElasticStream(records, shards=2, unreadable="skip").map(shout), epochs=1)
    told = r"^\.map\(.*shout\) raises TypeError: can't concat str to bytes \(test_stream_reader\.py:\d+\): mend it"
    next(shards.batches(4))
    with pytest.raises(UsageError, match=told):
        _wait_for_error(shards)
    shards.close()


def test_a_filter_that_leaves_nothing_has_one_mark_which_goes_along():
    stream = ElasticStream(lambda shard: range(1000), shards=1).filter(lambda one: one == 999)
    chunk = shard_feeds.ShardFeed(stream, 0, Mark(0, b""), {}).read(4, within_s=60)
    assert (chunk.items, len(chunk.marks)) == ([999], 1)
    [mark] = chunk.marks
    assert len([*shard_feeds.ShardFeed(stream, 0, mark, {}).read(4, within_s=60).items]) == 1
    shelf = stream_reader.Shelf(0)
    shelf.add_marks([mark])
    assert shelf.mark_before(0) == mark
    shelf.add_marks([Mark(0, b"older")], told=True)
    assert shelf.mark_before(0) == mark
    fresh = stream_reader.Shelf(0)
    fresh.add_marks([mark], told=True)
    assert fresh.mark_before(0) == mark


def test_a_worker_without_a_shard_is_told(caplog):
    class Idle(SoloFeed):
        """As a worker beside others that read all shards."""

        def found(self, parts: tuple[ShardPart, ...]) -> None: ...

    reader = stream_reader.StreamReader(ElasticStream(records, shards=2), Idle(), 1.0, Audit())
    with caplog.at_level(logging.WARNING):
        reader._tell_idle(reads=False)
        assert not caplog.records, "it waits for its first lease"
        reader._port = SimpleNamespace(leases=SimpleNamespace(leases=(1,)))
        reader._tell_idle(reads=False)
        reader._tell_idle(reads=False)
    [told] = caplog.records
    assert "other workers read all 2 shards of the stream" in told.message


def reader_of(stream: ElasticStream, part: ShardPart) -> stream_reader.StreamReader:
    """Return the reader of a worker that reads one part, and has no leases."""
    leases = SimpleNamespace(leases=(), parts=(part,), closed=False)
    port: Any = SimpleNamespace(leases=leases, step=lambda: 1, found=lambda parts: None)
    reader = stream_reader.StreamReader(stream, port, 20.0, Audit())
    reader.begin(DataSpec(ITEMS, 1, 4, shards=1))
    return reader


def marks_of(stream: ElasticStream) -> list[Mark]:
    return shard_feeds.ShardFeed(stream, 0, Mark(0, b""), {}).read(1000, within_s=60).marks


def test_a_shard_that_ends_earlier_than_before_is_noticed():
    part = ShardPart(0, holder="me", known=50, ended=True, marks=(Mark(0, b""),))
    reader = reader_of(ElasticStream(lambda shard: range(30), shards=1), part)
    try:
        with pytest.raises(DataError, match="was read again, and ends at item 30: 50 were found before"):
            reader.take(np.array([40]))
    finally:
        reader.close()


def test_what_came_back_is_read_from_a_mark_before_it():
    stream = ElasticStream(lambda shard: range(1000), shards=1)
    mark = marks_of(stream)[-1]
    assert mark.item > 100
    begin, at = Mark(0, b""), mark.item + 5
    part = ShardPart(0, holder="me", next=at, known=at, returned=((3, 7),), marks=(begin, mark))
    reader = reader_of(stream, part)
    try:
        assert reader.take(np.array([3, 4, 5, 6])) == [3, 4, 5, 6]
        assert reader.take(np.array([at])) == [at]
    finally:
        reader.close()


def test_who_reads_on_from_a_mark_finds_the_same_checksums():
    stream = ElasticStream(lambda shard: range(1000), shards=1)
    marks = marks_of(stream)
    assert len(marks) > 3
    feed = shard_feeds.ShardFeed(stream, 0, marks[1], {mark.item: mark.check for mark in marks})
    assert feed.read(1000, within_s=60).marks == marks[2:]
