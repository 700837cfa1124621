"""Traces as CSV files of a row for each job: a user's own, and those of the simulators of Tiresias and ElasticFlow.

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

from edl.errors import ConfigError
from edl.simulator.courses.course import Iterations
from edl.simulator.trace import Trace, TraceJob

LARGEST = 1e30  # largest number that a trace may have


class TraceRow(msgspec.Struct, frozen=True):
    """A row, as text."""

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
    """Read a trace. Raises ConfigError."""
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
    """Read a trace. Raises ConfigError."""
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
    """Read a trace and its tables. Raises ConfigError."""
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
