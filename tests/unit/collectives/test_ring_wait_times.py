"""How long nothing has moved in a ring, look by look."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edl.collectives.ring_port import Pulse, RingWaitTimes

RING = (3, 40)  # and its newest step
NEXT = (4, 40)


def waited(pulses: Sequence[Pulse | None], ring: tuple[int, int] = RING) -> float:
    """After a look each second."""
    patience, found = RingWaitTimes(), 0.0
    for at, pulse in enumerate(pulses):
        found = patience.look(ring, pulse, float(at))
    return found


TALKS = [Pulse(2, 7, turns, 100 * turns) for turns in range(6)]  # Horovod's threads do, and two tensors wait
SILENT = [Pulse(0, 7, 5, 100)] * 6  # its thread waits for a member's word, or is in an operation
MOVES = [Pulse(0, 7, 5, 100 * at) for at in range(6)]  # a large operation
IDLE = [Pulse(0, 7, turns, 100 * turns) for turns in range(6)]  # the script computes
STEPS = [Pulse(2, at, at, 100 * at) for at in range(6)]
COMES_BACK = [Pulse(6 - at, 7, at, 100 * at) for at in range(6)]
GROUP_WAITS = [Pulse(1, 7, None, 100)] * 6  # torch's groups have no thread that takes turns
GROUP_IDLE = [Pulse(0, 7, None, 0)] * 6
GROUP_MOVES = [Pulse(1, 7, None, 100 * at) for at in range(6)]
GROUP_STEPS = [Pulse(1, at, None, 100) for at in range(6)]


@pytest.mark.parametrize("pulses", [TALKS, SILENT, GROUP_WAITS])
def test_where_nothing_moves_that_is_waited_for_time_passes(pulses: list[Pulse]) -> None:
    assert waited(pulses) == 5.0


@pytest.mark.parametrize("pulses", [MOVES, IDLE, STEPS, COMES_BACK, GROUP_IDLE, GROUP_MOVES, GROUP_STEPS])
def test_where_something_moves_or_nothing_is_waited_for_none_passes(pulses: list[Pulse]) -> None:
    assert waited(pulses) == 0.0


def test_a_thread_that_takes_no_turn_for_a_moment_begins_no_new_time() -> None:
    """It was not given a core, say."""
    one, other = Pulse(2, 7, 1, 100), Pulse(2, 7, 2, 200)
    assert waited([one, one, other, other]) == 3.0


def test_what_is_not_known_is_no_wait() -> None:
    assert waited([*TALKS[:3], None, *TALKS[3:]]) == 2.0


def test_another_ring_has_its_own_time() -> None:
    patience = RingWaitTimes()
    for at, pulse in enumerate(TALKS):
        patience.look(RING, pulse, float(at))
    assert patience.look(NEXT, Pulse(2, 7, 6, 600), 6.0) == 0.0
    assert patience.look(NEXT, Pulse(2, 7, 7, 700), 8.0) == 2.0


def test_a_step_that_has_ended_is_movement() -> None:
    patience = RingWaitTimes()
    for at, pulse in enumerate(TALKS):
        patience.look(RING, pulse, float(at))
    assert patience.look((RING[0], RING[1] + 1), TALKS[-1], 9.0) == 0.0
