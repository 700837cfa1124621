"""What the demonstration shows of its job: a live view on a terminal, else plain lines; a table and a plot at the end.

Owns: what was seen (`Seen`) and how it looks. Does not own: the job, nor what is done to it (`demo.py`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from edl.cli.tables import event_line
from edl.events import Event, Kind
from edl.facts import told
from edl.protocol.record import Status

RATE_OVER_S = 2.0  # a leader hears of mere progress once a second
PLAIN_EVERY_S = 5.0
PICTURE_S = 60.0  # for a browser, on a busy machine
LAST_LINES = 10
BARS = "▁▂▃▄▅▆▇█"
NOT_SHOWN = {Kind.EPOCH_ENDED}


@dataclass
class Seen:
    """A job as it went, by the wall clock."""

    batch: int
    trained: list[tuple[float, int]] = field(default_factory=list)  # when, and how many samples by then; only changes
    losses: list[tuple[float, float]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _before: tuple[int, int] = (0, 0)  # the step and the size at the last of `trained`

    def add(self, status: Status, at: float) -> None:
        step, size = self._before
        if not self.trained or status.step > step:
            before = self.trained[-1][1] if self.trained else 0
            self.trained.append((at, before + (status.step - step) * size * self.batch))
            self._before = status.step, status.size

    def rates(self) -> list[tuple[float, float]]:
        """When, and how many samples a second were trained in the `RATE_OVER_S` before."""
        found, first = [], 0
        for number, (at, samples) in enumerate(self.trained):
            while first + 1 < number and self.trained[first + 1][0] < at - RATE_OVER_S:
                first += 1
            if first < number:
                since, before = self.trained[first]
                found.append((at, (samples - before) / (at - since)))
        return found

    def scalings(self) -> list[Event]:
        return [event for event in self.events if event.kind is Kind.SCALED]


class View:
    """A context in which a job is shown."""

    def __init__(self, console: Console, seen: Seen) -> None:
        self._console = console
        self._seen = seen
        self._lines: deque[Text] = deque(maxlen=LAST_LINES)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._told_at = 0.0
        self._told = 0  # events

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """What the demonstration does itself."""
        self._line(Text(f"{time.strftime('%H:%M:%S')}      {line}", style="bold"))

    def show(self, status: Status) -> None:
        """The job as it is, with all that `Seen` has of it."""
        for event in self._seen.events[self._told :]:
            if event.kind not in NOT_SHOWN:
                self._line(Text(event_line(event.flat()) if self._live is None else _short(event)))
        self._told = len(self._seen.events)
        if self._live is not None:
            self._live.update(self._picture(status), refresh=True)
        elif time.monotonic() - self._told_at >= PLAIN_EVERY_S:
            self._told_at = time.monotonic()
            facts = (f"{name} {' '.join(value.split())}" for name, value in self._facts(status))
            self._line(Text(f"{time.strftime('%H:%M:%S')}      {', '.join(facts)}"))

    def _line(self, line: Text) -> None:
        self._lines.append(line)
        if self._live is None:
            self._console.print(line, highlight=False, soft_wrap=True)

    def _facts(self, status: Status) -> list[tuple[str, str]]:
        rates, losses = self._seen.rates(), self._seen.losses
        return [
            ("workers", f"{status.size}{'' if status.size == status.target else f' of {status.target}'}"),
            ("step", f"{status.step:,}"),
            ("samples/s", f"{rates[-1][1]:,.0f}" if rates else "-"),
            ("loss", f"{losses[-1][1]:.3f}" if losses else "-"),
            ("generation", str(status.generation)),
            ("leader", status.leader or "-"),
        ]

    def _picture(self, status: Status) -> Panel:
        facts = Table.grid(padding=(0, 2))
        curves = {"samples/s": self._seen.rates(), "loss": self._seen.losses}
        for name, value in self._facts(status):
            facts.add_row(Text(name, style="dim"), Text(value, style="bold"), curve(curves.get(name, [])))
        workers = Table("rank", "worker", "state", "step", "pid", "", box=None, header_style="dim")
        for worker in status.workers:
            rank = "-" if worker.rank is None else str(worker.rank)
            leads = "leader" if worker.id == status.leader else ""
            workers.add_row(rank, worker.id, worker.state.value, f"{worker.step:,}", str(worker.pid), leads)
        title = f"job {status.job}: {status.state.value}"
        return Panel(Group(facts, "", workers, "", *self._lines), title=title, title_align="left")


def _short(event: Event) -> str:
    """Where a line has little room."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.ts))
    return f"{clock}  {event.kind.value:<16}  {told(event.kind, event.details)}"


def curve(points: list[tuple[float, float]], width: int = 40) -> Text:
    """The newest values as bars."""
    values = [value for _, value in points[-width:]]
    most = max(values, default=0.0) or 1.0
    return Text("".join(BARS[min(int(value / most * len(BARS)), len(BARS) - 1)] for value in values), style="cyan")


def table_of_pauses(seen: Seen) -> Table:
    """What each change cost the survivor that lost most."""
    table = Table(title="what the survivors lost")
    for column in ("change", "pause", "leave", "enter", "state"):
        table.add_column(column, justify="right")
    for event in seen.scalings():
        parts = [event.details.get(f"{name}_ms") for name in ("pause", "leave", "enter", "state")]
        cells = ["-" if part is None else f"{part:.0f} ms" for part in parts]
        table.add_row(f"{event.details['from']} → {event.details['to']}", *cells)
    return table


def plot(seen: Seen, file: Path) -> bool:
    """Throughput and loss over time with the changes of size marked. False: matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    begun = seen.rates()[0][0]
    figure = Figure(figsize=(9, 5), layout="constrained")
    throughput, loss = figure.subplots(2, sharex=True)
    for axes, points, label in ((throughput, seen.rates(), "samples/s"), (loss, seen.losses, "loss")):
        axes.plot([at - begun for at, _ in points], [value for _, value in points])
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        for event in seen.scalings():
            axes.axvline(event.ts - begun, color="tab:red" if event.details["forced"] else "tab:green", linestyle="--")
    for event in seen.scalings():
        lines = [f"{event.details['from']} → {event.details['to']}", f"{event.details['pause_ms']:.0f} ms"]
        text = "\n".join([*lines, "killed"] if event.details["forced"] else lines)
        place = (event.ts - begun, 0.03)
        throughput.annotate(text, place, (4, 0), ("data", "axes fraction"), "offset points", fontsize=9)
    throughput.set_ylim(bottom=0)
    loss.set_yscale("log", nonpositive="mask")  # the example prints three digits
    loss.set_xlabel("seconds")
    throughput.set_title(
        "A job grows, loses a worker to kill -9, and shrinks: workers, and the longest pause of a survivor"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)
    return True


def picture(page: Path, file: Path) -> bool:
    """Of a page, as a browser shows it. False: there is no browser, or it made none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    if browser is None:
        return False
    file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="edl-demo-") as profile:
        looks = ["--headless=new", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,1700", "--no-first-run"]
        if os.geteuid() == 0:
            looks.append("--no-sandbox")  # it has none for root, and reads nothing but the file just made
        command = [browser, *looks, f"--user-data-dir={profile}", f"--screenshot={file}", page.as_uri()]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PICTURE_S, check=False)
    return file.exists()
