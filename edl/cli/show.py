"""How jobs and events look to people: tables on a terminal, plain aligned columns for pipes and files."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from edl.launch.records import Record
from edl.protocol.job import Status

FIXED = ("ts", "job", "kind", "term", "generation", "step")  # of an event; the rest are its details
COLOURS = {"running": "green", "scaling": "cyan", "finished": "bold", "failed": "red", "starting": "yellow"}


def show_status(status: Status) -> None:
    state = status.state.value
    say(f"job {status.job}: {state}{f' ({status.reason})' if status.reason else ''}", COLOURS.get(state, ""))
    size = str(status.size) if status.size == status.target else f"{status.size}, wanted {status.target}"
    say(f"  workers {size}   step {status.step}   epoch {status.epoch}   generation {status.generation}")
    if status.leader:
        say(f"  leader {status.leader}   term {status.term}")
    if status.data is not None:
        data = status.data
        say(
            f"  data of epoch {data.epoch}: {data.trained} of {data.total} samples trained, "
            f"{data.leased} leased, {data.unassigned} unassigned"
        )
    if status.workers:
        rows = [
            (
                w.id,
                "-" if w.rank is None else str(w.rank),
                w.host,
                str(w.pid),
                str(w.daemon_pid),
                w.state.value,
                str(w.step),
            )
            for w in status.workers
        ]
        table(("worker", "rank", "host", "pid", "daemon", "state", "step"), rows)


def show_records(records: Sequence[Record]) -> None:
    if not records:
        say("no job was started on this machine")
        return
    rows = [
        (
            record.job,
            state_of(record),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started)),
            " ".join(record.command),
        )
        for record in records
    ]
    table(("job", "state", "started", "command"), rows)


def state_of(record: Record) -> str:
    """A launcher that was killed together with its guard could not write down the end of its job."""
    return record.state if record.alive or record.ended is not None else "failed"


def event_line(event: Mapping[str, Any]) -> str:
    """One event on one line."""
    clock = time.strftime("%H:%M:%S", time.localtime(event["ts"])) + f".{int(event['ts'] % 1 * 1000):03d}"
    details = " ".join(f"{name}={_short(value)}" for name, value in event.items() if name not in FIXED)
    place = f"step {event['step']:<7} generation {event['generation']:<3}"
    return f"{clock}  {event['kind']:<16}  {place}  {details}".rstrip()


def say(line: str, style: str = "") -> None:
    if sys.stdout.isatty():
        from rich.console import Console  # only here: its import takes as long as the rest of a short command

        Console(soft_wrap=True, highlight=False).print(line, style=style or None, markup=False)
    else:
        sys.stdout.write(f"{line}\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        shown = Table(*head, box=None, pad_edge=True, header_style="bold")
        for row in rows:
            shown.add_row(*row)
        Console(highlight=False, markup=False).print(shown)
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        sys.stdout.write("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def _short(value: Any) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
