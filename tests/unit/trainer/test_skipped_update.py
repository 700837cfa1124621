"""Mini-batches that a script ends without an update: which are noticed, and what the others' answers lead to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from edl.core.worker.next_move import NEVER
from edl.errors import RingBroken, UsageError
from edl.trainer.updates_due import UpdatesDue
from edl.trainer.void_batches import SKIPPED, UpdateCheck

LONG_S = 1000.0


def missed(made: dict[int, set[int]], until: int, *, alike: bool = True) -> list[tuple[int, tuple[int, ...]]]:
    """In which mini-batches of a ring updates are missing, by optimizer, where these are made."""
    due, found = UpdatesDue(), []
    for optimizer in made:
        due.expect(optimizer)
    for step in range(1, until + 1):
        for optimizer, steps in made.items():
            if step in steps:
                due.note(optimizer, step)
                due.note(optimizer, step)
        missing = due.missing(step)
        assert (due.soonest <= step) is bool(missing)
        if missing:
            found.append((step, missing))
            due.skip(step)
    return found


USUAL = set(range(1, 20))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({0: USUAL - {12}}, [(12, (0,))]),
        ({0: USUAL - {9}}, [(9, (0,))]),
        ({0: USUAL - {8}}, []),
        ({0: USUAL - {1}}, []),
        ({0: USUAL - {12, 15}}, [(12, (0,))]),
        ({0: set(range(1, 20, 2))}, []),
        ({0: {4, 8, 12, 16}}, []),
        ({0: USUAL, 1: {5, 10, 15}}, []),
        ({0: USUAL, 1: USUAL - {12}}, [(12, (1,))]),
        ({0: USUAL - {12}, 1: USUAL - {12}}, [(12, (0, 1))]),
        ({}, []),
    ],
    ids=[
        *("one", "after eight", "before", "the first one is late", "once it is irregular", "each second"),
        *("each fourth", "of those none", "of two", "both", "nothing known"),
    ],
)
def test_an_update_is_due_in_each_mini_batch_once_eight_in_a_row_had_one(
    made: dict[int, set[int]], expected: list[tuple[int, tuple[int, ...]]]
) -> None:
    assert missed(made, 19) == expected


def test_in_another_ring_all_begins_anew_but_what_comes_again() -> None:
    due = UpdatesDue()
    due.expect(0)
    for step in range(1, 9):
        due.note(0, step)
    assert due.soonest == 9
    due.begin_ring()
    assert due.missing(9) == ()
    due.note(0, 9)
    assert due.soonest == NEVER, "a newcomer knows of none before"
    due.begin_ring((0,), 10)
    assert due.missing(10) == (0,)
    due.note(0, 10)
    assert due.soonest == NEVER


def test_an_update_after_the_last_step_is_counted_once_for_each_optimizer() -> None:
    due = UpdatesDue()
    for step in (3, 4, 4):
        due.note(0, step)
    due.note(1, 3)
    assert [due.made_after(step) for step in (2, 3, 4)] == [2, 1, 0]


class Ring:
    """Whose members all answer, or none: then it is cut."""

    def __init__(self, answer: bool | None) -> None:
        self.answer, self.cut, self.cuts = answer, threading.Event(), list[range]()

    def same(self, value: int) -> Callable[[], bool]:
        return self._wait

    def _wait(self) -> bool:
        if self.answer is None:
            self.cut.wait()
            raise RingBroken("it was aborted")
        return self.answer

    def abort(self, given_up: range) -> None:
        self.cuts.append(given_up)
        self.cut.set()


def check(answer: bool | None, step: int = 7, size: int = 2) -> tuple[UpdateCheck, Any, UpdatesDue, Ring]:
    """Of a worker whose updates are regular, which ends `step` without one."""
    ring, due = Ring(answer), UpdatesDue()
    machine: Any = SimpleNamespace(generation=3, size=size, step=1, void=None)
    framework: Any = SimpleNamespace(ring=ring, updates_due=due)
    due.expect(0)
    one = UpdateCheck(framework, machine)
    one.begin_step()
    machine.step = step - 1
    for made in range(step - 8, step):
        due.note(0, made)
    return one, machine, due, ring


@pytest.mark.parametrize("answer", [None, False], ids=["they wait for gradients", "they leave out another one"])
def test_what_one_worker_alone_leaves_out_is_void_in_a_ring_that_is_cut_and_refused_the_next_time(
    answer: bool | None,
) -> None:
    one, machine, due, ring = check(answer)
    said = one.ask(0.04)
    assert isinstance(said, RingBroken) and str(said) == SKIPPED
    assert range(3, 4) in ring.cuts
    machine.generation = 4
    one.begin_step()
    assert due.missing(7)
    with pytest.raises(UsageError, match="step 7 is void again"):
        one.ask(0.04)


def test_another_one_may_be_void_as_well() -> None:
    one, machine, _, _ = check(None)
    assert one.ask(0.04) is not None
    machine.step += 1
    assert one.ask(0.04) is not None


def test_what_all_leave_out_is_none() -> None:
    one, _, due, ring = check(True)
    assert one.ask(LONG_S) is None
    assert due.soonest == NEVER and ring.cuts == []


@pytest.mark.parametrize("how", ["alone", "void", "a newcomer", "made"])
def test_nobody_is_asked_where_none_is_missing_or_no_other_worker_is_there(how: str) -> None:
    one, machine, due, ring = check(None, size=1 if how == "alone" else 2)
    machine.void = "a peer is gone" if how == "void" else None
    machine.generation = 0 if how == "a newcomer" else 3
    if how == "made":
        due.note(0, 7)
    assert one.is_missing is (how == "alone")
    assert how != "alone" or one.ask(LONG_S) is None
    assert ring.cuts == []


def test_a_backward_that_an_exception_has_ended_is_void_at_once() -> None:
    """Whatever updates are due: the others have a part of its gradients, and wait for the rest."""
    one, machine, due, ring = check(True)
    due.note(0, 7)
    due.in_backward = True
    assert one.is_missing
    assert str(one.ask(LONG_S)) == SKIPPED
    assert ring.cuts == [range(3, 4)]
    machine.size = 1
    assert one.ask(LONG_S) is None
    assert not one.is_missing, "alone it has only to drop its gradients"


def test_how_long_is_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Timer:
        def __init__(self, patience_s: float, act: Callable[..., None], args: list[Any]) -> None:
            self._patience_s, self._act, self._args = patience_s, act, args

        def start(self) -> None:
            waits.append(self._patience_s)
            self._act(*self._args)

        def cancel(self) -> None: ...

    monkeypatch.setattr(threading, "Timer", Timer)
    one, machine, due, ring = check(None)
    one.ask(60.0)
    with pytest.raises(UsageError):
        one.ask(60.0)
    machine.step += 1
    ring.answer = True
    one.ask(60.0)
    due.note(0, 9)
    machine.step = 9
    ring.answer = None
    one.ask(60.0)
    assert waits == [2.0, 15.0, 2.0, 15.0], "once all workers have left one out, they may again"
    one, *_ = check(None)
    one.ask(4.0)
    assert waits.pop() == 1.0
