"""Traces of the Tiresias simulator (SymbioticLab/Tiresias): jobs of a known duration at the size they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edl.simulator.courses.course import Iterations
from edl.simulator.trace import Trace, TraceJob
from edl.simulator.traces.trace_rows import TraceRow, rows

COLUMNS: Final = ("job_id", "num_gpu", "submit_time", "duration")


def read_tiresias(path: Path) -> Trace:
    """Read a trace. Raises ConfigError."""
    return Trace(path.stem, tuple(_job(row) for row in rows(path, COLUMNS)))


def _job(row: TraceRow) -> TraceJob:
    request = row.count("num_gpu")
    return TraceJob(
        name=row.text("job_id"),
        submitted=row.number_in("submit_time"),
        request=request,
        course=Iterations(row.number_in("duration", above=True), {request: 1.0}, 0),
        smallest=request,
        largest=request,
        row=row.number,
    )
