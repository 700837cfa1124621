"""A job's curves for a tool that draws values over steps: the rows, and from which step earlier rows are void. Pure.

A job may have a line of `edl run` on each of many machines, and each has all events on record. An event is exported by
the line of the machine that the leader was on. That is known from the events alone, so all lines agree.

Owns: that no step comes twice, even if a job resumes from a checkpoint and trains steps again; and that, of several
`edl run` lines of one job, only the line on rank 0's machine writes. Does not own: points (`edl.launch.status_poller`),
nor a tool's files (`edl.exports.tensorboard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from edl.events import Kind
from edl.launch.status_poller import Point


class Numbered(msgspec.Struct, frozen=True):
    """An event, and its place in the job's history, counted from 1."""

    number: int
    flat: dict[str, Any]


class Teller:
    """Choose the events that one machine exports."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._hosts: dict[str, str] = {}  # by worker
        self._leader = ""
        self._held: list[Numbered] = []  # held back while the leader's host is unknown
        self.count = 0

    def take(self, events: Iterable[dict[str, Any]]) -> list[Numbered]:
        """Return the events that this machine exports, as far as the leader's host is known by now."""
        found: list[Numbered] = []
        for flat in events:
            self.count += 1
            if flat["kind"] == Kind.LEADER_ELECTED.value:
                self._leader = flat["worker"]
            elif flat["kind"] == Kind.WORKER_JOINING.value:
                self._hosts[flat["worker"]] = flat["host"]
            self._held.append(Numbered(self.count, flat))
            where = self._hosts.get(self._leader)
            if where is not None:
                found += self._held if where == self._host else []
                self._held = []
        return found

    def rest(self) -> list[Numbered]:
        """Return the events held back until the end: no other line can export them."""
        held, self._held = self._held, []
        return held


WORKERS: Final = "job/workers"
SAMPLES: Final = "job/samples_per_second"
STEPS: Final = "job/steps_per_second"


class StepRow(msgspec.Struct, frozen=True):
    """`values`: those known. `step` is counted over all lives of the job."""

    step: int
    ts: float
    values: dict[str, float]


class Anew(msgspec.Struct, frozen=True):
    """A mark that voids all rows of `step` and later steps that were written before: they come again, or never were."""

    step: int
    ts: float


class AnotherLife(msgspec.Struct, frozen=True):
    """The job has been resumed after `step`."""

    step: int
    ts: float


Item = StepRow | Anew


class Curves:
    """The curves of one job, as the `edl run` line of one machine writes them."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._rows: list[StepRow] = []  # written, and still counting
        self._before: Point | None = None  # of this life
        self._base = -1  # the step after which this life began
        self._writing = False  # the newest point was ours

    def take(self, points: Iterable[Point], lives: Iterable[AnotherLife] = ()) -> list[Item]:
        """Return the items to write for these points and lives, in order."""
        found: list[Item] = []
        both: list[Point | AnotherLife] = [*points, *lives]
        for one in sorted(both, key=lambda item: item.ts):
            found += self._live(one.step, one.ts) if isinstance(one, AnotherLife) else self._point(one)
        return found

    def _live(self, base: int, ts: float) -> list[Item]:
        """Begin another life of the job, which was resumed after step `base`.

        TensorBoard's fast loader takes rows back only when the same curve has an earlier step. So the last valid row is
        written again in its own place.
        """
        self._base, self._before = base, None
        written, self._rows = self._rows, [row for row in self._rows if row.step <= base]
        if not (written and self._writing):
            return []
        if not self._rows:
            return [Anew(base + 1, ts)]
        last = self._rows[-1]
        return [Anew(last.step, ts), last]

    def _point(self, point: Point) -> list[Item]:
        found = [] if point.base == self._base else self._live(point.base, point.ts)
        before, self._before = self._before, point
        ours = point.host in {"", self._host}
        begins, self._writing = ours and not self._writing, ours
        if before is not None and point.step <= before.step:  # it stands: no step comes twice
            self._before = before
            self._writing = self._writing and not begins
            return found
        if not ours:
            return found
        row = StepRow(point.step, point.ts, {WORKERS: float(point.size), **_rates(before, point), **point.figures})
        self._rows.append(row)
        if begins:  # rank 0 moves with a ring: in the first one of a life no other worker can have written before
            of_this_life = point.generation > 1 or before is not None
            found.append(Anew(point.step if of_this_life else point.base + 1, point.ts))
        return [*found, row]


def _rates(before: Point | None, point: Point) -> dict[str, float]:
    if before is None or point.ts <= before.ts or point.samples < before.samples:
        return {}
    span_s = point.ts - before.ts
    return {SAMPLES: (point.samples - before.samples) / span_s, STEPS: (point.step - before.step) / span_s}


def lives_of(story: Iterable[Mapping[str, Any]]) -> list[AnotherLife]:
    return [AnotherLife(int(flat["from_step"]), flat["ts"]) for flat in story if flat["kind"] == Kind.LIFE_BEGUN.value]
