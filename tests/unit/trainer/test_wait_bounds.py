"""A trainer's clock: it gives up a ring in which it has waited for too long, and says where its script stands."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from edl.collectives.ring_port import Pulse
from edl.core.worker.worker_inputs import ScriptStands
from edl.core.worker.worker_states import TrainerState
from edl.protocol.leader_messages import GRADIENTS
from edl.trainer.ring_waits import RingWait
from edl.trainer.wait_bounds import RingWatch, place_of

TIMEOUT_S = 8.0
BOOT_S = 300.0


class Ring:
    """Of two members, in which nothing moves."""

    def __init__(self, size: int = 2) -> None:
        self.place = SimpleNamespace(generation=3, size=size)

    def pulse(self) -> Pulse:
        return Pulse(1, 1, None, 100)

    def awaits(self) -> str:
        return GRADIENTS


class Shell:
    """A trainer's, whose training thread is this one."""

    def __init__(self, *, step: int = 19, generation: int = 3) -> None:
        self.machine = SimpleNamespace(
            generation=generation, step=step, state=TrainerState.TRAINING, assignment=None, failure=""
        )
        self.step_timeout_s = TIMEOUT_S
        self.thread = threading.get_ident()
        self.waits: Any = SimpleNamespace(newest=RingWait(), give_up=self.give_up)
        self.given_up: list[RingWait] = []
        self.said: list[ScriptStands] = []

    def hear(self, happened: ScriptStands) -> None:
        self.said.append(happened)

    def give_up(self, wait: RingWait) -> None:
        self.waits.newest = wait
        self.given_up.append(wait)


def watched(shell: Any, ring: Any, until_s: float) -> list[RingWait]:
    """After looks each half second."""
    watch = RingWatch(shell)
    for half in range(int(2 * until_s) + 1):
        watch.look_at_ring(ring, half / 2)
    return list(shell.given_up)


def test_a_wait_ends_after_one_step_time_out_and_once() -> None:
    assert watched(Shell(), Ring(), TIMEOUT_S - 0.5) == []
    assert watched(Shell(), Ring(), 3 * TIMEOUT_S) == [RingWait(3, GRADIENTS, TIMEOUT_S)]


def test_what_is_waited_for_is_known_before_that() -> None:
    """Another member may give the ring up first."""
    shell = Shell()
    watched(shell, Ring(), 1.0)
    assert shell.waits.newest == RingWait(3, GRADIENTS)
    assert shell.waits.newest.told == ""


def test_before_the_first_step_of_a_job_a_wait_may_take_as_long_as_a_boot() -> None:
    assert watched(Shell(step=0), Ring(), BOOT_S - 0.5) == []
    assert len(watched(Shell(step=0), Ring(), BOOT_S)) == 1


def test_a_ring_of_one_waits_for_no_member() -> None:
    assert watched(Shell(), Ring(size=1), 3 * TIMEOUT_S) == []


@pytest.mark.parametrize(("generation", "gives_up"), [(0, False), (2, True)])
def test_a_newcomer_waits_for_survivors_in_a_prepared_ring_until_that_is_given_up(
    generation: int, gives_up: bool
) -> None:
    shell = Shell(generation=generation)
    shell.machine.assignment = SimpleNamespace(prepared=True)
    assert bool(watched(shell, Ring(), 3 * TIMEOUT_S)) is gives_up


def test_a_script_that_stands_still_is_told_of_after_half_of_its_time() -> None:
    shell: Any = Shell()
    watch = RingWatch(shell)
    watch.look_at_script(100.0)
    watch.look_at_script(100.0 + TIMEOUT_S / 2 - 0.1)
    assert shell.said == []
    watch.look_at_script(100.0 + TIMEOUT_S / 2)
    (standing,) = shell.said
    assert standing.whereabouts.step == 20
    assert "test_wait_bounds.py" in standing.whereabouts.place


def test_before_the_first_step_what_is_waited_for_in_vain_is_told_after_one_step_time_out() -> None:
    """The leader then compares what all members wait for."""
    shell: Any = Shell(step=0)
    watch = RingWatch(shell)
    for half in range(int(2 * TIMEOUT_S) + 2):
        watch.look_at_ring(Ring(), half / 2)  # type: ignore[arg-type]
        watch.look_at_script(half / 2)
    assert shell.given_up == []
    said = [(one.whereabouts.generation, one.whereabouts.awaits, one.whereabouts.in_vain) for one in shell.said]
    assert said[0] == (3, GRADIENTS, False) and said[-1] == (3, GRADIENTS, True)


def test_a_wait_that_was_told_of_is_told_to_be_over_before_another_one_counts() -> None:
    """Else the leader takes it for one that goes on, beside the next wait of the others."""
    shell: Any = Shell(step=0)
    watch, ring = RingWatch(shell), Ring()
    end = 2 * int(TIMEOUT_S)
    for at in range(end + 1):
        watch.look_at_ring(ring, at)  # type: ignore[arg-type]
        watch.look_at_script(at)
    assert shell.said[-1].whereabouts.in_vain
    ring.pulse = lambda: Pulse(0, 1, None, 100)  # type: ignore[method-assign]
    for later in (0.3, 0.6):
        watch.look_at_ring(ring, end + later)  # type: ignore[arg-type]
        watch.look_at_script(end + later)
    last = shell.said[-1].whereabouts
    assert (last.awaits, last.in_vain) == ("", False)


def test_a_script_that_has_failed_stands_where_it_did_so() -> None:
    shell: Any = Shell()
    shell.machine.failure = "an error"
    watch = RingWatch(shell)
    watch.look_at_script(100.0)
    watch.look_at_script(100.0 + TIMEOUT_S)
    assert shell.said == []


def test_each_step_has_its_own_time() -> None:
    shell: Any = Shell()
    watch = RingWatch(shell)
    for at in range(10):
        shell.machine.step += 1
        watch.look_at_script(TIMEOUT_S / 4 * at)
    assert shell.said == []


def test_the_place_is_the_scripts_line_wherever_that_has_called_a_library() -> None:
    begun, over = threading.Event(), threading.Event()

    def stands() -> None:
        begun.set()
        over.wait()

    line = stands.__code__.co_firstlineno + 2

    thread = threading.Thread(target=stands)
    thread.start()
    begun.wait()
    try:
        while (frame := sys._current_frames()[thread.ident or 0]).f_code.co_name != "wait":
            pass
        place = place_of(frame)
    finally:
        over.set()
        thread.join()
    assert place.startswith(f"test_wait_bounds.py:{line} (") and place.endswith("stands)")
