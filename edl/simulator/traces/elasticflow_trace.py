"""Traces of the ElasticFlow simulator (pkusys/ElasticFlow): iterations at a fixed batch, by a table, with deadlines.

A trace has job_id, submission_time, num_iteration, model_name, batch_size and num_gpu, and optionally deadline. The
folder of throughputs has MODEL.csv: iterations per second at each global_batch_size (row) with 1, 2, 4, … workers
(column).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edl.errors import ConfigError
from edl.simulator.courses.course import Iterations
from edl.simulator.trace import Trace, TraceJob
from edl.simulator.traces.trace_rows import TraceRow, head_of, rows

COLUMNS: Final = ("job_id", "submission_time", "num_iteration", "model_name", "batch_size", "num_gpu")
BATCH: Final = "global_batch_size"

Tables = dict[str, dict[int, dict[int, float]]]  # model -> batch -> workers -> iterations per second


def read_elasticflow(path: Path, folder: Path) -> Trace:
    """Read a trace and its tables. Raises ConfigError."""
    tables: Tables = {}
    return Trace(path.stem, tuple(_job(row, folder, tables) for row in rows(path, COLUMNS)))


def _job(row: TraceRow, folder: Path, tables: Tables) -> TraceJob:
    model = row.text("model_name")
    if model not in tables:
        file = folder / f"{model}.csv"
        if "/" in model or not file.is_file():
            has = ", ".join(sorted(one.stem for one in folder.glob("*.csv")))
            raise row.wrong(f"model_name {model} has no table in {folder}: it has {has or 'none; see --throughputs'}")
        tables[model] = _table(file)
    batch, request = row.count("batch_size"), row.count("num_gpu")
    if batch not in tables[model]:
        has = ", ".join(map(str, sorted(tables[model])))
        raise row.wrong(f"batch_size {batch}: {folder / model}.csv has {has}")
    course = Iterations(row.number_in("num_iteration", above=True), tables[model][batch], batch)
    least, most = course.sizes
    if not least <= request <= most:
        raise row.wrong(f"num_gpu {request}: {folder / model}.csv has {least} to {most} for a batch of {batch}")
    submitted = row.number_in("submission_time")
    return TraceJob(
        name=row.text("job_id"),
        submitted=submitted,
        request=request,
        course=course,
        smallest=least,
        largest=most,
        batch=batch,
        deadline=row.number_in("deadline", submitted) if row.has("deadline") else None,
        row=row.number,
    )


def _table(path: Path) -> dict[int, dict[int, float]]:
    sizes = sorted(int(name) for name in head_of(path) if name.isdecimal() and int(name) > 0)
    if not sizes:
        raise ConfigError(f"{path} row 1: has no column named after a number of workers, such as 1, 2, 4")
    found = {}
    for row in rows(path, (BATCH,)):
        rates = {size: row.number_in(str(size)) for size in sizes if row.has(str(size))}
        if not any(rates.values()):
            raise row.wrong("has no throughput above 0: fill one in")
        found[row.count(BATCH)] = rates
    return found
