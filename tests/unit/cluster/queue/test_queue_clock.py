"""The time by which a queue is decided: it neither jumps nor goes back, whatever becomes of the clocks."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from queue_play import RULES, QueuePlay

from edl.cluster.policies.registry import build
from edl.cluster.queue.measured_speeds import UnknownSpeeds
from edl.cluster.queue.queue_entries import JobPhase, NodeReport, WorkerWish
from edl.cluster.queue.queue_ownership import RATE, SeenTime
from edl.cluster.queue.scheduler_inputs import NodeLeftOut, NodeReported, QueueTick
from edl.cluster.queue.scheduler_machine import SchedulerMachine

STEPS = st.lists(st.tuples(st.floats(0, 1e4), st.floats(-1e5, 1e5)), max_size=30)


@given(STEPS, st.floats(1, 100))
def test_it_goes_on_by_what_was_seen_whatever_the_wall_clock_is_set_to(
    steps: list[tuple[float, float]], longest_s: float
) -> None:
    time, wall, counted = SeenTime(), 1e9, 5.0
    before = time.advance(wall, counted, longest_s)
    for passed, is_set in steps:
        wall, counted = wall + passed + is_set, counted + passed
        now = time.advance(wall, counted, longest_s)
        seen = min(passed, longest_s)
        assert (1 - RATE) * seen - 1e-3 <= now - before <= (1 + RATE) * seen + 1e-3
        before = now


def test_it_is_the_wall_clocks_again_after_a_while() -> None:
    time = SeenTime()
    time.advance(1000.0, 0.0)
    for second in range(1, 700):
        time.advance(1060.0 + second, float(second))  # set forward by a minute
    assert math.isclose(time.now, 1060.0 + 699)


def _preempting() -> QueuePlay:
    play = QueuePlay(n=1)
    play.submit("low")
    play.look("low")
    play.submit("urgent", priority=9)
    play()
    assert play.job("low").phase is JobPhase.PREEMPTING
    return play


def test_a_clock_that_is_set_forward_kills_no_job_that_is_saved() -> None:
    play = _preempting()
    play.machine.handle([QueueTick()], play.now + 3600)
    assert play.workers("low")
    assert play.job("low").workers[0].wish is WorkerWish.RUN


def test_a_clock_that_is_set_back_holds_up_no_decision_and_no_end() -> None:
    play = _preempting()
    play.now -= 3600
    for _ in range(60):
        play()
    assert play.job("low").workers[0].wish is WorkerWish.DIE


def _successor(play: QueuePlay, now: float) -> SchedulerMachine:
    machine = SchedulerMachine(build("fifo"), UnknownSpeeds(), RULES, play.machine.jobs.values())
    machine.handle([QueueTick()], now)
    return machine


def test_a_scheduler_whose_clock_is_ahead_gives_who_is_saved_its_time() -> None:
    play = _preempting()
    machine = _successor(play, play.now + 3600)
    assert machine.jobs["low"].workers[0].wish is WorkerWish.RUN
    machine.handle([QueueTick()], play.now + 3600 + 29)
    machine.handle([QueueTick()], play.now + 3600 + 58)
    assert machine.jobs["low"].workers[0].wish is WorkerWish.DIE


def test_a_scheduler_whose_clock_is_behind_waits_no_longer() -> None:
    play = _preempting()
    machine = _successor(play, play.now - 3600)
    for second in range(1, 60):
        machine.handle([QueueTick()], play.now - 3600 + second)
    assert machine.jobs["low"].workers[0].wish is WorkerWish.DIE


def test_a_node_is_left_out_for_no_longer_because_the_clock_of_who_decided_it_was_ahead() -> None:
    machine = SchedulerMachine(build("fifo"), UnknownSpeeds(), RULES, [])
    machine.handle([NodeReported(NodeReport("n", (0,))), NodeLeftOut("n", 1e6 + 3600)], 1e6)
    assert (machine.left_out(1e6), machine.left_out(1e6 + RULES.sick_s + 1)) == (("n",), ())
