"""What one worker does where the states of its ring's members are compared (I15)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edl import background
from edl.core.worker.compute_check import ComputeVerdict
from edl.core.worker.digest import of_all
from edl.core.worker.worker_inputs import StatesDiffer
from edl.errors import JobFailed, RingBroken
from edl.protocol.assignment import Place
from edl.protocol.divergence_report import Checking, Fingerprint, OnDivergence
from edl.trainer.divergence_check import READ_EVERY, DivergenceCheck, _Teller
from edl.trainer.registered_state import RegisteredState


class FakeRing:
    """One member's end of a ring, the states of whose others are given."""

    def __init__(self, rank: int, others: list[str], new: tuple[int, ...]) -> None:
        self.place = Place(1, rank, len(others), f"w{rank}")
        self.states = others
        self.new = new  # ranks
        self.broadcasts = 0
        self.broken = False
        self.pairs_by_name = False
        self.asked = threading.Event()

    def same(self, value: int) -> Callable[[], bool]:
        self.asked.set()
        found = {of_all(fingerprints(state)) for state in self.states} == {value}

        def wait() -> bool:
            if self.broken:
                raise RingBroken("reset by peer")
            return found

        return wait

    def broadcast(self, payload: bytes | None, root: int) -> bytes:
        self.broadcasts += 1
        if self.broken:
            raise RingBroken("reset by peer")
        assert (payload is not None) == (root == self.place.rank)
        return payload or msgspec.msgpack.encode(
            _Teller(f"w{root}", fingerprints(self.states[root]), root in self.new, 9)
        )


class FakePage:
    def add_waited(self, nanoseconds: int) -> None:
        assert nanoseconds >= 0


class FakeLink:
    def __init__(self) -> None:
        self.page, self.orders, self.worker = FakePage(), None, ""

    def wait_news(self, older: Any) -> None:
        return None


class FakeSeat:
    """A ring of three after step 40."""

    def __init__(self, ring: FakeRing, link: FakeLink, on_divergence: OnDivergence, end: Callable[[], None]) -> None:
        self.link, self.ring = link, ring
        link.worker = ring.place.worker
        unusual = SimpleNamespace(equal_step=0 if ring.new else 20, checking=Checking(20, on_divergence))
        is_new = ring.place.rank in ring.new
        model = SimpleNamespace(is_new=is_new, joined=9)
        self.machine = SimpleNamespace(generation=1, step=40, unusual=unusual, void=None, model=model)
        self.while_ending = end
        self.heals = True
        self.synchronized: list[tuple[int, bool]] = []
        self.told: list[StatesDiffer] = []

    def hear(self, happened: StatesDiffer) -> None:
        self.told.append(happened)

    def heal(self, root: int, *, current: bool) -> None:
        self.synchronized.append((root, current))
        if self.heals:
            self.ring.states = [self.ring.states[root]] * 3


class FakeFramework:
    misread = ""  # beside a mini-batch

    def __init__(self, ring: FakeRing, large: bool) -> None:
        self.ring = ring
        self.large = large

    def fingerprints(self, more: Any) -> list[Fingerprint]:
        assert list(more) == [("edl.register(state=...).state_dict()['number']", 7)]
        return fingerprints(self.ring.states[self.ring.place.rank])

    def fingerprints_begun(self, more: Any) -> Callable[[], list[Fingerprint]] | None:
        """What is read beside a mini-batch is read as late as it can be."""
        return (lambda: fingerprints(self.misread) if self.misread else self.fingerprints(more)) if self.large else None


class Stateful:
    def state_dict(self) -> dict[str, int]:
        return {"number": 7}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise AssertionError(state)


class Ended(BaseException):
    """The leader's word came."""


def fingerprints(state: str) -> list[Fingerprint]:
    return [Fingerprint(f"t{place}", ord(letter)) for place, letter in enumerate(state)]


def end() -> None:
    raise Ended


def member(
    rank: int,
    states: list[str],
    on_divergence: OnDivergence = OnDivergence.FAIL,
    ended: Callable[[], None] = end,
    new: tuple[int, ...] = (),
    large: bool = False,
) -> tuple[FakeSeat, DivergenceCheck]:
    ring, link = FakeRing(rank, states, new), FakeLink()
    shell, extras = FakeSeat(ring, link, on_divergence, ended), RegisteredState()
    extras.add({"own": rank, "state": Stateful()})  # a plain value may be each worker's own
    return shell, DivergenceCheck(FakeFramework(ring, large), shell, extras)  # type: ignore[arg-type]


def test_equal_states_cost_one_small_message() -> None:
    shell, comparison = member(1, ["abc", "abc", "abc"])
    comparison.make(1.0)
    assert not shell.told
    assert not shell.ring.broadcasts


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_all_find_the_same_difference_tell_it_and_wait_for_the_end(rank: int) -> None:
    shell, comparison = member(rank, ["abc", "axc", "abc"])
    with pytest.raises(Ended):
        comparison.make(60.0)
    (told,) = shell.told
    found = told.found
    assert (found.workers, found.first, found.root, found.majority) == (("w1",), "t1", "w0", True)
    assert (found.step, found.equal_step, found.persists) == (40, 20, False)
    assert not shell.synchronized


def test_without_a_leader_each_ends_by_itself() -> None:
    _, comparison = member(0, ["abc", "axc", "abc"], ended=lambda: None)
    with pytest.raises(JobFailed, match="w1 differs from w0"):
        comparison.make(0.0)


@pytest.mark.parametrize(("rank", "current"), [(0, False), (1, True), (2, True)])
def test_the_majority_gives_its_state_to_the_others(rank: int, current: bool) -> None:
    shell, comparison = member(rank, ["xbc", "abc", "abc"], OnDivergence.HEAL)
    comparison.make(1.0)
    assert shell.synchronized == [(1, current)]
    assert [told.found.persists for told in shell.told] == [False]


def test_a_state_that_does_not_heal_ends_the_job() -> None:
    shell, comparison = member(0, ["xbc", "abc", "abc"], OnDivergence.HEAL)
    shell.heals = False
    with pytest.raises(Ended):
        comparison.make(60.0)
    assert [told.found.persists for told in shell.told] == [False, True]


def test_where_they_were_equal_the_answer_is_looked_at_a_step_later() -> None:
    shell, comparison = member(1, ["abc", "abc", "abc"])
    assert comparison.begin()
    shell.ring.states = ["abd", "abd", "abc"]  # another step is made meanwhile
    assert comparison.finish(1.0)
    assert not comparison.finish(1.0)
    assert not shell.told


def test_a_difference_is_told_as_it_was_when_the_comparison_began() -> None:
    shell, comparison = member(1, ["abc", "axc", "abc"])
    assert comparison.begin()
    shell.machine.step = 41
    with pytest.raises(Ended):
        comparison.finish(60.0)
    (told,) = shell.told
    assert (told.found.step, told.found.workers, told.found.first) == (40, ("w1",), "t1")


def test_it_heals_as_the_states_are_by_then_and_is_told_once() -> None:
    shell, comparison = member(1, ["abc", "axc", "abc"], OnDivergence.HEAL)
    assert comparison.begin()
    assert not comparison.finish(1.0)
    assert not comparison.begin()
    comparison.make(1.0)
    assert shell.synchronized == [(0, False)]
    assert len(shell.told) == 1
    assert comparison.begin()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_newcomers_that_differ_are_given_the_state_again(rank: int) -> None:
    """Two of them are no majority against the one that was there before."""
    shell, comparison = member(rank, ["abc", "xbc", "xbc"], new=(1, 2))
    assert comparison.begin()
    shell.machine.step = 41
    assert not comparison.finish(1.0)
    assert not comparison.begin()
    comparison.make(1.0)
    assert shell.synchronized == [(0, rank == 0)]
    (told,) = shell.told
    assert (told.found.workers, told.found.root, told.found.newcomers) == (("w1", "w2"), "w0", True)


def test_where_others_differ_by_then_too_the_job_ends() -> None:
    shell, comparison = member(1, ["abc", "abc", "xbc"], new=(2,))
    assert comparison.begin()
    assert not comparison.finish(1.0)
    shell.ring.states = ["abc", "abx", "xbc"]
    with pytest.raises(Ended):
        comparison.make(60.0)
    assert [told.found.newcomers for told in shell.told] == [True, False]
    assert not shell.synchronized


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_newcomers_that_differ_later_leave_the_ring_and_the_others_go_on(rank: int, large: bool) -> None:
    shell, comparison = member(rank, ["abc", "abc", "xbc"], new=(2,), large=large)
    shell.machine.unusual.equal_step = 30
    assert comparison.begin()
    comparison.before_update()
    shell.machine.step = 41
    if rank == 2:
        with pytest.raises(Ended):
            comparison.finish(60.0)
    else:
        assert not comparison.finish(60.0)
        assert not comparison.begin(), "nothing is compared with one that takes no part any more"
        with pytest.raises(RingBroken, match="w2 differed"):
            comparison.make(60.0)
        shell.machine.generation = 2
        shell.ring.states = ["abc"] * 3
        assert comparison.begin()
    (told,) = shell.told
    assert (told.found.workers, told.found.newcomers, told.found.joined) == (("w2",), True, (9,))
    assert not shell.synchronized


def test_who_parts_is_no_matter_of_the_next_ring() -> None:
    shell, comparison = member(0, ["abc", "abc", "xbc"], new=(2,))
    shell.machine.unusual.equal_step = 30
    assert comparison.begin()
    assert not comparison.finish(60.0)
    shell.machine.generation, shell.ring.states = 2, ["abc"] * 3
    comparison.make(60.0)
    assert len(shell.told) == 1


def test_newcomers_that_do_not_heal_leave_in_the_same_step() -> None:
    shell, comparison = member(0, ["abc", "abc", "xbc"], new=(2,))
    shell.heals = False
    with pytest.raises(RingBroken, match="w2 differed"):
        comparison.make(60.0)
    assert [told.found.persists for told in shell.told] == [False, True]


@pytest.mark.parametrize("how", ["the ring is broken", "the mini-batch is void"])
def test_one_that_is_overtaken_by_a_failure_says_nothing(how: str) -> None:
    shell, comparison = member(1, ["abc", "axc", "abc"])
    assert comparison.begin()
    shell.ring.broken = how == "the ring is broken"
    shell.machine.void = None if shell.ring.broken else "reset by peer"
    assert not comparison.finish(1.0)
    assert not shell.told


@pytest.mark.parametrize("large", [False, True])
def test_at_the_end_each_reads_its_own_state_and_asks_the_ring_nothing(large: bool) -> None:
    shell, comparison = member(1, ["abc", "abc", "abd"], large=large)
    assert comparison.begin()
    shell.ring.asked.clear()
    shell.ring.states = ["abc", "abx", "abd"]
    assert comparison.last() == fingerprints("abx")
    assert not shell.ring.asked.is_set()
    assert not comparison.finish(1.0), "what was begun comes to nothing"


def test_what_a_script_does_with_its_weights_after_the_last_step_of_its_data_is_its_own() -> None:
    shell, comparison = member(1, ["abc", "abc", "abc"])
    shell.machine.step = READ_EVERY
    comparison.read_last(passes=1)
    shell.ring.states = ["abc", "xyz", "abc"]
    assert comparison.last() == fingerprints("abc")
    shell.machine.step += 1  # there was more data
    assert comparison.last() == fingerprints("xyz")


@pytest.mark.parametrize("steps", [READ_EVERY - 1, READ_EVERY, 3 * READ_EVERY])
@pytest.mark.parametrize("came_in", range(1, 8))
def test_whoever_came_when_reads_at_the_same_ends_of_passes_as_all(steps: int, came_in: int) -> None:
    """Else the script's schedule, which takes a step after each pass, is in the state of one worker and not of another.
    The state at the ends of short passes is not read.
    """
    ends = range(steps, 8 * steps, steps)
    read = []
    for first in (1, came_in):
        shell, comparison = member(1, ["abc", "abc", "abc"])
        for passes, shell.machine.step in list(enumerate(ends, 1))[first - 1 :]:
            comparison.read_last(passes)
        read.append(comparison._last[0])
    assert read == [ends[-1] if steps >= READ_EVERY else 0] * 2


def test_a_large_state_is_read_until_its_next_update_and_not_beyond() -> None:
    shell, comparison = member(1, ["abc", "abc", "abc"], large=True)
    assert comparison.begin()
    comparison.before_update()
    shell.ring.states = ["abd", "abe", "abc"]
    comparison.before_update()  # of another optimizer
    assert comparison.finish(1.0)
    assert not shell.told


def test_where_no_update_comes_it_is_read_at_the_end() -> None:
    _, comparison = member(1, ["abc", "abc", "abc"], large=True)
    assert comparison.begin()
    assert comparison.finish(1.0)


def test_where_collectives_meet_by_name_the_question_does_not_wait_for_the_update() -> None:
    shell, comparison = member(1, ["abc", "abc", "abc"], large=True)
    shell.ring.pairs_by_name = True
    assert comparison.begin()
    assert shell.ring.asked.wait(10.0)
    shell.ring.asked.clear()
    comparison.before_update()
    assert comparison.finish(1.0)
    assert not shell.ring.asked.is_set()


def test_of_a_mini_batch_that_is_void_nothing_is_asked_in_the_next_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, comparison = member(1, ["abc", "abc", "abc"], large=True)
    shell.ring.pairs_by_name = True
    read, begun = threading.Event(), list[Future[Any]]()

    def reading() -> list[Fingerprint]:
        assert read.wait(10.0)
        return fingerprints("abc")

    def on_a_thread(act: Callable[[], Any]) -> Future[Any]:
        begun.append(background.begin(act))
        return begun[-1]

    monkeypatch.setattr(FakeFramework, "fingerprints_begun", lambda _, more: reading)
    monkeypatch.setattr("edl.trainer.divergence_check.background", SimpleNamespace(begin=on_a_thread))
    assert comparison.begin()
    shell.machine.void = "reset by peer"
    assert not comparison.finish(1.0)
    read.set()
    with pytest.raises(RingBroken):
        begun[0].result(10.0)
    assert not shell.ring.asked.is_set()


def test_what_a_script_has_changed_and_put_back_meanwhile_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, comparison = member(1, ["abc", "abc", "abc"], large=True)
    monkeypatch.setattr(FakeFramework, "misread", "xyz")
    assert comparison.begin()
    comparison.before_update()
    assert comparison.finish(1.0)
    assert not shell.told


def test_a_large_state_that_differs_still_does_at_the_end() -> None:
    shell, comparison = member(1, ["abc", "axc", "abc"], large=True)
    assert comparison.begin()
    comparison.before_update()
    shell.machine.step = 41
    with pytest.raises(Ended):
        comparison.finish(60.0)
    (told,) = shell.told
    assert (told.found.step, told.found.workers, told.found.first) == (40, ("w1",), "t1")


def test_a_ring_that_breaks_before_an_update_is_met_by_its_next_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, comparison = member(1, ["abc", "axc", "abc"], large=True)
    assert comparison.begin()

    def same(value: int) -> Callable[[], bool]:
        raise RingBroken("reset by peer")

    monkeypatch.setattr(shell.ring, "same", same)
    comparison.before_update()
    assert not comparison.finish(1.0)
    assert not shell.told


def test_a_part_that_was_computed_wrongly_is_known_also_where_its_worker_is_gone_before_all_know_its_name() -> None:
    shell, comparison = member(0, ["abc", "abc", "abc"])
    shell.ring.broken = True
    with pytest.raises(RingBroken):
        comparison.judge(ComputeVerdict(2, wrong=(1,), suspects=(), persists=False), 1.0)
    assert not shell.told
    assert comparison.corrupt_since == 41
