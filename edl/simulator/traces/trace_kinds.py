"""Recognition of a trace's kind by its columns."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edl.errors import ConfigError
from edl.simulator.trace import Trace
from edl.simulator.traces import pollux_trace, trace_rows
from edl.simulator.traces.trace_rows import head_of

KINDS: Final = {
    "Pollux": pollux_trace.COLUMNS,
    "ElasticFlow": trace_rows.ELASTICFLOW_COLUMNS,
    "Tiresias": trace_rows.TIRESIAS_COLUMNS,
    "plain": trace_rows.PLAIN_COLUMNS,
}


def read_trace(path: Path, applications: Path | None = None, throughputs: Path | None = None) -> Trace:
    """Read a trace. `applications` and `throughputs` are folders of tables, if they are not beside the trace. Raises
    ConfigError.
    """
    kind = _kind(path)
    if kind == "Pollux":
        trace = pollux_trace.read_pollux(path, applications or _beside(path, "applications", "--applications"))
    elif kind == "ElasticFlow":
        trace = trace_rows.read_elasticflow(path, throughputs or _beside(path, "throughputs*", "--throughputs"))
    elif kind == "Tiresias":
        trace = trace_rows.read_tiresias(path)
    else:
        trace = trace_rows.read_plain(path)
    return _checked(trace, path)


def _kind(path: Path) -> str:
    head = head_of(path)
    shared = {kind: len(head.intersection(columns)) / len(columns) for kind, columns in KINDS.items()}
    best = max(shared, key=lambda kind: shared[kind])
    if shared[best] < 0.5:
        raise ConfigError(
            f"{path} row 1: is no trace; one of your own needs the columns {', '.join(trace_rows.PLAIN_COLUMNS)}"
        )
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
