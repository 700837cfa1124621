"""What a trainer holds of the leases that have come, and where its passes end."""

from __future__ import annotations

from edl.core.ledger import Ledger
from edl.protocol.assignment import Share
from edl.protocol.data import DataSpec, Lease
from edl.runtime.feed import LeaseFeed


def share_of(ledger: Ledger, worker: str, generation: int = 1) -> Share:
    epochs, last = ledger.spec.epochs, ledger.fully_leased
    leases, totals = ledger.leases(worker), ledger.totals()
    return Share(generation, ledger.step, leases, totals, ledger.covered_step, epochs, last)


def open_ended() -> tuple[Ledger, LeaseFeed]:
    """Two workers, three steps an epoch, of which one is wanted and more are leased."""
    ledger, feed = Ledger(DataSpec(24, 1, 4, open_ended=True), ["a", "b"]), LeaseFeed()
    ledger.grant(9)
    feed.want(1)
    feed.adopt(share_of(ledger, "a"), (1, 1))
    return ledger, feed


def next_lease(feed: LeaseFeed, number: int, committed: int) -> Lease | None:
    def never() -> None:
        raise AssertionError("it waits")

    return feed.next_after(number, lambda: committed, never)


def test_an_epoch_that_nobody_asked_for_is_kept_back_until_it_is():
    ledger, feed = open_ended()
    assert next_lease(feed, 0, 0) == ledger.leases("a")[0]
    assert feed.there_after(1) is None
    assert (feed.epoch(3), feed.epoch(4)) == (0, None)
    assert feed.covers(4)
    feed.want(2)
    assert feed.there_after(1) == ledger.leases("a")[1]
    assert (feed.epoch(3), feed.epoch(4), feed.epoch(7)) == (0, 1, None)


def test_a_pass_ends_without_a_leader_once_all_of_it_is_trained():
    _, feed = open_ended()
    assert not feed.ends_before(3)
    assert feed.ends_before(4)
    assert next_lease(feed, 1, committed=3) is None
    feed.want(2)
    assert not feed.ends_before(4)


def test_what_another_worker_asked_for_is_there_for_all():
    ledger, feed = open_ended()
    ledger.extend(2)
    feed.adopt(share_of(ledger, "a"), (1, 2))
    assert feed.there_after(1) == ledger.leases("a")[1]


def test_leases_that_were_taken_back_give_way_to_those_of_the_next_generation():
    ledger, feed = open_ended()
    ledger.enter(["a", "c"], 2)
    ledger.grant(3)
    feed.adopt(share_of(ledger, "a", generation=2), (1, 2))
    assert feed.there_after(1) is None
    ledger.enter(["a"], 2)
    ledger.grant(12)
    feed.adopt(share_of(ledger, "a", generation=3), (1, 3))
    assert [lease.epoch for lease in ledger.leases("a")] == [0, 0, 1, 2]
    assert feed.there_after(1) == ledger.leases("a")[1]
    assert not feed.ends_before(4)
    assert feed.ends_before(5)
