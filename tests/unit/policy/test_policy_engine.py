"""When a policy is asked, and when its answer is heeded."""

from __future__ import annotations

from collections.abc import Callable

from edl.policy.policy_engine import Engine, Pacing, Ruling
from edl.policy.policy_job_view import Decision, View
from edl.policy.stragglers import Straggler, UnevenPaces


class Wants:
    """A policy that wants what it was told to."""

    def __init__(self, size: int | None) -> None:
        self.size = size
        self.asked = 0

    def decide(self, view: View) -> Decision | None:
        self.asked += 1
        return None if self.size is None else Decision(self.size, f"{self.size} are wanted", numbers={"x": 1.0})


def view(step: int, size: int = 2, now: float | None = None, maximum: int = 4) -> View:
    return View(now=step * 0.1 if now is None else now, step=step, size=size, minimum=1, maximum=maximum)


def looks(engine: Engine, *steps: int, size: int = 2, see: Callable[..., View] = view) -> list[Ruling | None]:
    return [engine.look(see(step, size)) for step in steps]


def test_it_looks_every_so_many_steps_and_once_more_before_it_acts() -> None:
    policy = Wants(3)
    engine = Engine(policy, Pacing(every=10, looks=2, cooldown_s=0))
    before, early, again = looks(engine, 10, 15, 20)
    assert before is early is None
    assert again is not None and again.act and again.decision.size == 3
    assert policy.asked == 2


def test_who_wavers_is_not_heeded() -> None:
    policy = Wants(3)
    engine = Engine(policy, Pacing(every=1, cooldown_s=0))
    for step in range(1, 50):
        policy.size = 3 if step % 2 else 4
        assert engine.look(view(step)) is None


def test_changes_keep_their_distance() -> None:
    engine = Engine(Wants(4), Pacing(every=1, looks=1, cooldown_s=5))
    assert engine.look(view(1, now=0.0)) is None  # the size has only just been seen
    assert engine.look(view(2, now=4.9)) is None
    ruling = engine.look(view(3, now=5.0))
    assert ruling is not None and ruling.act
    assert engine.look(view(4, now=9.0)) is None
    assert engine.look(view(5, size=4, now=9.5)) is None
    settled = engine.look(view(6, size=4, now=15.0))
    assert settled is not None and not settled.act and settled.decision.size == 4
    assert engine.look(view(7, size=4, now=30.0)) is None  # said once


def test_a_job_that_changes_is_left_alone() -> None:
    policy = Wants(4)
    engine = Engine(policy, Pacing(every=1, looks=1, cooldown_s=0))
    assert engine.look(view(5), at_rest=False) is None
    assert policy.asked == 0


def test_limits_hold_whatever_a_policy_wants() -> None:
    engine = Engine(Wants(100), Pacing(every=1, looks=1, cooldown_s=0))
    ruling = engine.look(view(1))
    assert ruling is not None and ruling.decision.size == 4


def test_a_dry_run_tells_and_leaves_all_as_it_is() -> None:
    engine = Engine(Wants(3), Pacing(every=1, looks=1, cooldown_s=0, dry_run=True))
    told = [ruling for ruling in looks(engine, *range(1, 20)) if ruling is not None]
    assert [(ruling.decision.size, ruling.act) for ruling in told] == [(3, False)]


def test_a_straggler_is_seen_to_before_the_size_is() -> None:
    straggler = Straggler("w1", 0.5, "compute", "w1 works at 0.50 of the median pace")
    engine = Engine(Wants(3), Pacing(every=1, looks=1, cooldown_s=0))
    ruling = engine.look(view(1), straggler)
    assert ruling is not None and ruling.decision.replace == ("w1",) and ruling.decision.size == 2
    alone = Engine(None, Pacing(every=1, looks=1, cooldown_s=0)).look(view(1, size=1), straggler)
    assert alone is None  # never the last worker


def test_who_has_no_opinion_changes_nothing() -> None:
    assert not any(looks(Engine(Wants(None), Pacing(every=1, looks=1, cooldown_s=0)), *range(1, 10)))


def test_a_straggler_that_is_only_told_of_keeps_nothing_else_from_being_decided() -> None:
    slow = Straggler("w1", 0.5, "compute", "w1 is slow")
    engine = Engine(Wants(3), Pacing(every=1, looks=1, cooldown_s=0.0), only_tell=True)
    first = engine.look(view(1), slow)
    assert first is not None and first.decision.replace == ("w1",) and not first.act
    second = engine.look(view(2), slow)
    assert second is not None and second.decision.size == 3 and second.act


def test_an_uneven_ring_is_shared_out_anew() -> None:
    engine = Engine(None, Pacing(every=1, looks=2, cooldown_s=0.0))
    uneven = UnevenPaces({"w0": 1.0, "w1": 0.5}, 0.5, "w1 is slow")
    assert engine.look(view(1), uneven) is None
    found = engine.look(view(2), uneven)
    assert found is not None and found.act and found.decision.shares == uneven.shares and not found.decision.replace
