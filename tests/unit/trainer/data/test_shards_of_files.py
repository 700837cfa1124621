"""Files as the source of a generator: its batches are records, read ahead, whatever becomes of a step."""

from __future__ import annotations

import json
import threading
import time
from itertools import chain, islice

import numpy as np
import pytest

from edl.errors import DataError, UsageError
from edl.protocol.assignment import Share
from edl.protocol.data_nouns import Lease, Range
from edl.trainer.data.prefetch import ReadAhead
from edl.trainer.data.shards import AHEAD_STEPS, ShardGenerator
from tests.model import SoloFeed


@pytest.fixture
def path(tmp_path):
    """Ten records."""
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(10)))
    return path


def shards_of(source, feed=None, **wishes):
    feed = feed or SoloFeed()
    return ShardGenerator(source, feed, **{"epochs": 1, **wishes}), feed


def train(batches, feed) -> list[list[int]]:
    seen = []
    for records in batches:
        assert type(records) is list
        seen.append([record["n"] for record in records])
        feed.commit()
    return seen


def test_batches_are_lists_of_records(path):
    shards, feed = shards_of(path)
    assert train(shards.batches(4), feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_all_ways_to_name_files(path):
    other = path.with_name("y.jsonl")
    other.write_text('{"n": 10}')
    for source in (
        str(path.parent),
        path.parent,
        [path, other],
        (str(path), str(other)),
        str(path.with_name("*.jsonl")),
    ):
        shards, feed = shards_of(source)
        assert [*chain(*train(shards.batches(20), feed))] == [*range(11)]
    shards, feed = shards_of([str(path)], format="text")
    assert next(shards.batches(1)) == ['{"n": 0}']


def test_a_shuffle_is_that_of_the_numbers(path):
    numbers, _ = shards_of(10, shuffle=True, seed=3)
    shards, feed = shards_of(path, shuffle=True, seed=3, epochs=2)
    assert train(shards.batches(10), feed)[0] == next(numbers.batches(10)).tolist()


def test_sample_by_sample(path):
    shards, feed = shards_of(path, default_batch=4)
    samples = iter(shards)
    assert train(iter(lambda: [*islice(samples, 4)], []), feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_void_batch_comes_again_and_each_time_its_records_are_new(path):
    shards, feed = shards_of(path)
    batches = shards.batches(4)
    for _ in range(3):
        first = next(batches)
        assert first[0].pop("n") == 0
        assert shards.redeliver()
    assert train(batches, feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_newcomer_rehearses_with_the_first_records(path):
    shards, feed = shards_of(path)
    feed.rehearsals.add(1)
    batches = shards.batches(4)
    assert [record["n"] for record in next(batches)] == [0, 1, 2, 3]
    feed.enter()
    assert train(batches, feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class ListFeed(SoloFeed):
    """One lease, as given."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self.leases.adopt(Share(1, 0, (lease,), (), lease.until_step, 1, last=True), (1, 1))

    def begin_batch(self) -> None:
        pass

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        return self.leases.offers(step or self.step())

    def commit(self) -> None:
        self.committed += 1


def test_a_step_without_samples_gets_records_that_do_not_count(path):
    shards, feed = shards_of(path, ListFeed(Lease(1, 0, 3, 4, (Range(0, 4, 9),))))
    assert train(shards.batches(4), feed) == [[4, 5, 6, 7], [8], [0, 1, 2, 3]]


def test_workers_that_see_other_files_are_refused(path):
    shards, feed = shards_of(path)
    next(shards.batches(4))
    path.write_text(path.read_text().replace("0", "1000"))
    with pytest.raises(UsageError, match="source"):
        next(shards_of(path, feed)[0].batches(4))


@pytest.mark.parametrize("contents", [["", "\n\n"], [""]])
def test_files_without_records_are_told_of(path, contents):
    for number, content in enumerate(contents):
        path.with_name(f"{number}.jsonl").write_text(content)
    with pytest.raises(UsageError, match="has no samples, so there is nothing to train"):
        shards_of(str(path.with_name("[0-9].jsonl")))


def test_fewer_records_than_a_batch_are_one_short_batch(path):
    shards, feed = shards_of(path)
    assert train(shards.batches(64), feed) == [[*range(10)]]


def test_a_bad_record_is_told_of_when_its_batch_is_asked_for(path):
    path.write_text(path.read_text().replace('"n": 5', '"n": '))
    batches = shards_of(path)[0].batches(2)
    assert [next(batches), next(batches)] == [[{"n": 0}, {"n": 1}], [{"n": 2}, {"n": 3}]]
    with pytest.raises(DataError, match=r"x\.jsonl on host .* is corrupt at byte 45 \(sample 5\): no JSON"):
        next(batches)


# ---------------------------------------------------------------------------------------------------- reading ahead


class Shelf:
    """A source that tells what is read, and hands it out when it is told to."""

    fingerprint = "shelf"

    def __init__(self, open_: bool = True) -> None:
        self.asked: list[list[int]] = []
        self.open = threading.Event()
        self._changed = threading.Condition()
        if open_:
            self.open.set()

    def __len__(self) -> int:
        return 1000

    def read(self, ids):
        with self._changed:
            self.asked.append(list(ids))
            self._changed.notify_all()
        self.open.wait(5)
        if 13 in ids:
            raise DataError("13")
        return [int(number) for number in ids]

    def wait_asked(self, times: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= times, 5)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_the_next_steps_are_read_while_one_is_trained(path, monkeypatch):
    shelf = Shelf()
    monkeypatch.setattr("edl.trainer.data.shards.records_of", lambda *_: shelf)
    shards, _ = shards_of(path)
    batches = shards.batches(2)
    assert next(batches) == [0, 1]
    shelf.wait_asked(1 + AHEAD_STEPS)
    assert shelf.asked == [[0, 1], [2, 3], [4, 5]]
    assert next(batches) == [2, 3]
    shelf.wait_asked(2 + AHEAD_STEPS)
    assert shelf.asked[3:] == [[6, 7]]  # nothing is read twice
    shards.close()


def test_what_is_not_expected_any_more_is_not_read():
    shelf = Shelf(open_=False)
    ahead = ReadAhead(shelf, 5.0)
    ahead.expect([ids(1), ids(2)])
    shelf.wait_asked(1)
    ahead.expect([ids(3)])
    shelf.open.set()
    assert ahead.take(ids(3)) == [3]
    assert ahead.take(ids(2)) == [2]
    assert shelf.asked == [[1], [3], [2]]


def test_what_a_script_waits_for_is_read_whatever_is_expected():
    shelf = Shelf(open_=False)
    ahead = ReadAhead(shelf, 5.0)
    ahead.expect([ids(1), ids(2), ids(2)])
    shelf.wait_asked(1)
    found: list[list[int]] = []
    waiting = threading.Thread(target=lambda: found.append(ahead.take(ids(2))))
    waiting.start()
    while ahead._expected.keys() == {ids(1).tobytes(), ids(2).tobytes()}:
        time.sleep(0.001)
    ahead.expect([ids(3)])
    shelf.open.set()
    waiting.join(5)
    assert found == [[2]]
    assert ahead.take(ids(3)) == [3]
    assert shelf.asked == [[1], [2], [3]]


def test_an_error_comes_to_the_caller_that_wants_the_records():
    ahead = ReadAhead(Shelf(), 5.0)
    ahead.expect([ids(12), ids(13), ids(14)])
    assert ahead.take(ids(12)) == [12]
    with pytest.raises(DataError, match="13"):
        ahead.take(ids(13))
    assert ahead.take(ids(14)) == [14]


def test_storage_that_hangs_is_told_of():
    shelf = Shelf(open_=False)
    with pytest.raises(DataError, match=r"not read within 0\.05 s.*--step-timeout"):
        ReadAhead(shelf, 0.05).take(ids(1))
    shelf.open.set()


def test_the_thread_ends_by_itself_and_with_the_script(monkeypatch):
    monkeypatch.setattr("edl.trainer.data.prefetch.LINGER_S", 0.01)
    before, ahead = {*threading.enumerate()}, ReadAhead(Shelf(), 5.0)
    for number in range(3):
        assert ahead.take(ids(number)) == [number]
        for thread in {*threading.enumerate()} - before:
            thread.join(5)
    monkeypatch.setattr("edl.trainer.data.prefetch.LINGER_S", 60.0)
    ahead.expect([ids(5)])
    ahead.close()
    assert not {*threading.enumerate()} - before


def test_records_are_what_json_makes_of_them(tmp_path):
    values = [1, "two", [3], {"four": None}, 5.5, True]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, values)))
    assert next(shards_of(tmp_path)[0].batches(6)) == values
