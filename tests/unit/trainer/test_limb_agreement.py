"""Limbs of one worker, each on a thread, agree on what their machines hear."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from edl.core.worker.agreement import Vote
from edl.core.worker.limb_votes import ELSEWHERE, UNLIKE, Row, UpdateVote
from edl.core.worker.worker_inputs import BatchVoid, RingFailed, RingFormed, StateCopied, VotesHeard
from edl.trainer.limb_agreement import LimbAgreement


class Rows:
    """All limbs' rows, exchanged once all have come."""

    def __init__(self, limbs: int) -> None:
        self.barrier = threading.Barrier(limbs, timeout=20)
        self.rows: list[Row] = [()] * limbs

    def of(self, limb: int) -> Any:
        def exchange(row: Row) -> list[Row]:
            self.rows[limb] = row
            self.barrier.wait()
            found = list(self.rows)
            self.barrier.wait()
            return found

        return SimpleNamespace(exchange=exchange)


class Link:
    """A daemon that has told these orders, by term and version."""

    def __init__(self, *told: tuple[int, int], later: tuple[tuple[int, int], ...] = ()) -> None:
        self.told, self.later = [self.order(*one) for one in told], [self.order(*one) for one in later]

    @staticmethod
    def order(term: int, version: int) -> Any:
        return SimpleNamespace(term=term, version=version)

    @property
    def orders(self) -> Any:
        return self.told[-1] if self.told else None

    def wait_orders(self, stamp: tuple[int, int]) -> Any:
        self.told, self.later = self.told + self.later, []
        return next((one for one in self.told if (one.term, one.version) == stamp), None)


def together(act: Callable[[int, LimbAgreement], Any], *, sits: bool = False) -> list[Any]:
    rows, machine = Rows(2), SimpleNamespace(sits=sits)
    alike: Any = SimpleNamespace(is_due=lambda: False)
    limbs: list[Any] = [LimbAgreement(rows.of(limb), machine, limb, alike) for limb in range(2)]  # type: ignore[arg-type]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(act, range(2), limbs))


def answers(*given: Any, sits: bool = False) -> list[Any]:
    return together(lambda number, limb: limb.answer(given[number]), sits=sits)


def read(*links: Link) -> list[Any]:
    found = together(lambda number, limb: limb.orders(links[number]))  # type: ignore[arg-type]
    return [None if one is None else (one.term, one.version) for one in found]


def test_a_void_mini_batch_is_void_on_all() -> None:
    voted = together(lambda number, limb: limb.vote(void=number == 1, look=number == 0))
    assert voted == [UpdateVote(void=True, look=True)] * 2


def test_limbs_look_at_the_newest_orders_that_any_has_heard() -> None:
    assert read(Link((1, 3)), Link((1, 1), (1, 2), later=((1, 3),))) == [(1, 3), (1, 3)]


def test_limbs_that_have_heard_nothing_look_at_nothing() -> None:
    assert read(Link(), Link()) == [None, None]


def test_orders_that_one_limb_never_hears_are_passed_over() -> None:
    """As by a daemon that was started anew."""
    first = Link((1, 5), later=((1, 6),))
    second = Link((1, 4), later=((1, 6),))
    assert read(first, second) == [(1, 6), (1, 6)]


@pytest.mark.parametrize("failed", [RingFailed("it timed out"), BatchVoid("it timed out")])
def test_what_fails_on_one_limb_fails_on_all(failed: Any) -> None:
    assert answers(failed, RingFormed()) == [failed, RingFailed(ELSEWHERE)]


def test_a_state_that_did_not_come_to_one_limb_voids_the_mini_batch_of_all_in_a_ring_that_trains() -> None:
    failed = BatchVoid("it did not come")
    assert answers(StateCopied(), failed, sits=True) == [BatchVoid(ELSEWHERE), failed]


def test_what_succeeds_on_all_limbs_is_what_each_has_heard() -> None:
    vote = VotesHeard(Vote(5, -4, 0, 0))
    assert answers(vote, vote) == [vote, vote]
    assert answers(RingFormed(), RingFormed()) == [RingFormed(), RingFormed()]


def test_rings_that_begin_otherwise_are_not_entered() -> None:
    votes = [VotesHeard(Vote(5, behind, 0, 0)) for behind in (-4, 1)]
    assert answers(*votes) == [RingFailed(UNLIKE)] * 2
