"""The view of a job, as plain values: one view for the page, the report and the terminal. Pure.

Owns: what is worth showing, in which words and how much of it. Does not own: its looks (`edl.dashboard.page_html`,
`edl.dashboard.terminal`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from edl.events import details_of
from edl.facts import counted, told
from edl.launch.status_poller import figures_of
from edl.protocol.record import OVER, Status, WorkerStatus
from edl.protocol.tally import Doing, Usage

WINDOW_S: Final = 10.0
SLOW: Final = 0.8  # of the median pace, as `edl.policy.stragglers` has it


class TimeShare(msgspec.Struct, frozen=True):
    """The parts of a worker's time, as fractions of 1."""

    compute: float
    data: float
    wait: float


class TimeShares:
    def __init__(self) -> None:
        self._seen: dict[str, deque[Usage]] = {}

    def take(self, status: Status) -> None:
        """Add the usage in a status. Workers that are no longer members are forgotten."""
        here = {worker.id: worker.usage for worker in status.workers if worker.usage is not None}
        self._seen = {worker: self._seen.get(worker, deque()) for worker in here}
        for worker, usage in here.items():
            seen = self._seen[worker]
            if seen and usage.at < seen[-1].at:  # another daemon reports for the worker
                seen.clear()
            if not seen or usage.at > seen[-1].at:
                seen.append(usage)
            while len(seen) > 2 and usage.at - seen[0].at > WINDOW_S:
                seen.popleft()

    def of(self, worker: str) -> TimeShare | None:
        """Return a worker's spending, or None if too few reports have come yet."""
        seen = self._seen.get(worker)
        if not seen or len(seen) < 2:
            return None
        first, last = seen[0], seen[-1]
        parts = [last.computed_s - first.computed_s, last.loaded_s - first.loaded_s, last.waited_s - first.waited_s]
        total = sum(parts)
        return None if total <= 0 else TimeShare(*(part / total for part in parts))


def verdict(worker: WorkerStatus, spending: TimeShare | None) -> str:
    """Say why a worker is slow; "" if it is not slow."""
    if worker.rank is None or worker.pace >= SLOW:
        return ""
    cause = "" if spending is None else ("loads samples" if spending.data > spending.compute else "computes")
    return f"slow: {worker.pace:.2f} of the median pace" + (f", as it {cause} for long" if cause else "")


ROWS: Final = 300  # events that a page shows, as `shipped/page.js` has it too
REPORT_ROWS: Final = 5000  # events in a report: about a megabyte
CHANGES: Final = 1000  # changes that are drawn
NONE: Final = "-"
LONGEST: Final = 400  # most characters of an event's words
FEW: Final = 64  # most workers that are shown one by one
CHANGES_OF_JOB: Final = frozenset(
    {"scaled", "migrated", "life_begun", "job_started", "job_finished", "job_preempted", "batch_asked", "scale_asked"}
)
ROUTINE: Final = frozenset(
    {"epoch_ended", "worker_warming", "switch_scheduled", "recount", "recounted", "recut", "checkpoint_begun"}
)


class ToldEvent(msgspec.Struct, frozen=True):
    """`number`: in the job's history, from 1."""

    number: int
    ts: float
    kind: str
    step: int
    generation: int
    words: str


class RingChange(msgspec.Struct, frozen=True):
    """The ring has another size, or other members."""

    ts: float
    size: int
    before: int
    pause_ms: float | None
    words: str


class Tile(msgspec.Struct, frozen=True):
    name: str
    value: str
    note: str = ""
    tone: str = ""  # "good", "warn" or "bad"


class WorkerRow(msgspec.Struct, frozen=True):
    worker: str
    rank: str
    host: str
    state: str
    step: int
    spending: TimeShare | None
    pace: str
    memory: str
    remark: str


class PageValues(msgspec.Struct, frozen=True):
    job: str
    state: str
    reason: str
    tiles: tuple[Tile, ...]
    rows: tuple[WorkerRow, ...]
    more_workers: int
    data: tuple[tuple[str, int], ...]  # parts of the epoch, in samples
    time: tuple[tuple[str, float], ...]  # how the job spent its time, in seconds
    over: bool


def event_of(number: int, flat: Mapping[str, Any]) -> ToldEvent:
    words = told(str(flat["kind"]), details_of(flat))
    return ToldEvent(
        number, float(flat["ts"]), str(flat["kind"]), int(flat["step"]), int(flat["generation"]), clipped(words)
    )


def clipped(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def change_of(flat: Mapping[str, Any]) -> RingChange | None:
    """Return the change of the ring that an event reports, or None."""
    if flat["kind"] != "scaled":
        return None
    size, before = int(flat["to"]), int(flat["from"])
    return RingChange(float(flat["ts"]), size, before, flat.get("pause_ms"), clipped(told("scaled", details_of(flat))))


def sizes_of(story: Sequence[Mapping[str, Any]], status: Status | None, now: float) -> tuple[list[float], list[int]]:
    """Return times and sizes of the job. Forming the first ring is no change, so its size is the size before the first
    change.
    """
    changes = [change for flat in story if (change := change_of(flat)) is not None][-CHANGES:]
    began = next((float(flat["ts"]) for flat in story), now)
    first = changes[0].before if changes else (status.size if status is not None else 0)
    at, sizes = [began, *(change.ts for change in changes)], [first, *(change.size for change in changes)]
    if now > at[-1]:
        at, sizes = [*at, now], [*sizes, sizes[-1]]
    return at, sizes


def view_of(status: Status, spendings: Mapping[str, TimeShare | None], now: float) -> PageValues:
    members = sorted(status.workers, key=lambda one: (one.rank is None, one.rank or 0))
    rows = tuple(row for one in members[:FEW] for row in _rows(one, spendings.get(one.id)))
    data = status.data
    parts = (
        () if data is None else (("trained", data.trained), ("leased", data.leased), ("unassigned", data.unassigned))
    )
    return PageValues(
        job=status.job,
        state=status.state.value,
        reason=clipped(status.reason),
        tiles=tuple(_tiles(status, now)),
        rows=rows,
        more_workers=max(0, len(members) - FEW),
        data=parts,
        time=_time(status),
        over=status.state in OVER,
    )


def _rows(one: WorkerStatus, spending: TimeShare | None) -> list[WorkerRow]:
    """Return the row of a worker, and one of each of its processes where it has several."""
    row = WorkerRow(
        worker=one.id,
        rank=NONE if one.rank is None else str(one.rank),
        host=one.host,
        state=one.state.value,
        step=one.step,
        spending=spending,
        pace="" if one.rank is None else f"{one.pace:.2f}",
        memory="" if one.usage is None or not one.usage.memory else sized(one.usage.memory),
        remark=verdict(one, spending),
    )
    processes = [
        WorkerRow(f"process {place} (pid {limb.pid})", "", "", limb.state, limb.step, None, "", "", "")
        for place, limb in enumerate(one.processes)
    ]
    return [row, *processes]


def _tiles(status: Status, now: float) -> list[Tile]:
    over = status.state in OVER
    asked = f"{status.target} asked for" if status.size != status.target and not over else ""
    epoch = f"epoch {status.epoch + 1}" + (f" of {status.spec.epochs}" if _ends(status) and status.spec else "")
    found = [
        Tile("workers", str(status.size), asked, "warn" if asked else ""),
        Tile("step", f"{status.base + status.step:,}", epoch),
    ]
    if status.rate is not None and not over:
        found.append(Tile("samples/s", f"{status.rate.samples_s:.4g}", f"{1000 * status.rate.step_s:.0f} ms a step"))
    found.append(Tile("time left", *_time_left(status)))
    good = _goodput(status)
    if good is not None:
        paused = f"paused {lasting(status.tally.pause_s)} in {counted(sum(status.tally.scalings.values()), 'change')}"
        found.append(
            Tile("goodput", f"{good:.1%}", paused, "good" if good >= 0.95 else "warn" if good >= 0.8 else "bad")
        )
    lost = sum(status.tally.lost.values())
    found.append(Tile("workers lost", str(lost), _causes(status.tally.lost), "warn" if lost else "good"))
    if status.saving is not None:
        found.append(_checkpoint(status, now))
    figures = _figures(status)
    found += [Tile(name, f"{value:.4g}", "mean of all workers") for name, value in figures.items()]
    if status.ruling:
        found.append(Tile("size by", status.autoscale.partition(":")[0] or "its policy", clipped(status.ruling)))
    return found


def _figures(status: Status) -> dict[str, float]:
    return dict(list(figures_of(status).items())[:4])


def _ends(status: Status) -> bool:
    return status.spec is not None and not status.spec.open_ended


def _time_left(status: Status) -> tuple[str, str]:
    if status.state in OVER:
        return "none", "the job is over"
    if status.left is None:
        return NONE, "not known" if status.spec is None or _ends(status) else "the script has no last epoch"
    if status.rate is None or status.rate.samples_s <= 0:
        return NONE, f"{counted(status.left, 'sample')} left"
    return lasting(status.left / status.rate.samples_s), f"{counted(status.left, 'sample')} left"


def _goodput(status: Status) -> float | None:
    good, bad = status.tally.good_s, sum(status.tally.bad_s.values())
    return good / (good + bad) if good + bad > 0 else None


def _causes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {cause.replace('_', ' ')}" for cause, count in counts.items())


def _checkpoint(status: Status, now: float) -> Tile:
    tally = status.tally
    if not tally.checkpointed_at:
        return Tile("checkpoint", "none yet", "none is durable", "warn")
    age = "" if status.state in OVER else "ago"
    note = f"after step {status.saving.step:,}" if status.saving is not None and status.saving.step else ""
    return Tile("checkpoint", f"{lasting(max(0.0, now - tally.checkpointed_at))} {age}".strip(), note)


def _time(status: Status) -> tuple[tuple[str, float], ...]:
    tally = status.tally
    parts = [(Doing.TRAINING.value, tally.good_s), *sorted(tally.bad_s.items())]
    return tuple((name, round(seconds, 3)) for name, seconds in parts if seconds > 0)


# -------------------------------------------------------------------------------------------------- words for numbers


def lasting(seconds: float) -> str:
    """Write a duration as people say it: 0.3 s, 42 s, 5 min, 3 h 20 min, 2 d 4 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def sized(count: int) -> str:
    """Write a number of bytes with its unit."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
