"""A user's own CSV: when each job came, with how many workers, and how long it takes with them.

Columns submitted, workers and duration are required; name, min_workers, max_workers, speedup, batch, deadline, user and
priority are optional. `speedup` gives the relative speed of a job with other numbers of workers, as `1:1 2:1.9 4:3.4`;
the speed of one worker need not be 1. Without it a job runs only with the workers that it asks for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edl.simulator.courses.course import Iterations
from edl.simulator.trace import Trace, TraceJob
from edl.simulator.traces.trace_rows import TraceRow, rows

COLUMNS: Final = ("submitted", "workers", "duration")


def read_plain(path: Path) -> Trace:
    """Read a trace. Raises ConfigError."""
    return Trace(path.stem, tuple(_job(row) for row in rows(path, COLUMNS)))


def _job(row: TraceRow) -> TraceJob:
    request, submitted = row.count("workers"), row.number_in("submitted")
    rates = _speedup(row, request)
    smallest = row.count("min_workers") if row.has("min_workers") else min(rates)
    largest = row.count("max_workers") if row.has("max_workers") else max(rates)
    if not smallest <= request <= largest:
        raise row.wrong(f"workers {request}: must lie between min_workers {smallest} and max_workers {largest}")
    if not min(rates) <= smallest or not largest <= max(rates):
        raise row.wrong(
            f"it may have {smallest} to {largest} workers, and speedup is known for {min(rates)} to {max(rates)}: "
            "add what is missing, such as `1:1 2:1.9 4:3.4`"
        )
    batch = row.count("batch") if row.has("batch") else 0
    return TraceJob(
        name=row.text("name") if row.has("name") else f"job-{row.number - 1}",
        submitted=submitted,
        request=request,
        course=Iterations(row.number_in("duration", above=True), rates, batch),
        smallest=smallest,
        largest=largest,
        batch=batch,
        user=row.text("user") if row.has("user") else "",
        priority=int(row.number_in("priority", -1e9)) if row.has("priority") else 0,
        deadline=row.number_in("deadline", submitted) if row.has("deadline") else None,
        row=row.number,
    )


def _speedup(row: TraceRow, request: int) -> dict[int, float]:
    """Return, by the number of workers, how many seconds of the job's duration are done in a second."""
    if not row.has("speedup"):
        return {request: 1.0}
    text = row.text("speedup")
    try:
        known = {int(size): float(rate) for size, rate in (pair.split(":") for pair in text.split())}
    except ValueError:
        known = {}
    if not known or min(known) < 1 or not all(0 < rate < float("inf") for rate in known.values()):
        raise row.wrong(f"speedup {text}: must be pairs of workers and speed, such as `1:1 2:1.9 4:3.4`")
    if request not in known:
        raise row.wrong(f"speedup {text}: says nothing of the {request} workers that the job asks for")
    return {size: rate / known[request] for size, rate in known.items()}
