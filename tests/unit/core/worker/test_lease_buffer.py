"""What a trainer holds of the leases that have come, and where its passes end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from edl.core.data.ledgers import new_ledger
from edl.core.data.sample_ledger import Ledger
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.protocol.assignment import Share
from edl.protocol.data_nouns import DataSpec
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.data.shards import ShardGenerator
from edl.trainer.data.shared_leases import SharedLeases
from tests.model.one_worker_data import share_of


def open_ended() -> tuple[Ledger, LeaseBuffer]:
    """Two workers, three steps an epoch, of which one is wanted and more are leased."""
    ledger, leases = new_ledger(DataSpec(24, 1, 4, open_ended=True), ["a", "b"]), LeaseBuffer()
    ledger.grant(9)
    leases.want(1)
    leases.adopt(share_of(ledger, "a"), (1, 1))
    return ledger, leases


def test_an_epoch_that_was_not_asked_for_is_kept_back_until_it_is():
    ledger, leases = open_ended()
    assert leases.wanted_at(1) == ledger.leases("a")[0]
    assert (leases.offers(3), leases.offers(4)) == (True, False)
    assert (leases.epoch(3), leases.epoch(4)) == (0, None)
    assert leases.covers(4)
    leases.want(2)
    assert leases.wanted_at(4) == ledger.leases("a")[1]
    assert leases.offers(4)
    assert (leases.epoch(3), leases.epoch(4), leases.epoch(7)) == (0, 1, None)


def test_a_pass_ends_without_a_leader_once_all_of_it_is_trained():
    _, leases = open_ended()
    assert not leases.ends_before(3)
    assert leases.ends_before(4)
    leases.want(2)
    assert not leases.ends_before(4)


def test_which_epochs_are_over_follows_from_the_leases_and_not_from_who_has_asked():
    ledger, leases = open_ended()
    found = [leases.epochs_before(step) for step in (1, 3, 4, 7)]
    assert found == [0, 0, 1, 2]
    ledger.extend(4)
    leases.adopt(share_of(ledger, "a"), (1, 2))
    leases.want(2)
    assert [leases.epochs_before(step) for step in (1, 3, 4, 7)] == found
    assert leases.epochs_before(10) is None, "as step 10 is not leased yet"


def test_where_nothing_is_left_to_be_leased_all_epochs_that_are_wanted_are_over():
    ledger, leases = new_ledger(DataSpec(24, 2, 4), ["a", "b"]), LeaseBuffer()
    leases.want(2)
    assert leases.epochs_before(1) is None
    ledger.grant(5)
    leases.adopt(share_of(ledger, "a"), (1, 1))
    assert leases.epochs_before(6) is None
    ledger.grant(9)
    leases.adopt(share_of(ledger, "a"), (1, 2))
    assert (leases.epochs_before(6), leases.epochs_before(7)) == (1, 2)


def test_a_pass_cut_by_the_script_is_over_with_its_short_last_step_whatever_comes_back():
    """What a lost worker held of that step waits for the next epoch, which is leased once a script begins it."""
    ledger, leases = new_ledger(DataSpec(20, 1, 4, by_sample=True), ["a", "b"]), LeaseBuffer()
    leases.want(1, by_sample=True)
    ledger.grant(9)
    ledger.commit(2)
    ledger.grant(9)
    ledger.enter(["a"], 2)
    ledger.grant(9)
    leases.adopt(share_of(ledger, "a"), (1, 1))
    last = ledger.covered_step
    assert [leases.epochs_before(step) for step in (last, last + 1)] == [0, 1]


def test_to_want_fewer_epochs_is_no_news():
    _, leases = open_ended()
    leases.want(2)
    leases.want(1)
    assert leases.offers(4)


def test_what_another_worker_asked_for_is_there_for_all():
    ledger, leases = open_ended()
    ledger.extend(2)
    leases.adopt(share_of(ledger, "a"), (1, 2))
    assert leases.wanted_at(4) == ledger.leases("a")[1]


def test_orders_that_come_after_newer_ones_say_nothing():
    ledger, leases = open_ended()
    old = share_of(ledger, "a")
    ledger.extend(2)
    leases.adopt(share_of(ledger, "a"), (1, 2))
    leases.adopt(old, (1, 1))
    assert leases.epoch(4) == 1


def test_a_lease_that_comes_again_as_it_was_goes_on_being_handed_out():
    ledger, leases = open_ended()
    lease = leases.at(1)
    assert lease is not None
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(share_of(ledger, "a")), type=Share)
    leases.adopt(again, (1, 2))
    assert leases.at(1) is lease
    assert leases.hand_out(lease, 1)
    assert not leases.hand_out(lease.up_to(1), 1), "that is another lease"


def test_leases_that_were_taken_back_give_way_to_those_of_the_next_generation():
    ledger, leases = open_ended()
    ledger.enter(["a", "c"], 2)
    ledger.grant(3)
    leases.adopt(share_of(ledger, "a", generation=2), (1, 2))
    assert leases.at(4) is None
    ledger.enter(["a"], 2)
    ledger.grant(12)
    leases.adopt(share_of(ledger, "a", generation=3), (1, 3))
    assert [lease.epoch for lease in ledger.leases("a")] == [0, 0, 1, 2]
    assert leases.wanted_at(4) == ledger.leases("a")[1]
    assert not leases.ends_before(4)
    assert leases.ends_before(5)


def test_who_waits_for_samples_has_them_as_soon_as_they_come_and_hears_where_none_will():
    ledger, leases = new_ledger(DataSpec(16, 1, 4), ["a", "b"]), SharedLeases()
    leases.want(1)
    found: queue.Queue[bool] = queue.Queue()

    def script() -> None:
        for committed in (0, 2):
            found.put(leases.wait_offered(None, partial(int, committed), lambda: True))

    threading.Thread(target=script, daemon=True).start()
    with pytest.raises(queue.Empty):
        found.get(timeout=0.05)
    ledger.grant(1)
    leases.adopt(share_of(ledger, "a"), (1, 1))
    assert found.get(timeout=10)
    with pytest.raises(queue.Empty):
        found.get(timeout=0.05)
    ledger.grant(9)
    leases.adopt(share_of(ledger, "a"), (1, 2))
    assert not found.get(timeout=10)


def test_who_waits_beyond_a_mark_is_freed_when_the_trainer_ends():
    worker = Worker()
    worker.hear(rebatch=7, mark=2)
    ends: queue.Queue[bool] = queue.Queue()
    waits = lambda: ends.put(worker.leases.wait_offered(3, lambda: 2, lambda: True))  # noqa: E731
    threading.Thread(target=waits, daemon=True).start()
    worker.leases.close()
    assert ends.get(timeout=10) is False


def test_the_samples_of_all_steps_are_those_of_all_epochs():
    ledger, leases, found = new_ledger(DataSpec(50, 2, 4), ["a", "b"]), LeaseBuffer(), []
    while not ledger.exhausted:
        if ledger.step == 3:
            ledger.enter(["a", "b", "c"], 3)
        ledger.grant(ledger.step + 2)
        leases.adopt(share_of(ledger, "a", generation=1 if ledger.step < 3 else 2), (1, ledger.step + 1))
        found.append(leases.samples(ledger.step + 1))
        ledger.commit(ledger.step + 1)
    assert (found[:3], found[3:5], sum(found)) == ([8, 8, 8], [12, 12], 100)
    assert sorted(set(found)) == [2, 8, 12]


# ------------------------------------------------------------------------------------------------ leases cut anew


class Worker:
    """Worker `a` of two, whose batches change from 4 to 2: what its generator needs."""

    def __init__(self) -> None:
        self.leases = SharedLeases()
        self.ledger = new_ledger(DataSpec(40, 1, 4), ["a", "b"])
        self.ledger.grant(5)
        self.committed = self.version = 0
        self.hear()

    def hear(self, rebatch: int = 0, mark: int = 0) -> None:
        self.version += 1
        share = share_of(self.ledger, "a", 1)
        self.leases.adopt(msgspec.structs.replace(share, after_step=0, rebatch=rebatch, mark=mark), (1, self.version))

    def cut(self, step: int) -> None:
        self.ledger.resize((2, 2))
        self.ledger.rebatch(step)
        self.ledger.grant(12)
        self.hear()

    def open(self, spec: DataSpec) -> None: ...

    def begin_batch(self) -> None:
        """There is one state only."""

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        return self.leases.offers(step or self.step())

    def check_ended(self, step: int) -> None: ...
    def loaded(self, nanoseconds: int) -> None: ...

    rehearsals = Rehearsals()

    def step(self) -> int:
        return self.committed + 1

    def batches(self) -> Iterator[list[int]]:
        for ids in ShardGenerator(40, self, epochs=1).batches(4):
            yield ids.tolist()


def test_beyond_a_mark_nothing_is_handed_out_and_nothing_is_certain():
    worker = Worker()
    batches = worker.batches()
    assert next(batches) == [0, 1, 2, 3]
    worker.hear(rebatch=7, mark=2)
    assert worker.leases.marked == (7, 2)
    assert (worker.leases.covers(2), worker.leases.covers(3)) == (True, False)
    assert worker.leases.constant_until(1) == 2
    assert next(batches) == [4, 5, 6, 7]
    lease = worker.leases.at(3)
    assert lease is not None and not worker.leases.hand_out(lease, 3)
    assert (worker.leases.offers(2), worker.leases.offers(3)) == (True, False)


def test_a_mark_that_comes_too_late_is_where_the_pipeline_is():
    worker = Worker()
    batches = worker.batches()
    for _ in range(4):
        next(batches)
    worker.hear(rebatch=7, mark=2)
    assert worker.leases.marked == (7, 4)
    worker.hear(rebatch=7, mark=2)
    assert worker.leases.marked == (7, 4)
    worker.hear()
    assert worker.leases.marked == (0, 0)
    assert len(next(batches)) == 4


def test_after_a_cut_the_samples_are_those_of_the_new_leases():
    worker = Worker()
    batches = worker.batches()
    taken = [next(batches), next(batches)]
    worker.hear(rebatch=7, mark=1)  # it has read two
    worker.cut(2)
    taken += [next(batches) for _ in range(6)]
    leases = worker.ledger.leases("a")
    mine = [piece for lease in leases for step in range(1, 9) for piece in lease.between(step - 1, step)]
    assert [len(batch) for batch in taken] == [4, 4, 2, 2, 2, 2, 2, 2]
    assert [at for batch in taken for at in batch] == [at for piece in mine for at in range(piece.start, piece.stop)]
    assert worker.leases.weight(3) == 0.5


def test_what_was_cut_before_a_mark_is_handed_out_up_to_it():
    """Two newcomers, one after the other: the ring that lifts the second mark begins only after the steps up to it."""
    worker = Worker()
    batches = worker.batches()
    assert len(next(batches)) == 4
    worker.hear(rebatch=7, mark=1)
    worker.cut(1)
    worker.hear(rebatch=8, mark=3)
    coming: list[list[int]] = []
    reading = threading.Thread(target=lambda: coming.extend(next(batches) for _ in range(2)), daemon=True)
    reading.start()
    reading.join(10)
    assert not reading.is_alive()
    assert [len(batch) for batch in coming] == [2, 2]
    assert worker.leases.marked == (8, 3)


def test_the_samples_of_the_step_at_work_are_handed_out_whatever_the_mark():
    """The script may wait for them already, where no ring can be changed; then it waits at the end of that step."""
    worker = Worker()
    share = msgspec.structs.replace(share_of(worker.ledger, "a", 1), after_step=0, rebatch=7, mark=0)
    worker.leases.adopt(share, (1, worker.version), at_work=1)
    assert worker.leases.marked == (7, 1)
    assert (worker.leases.holds_at(0), worker.leases.holds_at(1)) == (False, True)
    worker.hear()
    assert not worker.leases.holds_at(1)


def test_a_lease_that_was_cut_where_the_next_ring_begins_is_gone_beyond():
    """That ring's share no longer has it, as all that is left of it is trained."""
    worker = Worker()
    batches = worker.batches()
    taken = [next(batches), next(batches)]
    worker.hear(rebatch=7, mark=2)
    worker.ledger.rebatch(2)
    worker.ledger.enter(["b", "a", "c"], 2)
    worker.ledger.grant(12)
    worker.committed = 2
    worker.hear()
    worker.leases.forget_before(3)
    taken += [next(batches) for _ in range(2)]
    leases = worker.ledger.leases("a")
    assert [lease.after_step for lease in leases] == [2]
    mine = [
        at for step in (3, 4) for piece in leases[0].between(step - 1, step) for at in range(piece.start, piece.stop)
    ]
    assert [at for batch in taken[2:] for at in batch] == mine
    assert worker.leases.weight(3) == 1 / 3
