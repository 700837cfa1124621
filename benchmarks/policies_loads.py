"""Jobs that come faster and faster, as in arXiv 2006.13878: drawn by a seed, with step times that Pollux measured.

A job is so many samples. Its batch may be any in its range, and a sample counts the same in each of them: so the paper
has it. A load of 1 is as much work as all devices can just do, if each job has one of them, and the smallest batch of
its range.

Owns: which jobs come when. Does not own: who decides of them, nor what is made of the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from edl.simulator.courses.course import BatchSpan
from edl.simulator.courses.epochs import Epochs, Validation
from edl.simulator.trace import Trace, TraceJob
from edl.simulator.traces.pollux import read_application

MODELS: Final = ("bert", "cifar10", "deepspeech2", "imagenet", "yolov3")
NODES: Final = (10, 4)
WINDOW_S: Final = 8 * 3600.0  # in which jobs come
MOST_WORKERS: Final = 16  # of a job
LENGTHS_S: Final = tuple(np.geomspace(600, 14_400, 9).tolist())  # with one device and the smallest batch
Ranges = Literal[
    "validated", "wide"
]  # from the smallest batch that a model was trained with to its end, or that was timed
Asked = Literal["smallest", "drawn", "largest"]


class Arrivals(msgspec.Struct, frozen=True):
    """The same load and seed are the same jobs at the same times. `asked`: which batches their owners asked for."""

    load: float
    ranges: Ranges
    asked: Asked
    seed: int = 0


def read_models(applications: Path) -> dict[str, Epochs]:
    """Raises ConfigError."""
    return {name: read_application(applications / name).course for name in MODELS if (applications / name).is_dir()}


def drawn(arrivals: Arrivals, models: dict[str, Epochs]) -> Trace:
    """Jobs come in a Poisson process; models and lengths are drawn evenly, batches evenly in their logarithm."""
    source = np.random.default_rng([arrivals.seed, round(1000 * arrivals.load)])
    names = sorted(models)
    courses: dict[tuple[str, float], Epochs] = {}
    jobs = []
    for at, when in enumerate(_times(source, arrivals.load)):
        key = str(source.choice(names)), float(source.choice(LENGTHS_S))
        share = {"smallest": 0.0, "drawn": float(source.random()), "largest": 1.0}[arrivals.asked]
        if key not in courses:
            courses[key] = of_samples(models[key[0]], key[1], arrivals.ranges)
        span = _span(courses[key])
        batch = round(span.smallest * (span.largest / span.smallest) ** share)
        jobs.append(TraceJob(f"{key[0]}-{at}", when, 1, courses[key], largest=MOST_WORKERS, batch=batch, row=at + 2))
    return Trace(f"load {arrivals.load:g}", tuple(jobs), NODES[1])


def of_samples(model: Epochs, length_s: float, ranges: Ranges) -> Epochs:
    """As much as one device does in that time with the smallest batch; each sample counts the same."""
    span = _span(model)
    if ranges == "wide":
        span = msgspec.structs.replace(span, own=span.smallest_pass, smallest=span.smallest_pass)
    work = length_s / model.step((1,), span.own).seconds  # steps of the smallest batch
    even = Validation(np.array([work]), sqr=np.array([0.0]), var=np.array([1.0]))
    return Epochs(model.timing, {span.smallest: even, span.largest: even}, span)


def _span(course: Epochs) -> BatchSpan:
    assert course.span is not None
    return course.span


def _times(source: np.random.Generator, load: float) -> Iterator[float]:
    between_s = float(np.mean(LENGTHS_S)) / (load * NODES[0] * NODES[1])
    now = float(source.exponential(between_s))
    while now < WINDOW_S:
        yield now
        now += float(source.exponential(between_s))
