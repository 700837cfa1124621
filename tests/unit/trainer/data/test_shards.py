"""The trainer's side of the data, on a real ledger and a feed without a job behind it."""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from edl.core.data.permutation import samples_at
from edl.errors import InvalidTransition, UsageError
from edl.protocol.assignment import Share
from edl.protocol.data_nouns import DataSpec, Lease, Range
from edl.trainer.data.epoch_cursor import Pass, PassSoFar
from edl.trainer.data.shards import ShardGenerator
from tests.model.one_worker_data import HORIZON_STEPS, SoloFeed, share_of


def shards_of(source, **wishes) -> tuple[ShardGenerator, Any]:
    feed = SoloFeed()
    return ShardGenerator(source, feed, **wishes), feed


def train(batches, feed: SoloFeed) -> list[list[int]]:
    """What a plain loop consumes."""
    seen = []
    for ids in batches:
        seen.append([int(i) for i in ids])
        feed.commit()
    return seen


def by_hand(samples, size: int):
    """What `.batch(size)` of an input pipeline does."""
    samples = iter(samples)
    while batch := list(islice(samples, size)):
        yield batch


class Prefetched:
    """An input pipeline that reads up to `depth` items ahead in a thread of its own."""

    def __init__(self, source, depth: int) -> None:
        self._items: queue.Queue = queue.Queue(depth)
        self._thread = threading.Thread(target=self._pull, args=(source,), daemon=True)
        self._thread.start()

    def _pull(self, source) -> None:
        for item in source:
            self._items.put(item, timeout=5)
        self._items.put(None, timeout=5)

    def wait_read(self):
        """All that there is."""
        self._thread.join(5)

    def __iter__(self):
        while (item := self._items.get(timeout=5)) is not None:
            yield item
        self._thread.join(5)


# ------------------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize("before", [7, 8, 20])
def test_a_script_that_always_ended_a_mini_batch_before_it_asked_for_the_next_does_not_go_on_without(before: int):
    shards, feed = shards_of(100, epochs=1)
    batches = shards.batches(4)
    next(batches)
    for _ in range(before):
        feed.commit()
        next(batches)
    next(batches)
    assert feed.unended == ([before + 1] if before >= 8 else [])


def test_a_script_may_read_ahead_from_the_beginning():
    shards, feed = shards_of(100, epochs=1)
    batches = shards.batches(4)
    next(batches)
    for _ in range(20):
        next(batches)
        feed.commit()
    assert feed.unended == []


def test_batches_are_arrays_of_ids_and_the_last_of_an_epoch_is_short():
    shards, feed = shards_of(10, epochs=2)
    first = next(shards.batches(4))
    assert isinstance(first, np.ndarray)
    assert first.dtype == np.int64
    assert train(shards.batches(4), feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2


def test_shuffled_epochs_follow_the_permutation():
    shards, feed = shards_of(range(50), epochs=2, shuffle=True, seed=3)
    seen = [*chain(*train(shards.batches(8), feed))]
    orders = [samples_at(DataSpec(50, 2, 8, shuffle=True, seed=3), Range(epoch, 0, 50)).tolist() for epoch in (0, 1)]
    assert seen == [*chain(*orders)]


def test_a_batch_belongs_to_the_script():
    shards, _ = shards_of(8, epochs=1)
    batches = shards.batches(4)
    first = next(batches)
    first += 100
    assert shards.redeliver()
    assert next(batches).tolist() == [0, 1, 2, 3]


def test_without_epochs_each_iteration_is_one_more():
    shards, feed = shards_of(6)
    for _ in range(3):
        assert train(shards.batches(4), feed) == [[0, 1, 2, 3], [4, 5]]
    assert feed.ledger.spec.epochs == 3
    assert feed.ledger.exhausted


def test_epochs_are_counted_for_scripts_that_loop_over_them():
    shards, feed = shards_of(6)
    while (done := shards.epochs_done) < 3:
        assert shards.epochs_known_done == done
        train(shards.batches(4), feed)
        assert shards.epochs_known_done == done + 1
        next(shards.batches(4), None) if shards.epochs_done == 1 else None  # given up: not an epoch
    assert feed.ledger.spec.epochs == 3
    assert feed.ledger.exhausted


def test_a_newcomer_counts_the_epochs_before_its_time():
    feed = ListFeed(Lease(1, 70, 1, 2, (Range(4, 0, 2),), epoch=4))
    shards = ShardGenerator(2, feed)
    assert shards.epochs_done == 0  # not known before the first lease
    assert len(train(shards.batches(2), feed)) == 1
    assert shards.epochs_done == 5


def test_once_all_is_trained_an_iteration_is_empty():
    shards, feed = shards_of(4, epochs=1)
    assert train(shards.batches(4), feed) == [[0, 1, 2, 3]]
    assert train(shards.batches(4), feed) == []


def ask_again(feed: SoloFeed, earlier: ShardGenerator | None, epochs: int | None) -> ShardGenerator:
    return ShardGenerator(4, feed, epochs=epochs, earlier=earlier)


def test_a_later_generator_for_which_its_script_has_left_nothing_is_refused_with_the_epochs_to_ask_for():
    first, feed = shards_of(4, epochs=2)
    made_before = ask_again(feed, first, 1)
    train(first.batches(4), feed)
    never_iterated = ask_again(feed, first, 9)
    for later, more in ((made_before, 3), (ask_again(feed, never_iterated, 2), 4)):
        with pytest.raises(UsageError, match=f"has trained 2 epochs of the source .* ask for epochs={more}, or loop"):
            next(later.batches(4))


def test_a_later_generator_over_another_source_is_refused_by_the_job():
    first, feed = shards_of(4, epochs=1)
    train(first.batches(4), feed)
    other = ShardGenerator(5, feed, epochs=1, earlier=first)
    other.check_untrained()
    with pytest.raises(UsageError, match="the job trains on something else"):
        next(other.batches(4))


def test_a_later_generator_that_asks_for_more_trains_the_rest():
    feed, shards = SoloFeed(), None
    for epoch in range(3):
        shards = ask_again(feed, shards, epoch + 1)
        assert train(shards.batches(4), feed) == [[0, 1, 2, 3]]


def test_later_generators_without_epochs_train_one_more_each():
    feed, shards = SoloFeed(), None
    for _ in range(3):
        shards = ask_again(feed, shards, None)
        assert train(shards.batches(4), feed) == [[0, 1, 2, 3]]


def test_a_generator_that_trains_what_an_earlier_one_has_left_is_a_usual_one():
    first, feed = shards_of(8, epochs=1)
    for _ in first.batches(4):
        feed.commit()
        break
    second = ShardGenerator(8, feed, epochs=1, earlier=first)
    assert train(second.batches(4), feed) == [[4, 5, 6, 7]]


@pytest.mark.parametrize("by_epochs", [False, True])
def test_a_worker_that_trains_the_epochs_of_two_generators_by_one_finds_nothing_in_the_other(by_epochs):
    """Others had begun the second one while it asked for another batch of the first."""
    feed = ListFeed(Lease(1, 0, 1, 4, (Range(0, 0, 4),)), Lease(2, 1, 1, 4, (Range(1, 0, 4),), epoch=1))
    first = ShardGenerator(4, feed, epochs=1)
    if by_epochs:
        first.by_epochs()
    trained = [*train(first.batches(4), feed), *train(first.batches(4), feed)]
    assert trained == [[0, 1, 2, 3]] * 2
    assert train(ask_again(feed, first, 2).batches(4), feed) == []


def test_where_the_life_before_has_trained_all_no_generator_trains_anything():
    first, feed = shards_of(4, epochs=2)
    train(first.batches(4), feed)
    resumed = ask_again(feed, None, 2)
    assert train(resumed.batches(4), feed) == []
    assert train(ask_again(feed, resumed, 2).batches(4), feed) == []


def test_a_training_function_that_is_called_anew_after_its_last_step_finds_nothing_to_train():
    first, feed = shards_of(4, epochs=1)
    train(first.batches(4), feed)
    first.give_up()
    assert train(ask_again(feed, first, 1).batches(4), feed) == []


@pytest.mark.parametrize(("steps_of_pass", "is_refused"), [(1, True), (0, False)])
def test_a_newcomer_is_refused_with_the_others_if_it_came_into_their_first_pass(steps_of_pass, is_refused):
    """Into a later one it may have come with its first generator: what others train by two, it trains by one."""
    feed = ListFeed(Lease(1, 0, 1, 4, (Range(0, 0, 4),)), Lease(2, 1, 1, 4, (Range(1, 0, 4),), epoch=1))
    feed.rehearsals.add(1)
    first = ShardGenerator(4, feed, epochs=2)
    batches = first.batches(4)
    next(batches)
    feed.enter(1)
    first.join(1, None, PassSoFar(steps_of_pass))
    assert train(batches, feed) == [[0, 1, 2, 3]]
    again = ask_again(feed, first, 2)
    if is_refused:
        with pytest.raises(UsageError, match="epochs=4"):
            next(again.batches(4))
    else:
        assert train(again.batches(4), feed) == []


def test_an_iteration_that_is_given_up_loses_nothing():
    shards, feed = shards_of(12, epochs=1)
    batches: Any = shards.batches(2)
    next(batches)
    feed.commit()
    assert [next(batches).tolist(), next(batches).tolist()] == [[2, 3], [4, 5]]  # looked at, never trained
    batches.close()
    assert train(shards.batches(2), feed) == [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def leave_passes(shards, feed: SoloFeed, after: int, epochs: int) -> list[tuple[int, int]]:
    """What a script does that leaves each pass after so many steps: the epoch and the newest step of each."""
    passes = []
    while (done := shards.epochs_done) < epochs:
        for made, _ in enumerate(shards.batches(2), 1):
            feed.commit()
            if made == after:
                break
        passes.append((done, feed.committed))
    return passes


def test_an_iteration_that_is_left_after_its_epochs_last_step_has_ended():
    shards, feed = shards_of(6)
    assert leave_passes(shards, feed, after=1, epochs=2) == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)]
    assert feed.ledger.spec.epochs == 2, "no third one was begun"


def test_it_is_so_whether_or_not_another_worker_has_begun_the_next_epoch_and_however_far_is_leased():
    """What a leader has heard of the others, and how much it has sent, is a matter of time."""
    for ahead in range(4):
        for horizon in (1, 2, 6):
            shards, feed = shards_of(6)
            feed.horizon_steps = horizon
            next(shards.batches(2))
            feed.ledger.extend(ahead)
            assert leave_passes(shards, feed, after=2, epochs=2) == [(0, 2), (0, 3), (1, 5), (1, 6)]


def test_an_epochs_last_step_may_be_known_only_by_what_follows_it():
    """Samples of a lost worker came back after all were leased: its leases had not said how long the epoch is."""
    share = (Lease(1, 0, 1, 2, (Range(0, 0, 2),), final=True), Lease(2, 1, 1, 2, (Range(0, 2, 4),), final=True))
    shards = ShardGenerator(4, (feed := ListFeed(*share)))
    assert leave_passes(shards, feed, after=1, epochs=1) == [(0, 1), (0, 2)]


def test_before_the_step_that_ends_an_epoch_is_committed_the_epoch_is_not_over():
    shards, feed = shards_of(2, default_batch=2)
    pipeline = Prefetched(by_hand(shards, 2), depth=3)
    pipeline.wait_read()  # its thread has had the end of the pass
    assert shards.epochs_done == 0
    feed.commit()
    assert shards.epochs_done == 1


def newcomer_of(shards: ShardGenerator, feed: SoloFeed, so_far: PassSoFar, after: int, epoch: int | None = 0):
    """It has had its rehearsal in a pass; now it comes in after that step."""
    batches = shards.batches(2)
    next(batches)
    shards.join(after, epoch, so_far)
    feed.enter(after)
    return batches


@pytest.mark.parametrize(
    ("so_far", "steps"),
    [
        (PassSoFar(2, 5, 5), 3),
        (PassSoFar(5, 5, 5), 0),  # they leave it after this very step
        (PassSoFar(2, 5, 4), 10),  # after no number that could be told: it is left as the script does
        (PassSoFar(2, 5, 0), 10),
        (PassSoFar(6, 5, 5), 10),  # this time they have not
    ],
)
def test_a_newcomer_leaves_the_pass_that_it_comes_into_where_the_others_do(so_far, steps):
    shards, feed = shards_of(100)
    feed.rehearsals.add(1)
    batches = newcomer_of(shards, feed, so_far, 0)
    assert len(train(islice(batches, 10), feed)) == steps
    assert shards.epochs_done == 0
    assert len(train(islice(shards.batches(2), 10), feed)) == 10, "the passes that follow are its own"


def test_a_newcomers_pass_is_of_the_epoch_of_the_others_and_may_have_nothing_left():
    shards, feed = shards_of(6)
    feed.open(DataSpec(6, 2, 2, open_ended=True))
    feed.await_samples(None)
    for _ in range(3):
        feed.commit()
        feed.leases.forget_before(feed.committed)
    feed.rehearsals.add(1)
    batches = newcomer_of(shards, feed, PassSoFar(3), 3)
    assert train(batches, feed) == []
    assert shards.epochs_done == 1
    assert train(shards.batches(2), feed) == [[0, 1], [2, 3], [4, 5]]


def test_how_long_passes_are_that_a_script_leaves():
    so_far = PassSoFar(5).next(left=True)
    assert not so_far.until_steps, "one may be by chance"
    so_far = so_far._replace(steps=5).next(left=True)
    assert so_far.until_steps == 5
    assert so_far._replace(steps=3).next(left=False).until_steps == 5, "the end of an epoch came before"
    assert so_far.next(left=True).until_steps == 5, "a look at the first batch is no pass"
    assert not so_far._replace(steps=3).next(left=True).until_steps
    assert not so_far._replace(steps=7).next(left=False).until_steps, "a longer one shows that it is no number of steps"


def test_a_newcomer_is_told_of_a_pass_that_is_left_as_of_one_that_begins():
    shards, feed = shards_of(100)
    for steps in (3, 4):
        train(islice(shards.batches(2), steps), feed)
    assert shards.so_far(feed.committed) == PassSoFar(4, 3, 0)
    shards.leave()
    assert shards.so_far(feed.committed) == PassSoFar(0, 4, 3)
    train(islice(shards.batches(2), 2), feed)
    assert shards.so_far(feed.committed) == PassSoFar(2, 4, 3)


def test_an_iteration_that_all_leave_for_another_ring_is_no_pass_that_the_script_has_left():
    shards, feed = shards_of(100)
    train(islice(shards.batches(2), 3), feed)
    shards.give_up()
    assert shards.so_far(feed.committed) == PassSoFar()
    train(islice(shards.batches(2), 2), feed)
    assert shards.so_far(feed.committed) == PassSoFar(2)


def test_two_iterations_at_a_time_are_refused():
    shards, _ = shards_of(12, epochs=1)
    old, new = shards.batches(2), shards.batches(2)
    next(old)
    next(new)
    with pytest.raises(UsageError, match="iterated again while an earlier iteration goes on"):
        next(old)


# ------------------------------------------------------------------------------------------------- sample by sample


def test_samples_are_one_stream_that_batches_cut_across_epochs():
    shards, feed = shards_of(5, epochs=3, default_batch=4)
    assert train(by_hand(shards, 4), feed) == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1], [2, 3, 4]]
    assert feed.ledger.exhausted


def test_samples_without_epochs_end_with_each_epoch():
    shards, feed = shards_of(5, default_batch=4)
    for _ in range(3):
        assert train(by_hand(shards(), 4), feed) == [[0, 1, 2, 3], [4]]
    assert feed.ledger.exhausted


def test_a_sample_is_an_int():
    shards, _ = shards_of(5, epochs=1, default_batch=2)
    assert type(next(iter(shards))) is int


def test_by_sample_needs_the_size_of_a_batch():
    shards, _ = shards_of(5)
    with pytest.raises(UsageError, match=r"edl\.init\(batch_size=64\).*\.batches\(64\)"):
        iter(shards)


# -------------------------------------------------------------------------------------------------------------- runs


def test_runs_end_where_the_next_batch_is_not_here_yet():
    shards, feed = shards_of(40, epochs=1)  # 10 steps of 4, and leases for 6 beyond what is committed
    lengths, seen = [], []
    for run in shards.runs(4):
        ahead = [ids.tolist() for ids in run]  # all at once, as a pipeline on the training thread does
        lengths.append(len(ahead))
        for ids in ahead:
            seen += ids
            feed.commit()
    assert sorted(seen) == list(range(40))
    assert lengths[0] == HORIZON_STEPS
    assert shards.epochs_done == 1


def test_runs_begin_with_the_rehearsal_alone():
    shards, feed = shards_of(40, epochs=1)
    feed.rehearsals.add(1)
    runs = shards.runs(4)
    assert len(list(next(runs))) == 1
    feed.enter()
    assert len(list(next(runs))) == HORIZON_STEPS


# ---------------------------------------------------------------------------------------------------- empty shares


class ListFeed(SoloFeed):
    """Leases as given."""

    def __init__(self, *leases: Lease) -> None:
        super().__init__()
        self.committed = leases[0].after_step
        share = Share(1, self.committed, leases, (), leases[-1].until_step, leases[-1].epoch + 1, last=True)
        self.leases.adopt(share, (1, 1))

    def open(self, spec: DataSpec) -> None:
        pass

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        return self.leases.offers(max(step or 0, self.step()))

    def commit(self) -> None:
        self.committed += 1


class NothingLeft(SoloFeed):
    """Of the epochs that are asked for."""

    def open(self, spec: DataSpec) -> None:
        pass

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        return False


def test_what_follows_an_epoch_comes_once_in_a_life_that_was_saved_after_its_last_step():
    shards = ShardGenerator(20, NothingLeft(), goes_on_in=lambda: 4)
    assert list(shards.batches(4)) == []
    assert shards.epochs_done == 5, "the fifth is over, and the loops around those before are not gone through"
    assert list(shards.batches(4)) == []
    assert shards.epochs_done == 6


def test_a_step_without_samples_gets_some_that_do_not_count():
    feed = ListFeed(Lease(1, 0, 3, 4, (Range(0, 8, 14),)))
    shards = ShardGenerator(20, feed, epochs=1)
    assert [ids.tolist() for ids in shards.batches(4)] == [[8, 9, 10, 11], [12, 13], [0, 1, 2, 3]]
    assert [shards.share(step) for step in (1, 2, 3)] == [4, 2, 0]


def test_at_the_end_of_a_pass_two_stand_ins_are_enough_and_batch_norm_needs_so_many():
    feed = ListFeed(Lease(1, 0, 2, 4, (Range(0, 8, 12),), final=True))
    shards = ShardGenerator(20, feed, epochs=1)
    assert [ids.tolist() for ids in shards.batches(4)] == [[8, 9, 10, 11], [0, 1]]


def test_by_sample_a_step_without_samples_fills_a_batch_unless_it_is_the_last():
    feed = ListFeed(Lease(1, 0, 2, 3, (Range(0, 5, 8),)), Lease(2, 2, 1, 3, (), final=True), Lease(3, 3, 1, 3, ()))
    shards = ShardGenerator(20, feed, epochs=1, default_batch=3)
    assert list(shards) == [5, 6, 7, 0, 1, 2, 0, 1]


def test_a_gap_between_leases_is_our_bug():
    feed = ListFeed(Lease(1, 0, 1, 2, (Range(0, 0, 2),)), Lease(2, 2, 1, 2, (Range(0, 2, 4),)))
    with pytest.raises(InvalidTransition, match="I7"):
        list(ShardGenerator(20, feed, epochs=1).batches(2))


def test_an_epoch_ends_where_its_leases_do_even_if_the_next_one_is_there():
    """Others have begun the next epoch, so the job has leased it; this worker's iteration is still the one before."""
    feed = ListFeed(Lease(1, 0, 1, 2, (Range(4, 0, 2),), epoch=4), Lease(2, 1, 1, 2, (Range(5, 0, 2),), epoch=5))
    shards = ShardGenerator(20, feed, shuffle=False, goes_on_in=lambda: 4)
    assert train(shards.batches(2), feed) == [[0, 1]]
    assert feed.leases.epoch(2) == 5
    assert train(shards.batches(2), feed) == [[0, 1]]


# ------------------------------------------------------------------------------------------------- void mini-batches


def test_a_void_batch_comes_again():
    shards, feed = shards_of(6, epochs=1)
    batches = shards.batches(2)
    assert next(batches).tolist() == [0, 1]
    feed.commit()
    for _ in range(3):
        assert next(batches).tolist() == [2, 3]
        assert shards.redeliver()
    assert train(batches, feed) == [[2, 3], [4, 5]]


def test_with_a_void_batch_those_before_it_come_again_that_no_other_has_applied():
    shards, feed = shards_of(8, epochs=1)
    batches = shards.batches(2)
    assert next(batches).tolist() == [0, 1]
    feed.commit()
    assert [next(batches).tolist() for _ in range(2)] == [[2, 3], [4, 5]]
    assert not shards.redeliver(), "two were handed out since"
    assert shards.redeliver(1)
    assert train(batches, feed) == [[2, 3], [4, 5], [6, 7]]


def test_of_a_pipeline_the_item_in_hand_stands_in_for_those_before_it():
    shards, feed = shards_of(8, epochs=1)
    items = shards.in_step(Prefetched(shards.batches(2), 5))
    found = [next(items).tolist() for _ in range(2)]
    assert shards.redeliver(1)
    found += [next(items).tolist() for _ in range(4)]
    assert found == [[0, 1], [2, 3], [2, 3], [2, 3], [4, 5], [6, 7]]
    for _ in range(4):
        feed.commit()
    assert not list(items)


def test_the_last_batch_comes_again_too():
    shards, feed = shards_of(5, epochs=1)
    batches = shards.batches(3)
    next(batches)
    feed.commit()
    assert next(batches).tolist() == [3, 4]
    assert shards.redeliver()
    assert train(batches, feed) == [[3, 4]]


def test_by_sample_a_void_batch_comes_again_if_nothing_read_ahead():
    shards, feed = shards_of(9, epochs=1, default_batch=3)
    batches = by_hand(shards, 3)
    assert next(batches) == [0, 1, 2]
    assert shards.redeliver()
    assert train(batches, feed) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_by_sample_a_void_last_batch_is_the_next_iteration():
    shards, feed = shards_of(4, epochs=1, default_batch=3)
    batches = by_hand(shards, 3)
    next(batches)
    feed.commit()
    assert next(batches) == [3]
    assert not shards.redeliver()  # the iteration has ended: it cannot go back itself
    assert shards.epochs_done == 0
    assert train(by_hand(shards, 3), feed) == [[3]]
    assert feed.ledger.exhausted


def test_by_sample_a_void_last_batch_of_an_epoch_comes_with_the_iteration_of_the_next():
    shards, feed = shards_of(4, default_batch=3)
    batches = by_hand(shards, 3)
    next(batches)
    feed.commit()
    assert next(batches) == [3]
    assert shards.redeliver()
    assert shards.epochs_done == 0
    assert train(by_hand(shards, 3), feed) == [[3]]
    assert shards.epochs_done == 1


def test_an_iteration_of_one_epoch_that_is_over_is_empty():
    shards, feed = shards_of(6)
    for epoch in range(3):
        assert train(chain.from_iterable(shards.runs(3, epoch)), feed) == [
            [3 * n, 3 * n + 1, 3 * n + 2] for n in range(2)
        ]
        assert train(chain.from_iterable(shards.runs(3, epoch)), feed) == []


def test_an_iteration_that_was_left_is_begun_anew_at_what_is_not_trained():
    shards, feed = shards_of(20, epochs=1)
    batches = shards.batches(2)
    assert [next(batches).tolist() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]  # read ahead
    feed.commit()
    shards.give_up()
    assert shards.redeliver(), "the next iteration begins with it"
    assert train(shards.batches(2), feed) == [[2 * n, 2 * n + 1] for n in range(1, 10)]


def test_a_pipeline_that_reads_ahead_says_so():
    shards, _ = shards_of(20, epochs=1)
    batches = shards.batches(2)
    next(batches)
    next(batches)
    assert not shards.redeliver()


def test_by_sample_a_pipeline_that_has_begun_the_next_batch_says_so():
    shards, _ = shards_of(20, epochs=1, default_batch=2)
    samples = iter(shards)
    assert [*islice(samples, 3)] == [0, 1, 2]
    assert not shards.redeliver()


def test_asking_for_the_batch_after_is_reading_ahead():
    """Stepping back now would leave the script waiting for a batch behind one that no worker will commit."""
    shards, feed = shards_of(2, epochs=1)
    ahead = Prefetched(shards.batches(2), depth=4)
    pipeline = iter(ahead)
    assert next(pipeline).tolist() == [0, 1]
    feed.wait_asked(2)
    assert not shards.redeliver()
    feed.commit()
    assert list(pipeline) == []


@pytest.mark.parametrize("depth", [1, 3, 50])
def test_in_step_repeats_what_a_pipeline_that_reads_ahead_cannot(depth):
    shards, feed = shards_of(20, epochs=2)
    seen, void = [], 0
    for ids in shards.in_step(Prefetched(shards.batches(3), depth)):
        if len(seen) in {0, 5, 13} and void < 2:
            void += 1
            assert shards.redeliver()
            continue
        void = 0
        seen.append(ids.tolist())
        feed.commit()
    assert Counter(chain(*seen)) == Counter([*range(20)] * 2)
    assert feed.ledger.exhausted


def test_in_step_given_up_is_forgotten():
    shards, _ = shards_of(20, epochs=1)
    for _ in shards.in_step(Prefetched(islice(shards.batches(2), 5), 5)):
        break
    assert not shards.redeliver()


# ------------------------------------------------------------------------- steps that the others did without this one


def a_hole_after_the_first_step() -> ListFeed:
    """Steps 1 to 6 of two samples each, but for 2 and 3, in which no worker has any."""
    return ListFeed(
        Lease(1, 0, 1, 2, (Range(0, 0, 2),)),
        Lease(2, 1, 2, 2, ()),
        Lease(3, 3, 3, 2, (Range(0, 2, 8),), final=True),
    )


def goes_on_after(shards: ShardGenerator, feed: ListFeed, step: int) -> bool:
    """At the end of the mini-batch that is worked on, the ring agrees on `step`."""
    done, feed.committed = feed.step(), step
    feed.leases.forget_before(step + 1)
    return shards.pass_over(done, step)


@pytest.mark.parametrize("depth", [1, 2, 50])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_what_a_pipeline_has_read_of_steps_that_the_others_did_is_not_trained(depth, step):
    """No worker waits for another in a step without samples, so one may be ahead by several when the ring changes."""
    feed = a_hole_after_the_first_step()
    shards = ShardGenerator(20, feed, epochs=1, default_batch=2)
    items = shards.in_step(Prefetched(by_hand(shards, 2), depth))
    assert next(items) == [0, 1]
    assert goes_on_after(shards, feed, step)
    seen = {}
    for ids in items:
        seen[feed.step()] = ids
        feed.commit()
    assert {step: ids for step, ids in seen.items() if step > 3} == {4: [2, 3], 5: [4, 5], 6: [6, 7]}
    assert sorted(seen) == [*range(step + 1, 7)]


def test_a_newcomer_to_a_long_job_counts_no_step_that_it_never_had():
    """Else all of a large job would wait at the switch while one newcomer goes through its past."""
    feed = ListFeed(Lease(1, 10**15, 2, 2, (Range(0, 0, 4),), final=True))
    feed.committed = 0
    feed.rehearsals.add(1)
    shards = ShardGenerator(20, feed, epochs=1)
    batches = shards.batches(2)
    next(batches)  # the rehearsal
    feed.enter(10**15)
    assert shards.pass_over(1, 10**15)
    assert train(batches, feed) == [[0, 1], [2, 3]]


def test_a_plain_loop_goes_on_where_the_others_are():
    feed = a_hole_after_the_first_step()
    shards = ShardGenerator(20, feed, epochs=1)
    batches = shards.batches(2)
    next(batches)
    assert goes_on_after(shards, feed, 3)
    assert train(batches, feed) == [[2, 3], [4, 5], [6, 7]]


def test_a_loop_within_one_lease_goes_on_where_the_others_are():
    feed = ListFeed(Lease(1, 0, 6, 2, (Range(0, 0, 12),), final=True))
    shards = ShardGenerator(20, feed, epochs=1)
    batches = shards.batches(2)
    next(batches)
    assert goes_on_after(shards, feed, 3)
    assert train(batches, feed) == [[6, 7], [8, 9], [10, 11]]


def test_a_pipeline_that_cannot_pass_over_what_it_has_read_says_so():
    feed = a_hole_after_the_first_step()
    shards = ShardGenerator(20, feed, epochs=1)
    ahead = Prefetched(shards.batches(2), depth=50)
    next(iter(ahead))
    ahead.wait_read()
    assert not goes_on_after(shards, feed, 2)


def test_an_iteration_that_is_left_gives_out_nothing_of_it():
    feed = a_hole_after_the_first_step()
    shards = ShardGenerator(20, feed, epochs=1, default_batch=2)
    ahead = Prefetched(by_hand(shards, 2), 50)
    next(shards.in_step(ahead))
    ahead.wait_read()
    shards.give_up()
    assert goes_on_after(shards, feed, 3)
    assert train(shards.batches(2), feed) == [[2, 3], [4, 5], [6, 7]]


def test_a_pass_that_begins_where_the_others_are_has_nothing_of_the_one_before():
    """The pipeline repeats: its thread begins the next pass as soon as the step is known, before the script is told."""
    feed = ListFeed(
        Lease(1, 0, 2, 2, (Range(0, 0, 2),), final=True), Lease(2, 2, 1, 2, (Range(1, 0, 2),), epoch=1, final=True)
    )
    shards = ShardGenerator(2, feed, default_batch=2)
    repeated = (batch for _ in range(2) for batch in by_hand(shards, 2))
    items = shards.in_step(Prefetched(repeated, 50))
    assert next(items) == [0, 1]
    while feed.leases.handed_out < 2:
        time.sleep(0.001)
    feed.committed = 2
    while feed.leases.handed_out < 3:  # the next pass has begun
        time.sleep(0.001)
    assert shards.pass_over(1, 2)
    seen = train(items, feed)
    assert seen == [[0, 1]]
    assert feed.committed == 3


# -------------------------------------------------------------------------------------------- threads and rehearsals


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_prefetching_pipeline_trains_every_sample_once(epochs):
    shards, feed = shards_of(23, epochs=epochs, default_batch=4)
    seen = train(Prefetched(by_hand(shards, 4), depth=3), feed)
    assert Counter(chain(*seen)) == Counter([*range(23)] * epochs)
    assert feed.ledger.exhausted


def test_a_pipeline_that_repeats_waits_for_the_end_of_training():
    shards, feed = shards_of(10, default_batch=4)
    repeated = (batch for _ in range(3) for batch in by_hand(shards, 4))
    seen = train(Prefetched(repeated, depth=5), feed)
    assert [len(batch) for batch in seen] == [4, 4, 2] * 3
    assert feed.ledger.exhausted


def test_batches_thrown_away_are_noticed():
    feed = SoloFeed()
    shards = ShardGenerator(4, feed, epochs=1, default_batch=4, step_timeout_s=0.05)
    list(shards)
    with pytest.raises(UsageError, match="were never trained"):
        next(iter(shards))


def test_a_newcomer_rehearses_with_one_real_looking_batch():
    shards, feed = shards_of(3, epochs=1)
    feed.rehearsals.add(1)
    batches = shards.batches(4)
    assert next(batches).tolist() == [0, 1, 2, 0]
    feed.enter()
    assert train(batches, feed) == [[0, 1, 2]]


def test_a_rehearsal_may_be_several_mini_batches_of_which_a_pipeline_reads_no_more_ahead():
    shards, feed = shards_of(10, epochs=1, default_batch=4)
    feed.rehearsals.add(2)
    pipeline = iter(Prefetched(by_hand(shards, 4), depth=5))
    feed.wait_asked(1)
    assert [next(pipeline), next(pipeline)] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    feed.enter()
    assert train(pipeline, feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_is_left_of_a_rehearsal_is_handed_out_by_the_iteration_that_follows():
    shards, feed = shards_of(4, epochs=1)
    feed.rehearsals.add(2)
    next(shards.batches(4))
    feed.rehearsals.end_one()
    batches = shards.batches(4)
    assert next(batches).tolist() == [0, 1, 2, 3]
    assert feed.rehearsals.left == 1
    feed.enter()
    assert train(batches, feed) == [[0, 1, 2, 3]]


def test_one_that_has_rehearsed_is_given_stand_ins_each_time_that_its_ring_is_gone():
    shards, feed = shards_of(8, epochs=1)
    feed.rehearsals.add(2)
    batches = shards.batches(4)
    taken = [next(batches).tolist(), next(batches).tolist()]
    for _ in range(3):
        feed.enter()
        feed.rehearsals.add(1)
        taken.append(next(batches).tolist())
    assert taken == [[0, 1, 2, 3]] * 5
    feed.enter()
    assert train(batches, feed) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_newcomer_rehearses_by_sample():
    shards, feed = shards_of(10, epochs=1, default_batch=4)
    feed.rehearsals.add(1)
    pipeline = iter(Prefetched(by_hand(shards, 4), depth=3))
    assert next(pipeline) == [0, 1, 2, 3]
    feed.wait_asked(1)  # warm: it waits for its first lease
    feed.enter()
    assert train(pipeline, feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_looking_at_the_first_batch_does_not_spend_the_rehearsal():
    shards, feed = shards_of(8, epochs=1)
    feed.rehearsals.add(1)
    next(shards.batches(4))
    batches = shards.batches(4)
    assert next(batches).tolist() == [0, 1, 2, 3]
    feed.enter()
    assert train(batches, feed) == [[0, 1, 2, 3], [4, 5, 6, 7]]


# ----------------------------------------------------------------------------------------------------- wrong calls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": 0}, "has no samples"),
        ({"source": []}, "has no samples"),
        ({"source": -1}, "source must be"),
        ({"source": True}, "source must be"),
        ({"source": 2.5}, "source must be.*len"),
        ({"source": object()}, "source must be.*len"),
        ({"source": "data.csv"}, "there is no file data.csv"),
        ({"source": b"data.csv"}, "there is no file data.csv"),
        ({"source": Path("data.csv")}, "there is no file data.csv"),
        ({"source": [Path("none")]}, "there is no file none"),
        ({"source": ["a.csv", "b.csv"]}, "there is no file a.csv"),
        ({"source": ["a", "b"], "format": "text"}, "there is no file a"),
        ({"source": 9, "format": "text"}, "format='text'.*means files, so source must be a path.*not 9"),
        ({"source": [], "format": "text"}, "means files"),
        ({"source": 9, "epochs": 0}, "epochs is 0"),
        ({"source": 9, "epochs": 1.5}, "epochs is 1.5"),
        ({"source": 9, "epochs": True}, "epochs is True"),
        ({"source": 9, "shuffle": "yes"}, "shuffle is 'yes'"),
        ({"source": 9, "seed": None}, "seed is None"),
    ],
)
def test_a_wrong_argument_is_named_at_once(arguments, message):
    with pytest.raises(UsageError, match=message):
        shards_of(**arguments)


@pytest.mark.parametrize("n", [0, -3, 2.0, None, True])
def test_a_wrong_batch_size_is_named_at_once(n):
    with pytest.raises(UsageError, match=r"n in batches\(n\) is"):
        shards_of(9)[0].batches(n)


def test_numpy_numbers_are_numbers():
    shards, feed = shards_of(np.int32(3), epochs=np.int64(1), seed=np.int64(5))
    assert train(shards.batches(cast("Any", np.int16(2))), feed) == [[0, 1], [2]]


def test_a_list_of_strings_is_a_list_of_samples():
    shards, feed = shards_of(["a sentence", "another"], epochs=1)
    assert train(shards.batches(2), feed) == [[0, 1]]


def test_another_spec_is_refused_by_the_job():
    shards, _ = shards_of(9, epochs=1)
    next(shards.batches(2))
    with pytest.raises(UsageError, match="batch"):
        next(shards.batches(3))


def test_a_generator_stays_in_its_process(monkeypatch):
    shards, _ = shards_of(9, epochs=1)
    with pytest.raises(UsageError, match="ElasticDataLoader"):
        copy.copy(shards)  # goes by the protocol of pickle, as sending it to a process does
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(UsageError, match="ElasticDataLoader"):
        shards.batches(3)


def test_a_step_without_a_batch_is_the_scripts_mistake():
    with pytest.raises(UsageError, match="take one from the loop over them before each"):
        shards_of(9)[0].share(1)


def test_most_batches_of_a_lease_are_handed_out_without_looking_for_it(monkeypatch):
    """A step leaves the caches cold: the usual one goes through few functions, and stops where anything has changed."""
    looked = []
    find = Pass.next
    monkeypatch.setattr(Pass, "next", lambda self, **how: looked.append(self.step) or find(self, **how))
    shards, feed = shards_of(40, epochs=1)
    batches = shards.batches(4)
    assert [next(batches).tolist()[0] for _ in range(3)] == [0, 4, 8]
    feed.leases.adopt(msgspec.structs.replace(share_of(feed.ledger, "w"), rebatch=1, mark=3), (1, feed._told))
    assert next(batches).tolist()[0] == 12
    assert len(looked) == 2
