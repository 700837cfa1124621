"""A script leaves its iteration over a pipeline of TensorFlow that waits for samples which never come."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import tensorflow as tf
from pace import patient

from edl.errors import TimedOut, UsageError
from edl.tensorflow.dataset import dataset_of
from edl.trainer.data.shards import ShardGenerator
from tests.model.one_worker_data import SoloFeed

LAST = 3  # nothing is leased beyond this step


class DryFeed(SoloFeed):
    """Beyond the last step a pipeline's thread waits, as `Trainer.await_samples` does: until its iteration is left."""

    def __init__(self) -> None:
        super().__init__(LAST)
        self.shards = ShardGenerator(100, self)
        self.waits = threading.Event()
        self.waited_in_vain = False

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        with self._changed:
            if self._offers(step):
                return True
        self.waits.set()
        until = time.monotonic() + patient(10)
        while time.monotonic() < until:
            self.shards.check_goes_on()
            time.sleep(0.01)
        self.waited_in_vain = True
        raise TimedOut("the script has not left its iteration")

    def train(self, iterator: Any, steps: int) -> list[int]:
        first = []
        for _ in range(steps):
            first.append(int(next(iterator)[0]))
            self.commit()
        return first


@pytest.fixture
def feed() -> DryFeed:
    return DryFeed()


def pipeline(feed: DryFeed) -> Any:
    """As scripts make them, reading ahead."""
    return dataset_of(feed.shards, 4).map(tf.identity, num_parallel_calls=2).prefetch(2)


def test_an_exception_passes_through_the_loop(feed: DryFeed) -> None:
    def loop() -> None:
        for number, _ in enumerate(pipeline(feed)):
            feed.commit()
            if number == 1:
                assert feed.waits.wait(patient(10))
                raise KeyError("of the script")

    with pytest.raises(KeyError):
        loop()
    assert not feed.waited_in_vain


def test_a_script_breaks_off_and_goes_on_later(feed: DryFeed) -> None:
    source = pipeline(feed)
    for number, _ in enumerate(source):
        feed.commit()
        if number == 1:
            assert feed.waits.wait(patient(10))
            break
    assert not feed.waited_in_vain
    assert feed.train(iter(source), 1) == [8], "from the first step that is not trained"


def test_another_iterator_is_made_before_the_one_that_waits_is_dropped(feed: DryFeed) -> None:
    source = pipeline(feed)
    iterator = iter(source)
    feed.train(iterator, 2)
    assert feed.waits.wait(patient(10))
    iterator = iter(source)
    assert not feed.waited_in_vain
    assert feed.train(iterator, 1) == [8]


def test_an_iterator_that_nothing_was_taken_of_ends_no_other(feed: DryFeed) -> None:
    source = pipeline(feed)
    iterator = iter(source)
    assert feed.train(iterator, 1) == [0]
    iter(source)
    assert feed.train(iterator, 1) == [4]


def test_an_iteration_that_came_to_its_end_is_an_epoch() -> None:
    feed = SoloFeed()
    shards = ShardGenerator(6, feed)
    source = dataset_of(shards, 4).prefetch(2)
    for epochs in (1, 2):
        for _ in source:
            feed.commit()
        assert shards.epochs_done == epochs


def test_where_all_is_trained_by_an_earlier_dataset_the_script_gets_the_error_and_not_the_pipeline() -> None:
    feed = SoloFeed()
    earlier = ShardGenerator(6, feed, epochs=1)
    for _ in dataset_of(earlier, 4):
        feed.commit()
    again = dataset_of(ShardGenerator(6, feed, epochs=1, earlier=earlier), 4).prefetch(2)
    with pytest.raises(UsageError, match="epochs=2"):
        iter(again)


def test_datasets_of_others_are_iterated_as_before(feed: DryFeed) -> None:
    assert feed.train(iter(pipeline(feed)), 1) == [0]
    assert [int(number) for number in tf.data.Dataset.range(3)] == [0, 1, 2]
