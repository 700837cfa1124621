"""The process beside `edl run` that exports the launcher's record of a job to other tools.

Owns: reading new entries of the record, and ending when the job ends. The process talks to no worker and no
coordinator: deaths of workers and leaders do not touch it, and it slows none of them down.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from edl.exports.curves import Curves, Numbered, Teller, lives_of
from edl.exports.switches import Switch, Switches
from edl.launch.job_records import Folder
from edl.launch.status_poller import Point

LOOK_S: Final = 0.5


class Tail:
    """Read whole lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset, self._rest = 0, b""

    def lines(self) -> list[bytes]:
        """Return the whole lines that were appended since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                piece = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return lines


class RecordTeller:
    def __init__(self, job: str, record: Folder, host: str, tensorboard: Path | None, *, spans: bool) -> None:
        self._points, self._events = Tail(record.figures), Tail(record.events)
        self._curves, self._teller, self._switches = Curves(host), Teller(host), Switches()
        self._untold: dict[int, Switch] = {}
        self._files: Any = None
        self._sender: Any = None
        if tensorboard is not None:
            from edl.exports.tensorboard import TensorBoardFiles

            self._files = TensorBoardFiles(tensorboard / job)
        if spans:
            from edl.exports.opentelemetry import SpanSender

            self._sender = SpanSender(job)

    def look(self, *, last: bool) -> None:
        """Export all new entries of the record. Raises OSError."""
        # Points are read before events: the event of a life is written before the first point of that life.
        points = list(_points(self._points.lines()))
        events: list[dict[str, Any]] = [msgspec.json.decode(line) for line in self._events.lines()]
        told = [*self._teller.take(events), *(self._teller.rest() if last else [])]
        if self._files is not None:
            self._files.take(self._curves.take(points, lives_of(events)), told, self._teller.count)
        if self._sender is not None:
            self._sender.take(self._ours(events, told))

    def _ours(self, events: list[dict[str, Any]], told: list[Numbered]) -> list[Switch]:
        """Return the switches whose last event this line of `edl run` exports.

        A switch may have begun under a leader on another machine; the line that exports its end exports all of it.
        """
        self._untold |= {switch.number: switch for switch in self._switches.take(events)}
        found = [self._untold[one.number] for one in told if one.number in self._untold]
        through = told[-1].number if told else 0
        self._untold = {number: switch for number, switch in self._untold.items() if number > through}
        return found

    def close(self) -> None:
        for one in (self._files, self._sender):
            if one is not None:
                one.close()


def _points(lines: list[bytes]) -> Iterator[Point]:
    """Decode the points; leave out a line that a full disk has cut off."""
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):
            yield msgspec.json.decode(line, type=Point)


def main() -> int:
    parser = argparse.ArgumentParser(prog="edl.exports", description="`edl run` starts it.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("mark")
    parser.add_argument("--tensorboard", type=Path)
    parser.add_argument("--spans", action="store_true")
    options = parser.parse_args()
    # This process ends when the job ends; until then only SIGKILL, by a launcher, ends it.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    record, waits = Folder(options.folder), threading.Event()
    try:
        exports = RecordTeller(
            options.folder.name, record, socket.gethostname(), options.tensorboard, spans=options.spans
        )
        while True:
            launch = record.read()
            if launch is not None and launch.mark != options.mark:  # another launch has taken over the name
                return 0
            last = launch is None or not launch.alive
            exports.look(last=last)
            if last:
                exports.close()
                return 0
            waits.wait(LOOK_S)
    except OSError as error:
        sys.stderr.write(f"{error.filename or options.tensorboard}: {error.strerror}\n")
    except msgspec.MsgspecError as error:
        sys.stderr.write(f"{record.events} is not as it was written: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
