"""Rounds, catch-up, returns and ends of epochs, in examples small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edl.core.data.ledgers import new_ledger, restored_ledger
from edl.core.data.sample_ledger import SPECULATIVE, Ledger
from edl.core.data.unassigned import Unassigned
from edl.errors import InvalidTransition, UsageError
from edl.protocol.data_nouns import DataCounts, DataSpec, Deal, Lease, LedgerSnapshot, Range, Totals, cut


def ledger_of(total: int, *roster: str, epochs: int = 1, batch: int = 4, **mode: Any) -> Ledger:
    return new_ledger(DataSpec(total, epochs, batch, **mode), roster)


def samples(leases: tuple[Lease, ...]) -> list[tuple[int, ...]]:
    """(epoch, start, stop) of all that leases hold."""
    return [(piece.epoch, piece.start, piece.stop) for lease in leases for piece in lease.ranges]


def held(ledger: Ledger) -> dict[str, list[tuple[int, ...]]]:
    return {worker: samples(ledger.leases(worker)) for worker in ledger.roster}


def run_out(ledger: Ledger) -> list[int]:
    """Grant and commit until all is trained; the samples of each step."""
    steps: list[int] = []
    while not ledger.exhausted:
        assert ledger.grant(ledger.step + 1) or ledger.covered_step > ledger.step
        steps.append(ledger.totals()[0].samples)
        ledger.commit(ledger.step + 1)
        ledger.validate()
    return steps


# -------------------------------------------------------------------------------------------------------- leases


def test_a_lease_says_what_each_step_consumes():
    lease = Lease(number=1, after_step=10, steps=4, batch=4, ranges=(Range(0, 0, 6), Range(0, 20, 24)))
    assert [lease.share(step) for step in range(10, 16)] == [4, 4, 4, 2, 0, 0]
    assert lease.between(11, 12) == (Range(0, 4, 6), Range(0, 20, 22))
    assert lease.left(12) == (Range(0, 22, 24),)
    assert lease.left(3) == lease.ranges
    assert lease.left(14) == ()


def test_a_lease_without_samples_is_a_lease():
    assert Lease(1, 0, 3, 4, ())


def test_cutting_ranges_keeps_their_order():
    ranges = (Range(1, 5, 8), Range(0, 0, 2))
    assert cut(ranges, 2, 4) == (Range(1, 7, 8), Range(0, 0, 1))
    assert cut(ranges, -5, 1) == (Range(1, 5, 6),)
    assert cut(ranges, 3, 3) == ()


# -------------------------------------------------------------------------------------------------------- rounds


def test_a_round_gives_all_members_the_same_steps():
    ledger = ledger_of(100, "a", "b")
    assert ledger.grant(3) == {
        "a": (Lease(1, 0, 3, 4, (Range(0, 0, 12),)),),
        "b": (Lease(1, 0, 3, 4, (Range(0, 50, 62),)),),
    }
    assert ledger.grant(3) == {}
    assert ledger.covered_step == 3


def test_a_round_goes_on_with_the_runs_that_were_dealt():
    ledger = ledger_of(46, "a", "b")  # five full steps, and one of 6
    ledger.grant(2)
    assert held(ledger) == {"a": [(0, 0, 8)], "b": [(0, 23, 31)]}
    assert (ledger.snapshot().returned, ledger.snapshot().frontier) == (((8, 23),), 31)  # the rest is unassigned
    assert ledger.counts() == DataCounts(epoch=0, total=46, trained=0, leased=16, unassigned=30, ahead=2)
    ledger.grant(4)
    assert [samples(ledger.leases(worker, after=1)) for worker in "ab"] == [[(0, 8, 16)], [(0, 31, 39)]]
    ledger.grant(9)
    assert [samples(ledger.leases(worker, after=2)) for worker in "ab"] == [[(0, 16, 23)], [(0, 39, 46)]]
    assert ledger.totals() == (Totals(5, 8), Totals(6, 6))


def ends_of_rounds(ledger: Ledger) -> list[int]:
    return [lease.until_step for lease in ledger.leases(ledger.roster[0])]


def test_each_deal_of_an_epoch_is_twice_as_long_as_the_one_before_and_a_round_ends_with_it():
    ledger = ledger_of(10**6, "a", "b", epochs=3)
    ledger.grant(100_000)
    assert ends_of_rounds(ledger) == [64 * (2**n - 1) for n in range(1, 10)] + [49088, 65472, 81856, 98240, 100_000]
    ledger.grant(125_100)
    assert ends_of_rounds(ledger)[-4:] == [114_624, 125_000, 125_064, 125_100]
    ledger.grant(125_200)
    assert ends_of_rounds(ledger)[-2:] == [125_192, 125_200]


@pytest.mark.parametrize(
    "change",
    [
        lambda ledger: ledger.enter(["a", "b", "c"], 100),
        lambda ledger: ledger.enter(["b"], 100),
        lambda ledger: ledger.enter(["b", "a"], 100),
        lambda ledger: ledger.enter(["a", "b"], 100, [3, 5]),
        lambda ledger: ledger.enter(["a", "c"], 100, spare=1),
        lambda ledger: ledger.resize([3, 5]),
        lambda ledger: ledger.rebatch(100),
    ],
)
def test_where_members_or_batches_change_the_next_round_is_of_a_first_deal(change):
    ledger = ledger_of(10**6, "a", "b")
    ledger.grant(100)
    change(ledger)
    ledger.grant(1000)
    ends = [lease.until_step for lease in ledger.leases("b" if "b" in ledger.roster else "a") if lease.until_step > 101]
    assert ends in (
        [164, 292, 548, 1000],
        [165, 293, 549, 1000],
    )  # that of a newcomer that is spared comes after a step


def test_a_ring_of_the_same_workers_and_batches_goes_on_with_the_deal():
    ledger = ledger_of(10**6, "a", "b")
    ledger.grant(100)
    ledger.enter(["a", "b"], 50)
    ledger.resize([4, 4])
    ledger.grant(300)
    assert ends_of_rounds(ledger) == [64, 100, 192, 300]


def test_an_epoch_that_is_taken_back_is_dealt_from_its_beginning_again():
    ledger = ledger_of(1000, "a", "b", open_ended=True)
    ledger.grant(150)
    before = held(ledger)
    assert ends_of_rounds(ledger) == [64, 125, 150]
    ledger.enter(["a", "b"], 10)
    assert ends_of_rounds(ledger) == [64, 125]
    ledger.grant(200)
    assert ends_of_rounds(ledger) == [64, 125, 189, 200]
    assert all(before[worker][-1][:2] == held(ledger)[worker][2][:2] for worker in "ab")


def test_what_is_on_record_of_a_deal_can_be_wrong_and_hurt_no_sample():
    ledger = ledger_of(1000, "a", "b")
    ledger.grant(10)
    for deal in (Deal(-5, 64), Deal(0, -1), Deal(10**12, -1), Deal(3, 10**12)):
        restored = restored_ledger(msgspec.structs.replace(ledger.snapshot(), deal=deal))
        assert sum(run_out(restored)) == 1000


def test_a_ledger_that_was_kept_before_there_were_deals_goes_on():
    ledger = ledger_of(10**4, "a", "b")
    ledger.grant(10)
    fields = msgspec.json.decode(msgspec.json.encode(ledger.snapshot()))
    del fields["deal"]
    restored = restored_ledger(msgspec.convert(fields, LedgerSnapshot))
    assert ledger.validate() == restored.validate() == 10**4
    restored.grant(100)
    assert ends_of_rounds(restored) == [10, 74, 100]
    restored.validate()


def test_what_is_left_of_an_epoch_is_spread_over_its_last_step():
    ledger = ledger_of(30, "a", "b", "c")  # two full steps of 12, then 6
    ledger.grant(99)
    assert held(ledger) == {"a": [(0, 0, 10)], "b": [(0, 10, 20)], "c": [(0, 20, 30)]}
    assert ledger.totals() == (Totals(2, 12), Totals(3, 6))
    assert all(lease.final for worker in ledger.roster for lease in ledger.leases(worker))


def test_a_round_stops_at_the_end_of_its_epoch():
    ledger = ledger_of(10, "a", epochs=2)
    assert [(lease.after_step, lease.steps, lease.epoch) for lease in ledger.grant(5)["a"]] == [(0, 3, 0), (3, 2, 1)]
    assert run_out(ledger) == [4, 4, 2, 4, 4, 2]


def test_a_stream_goes_on_across_the_end_of_an_epoch():
    ledger = ledger_of(10, "a", "b", epochs=3, whole_epochs=False)
    assert run_out(ledger) == [8, 8, 8, 6]


def test_a_stream_is_leased_about_an_epoch_at_a_time():
    """Members hold runs one after the other: without a bound one would train epoch 0 and the next one epoch 500."""
    ledger = ledger_of(100, "a", "b", epochs=1000, whole_epochs=False)
    ledger.grant(12_500)
    first = {worker: ledger.leases(worker)[0] for worker in ledger.roster}
    assert samples((first["a"],)) == [(0, 0, 52)]
    assert samples((first["b"],)) == [(0, 52, 100), (1, 0, 4)]


def test_fewer_samples_than_workers_leave_some_with_an_empty_share():
    ledger = ledger_of(2, "a", "b", "c")
    given = ledger.grant(5)
    assert [len(given[worker][0]) for worker in "abc"] == [2, 0, 0]
    assert [lease.steps for leases in given.values() for lease in leases] == [1, 1, 1]
    assert ledger.commit(1) == (0,)


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (1, [1, 0, 0]),
        (2, [2, 0, 0]),
        (3, [3, 0, 0]),
        (4, [2, 2, 0]),
        (5, [3, 2, 0]),
        (6, [2, 2, 2]),
        (10, [4, 3, 3]),
    ],
)
def test_where_an_epoch_ends_a_worker_has_two_samples_or_none_as_batch_norm_cannot_do_with_one(left, expected):
    ledger = ledger_of(12 + left, "a", "b", "c")
    ledger.grant(5)
    assert [len(ledger.leases(worker)[0]) - 4 for worker in "abc"] == expected


def test_batches_of_one_stay_so():
    ledger = new_ledger(DataSpec(total=5, epochs=1, batch=1), ["a", "b", "c"])
    ledger.grant(5)
    assert [len(ledger.leases(worker)[0]) for worker in "abc"] == [2, 2, 1]


def test_less_than_one_global_batch_is_one_step():
    assert run_out(ledger_of(7, "a", "b", epochs=2)) == [7, 7]


def test_without_members_nothing_is_granted():
    ledger = ledger_of(10)
    assert ledger.grant(5) == {}
    assert not ledger.exhausted


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (DataSpec(0, 1, 1), "has 0 samples: give"),
        (DataSpec(1, 0, 1), "epochs is 0: ask"),
        (DataSpec(1, 1, 0), "batch is 0: ask"),
    ],
)
def test_a_spec_without_work_is_refused(spec, message):
    with pytest.raises(UsageError, match=message):
        new_ledger(spec)


# ------------------------------------------------------------------------------------------- comings and goings


def test_a_newcomer_is_leased_beside_the_survivors():
    ledger = ledger_of(100, "a")
    ledger.grant(4)
    ledger.enter(["a", "b"], 1)
    assert ledger.grant(5) == {
        "b": (Lease(1, 1, 3, 4, (Range(0, 16, 28),)), Lease(2, 4, 1, 4, (Range(0, 64, 68),))),
        "a": (Lease(2, 4, 1, 4, (Range(0, 28, 32),)),),
    }
    assert ledger.totals() == (Totals(5, 8),)


def test_a_newcomer_that_is_spared_begins_one_step_later():
    ledger = ledger_of(400, "a", "b")
    ledger.grant(3)
    ledger.enter(["a", "b", "c"], 1, spare=1)
    assert not ledger.spares(["c"])
    ledger.grant(5)
    assert ledger.spares(["c"])
    assert [(lease.after_step, lease.steps, len(lease)) for lease in ledger.leases("c")] == [
        (1, 1, 0),
        (2, 1, 4),
        (3, 2, 8),
    ]
    assert ledger.totals() == (Totals(2, 8), Totals(5, 12))
    ledger.validate()
    assert sum(run_out(ledger)) == 400 - 8


@pytest.mark.parametrize(("spare", "spared"), [(1, 1), (2, 2), (4, 4), (9, 4)])
def test_a_newcomer_is_spared_in_as_many_steps_as_are_asked_for_and_leased(spare, spared):
    ledger = ledger_of(400, "a", "b")
    ledger.grant(3)
    ledger.enter(["a", "b", "c"], 1, spare=spare)
    ledger.grant(5)
    assert ledger.spares(["c"]) == spared
    assert [ledger.leases("a")[-1].until_step, ledger.leases("c")[-1].until_step] == [5, 5]
    assert [run.samples for run in ledger.totals()] == ([8, 12] if spared < 4 else [8])
    ledger.validate()
    assert sum(run_out(ledger)) == 400 - 8


def test_it_is_spared_beyond_the_first_lease_of_the_others():
    ledger = ledger_of(400, "a", "b")
    ledger.grant(3)
    ledger.grant(7)
    ledger.enter(["a", "b", "c"], 1, spare=4)
    ledger.grant(8)
    assert ledger.spares(["c"]) == 4
    assert [(lease.after_step, lease.steps, len(lease)) for lease in ledger.leases("c")][:3] == [
        (1, 2, 0),
        (3, 2, 0),
        (5, 2, 8),
    ]
    ledger.validate()


def test_a_newcomer_is_spared_too_where_nothing_is_leased_ahead():
    ledger = ledger_of(400, "a", "b")
    ledger.enter(["a", "b", "c"], 0, spare=1)
    ledger.grant(3)
    assert ledger.spares(["c"])
    assert ledger.totals() == (Totals(1, 8), Totals(3, 12))
    ledger = ledger_of(5, "a", "b")
    ledger.enter(["a", "c"], 0, spare=1)
    ledger.grant(3)
    assert ledger.totals() == (Totals(1, 4), Totals(2, 1)), (
        "what is left goes on, though the newcomer could have it now"
    )


def test_of_a_lease_of_one_step_a_spared_newcomer_has_nothing():
    ledger = ledger_of(8, "a", "b")
    ledger.grant(1)
    ledger.enter(["a", "b", "c"], 0, spare=1)
    ledger.grant(1)
    [lease] = ledger.leases("c")
    assert (lease.steps, len(lease), lease.final) == (1, 0, True)
    assert run_out(ledger) == [8]


def test_where_no_other_is_left_no_newcomer_is_spared():
    ledger = ledger_of(400, "a")
    ledger.enter(["b"], 0, spare=1)
    ledger.grant(1)
    assert not ledger.spares(["b"])


def test_a_newcomer_when_all_is_leased_has_empty_shares():
    ledger = ledger_of(16, "a")
    ledger.grant(4)
    ledger.enter(["a", "b"], 1)
    assert ledger.grant(9) == {"b": (Lease(1, 1, 3, 4, (), epoch=0, final=True),)}
    assert run_out(ledger) == [4, 4, 4]


def test_newcomers_catch_up_in_whole_batches():
    """Shares in the middle of a lease are full or empty, so that a script that cuts batches itself stays in step."""
    ledger = ledger_of(27, "a")
    ledger.grant(5)  # 20 of 27: 7 are unassigned, one batch and 3
    ledger.enter(["a", "b", "c"], 1)
    given = ledger.grant(5)
    assert {worker: len(leases[0]) for worker, leases in given.items()} == {"b": 4, "c": 0}
    assert run_out(ledger) == [8, 4, 4, 4, 3]


def test_what_the_gone_held_is_leased_first():
    ledger = ledger_of(96, "a", "b", "c")
    ledger.grant(2)
    ledger.enter(["c"], 1)
    assert held(ledger) == {"c": [(0, 64, 72)]}
    assert ledger.counts() == DataCounts(epoch=0, total=96, trained=12, leased=4, unassigned=80, ahead=1)
    assert samples(ledger.grant(4)["c"]) == [(0, 4, 12)]
    assert samples(ledger.grant(13)["c"]) == [(0, 12, 32), (0, 36, 52)]


def test_all_but_one_leave():
    ledger = ledger_of(48, "a", "b", "c")
    ledger.grant(4)
    ledger.enter(["b"], 2)
    assert run_out(ledger) == [4] * 6


def test_all_workers_are_replaced():
    ledger = ledger_of(48, "a", "b")
    ledger.grant(6)
    ledger.enter(["c", "d"], 3)
    assert ledger.covered_step == 3
    assert samples(ledger.grant(4)["c"]) == [(0, 12, 16)]
    assert run_out(ledger) == [8, 8, 8]


def test_all_workers_gone_and_a_newcomer_comes():
    ledger = ledger_of(20, "a")
    ledger.grant(5)
    ledger.enter([], 2)
    assert ledger.grant(9) == {}
    ledger.enter(["b"], 2)
    assert run_out(ledger) == [4, 4, 4]


def test_steps_may_be_left_without_any_sample():
    """`b` was only filling up when `a`, who held all samples, left. No share may be divided by such a total."""
    ledger = ledger_of(16, "a")
    ledger.grant(4)
    ledger.enter(["a", "b"], 2)
    ledger.grant(4)
    ledger.enter(["b"], 2)
    ledger.grant(6)
    assert ledger.totals() == (Totals(4, 0), Totals(6, 4))


def test_lease_numbers_have_no_gaps_over_leaders_and_generations():
    ledger = ledger_of(1000, "a", "b")
    ledger.grant(2)
    ledger.commit(2)
    ledger = restored_ledger(ledger.snapshot())
    ledger.grant(4)
    ledger.enter(["b", "c"], 3)
    ledger.grant(6)
    assert [lease.number for lease in ledger.leases("b")] == [2, 3]
    assert [lease.number for lease in ledger.leases("b", after=2)] == [3]
    assert [lease.number for lease in ledger.leases("c")] == [1, 2]
    assert ledger.leases("a") == ()


def test_members_may_take_batches_of_their_own():
    """Nothing sets them yet, but leases, totals and the ends of epochs go by each member's batch."""
    ledger = ledger_of(28, "a", "b")
    snapshot = ledger.snapshot()
    slow = msgspec.structs.replace(snapshot.members[1], batch=2)
    ledger = restored_ledger(msgspec.structs.replace(snapshot, members=(snapshot.members[0], slow)))
    ledger.grant(99)
    assert [len(ledger.leases(worker)[0]) for worker in "ab"] == [20, 8]  # four steps of 4 + 2, then 4 and none
    assert run_out(ledger) == [6, 6, 6, 6, 4]


# ----------------------------------------------------------------------------------------------- ends of epochs


def test_epochs_end_in_order_and_are_told_once():
    ledger = ledger_of(8, "a", epochs=3)
    ledger.grant(6)
    assert [ledger.commit(step) for step in (1, 2, 2, 6)] == [(), (0,), (), (1, 2)]
    assert ledger.exhausted
    assert ledger.counts() == DataCounts(epoch=2, total=8, trained=8, leased=0, unassigned=0, ahead=0)


def test_an_epoch_ends_only_when_what_came_back_is_trained():
    ledger = ledger_of(16, "a", "b", epochs=3)
    ledger.grant(4)  # epochs 0 and 1
    ledger.enter(["a"], 1)  # b's (0, 12..16) and all its epoch 1 come back
    assert ledger.commit(4) == ()
    assert samples(ledger.grant(5)["a"]) == [(0, 12, 16)]
    assert ledger.commit(5) == (0,)
    assert run_out(ledger) == [4] * 6


def test_what_comes_back_after_its_epochs_final_round_goes_with_the_next_epoch():
    ledger = ledger_of(14, "a", "b", epochs=2)
    ledger.grant(2)  # all of epoch 0: 8 samples, then 6
    ledger.enter(["a"], 1)  # 3 of them come back
    lease = ledger.grant(4)["a"][-1]
    assert lease.epoch == 1
    assert samples((lease,)) == [(0, 11, 14), (1, 0, 5)]
    assert run_out(ledger) == [3, 4, 4, 4, 4, 1]


def test_in_the_last_epoch_it_makes_a_round_of_its_own():
    ledger = ledger_of(14, "a", "b")
    ledger.grant(2)
    ledger.enter(["a"], 1)
    lease = ledger.grant(4)["a"][-1]
    assert (lease.epoch, lease.final, len(lease)) == (0, True, 3)
    assert run_out(ledger) == [3, 3]


def test_for_a_roster_of_strangers_no_round_has_been_final():
    ledger = ledger_of(14, "a", "b", epochs=2)
    ledger.grant(2)
    ledger.enter(["c"], 1)
    assert [(lease.epoch, len(lease)) for lease in ledger.grant(3)["c"]] == [(0, 6)]


def test_more_epochs_may_be_wanted_at_any_time():
    ledger = ledger_of(4, "a")
    assert run_out(ledger) == [4]
    ledger.extend(1)
    assert ledger.exhausted
    ledger.extend(3)
    assert not ledger.exhausted
    assert ledger.epoch == 1
    assert run_out(ledger) == [4, 4]


# -------------------------------------------------------------------------------------------------- by sample


# ------------------------------------------------------------------------------------------------ an open end


def test_with_an_open_end_more_than_is_wanted_is_leased_and_counts_for_nothing():
    ledger = ledger_of(12, "a", "b", open_ended=True)
    ledger.grant(6)
    assert (ledger.wanted_step, ledger.covered_step) == (2, 6)
    assert (ledger.fully_leased, ledger.exhausted) == (True, False)
    assert ledger.validate() == 12
    assert ledger.commit(2) == (0,)
    assert ledger.exhausted
    assert ledger.counts() == DataCounts(0, 12, 12, 0, 0, 4)
    assert ledger.validate() == 0
    assert ledger.wanted_step == 2


def test_of_very_short_epochs_not_all_are_leased_that_would_fit():
    ledger = ledger_of(4, "a", open_ended=True)
    ledger.grant(1000)
    assert ledger.covered_step == 1 + SPECULATIVE
    ledger.extend(3)
    ledger.grant(1000)
    assert ledger.covered_step == 3 + SPECULATIVE


def test_what_is_trained_was_begun_though_no_worker_has_said_so():
    ledger = ledger_of(12, "a", "b", open_ended=True)
    ledger.grant(6)
    assert ledger.commit(5) == (0, 1)
    assert (ledger.spec.epochs, ledger.epoch, ledger.wanted_step) == (3, 2, 6)
    assert ledger.validate() == 4


def test_what_comes_back_is_leased_before_what_was_not_begun():
    ledger = ledger_of(12, "a", "b", open_ended=True)
    ledger.grant(6)
    assert [lease.epoch for lease in ledger.leases("a")] == [0, 1, 2]
    ledger.enter(["a"], 1)
    assert samples(ledger.leases("a")) == [(0, 0, 6)]
    ledger.grant(6)
    assert [(lease.number, lease.epoch) for lease in ledger.leases("a")] == [(1, 0), (2, 0), (3, 1)]
    assert samples(ledger.leases("a")) == [(0, 0, 6), (0, 10, 12), (1, 0, 12)]


def test_the_epoch_of_the_next_step_may_have_begun_so_it_is_not_taken_back():
    ledger = ledger_of(12, "a", "b", open_ended=True)
    ledger.grant(6)
    before = ledger.leases("a")
    ledger.enter(["a"], 2)
    assert ledger.leases("a") == before[1:2]
    assert ledger.spec.epochs == 1


def test_by_sample_the_final_step_waits_until_all_before_is_trained():
    ledger = ledger_of(18, "a", "b", by_sample=True)
    ledger.grant(9)
    assert ledger.covered_step == 2
    ledger.commit(1)
    assert ledger.grant(9) == {}
    ledger.commit(2)
    assert [(len(leases[0]), leases[0].final) for leases in ledger.grant(9).values()] == [(2, True), (0, True)]


def test_by_sample_a_full_last_step_is_final_too():
    ledger = ledger_of(16, "a", "b", by_sample=True)
    ledger.grant(9)
    assert ledger.covered_step == 1
    ledger.commit(1)
    assert [(len(leases[0]), leases[0].final) for leases in ledger.grant(9).values()] == [(4, True), (4, True)]


def test_by_sample_what_comes_back_too_late_waits_for_the_next_pass():
    ledger = ledger_of(6, "a", "b", by_sample=True)
    ledger.grant(9)
    ledger.enter(["a"], 0)  # in the final step: b's 3 samples come back, and a's own batch is its last
    assert ledger.grant(9) == {}
    ledger.commit(1)
    ledger = restored_ledger(ledger.snapshot())
    assert ledger.grant(9) == {}
    ledger.extend(2)
    assert samples(ledger.grant(2)["a"]) == [(0, 3, 6), (1, 0, 1)]


def test_by_sample_a_stream_gives_what_comes_back_too_late_to_the_next_pass():
    ledger = ledger_of(6, "a", "b", by_sample=True, whole_epochs=False)
    ledger.grant(9)
    ledger.enter(["a"], 0)
    ledger.commit(1)
    assert [lease.final for lease in ledger.grant(9)["a"]] == [True]
    assert run_out(ledger) == [3]


# ------------------------------------------------------------------------------------- mistakes are told with a story


@pytest.mark.parametrize("step", [0, 5])
def test_a_step_outside_what_is_covered_is_our_bug(step):
    ledger = ledger_of(100, "a")
    ledger.grant(4)
    ledger.commit(1)
    before = ledger.snapshot()
    with pytest.raises(InvalidTransition, match=r"outside 1\.\.4") as error:
        ledger.commit(step)
    assert ("grant", 4) in error.value.history
    with pytest.raises(InvalidTransition, match=r"outside 1\.\.4"):
        ledger.enter(["a", "b"], step)
    assert ledger.snapshot() == before


def test_newcomers_must_be_granted_leases_before_a_step_of_theirs():
    ledger = ledger_of(100, "a")
    ledger.grant(4)
    ledger.enter(["a", "b"], 1)
    with pytest.raises(InvalidTransition, match="before newcomers were granted"):
        ledger.commit(2)


def test_a_worker_sits_once_in_a_roster():
    with pytest.raises(InvalidTransition, match="twice in the roster"):
        ledger_of(100, "a", "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranges": (Range(0, 6, 14),)}, "I6: a sample is leased twice"),
        ({"ranges": (Range(0, 0, 4), Range(0, 50, 54))}, "I6: a sample is leased twice, or both leased and unassigned"),
        ({"steps": 3}, "I7: b runs dry at step 3, others at 2|I7: a runs dry"),
        ({"number": 7}, "I7: b's leases have a gap"),
        ({"after_step": 1, "steps": 1}, "I7: b's leases have a gap"),
    ],
)
def test_validate_sees_what_must_never_be(change, message):
    ledger = ledger_of(100, "a", "b")
    ledger.grant(2)
    ledger.validate()
    snapshot = ledger.snapshot()
    first, second = snapshot.members
    wrong = msgspec.structs.replace(second, leases=(msgspec.structs.replace(second.leases[0], **change),))
    with pytest.raises(InvalidTransition, match=message):
        restored_ledger(msgspec.structs.replace(snapshot, members=(first, wrong))).validate()


def test_validate_sees_an_epoch_that_ended_too_early():
    ledger = ledger_of(100, "a", epochs=2)
    with pytest.raises(InvalidTransition, match="I6: epoch 0 ended"):
        restored_ledger(msgspec.structs.replace(ledger.snapshot(), ended=1)).validate()


# -------------------------------------------------------------------------------------------------- size and cost


def test_a_billion_samples_and_a_thousand_workers_cost_what_the_workers_cost():
    """Counted, not timed: every grant creates a few leases per worker, however many steps and samples it covers."""
    workers = [f"worker-{number:04}" for number in range(1000)]
    ledger = new_ledger(DataSpec(10**9, 90, 64, shuffle=True), workers)
    given = ledger.grant(10_000)
    assert sum(map(len, given.values())) == 8 * 1000  # one for each deal: of 64 steps, 128, ...
    assert len(ledger.snapshot().returned) == 999  # of each run what is not leased yet, but for the last
    ledger.enter(workers[500:], 0)
    assert len(ledger.snapshot().returned) < 520  # neighbours' pieces that touch are one
    ledger.enter(workers[501::2], 5000)
    assert len(ledger.snapshot().returned) < 520
    assert sum(map(len, ledger.grant(11_000).values())) == 5 * 250
    wire = msgspec.msgpack.encode(ledger.snapshot())
    assert len(wire) < 60_000
    restored = restored_ledger(msgspec.msgpack.decode(wire, type=LedgerSnapshot))
    assert restored.snapshot() == ledger.snapshot()
    assert restored.totals() == ledger.totals() == (Totals(11_000, 250 * 64),)


def test_a_commit_inside_a_round_looks_at_no_lease(monkeypatch):
    ledger = ledger_of(10**9, *map(str, range(1000)))
    ledger.grant(1000)
    looked = []
    monkeypatch.setattr(Lease, "between", lambda *arguments: looked.append(arguments))
    ledger.commit(999)
    assert looked == []


# ------------------------------------------------------------------------------------------------- unassigned


def test_pieces_that_touch_the_frontier_are_part_of_it_again():
    pool = Unassigned(total=10, epochs=2)
    taken = pool.take(15)
    assert taken == (Range(0, 0, 10), Range(1, 0, 5))
    pool.give_back([Range(1, 0, 5), Range(0, 2, 4)])
    assert (pool.frontier, pool.returned) == (10, ((2, 4),))
    assert [pool.count(epoch) for epoch in (-1, 0, 1, 2)] == [0, 2, 12, 12]
    assert pool.take(3) == (Range(0, 2, 4), Range(1, 0, 1))
    assert pool.first_epoch == 1


# --------------------------------------------------------------------------------- newcomers where little is left


def test_a_newcomer_that_finds_all_leased_gets_its_share_when_leases_are_cut_anew():
    ledger = ledger_of(101, "a", batch=4)
    ledger.grant(100)
    assert ledger.covered_step == 26
    ledger.commit(2)
    ledger.enter(("a", "b"), 2)
    ledger.grant(3)
    assert samples(ledger.leases("b")) == []
    assert ledger.outdated_until == 26
    assert restored_ledger(ledger.snapshot()).outdated_until == 26
    ledger.rebatch(5)
    ledger.grant(100)
    assert ledger.outdated_until == 0
    assert run_out(ledger) == [4, 4, 4, *[8] * 10, 1]


def test_a_newcomer_that_finds_nearly_enough_is_left_alone():
    ledger = ledger_of(80, "a", batch=4)
    ledger.grant(10)
    ledger.enter(("a", "b"), 0)
    ledger.grant(10)
    assert ledger.outdated_until == 0
    assert run_out(ledger) == [8] * 10


def test_a_newcomer_whose_script_cuts_batches_itself_gets_whole_ones_too():
    ledger = ledger_of(101, "a", batch=4, by_sample=True)
    ledger.grant(100)
    ledger.commit(2)
    ledger.enter(("a", "b"), 2)
    ledger.grant(3)
    assert ledger.outdated_until == 25
    ledger.rebatch(5)
    ledger.grant(100)
    assert run_out(ledger) == [4, 4, 4, *[8] * 10, 1]


def test_a_step_without_samples_comes_before_the_last_short_one():
    ledger = new_ledger(DataSpec(total=25, epochs=1, batch=10, by_sample=True), ["w0", "w1"])
    ledger.grant(9)
    assert (ledger.covered_step, ledger.holds_back) == (1, True)
    ledger.idle()
    ledger.validate()
    assert ledger.covered_step == 2
    ledger.commit(2)
    ledger.grant(9)
    assert (ledger.covered_step, ledger.holds_back) == (3, False)
    with pytest.raises(InvalidTransition, match="final"):
        ledger.idle()


def test_samples_that_come_back_after_the_last_batch_of_scripts_are_stranded_though_not_all_are_leased_again():
    """Each script has seen that its batch of step 1 is its last: it asks for none of what a lost worker had."""
    ledger = ledger_of(12, "w0", "w1", "w2", by_sample=True)
    ledger.grant(1)
    assert all(lease.final for worker in ledger.roster for lease in ledger.leases(worker))
    ledger.enter(("w0",), 0)
    ledger.grant(2)
    assert not ledger.fully_leased, "a second round of them waits for the first"
    ledger.commit(1)
    assert ledger.stranded
    assert restored_ledger(ledger.snapshot()).stranded


def test_scripts_that_break_off_strand_nothing():
    ledger = ledger_of(100, "w0", "w1", by_sample=True)
    ledger.grant(2)
    ledger.commit(2)
    assert not ledger.stranded


# ----------------------------------------------------------------------- samples that come back while epochs are ahead


def three_that_are_epochs_ahead(step: int = 2, **mode: Any) -> Ledger:
    """Two steps an epoch, of which many are leased; one of three is lost after `step`."""
    ledger = ledger_of(24, "a", "b", "c", epochs=8, whole_epochs=True, **mode)
    ledger.grant(16)
    ledger.commit(step)
    ledger.enter(("a", "c"), step)
    return ledger


def epochs_by_step(ledger: Ledger) -> list[set[int]]:
    """Of the samples that are leased in each step to come."""
    found = []
    for step in range(ledger.step + 1, ledger.covered_step + 1):
        taken = (
            piece
            for worker in ledger.roster
            for lease in ledger.leases(worker)
            for piece in lease.between(step - 1, step)
        )
        found.append({piece.epoch for piece in taken})
    return found


def test_what_a_lost_worker_held_is_trained_before_epochs_that_no_pipeline_has_read_of():
    ledger = three_that_are_epochs_ahead()
    assert ledger.outdated_until == 16, "it would come after all eight epochs"
    assert restored_ledger(ledger.snapshot()).outdated_until == 16
    ledger.rebatch(3)
    ledger.grant(11)
    assert epochs_by_step(ledger) == [{1}, {1}, {1}, {2}, {2}, {2}, {3}, {3}, {3}]
    assert restored_ledger(ledger.snapshot()).outdated_until == 0
    assert run_out(ledger) == [8] * 21


def test_what_pipelines_have_read_of_the_next_epoch_goes_first():
    """In step 2 of epoch 0 one is lost, and the others have read the first step of epoch 1."""
    ledger = three_that_are_epochs_ahead(step=1)
    ledger.rebatch(3)
    ledger.grant(7)
    assert epochs_by_step(ledger) == [{0}, {1}, {0, 1}, {1}, {1}, {2}]


def test_what_came_to_be_leased_after_a_later_epoch_is_seen_there():
    """The leader that saw the loss had leased on, and fell."""
    ledger = three_that_are_epochs_ahead()
    ledger.grant(23)
    assert ledger.snapshot().returned == () and epochs_by_step(ledger)[14:16] == [{1, 4}, {1, 5}]
    assert restored_ledger(ledger.snapshot()).outdated_until == 16
    ledger.rebatch(2)
    ledger.grant(8)
    assert epochs_by_step(ledger) == [{1}, {1}, {1}, {2}, {2}, {2}]


@pytest.mark.parametrize("mode", [{"whole_epochs": True, "by_sample": True}, {"whole_epochs": False}])
def test_a_stream_is_left_as_it_is(mode):
    """A script that cuts batches itself, or goes through all epochs in one, takes what comes."""
    ledger = ledger_of(24, "a", "b", "c", epochs=8, **mode)
    ledger.grant(1)
    ledger.commit(1)
    ledger.grant(8)
    assert {lease.epoch for lease in ledger.leases("a")} > {0}
    ledger.enter(("a", "c"), 1)
    assert ledger.outdated_until == 0


def test_who_is_lost_in_the_last_epoch_keeps_none_waiting():
    ledger = three_that_are_epochs_ahead(step=14)
    assert ledger.outdated_until == 0
