"""Traces of the Pollux simulator (petuum/adaptdl): jobs of measured applications, whose batch may change.

A trace has name, time, application, num_replicas and batch_size. The folder of an application has placements.csv,
scalability.csv and one validation-BATCH.csv for each batch at which it was trained to its end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from edl.errors import ConfigError
from edl.simulator.courses.course import BatchSpan, Shape
from edl.simulator.courses.epochs import Epochs, Timing, Validation, most_workers
from edl.simulator.trace import Trace, TraceJob
from edl.simulator.traces.trace_rows import TraceRow, rows

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
    """A measured application."""

    course: Epochs
    alone_at: dict[int, Epochs]  # batch -> the course of a job that keeps that batch; empty if jobs may change it


def read_pollux(path: Path, folder: Path) -> Trace:
    """Read a trace and its applications. Raises ConfigError."""
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
    """Read the tables of an application. Raises ConfigError."""
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
