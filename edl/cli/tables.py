"""Print jobs and events for people: tables on a terminal, plain aligned columns in pipes and files."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import msgspec

from edl.control_characters import one_line, visible
from edl.events import details_of
from edl.facts import counted as counted  # noqa: PLC0414 - for the commands, too
from edl.facts import told
from edl.launch.job_records import LaunchRecord
from edl.protocol.data_nouns import DataCounts, StreamCounts
from edl.protocol.record import OVER, JobState, SavingStatus, Status, WorkerState, WorkerStatus

DIGEST = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]+")  # the part of a digest that people compare
COLOURS = {"running": "green", "scaling": "cyan", "finished": "bold", "failed": "red", "starting": "yellow"}


def stays(size: int) -> str:
    """Say that a size which the command no longer waits for is still wanted."""
    return f"{counted(size, 'worker')} {'stays' if size == 1 else 'stay'} asked for"


def _bits(status: Status) -> str:
    if status.spec is None or not status.spec.virtual:
        return ""
    return f", of {status.spec.virtual} virtual workers; bits: {status.bits or 'no step was made yet'}"


def show_status(status: Status) -> None:
    state = status.state.value
    say(f"job {status.job}: {state}{f' ({status.reason})' if status.reason else ''}", COLOURS.get(state, ""))
    size = str(status.size) if status.size == status.target else f"{status.size}, wanted {status.target}"
    of_all = f" ({status.base + status.step:,} of all lives)" if status.base else ""
    over = status.state in OVER
    workers = f"had {counted(status.size, 'worker')}" if over else f"workers {size}"
    say(f"  {workers}   step {status.step}{of_all}   epoch {status.epoch}   generation {status.generation}")
    if status.leader and not over:
        say(f"  leader {status.leader}   term {status.term}{f'   ring {status.ring}' if status.ring else ''}")
    if status.horovodrun:
        say(f"  horovodrun: {status.horovodrun}")
    if status.autoscale:
        policy = DIGEST.sub(r"\1", status.autoscale)
        say(f"  autoscale {policy}: {status.ruling or 'it has not decided anything yet'}")
    elif status.ruling:
        say(f"  {status.ruling}")
    if status.batch:
        say(f"  batch policy {status.batching}: {status.batch} samples a step{_bits(status)}")
    if status.rate is not None:
        say(f"  {status.rate.samples_s:.4g} samples/s, {1000 * status.rate.step_s:.1f} ms a step at this size")
    if status.data is not None:
        show_data(status, status.data, over=over)
    if status.saving is not None:
        say(f"  checkpoints {checkpoints(status.saving)}{failed_checkpoints(status)}")
    if status.migration is not None:
        to = ", ".join(map(str, status.migration.to))
        say(f"  moving from {status.migration.host} to {to}: {moving(status)}")
    for one in status.unfit:
        say(f"  unfit: worker {one.worker} of host {one.host}: {one.reason}", "red")
    # of other workers of a finished job nothing is left
    shown = [one for one in status.workers if not over or one.state is WorkerState.DONE]
    if shown:
        rows = [row for one in shown for row in worker_rows(one)]
        table(("worker", "rank", "host", "pid", "daemon", "state", "step"), rows)


def worker_rows(worker: WorkerStatus) -> list[tuple[str, ...]]:
    """Return the row of a worker, and one of each of its processes where it has several."""
    rank = "-" if worker.rank is None else str(worker.rank)
    pids = str(worker.pid), str(worker.daemon_pid)
    processes = [
        (f"  process {place}", "", "", str(one.pid), "", one.state, str(one.step))
        for place, one in enumerate(worker.processes)
    ]
    return [(worker.id, rank, worker.host, *pids, worker.state.value, str(worker.step)), *processes]


def show_data(status: Status, data: DataCounts, *, over: bool) -> None:
    ahead = f", {data.leased} leased, {data.unassigned} unassigned; steps leased ahead: {data.ahead}"
    total = f"{data.total} samples" if data.stream is None else f"{data.total} samples found so far"
    say(f"  data of epoch {data.epoch}: {data.trained} of {total} trained{'' if over else ahead}")
    if data.stream is not None:
        say(shards_of_stream(status, data.stream))


def shards_of_stream(status: Status, stream: StreamCounts) -> str:
    """Describe how far a stream is read, and how fast."""
    told = f"  shards: {stream.done} done, {stream.in_hand} in hand, {stream.waiting} waiting"
    unit = 1 if status.spec is None else status.spec.unit
    return told if unit <= 1 or status.rate is None else f"{told}; {unit * status.rate.samples_s:,.0f} tokens/s"


def checkpoints(saving: SavingStatus) -> str:
    """Describe how often the job is saved, and its newest checkpoint."""
    by_time = f"every {saving.every_s:g} s{f', {saving.why}' if saving.why else ''}" if saving.every_s else ""
    by_steps = f"every {saving.every_steps} steps" if saving.every_steps else ""
    newest = f"the newest after step {saving.step}, {saving.path}" if saving.path else "none is durable yet"
    return "; ".join([part for part in (by_time, by_steps) if part] + [newest])


def failed_checkpoints(status: Status) -> str:
    """Describe on a line of its own the failures to save since the last durable checkpoint; "" if there are none."""
    failed = None if status.saving is None else status.saving.failed
    if failed is None:
        return ""
    times = "the last one" if failed.times == 1 else f"the last {failed.times}"
    goes_on = "" if status.state in OVER else ", the job trains on and tries again"
    return f"\n  checkpoints fail: {times} came to nothing{goes_on}: {failed.reason}"


def show_records(records: Sequence[LaunchRecord]) -> None:
    if not records:
        say("no job was started on this machine: `edl run -np 2 python train.py` starts one")
        return
    rows = [
        (
            record.job,
            record.shown_state,
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started)),
            " ".join(record.command),
        )
        for record in records
    ]
    table(("job", "state", "started", "command"), rows)


DOES = {
    WorkerState.JOINING: "is importing",
    WorkerState.WARMING: "rehearses",
    WorkerState.READY: "is ready",
    WorkerState.SWITCHING: "is entering",
    WorkerState.LEAVING: "is leaving",
}


def progress(status: Status) -> str:
    """Describe how far a job is on its way to its target size: "2 of 4 workers train; w3 is importing"."""
    here = [worker for worker in status.workers if worker.state not in {WorkerState.LEAVING, WorkerState.DONE}]
    parts = [f"{status.size} of {status.target} workers train"]
    for worker in status.workers:
        newcomer = worker.rank is None or worker.state is WorkerState.LEAVING
        if newcomer and worker.state in DOES:
            parts.append(f"{worker.id} {DOES[worker.state]}")
    if done := sum(worker.state is WorkerState.DONE for worker in status.workers):
        parts.append(f"{done} {'has' if done == 1 else 'have'} come to the end of the script")
    if (missing := status.target - len(here) - done) > 0:
        parts.append(f"{missing} more {'has' if missing == 1 else 'have'} not come yet")
    if status.state is JobState.SCALING:
        parts.append("the switch is scheduled")
    return "; ".join(parts)


def moving(status: Status) -> str:
    """Describe how far a job is on its way from one host to others: "1 of 2 workers have come; w3 is importing"."""
    migration = status.migration
    if migration is None:
        return "it is over"
    awaited = sum(room.slots for room in migration.awaited)
    parts = [f"{len(migration.newcomers)} of {len(migration.newcomers) + awaited} workers have come"]
    parts += [f"{w.id} {DOES[w.state]}" for w in status.workers if w.id in migration.newcomers and w.state in DOES]
    if awaited:
        rooms = ", ".join(map(str, migration.awaited))
        parts.append(f"`edl run` is to start {rooms}")
    return "; ".join(parts)


class Progress:
    """Print lines that follow each other: in one place on a terminal, else one below the other."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = ""

    @property
    def shown(self) -> bool:
        return bool(self._last)

    def show(self, line: str) -> None:
        """Write the line, unless it equals the line before."""
        line = one_line(line)
        if line == self._last:
            return
        self._last = line
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{line[:width]}" if self._stream.isatty() else f"edl: {line}\n")
        self._stream.flush()

    def end(self) -> None:
        """Clear the line on a terminal, for the next output."""
        if self._last and self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def event_line(event: Mapping[str, Any]) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event["ts"])) + f".{int(event['ts'] % 1 * 1000):03d}"
    place = f"step {event['step']:<7} generation {event['generation']:<3}"
    return visible(f"{clock}  {event['kind']:<16}  {place}  {told(event['kind'], details_of(event))}".rstrip())


def say(line: str, style: str = "") -> None:
    line = visible(line)
    if sys.stdout.isatty():
        from rich.console import Console  # only here: its import takes as long as the rest of a short command

        Console(soft_wrap=True, highlight=False).print(line, style=style or None, markup=False)
    else:
        sys.stdout.write(f"{line}\n")


def say_json(value: Any) -> None:
    """Print JSON for programs. A person may look on, so no character in it controls a terminal."""
    sys.stdout.buffer.write(visible(msgspec.json.encode(value).decode()).encode() + b"\n")


def complain(line: str) -> None:
    """Print a warning that does not end the command."""
    sys.stderr.write(f"edl: {one_line(line)}\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    rows = [[visible(cell).replace("\n", " ") for cell in row] for row in rows]
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
