"""A trace: the jobs of a cluster, in the order in which they were submitted, and what a change of one costs."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from edl.cluster.views import Aim, Rates
from edl.errors import ConfigError
from edl.simulator.course import Course

LONGEST_S: Final = 86_400.0


class ChangeCost(msgspec.Struct, frozen=True):
    """The cost of a change. `begin_s` is the boot of a job's first workers. `resume_s` is the time in which a preempted
    job resumes from its checkpoint. During `boot_s` newcomers boot while the others train at their old pace; then all
    of them pause for `pause_s`.
    """

    begin_s: float
    resume_s: float
    boot_s: float
    pause_s: float

    def of(self, had: float, has: float, *, began: bool) -> float:
        """Return the seconds of training that the job loses, at its pace `has` after the change. Its pace before was
        `had`; 0 means no workers. `began` means that the job has trained before.
        """
        if not had:
            return self.resume_s if began else self.begin_s
        return self.pause_s + self.boot_s * max(0.0, 1 - had / has)


# Measured as a worker of a real job boots on another host while three train: docs/benchmarks.md, "gamma boots
# again". The first workers of a job, and of a resumed one, boot as long.
MEASURED: Final = ChangeCost(begin_s=9.0, resume_s=9.0, boot_s=9.0, pause_s=0.171)


def uniform(seconds: float) -> ChangeCost:
    """Return the cost of a job that is stopped and started anew for each change."""
    return ChangeCost(seconds, seconds, 0.0, seconds)


def read_cost(text: str) -> ChangeCost:
    """Parse `30`, `30s`, `measured`, or a file that `edl events JOB --json` has written. Raises ConfigError."""
    if text == "measured":
        return MEASURED
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        return _of_events(Path(text))
    if not 0 <= seconds <= LONGEST_S:
        raise ConfigError(f"--change-cost {text}: must be 0 to {LONGEST_S:.0f} seconds")
    return uniform(seconds)


def _of_events(path: Path) -> ChangeCost:
    """Return the median cost of the changes in a job's events."""
    if not path.is_file():
        raise ConfigError(
            f"--change-cost {path}: must be seconds, measured, or a file with the output of `edl events --json`"
        )
    pauses, boots = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            event = msgspec.json.decode(line, type=dict[str, object])
        except msgspec.DecodeError:
            raise ConfigError(
                f"--change-cost {path} row {number}: is no event; write it by `edl events --json`"
            ) from None
        pauses += _milliseconds(event, "scaled", "pause_ms")
        boots += _milliseconds(event, "worker_ready", "joining_ms", "warming_ms")
    if not pauses or not boots:
        raise ConfigError(f"--change-cost {path}: the job has not grown; scale it out and write its events again")
    boot_s = median(boots) / 1000
    return ChangeCost(boot_s, boot_s, boot_s, max(0.0, median(pauses) / 1000))


def _milliseconds(event: dict[str, object], kind: str, *fields: str) -> list[float]:
    found = [event.get(field) for field in fields]
    if event.get("kind") != kind or not all(isinstance(value, int | float) for value in found):
        return []
    return [float(sum(value for value in found if isinstance(value, int | float)))]


class TraceJob(msgspec.Struct, frozen=True):
    """Times are seconds of the trace's own clock."""

    name: str
    submitted: float
    request: int  # workers that the job's owner asked for
    course: Course
    smallest: int = 1
    largest: int = 1
    batch: int = 0  # batch that the job's owner asked for; 0: the course's own
    user: str = ""
    priority: int = 0
    deadline: float | None = None
    cost: ChangeCost | None = None  # measured cost of the job's changes; None: the cost for all jobs
    row: int = 0  # row of the trace's file, for error messages


class Trace(msgspec.Struct, frozen=True):
    name: str
    jobs: tuple[TraceJob, ...]
    node_size: int | None = None  # most devices on a node that were measured


class TrueSpeed:
    def __init__(self, course: Course, done: float, batch: int) -> None:
        self._course, self._done, self._batch = course, done, batch

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:
        return self._course.rates(self._done, most, devices, aim, self._batch)
