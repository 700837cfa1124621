"""How jobs progress, against what one would work out step by step."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import conditions, job, run, trace
from small_traces import APPLICATIONS, POLLUX

from edl.cluster.views import Aim, Provenance
from edl.simulator.course import BatchSpan, Epochs, rotated
from edl.simulator.simulated_cluster import ClusterSimulation
from edl.simulator.simulated_fitting import Fitted
from edl.simulator.trace import TraceJob, TrueSpeed
from edl.simulator.trace_files import read_application, read_trace

VISION = read_application(APPLICATIONS / "vision").course
YOLO = read_application(APPLICATIONS / "yolov3").course


def span_of(course: Epochs) -> BatchSpan:
    assert course.span is not None
    return course.span


def stepwise(course: Epochs, done: float, batch: int, steps: float) -> float:
    """Epoch by epoch, as their simulator goes: what a step is worth changes at each end of one."""
    ends = [end for end in course._ends if end > done]
    while ends and steps > 0:
        noise = course.noise(done, batch)
        assert noise is not None
        scale = batch / span_of(course).own
        gain = (noise.var + noise.sqr) / (noise.var / scale + noise.sqr)
        taken = min(steps, (ends[0] - done) / gain)
        steps -= taken
        if taken * gain < ends[0] - done - 1e-6:
            return done + taken * gain
        done = ends.pop(0)
    return done


@given(share=st.floats(0, 1), batch=st.integers(128, 4096), steps=st.floats(0, 30_000))
@settings(deadline=None)
def test_many_epochs_at_once_are_the_same_as_one_after_the_other(share: float, batch: int, steps: float) -> None:
    done = share * VISION.total
    after = VISION.done(VISION.steps(done, batch) + steps, batch)
    assert after == pytest.approx(stepwise(VISION, done, batch, steps), rel=1e-6, abs=1e-3)


@given(share=st.floats(0, 1), batch=st.integers(128, 4096))
@settings(deadline=None)
def test_steps_and_work_are_inverse(share: float, batch: int) -> None:
    done = share * VISION.total
    assert VISION.done(VISION.steps(done, batch), batch) == pytest.approx(done)


def test_a_measured_placement_is_linear_between_its_batches() -> None:
    # placements.csv of vision: 1,32 takes 0.039551 s, 1,128 takes 0.062017 s
    steps = VISION.timing.times((1,), np.array([32.0, 80.0, 128.0]))[0]
    assert steps[0] == pytest.approx(0.039551)
    assert steps[1] == pytest.approx((steps[0] + steps[2]) / 2)


def test_a_ring_looks_the_same_from_each_of_its_nodes() -> None:
    assert rotated((3, 1, 2)) == rotated((1, 2, 3)) == (1, 2, 3) != rotated((3, 2, 1))
    assert VISION.step((4, 2), 1024) == VISION.step((2, 4), 1024)


def test_the_batch_is_shared_out_and_made_in_passes_that_fit() -> None:
    step = VISION.step((4, 2), 2048)
    assert (step.batch, step.pass_batch) == (6 * 342, 342)
    step = YOLO.step((4,), 64)  # eight samples of a worker at a time, and sixteen for each
    assert (step.batch, step.pass_batch) == (64, 8)
    assert step.seconds == pytest.approx(2 * step.pass_s - step.sync_s)
    assert VISION.step((1,), 256).pass_batch == 128  # one worker measures noise between two passes
    assert VISION.step((1,), 128).pass_batch == 128


@pytest.mark.parametrize("course", [VISION, YOLO])
def test_the_best_batch_is_better_than_any_other_that_is_tried(course: Epochs) -> None:
    best = course.rates(0.3 * course.total, 16, 4, Aim.PROGRESS, 0)
    for batch in sorted({span_of(course).own, 512, span_of(course).largest}):
        fixed = course.rates(0.3 * course.total, 16, 4, Aim.GIVEN, batch)
        assert np.all(best.progress >= fixed.progress * 0.97)  # it tries fifty
    assert set(best.provenance) == {Provenance.ORACLE}
    assert np.all((best.batch >= span_of(course).own) & (best.batch <= span_of(course).largest))


@pytest.mark.parametrize("course", [VISION, YOLO])
def test_the_batch_with_most_samples_in_a_second_may_make_less_progress(course: Epochs) -> None:
    best, fastest = (course.rates(0.0, 16, 4, aim, 0) for aim in (Aim.PROGRESS, Aim.THROUGHPUT))
    assert np.all(fastest.throughput >= best.throughput) and np.any(fastest.throughput > 1.05 * best.throughput)
    assert np.all(fastest.progress <= best.progress) and np.any(fastest.progress < 0.95 * best.progress)
    for batch in (span_of(course).own, 512, span_of(course).largest):
        assert np.all(fastest.throughput >= course.rates(0.0, 16, 4, Aim.GIVEN, batch).throughput * 0.97)


def test_true_speed_is_the_pace_at_which_a_job_then_runs() -> None:
    one = next(job for job in read_trace(POLLUX).jobs if job.name == "vision-0")
    rates = TrueSpeed(one.course, 0.0, one.batch).rates(8, 4, Aim.GIVEN)
    alone = trace(TraceJob("a", 0, 6, one.course, largest=6, batch=one.batch))
    outcome = run(alone, "fifo", conditions(2, 4))
    begun = one.course.step((4, 2), one.batch)
    assert 1 / begun.seconds * (one.course.done(1, begun.batch)) == pytest.approx(rates.progress[5], rel=1e-3)
    assert outcome.jobs[0].finished == pytest.approx(one.course.steps(one.course.total, begun.batch) * begun.seconds)


# -------------------------------------------------------------------------------------------- fitted to what is heard


def test_an_analyzer_hears_what_a_simulated_job_would_measure_and_no_more() -> None:
    heard = []

    class Listening(Fitted):
        def hear(self, one) -> None:
            heard.append((one.at, one.trained))
            super().hear(one)

    one = next(job for job in read_trace(POLLUX).jobs if job.name == "vision-0")
    alone = trace(TraceJob("a", 0, 6, one.course, largest=16, batch=one.batch))
    speeds = Listening()
    rates = {}

    class Looking:
        def decide(self, cluster, now):
            from edl.cluster.views import Allotment, ClusterDecision

            if cluster.jobs:
                rates[now] = cluster.jobs[0].speed.rates(8, 4, Aim.GIVEN)
            return ClusterDecision({job.name: Allotment(6) for job in cluster.jobs}, look_again=now + 50)

    ClusterSimulation(alone, Looking(), speeds, conditions(2, 4, 60.0)).run()
    assert rates[0].provenance[0] is Provenance.GUESSED
    assert rates[50].provenance[0] is Provenance.GUESSED  # it has not made a step yet
    assert rates[100].provenance[5] is Provenance.MEASURED
    truth = one.course.rates(0.0, 8, 4, Aim.GIVEN, one.batch)
    assert rates[150].throughput[5] == pytest.approx(truth.throughput[5], rel=0.1)
    assert heard[0] == (50.0, False) and heard[1] == (100.0, True)


# ----------------------------------------------------------------------------------------------------- a large trace


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", ["fifo", "tiresias", "elastic-tiresias"])
def test_ten_thousand_jobs_take_a_minute_of_processor_time(policy: str) -> None:
    import time

    source = random.Random(0)
    jobs, now = [], 0.0
    for at in range(10_000):
        now += source.expovariate(1 / 95)
        size = source.choice([1, 1, 1, 2, 2, 4, 8])
        work = min(172_800.0, max(30.0, source.lognormvariate(7.5, 1.4)))
        speedup = {workers: workers**0.8 / size**0.8 for workers in (1, 2, 4, 8, 16)}
        jobs.append(job(f"j{at}", now, size, work, speedup=speedup))
    begun = time.process_time()
    outcome = run(trace(*jobs), policy, conditions(32, 8, 30.0))
    assert all(one.finished is not None for one in outcome.jobs)
    assert time.process_time() - begun < 60
