"""Traces as CSV files: a user's own, and those of the simulators of Tiresias, ElasticFlow and Pollux, known by columns.

A wrong row gets one line: file, row, column and remedy.

A user's own says when each job came, with how many workers, and how long it takes with them. Columns submitted, workers
and duration are required; name, min_workers, max_workers, speedup, batch, deadline, user and priority are optional.
`speedup` gives the relative speed of a job with other numbers of workers, as `1:1 2:1.9 4:3.4`; the speed of one worker
need not be 1. Without it a job runs only with the workers that it asks for.

Tiresias' (SymbioticLab/Tiresias) have jobs of a known duration at the size they ask for. ElasticFlow's
(pkusys/ElasticFlow) have iterations at a fixed batch, by a table, with deadlines: job_id, submission_time,
num_iteration, model_name, batch_size and num_gpu, and optionally deadline. The folder of throughputs has MODEL.csv:
iterations per second at each global_batch_size (row) with 1, 2, 4, … workers (column).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from edl.errors import ConfigError
from edl.simulator.course import BatchSpan, Epochs, Iterations, Shape, Timing, Validation, most_workers
from edl.simulator.trace import Trace, TraceJob

LARGEST = 1e30  # largest number that a trace may have


class TraceRow(msgspec.Struct, frozen=True):
    path: Path
    number: int  # in the file; the head is 1
    cells: dict[str, str]

    def wrong(self, message: str) -> ConfigError:
        return ConfigError(f"{self.path} row {self.number}: {message}")

    def text(self, column: str) -> str:
        """Return a cell's text. Raises ConfigError if it is empty."""
        found = self.cells[column].strip()
        if not found:
            raise self.wrong(f"{column} is empty: fill it in")
        return found

    def number_in(self, column: str, least: float = 0.0, *, above: bool = False) -> float:
        """Return a number of at least `least`; with `above`, more than that. Raises ConfigError."""
        found = self.text(column)
        must = f"must be a number {'above' if above else 'of at least'} {least:g}"
        try:
            value = float(found)
        except ValueError:
            raise self.wrong(f"{column} {found}: {must}") from None
        if not math.isfinite(value) or value > LARGEST or value < least or (above and value == least):
            raise self.wrong(f"{column} {found}: {must}")
        return value

    def count(self, column: str, least: int = 1) -> int:
        """Return a whole number of at least `least`. Raises ConfigError."""
        value = self.number_in(column, least)
        if value != int(value):
            raise self.wrong(f"{column} {self.text(column)}: must be a whole number")
        return int(value)

    def has(self, column: str) -> bool:
        return bool(self.cells.get(column, "").strip())


def rows(path: Path, columns: Sequence[str]) -> Iterator[TraceRow]:
    """Yield all rows of a file that has at least these columns. Raises ConfigError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey="", restval=None)
            head = [name.strip() for name in reader.fieldnames or ()]
            for name in columns:
                if name not in head:
                    raise ConfigError(f"{path} row 1: column {name} is missing; it needs {', '.join(columns)}")
            for number, cells in enumerate(reader, start=2):
                yield _row(path, number, dict(zip(head, cells.values(), strict=False)), cells)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as a CSV file: {error}") from None


def _row(path: Path, number: int, named: dict[str, str], cells: dict[str, str]) -> TraceRow:
    if "" in cells or None in cells.values():
        raise ConfigError(f"{path} row {number}: has {'more' if '' in cells else 'fewer'} cells than the head: mend it")
    return TraceRow(path, number, named)


def head_of(path: Path) -> set[str]:
    """Return the names of a file's columns. Raises ConfigError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return {name.strip() for name in next(csv.reader(file), [])}
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder: name a trace in it, a CSV file") from None
    except FileNotFoundError:
        raise ConfigError(f"there is no trace {path}: name a CSV file, see 'edl simulate --help'") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as a CSV file: {error}") from None


TIRESIAS_COLUMNS: Final = ("job_id", "num_gpu", "submit_time", "duration")


def read_tiresias(path: Path) -> Trace:
    """Raises ConfigError."""
    return Trace(path.stem, tuple(_tiresias_job(row) for row in rows(path, TIRESIAS_COLUMNS)))


def _tiresias_job(row: TraceRow) -> TraceJob:
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


PLAIN_COLUMNS: Final = ("submitted", "workers", "duration")


def read_plain(path: Path) -> Trace:
    """Raises ConfigError."""
    return Trace(path.stem, tuple(_plain_job(row) for row in rows(path, PLAIN_COLUMNS)))


def _plain_job(row: TraceRow) -> TraceJob:
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


ELASTICFLOW_COLUMNS: Final = ("job_id", "submission_time", "num_iteration", "model_name", "batch_size", "num_gpu")
BATCH: Final = "global_batch_size"

Tables = dict[str, dict[int, dict[int, float]]]  # model -> batch -> workers -> iterations per second


def read_elasticflow(path: Path, folder: Path) -> Trace:
    """Raises ConfigError."""
    tables: Tables = {}
    return Trace(path.stem, tuple(_elasticflow_job(row, folder, tables) for row in rows(path, ELASTICFLOW_COLUMNS)))


def _elasticflow_job(row: TraceRow, folder: Path, tables: Tables) -> TraceJob:
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


# Traces of the Pollux simulator (petuum/adaptdl) are of measured applications, whose batch may change. One has name,
# time, application, num_replicas and batch_size. The folder of an application has placements.csv, scalability.csv and
# one validation-BATCH.csv for each batch at which it was trained to its end.


COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")
PLACEMENTS: Final = ("placement", "local_bsz", "step_time", "sync_time")
SCALABILITY: Final = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
VALIDATION: Final = ("progress", "grad_sqr", "grad_var")


class ApplicationLimits(msgspec.Struct, frozen=True):
    """Limits of an application that the authors' simulator has beside its tables."""

    largest_pass: int | None = None
    alone: bool = False  # its jobs keep the batch that their owners asked for, and get no more workers than asked for


KNOWN: Final = {"yolov3": ApplicationLimits(largest_pass=8), "ncf": ApplicationLimits(alone=True)}


class Application(msgspec.Struct, frozen=True):
    course: Epochs
    alone_at: dict[int, Epochs]  # batch -> the course of a job that keeps that batch; empty if jobs may change it


def read_pollux(path: Path, folder: Path) -> Trace:
    """Raises ConfigError."""
    applications: dict[str, Application] = {}
    jobs = [_job(row, folder, applications) for row in rows(path, COLUMNS)]
    sizes = [one.course.node_size for one in applications.values()]
    return Trace(path.stem, tuple(jobs), min(sizes, default=None))


def _job(row: TraceRow, folder: Path, applications: dict[str, Application]) -> TraceJob:
    name = row.text("application")
    if name not in applications:
        if "/" in name or name.startswith(".") or not (folder / name).is_dir():
            raise row.wrong(f"application {name} has no folder in {folder}: it has {_folders(folder)}")
        applications[name] = read_application(folder / name)
    course = applications[name].course
    span = course.span
    assert span is not None
    batch, request = row.count("batch_size"), row.count("num_replicas")
    if not span.own <= batch <= span.largest:
        raise row.wrong(f"batch_size {batch}: {name} was measured from {span.own} to {span.largest}")
    if request > most_workers(span, batch):
        raise row.wrong(f"num_replicas {request}: a batch of {batch} is enough for {most_workers(span, batch)}")
    alone = KNOWN.get(name, ApplicationLimits()).alone
    if alone:
        known = applications[name].alone_at
        if batch not in known:
            known[batch] = course.keeping(batch)
        course = known[batch]
    return TraceJob(
        name=row.text("name"),
        submitted=row.number_in("time"),
        request=request,
        course=course,
        largest=request if alone else most_workers(span, span.largest),
        batch=batch,
        row=row.number,
    )


def _folders(folder: Path) -> str:
    names = sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []
    return ", ".join(names) or "none; name another folder by --applications"


def read_application(folder: Path) -> Application:
    """Raises ConfigError."""
    placements: dict[Shape, list[tuple[float, float, float]]] = {}
    for row in rows(folder / "placements.csv", PLACEMENTS):
        text = row.text("placement")
        if not text.isdecimal() or "0" in text:
            raise row.wrong(f"placement {text}: must be the workers of each node, a digit from 1 to 9 for each")
        placements.setdefault(tuple(map(int, text)), []).append(_seconds(row))
    if not placements:
        raise ConfigError(f"{folder / 'placements.csv'} has no rows: it needs measured times")
    scattered = {}
    for row in rows(folder / "scalability.csv", SCALABILITY):
        batch, step, sync = _seconds(row)
        scattered[row.count("num_nodes"), row.count("num_replicas"), int(batch)] = step, sync
    measured = {}
    for shape, points in placements.items():
        batches, step, sync = np.array(sorted(points)).T
        measured[shape] = batches, step, sync
    timing = Timing(measured, scattered)
    validation = _validation(folder)
    least, most = timing.passes
    limit = KNOWN.get(folder.name, ApplicationLimits()).largest_pass or most
    course = Epochs(timing, validation, BatchSpan(min(validation), min(validation), max(validation), least, limit))
    return Application(course, {})


def _seconds(row: TraceRow) -> tuple[float, float, float]:
    batch, step = row.count("local_bsz"), row.number_in("step_time", above=True)
    sync = row.number_in("sync_time")
    if sync >= step:
        raise row.wrong(f"sync_time {sync:g} is not less than step_time {step:g}: it is a part of it")
    return float(batch), step, sync


def _validation(folder: Path) -> dict[int, Validation]:
    found = {}
    for path in sorted(folder.glob("validation-*.csv")):
        batch = path.stem.removeprefix("validation-")
        if not batch.isdecimal() or int(batch) < 1:
            raise ConfigError(f"{path}: must be named validation-BATCH.csv")
        table = [
            (row.number_in("progress", above=True), row.number_in("grad_sqr"), row.number_in("grad_var"))
            for row in rows(path, VALIDATION)
        ]
        progress, sqr, var = np.array(table).T if table else np.empty((3, 0))
        if not len(progress) or np.any(np.diff(progress) <= 0):
            raise ConfigError(f"{path}: progress must grow from row to row; it has {len(progress)} rows")
        if np.any(sqr + var <= 0):
            raise ConfigError(f"{path} row {int(np.argmax(sqr + var <= 0)) + 2}: grad_sqr and grad_var are both 0")
        found[int(batch)] = Validation(progress, sqr, var)
    if not found:
        raise ConfigError(f"{folder} has no validation-BATCH.csv: it needs one for each batch that was trained")
    return found


KINDS: Final = {
    "Pollux": COLUMNS,
    "ElasticFlow": ELASTICFLOW_COLUMNS,
    "Tiresias": TIRESIAS_COLUMNS,
    "plain": PLAIN_COLUMNS,
}


def read_trace(path: Path, applications: Path | None = None, throughputs: Path | None = None) -> Trace:
    """`applications` and `throughputs` are folders of tables, if they are not beside the trace. Raises ConfigError."""
    kind = _kind(path)
    if kind == "Pollux":
        trace = read_pollux(path, applications or _beside(path, "applications", "--applications"))
    elif kind == "ElasticFlow":
        trace = read_elasticflow(path, throughputs or _beside(path, "throughputs*", "--throughputs"))
    elif kind == "Tiresias":
        trace = read_tiresias(path)
    else:
        trace = read_plain(path)
    return _checked(trace, path)


def _kind(path: Path) -> str:
    head = head_of(path)
    shared = {kind: len(head.intersection(columns)) / len(columns) for kind, columns in KINDS.items()}
    best = max(shared, key=lambda kind: shared[kind])
    if shared[best] < 0.5:
        raise ConfigError(f"{path} row 1: is no trace; one of your own needs the columns {', '.join(PLAIN_COLUMNS)}")
    return best


def _beside(path: Path, pattern: str, flag: str) -> Path:
    """Find the folder beside the trace, or one level above. Raises ConfigError."""
    for folder in (path.resolve().parent, path.resolve().parent.parent):
        found = sorted(one for one in folder.glob(pattern) if one.is_dir())
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(f"{folder} has {', '.join(one.name for one in found)}: name the right one by {flag}")
    raise ConfigError(f"the tables of {path} are not beside it: name their folder by {flag}")


def _checked(trace: Trace, path: Path) -> Trace:
    if not trace.jobs:
        raise ConfigError(f"{path} has no jobs: it needs at least one row below its head")
    rows: dict[str, int] = {}
    for job in trace.jobs:
        if job.name in rows:
            raise ConfigError(
                f"{path} row {job.row}: {job.name} is the name of row {rows[job.name]} too: give it another"
            )
        rows[job.name] = job.row
    return Trace(trace.name, tuple(sorted(trace.jobs, key=lambda job: (job.submitted, job.row))), trace.node_size)
