"""Output of workers: each line with the worker's number in front, in horovodrun's form.

Owns: cutting streams into lines, and writing without ever blocking the event loop. Does not own: the pipes' other ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import re
import select
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

SAID = b"edl: "  # what edl itself says in a worker begins so
OWN = re.compile(rb">:(?:\[rank\d+\]: )?edl: (.*)")  # after our prefix, and PyTorch's in a worker of several processes
KEPT_BYTES = 4 << 20  # of one file of two
LONGEST_LINE = 65_536  # bytes; a longer line is cut, so that a stream without line ends takes no memory without bound


class LinePrefixer:
    """Put a prefix in front of each line of a stream that comes in pieces. A carriage return ends a line too."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix  # may be changed at any time, for the lines to come
        self._rest = b""
        self._after_return = False

    def feed(self, piece: bytes) -> bytes:
        """Return the lines that are complete now, prefixed."""
        if self._after_return and piece[:1] == b"\n":  # the other half of a \r\n
            head, piece = b"\n", piece[1:]
        else:
            head = b""
        if piece or head:
            self._after_return = piece.endswith(b"\r")
        text = self._rest + piece
        lines = text.splitlines(keepends=True)  # of bytes: at \n, \r and \r\n only
        self._rest = lines.pop() if text and not text.endswith((b"\n", b"\r")) else b""
        while len(self._rest) >= LONGEST_LINE:
            lines.append(self._rest[:LONGEST_LINE] + b"\n")
            self._rest = self._rest[LONGEST_LINE:]
        return head + b"".join(self.prefix.encode() + line for line in lines)

    def finish(self) -> bytes:
        """Return the last line, if the stream ended in the middle of it."""
        rest, self._rest = self._rest, b""
        return self.prefix.encode() + rest + b"\n" if rest else b""


class WorkerNumbers:
    """The number in front of a worker's lines: its first rank, unless another worker of the launch has had that number.

    So a worker whose first rank another one has had keeps the number that it was started with: the survivors of a
    death move up, and the rank that a replacement gets is one that a survivor began with.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by slot, of all that were ever started
        self._ranked: set[int] = set()  # slots

    def start(self, slot: int) -> int:
        self._numbers[slot] = slot if slot not in self._numbers.values() else max(self._numbers.values()) + 1
        return self._numbers[slot]

    def of(self, slot: int) -> int:
        return self._numbers[slot]

    def rank(self, ranks: Mapping[int, int]) -> dict[int, int]:
        """Return the numbers of slots that have their first rank. Workers ranked together may swap numbers."""
        new = {slot: rank for slot, rank in ranks.items() if slot not in self._ranked}
        taken = {number for slot, number in self._numbers.items() if slot not in new}
        for slot, rank in sorted(new.items(), key=lambda one: one[1]):
            wanted = (rank, self._numbers[slot], max([*self._numbers.values(), *taken]) + 1)
            new[slot] = next(number for number in wanted if number not in taken)
            taken.add(new[slot])
        self._numbers |= new
        self._ranked |= new.keys()
        return new


class ToldOnce:
    """Show lines of edl's own that all workers print alike, such as why their job cannot go on, for one worker only."""

    def __init__(self) -> None:
        self._told: dict[bytes, LinePrefixer] = {}

    def lines(self, piece: bytes, of: LinePrefixer) -> bytes:
        """Return the lines with the prefix of `of`, without those that another worker has printed."""
        if SAID not in piece:  # as nearly always
            return piece
        return b"".join(line for line in piece.splitlines(keepends=True) if self._is_new(line, of))

    def _is_new(self, line: bytes, of: LinePrefixer) -> bool:
        own = OWN.search(line)
        return own is None or self._told.setdefault(own[1].rstrip(), of) is of


class Sink:
    """A file descriptor to write to. Once its reader is gone, data is dropped."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._open = True

    def write(self, data: bytes) -> None:
        while data and self._open:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # a process we share it with has made it non-blocking
                select.select([], [self._descriptor], [])
            except OSError:  # broken pipe, full disk: training goes on without this output
                self._open = False

    @property
    def broken(self) -> bool:
        return not self._open

    def reopen(self, descriptor: int) -> None:
        self._descriptor, self._open = descriptor, True

    def close(self) -> None:
        if self._descriptor > 2:
            os.close(self._descriptor)
        self._open = False


class OutputFile(Sink):
    """A file with the newest output; an older file keeps the output before that."""

    def __init__(self, path: Path) -> None:
        super().__init__(_new(path))
        self._path, self._size = path, 0

    def write(self, data: bytes) -> None:
        super().write(data)
        self._size += len(data)
        if self._size >= KEPT_BYTES and not self.broken:
            self.close()
            with contextlib.suppress(OSError):  # a full disk: training goes on without this output
                self._path.replace(f"{self._path}.1")
                self.reopen(_new(self._path))
                self._size = 0


def _new(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


class Printer:
    """A thread that writes all output: a stalled reader stalls the workers' pipes, never the launcher's signals."""

    def __init__(self) -> None:
        self.stdout, self.stderr = Sink(1), Sink(2)
        self.kept: OutputFile | None = None  # what is shown from now on
        self._queue: queue.SimpleQueue[tuple[tuple[Sink, ...], bytes, asyncio.Future[None] | None] | None] = (
            queue.SimpleQueue()
        )
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write_all, name="edl-output", daemon=True)
        self._thread.start()

    async def write(self, data: bytes, *sinks: Sink) -> None:
        """Return when the data is written, so that each stream has at most one piece in the queue."""
        if data:
            done = self._loop.create_future()
            self._queue.put((sinks, data, done))
            await done

    def say(self, line: str) -> None:
        """Print a line of edl's own between those of the workers."""
        self._queue.put(((self.stderr,), f"edl: {line}\n".encode(), None))

    async def close(self, timeout_s: float) -> None:
        """Write what is queued, but stop waiting after `timeout_s` for a reader that does not read."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)

    def _write_all(self) -> None:
        while (job := self._queue.get()) is not None:
            sinks, data, done = job
            for sink in sinks:
                sink.write(data)
            if self.kept is not None and (self.stdout in sinks or self.stderr in sinks):
                self.kept.write(data)
            if done is None:
                continue
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(_set_done, done)


def _set_done(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class LineTarget(NamedTuple):
    shown: Sink
    kept: Sequence[Sink]  # files
    once: ToldOnce  # of all workers' streams


async def forward(reader: asyncio.StreamReader, lines: LinePrefixer, printer: Printer, outlet: LineTarget) -> None:
    """Forward a worker's stream, line by line, until it ends."""
    while piece := await reader.read(LONGEST_LINE):
        await _write(lines.feed(piece), lines, printer, outlet)
    await _write(lines.finish(), lines, printer, outlet)


async def _write(piece: bytes, lines: LinePrefixer, printer: Printer, outlet: LineTarget) -> None:
    shown = outlet.once.lines(piece, lines)
    if shown is piece:
        await printer.write(piece, outlet.shown, *outlet.kept)
        return
    await printer.write(shown, outlet.shown)
    await printer.write(piece, *outlet.kept)


async def forward_file(stream: IO[bytes], lines: LinePrefixer, printer: Printer, outlet: LineTarget) -> None:
    """Forward a pipe, line by line, until it ends."""
    reader = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
    try:
        await forward(reader, lines, printer, outlet)
    finally:
        pipe.close()


def rank_folder(folder: Path, rank: int, most: int) -> Path:
    """Return DIR/rank.N as horovodrun names it: padded, so that the names of up to `most` workers sort like numbers."""
    width = int(math.log10(max(most - 1, 1))) + 1
    return folder / f"rank.{rank:0{width}d}"
