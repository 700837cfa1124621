"""Read piece by piece what the workers of a job have printed, as their wardens have kept it.

Owns: following these files, also while a warden puts one aside, in bounded memory. Does not own: who may read them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from edl.errors import in_brief

PIECE: Final = 65_536
GONE: Final = "(output is missing here: it came faster than it was read)\n"


class LogPlace(msgspec.Struct, frozen=True):
    """A place in a worker's log: a file, and the number of bytes read of it."""

    inode: int = 0
    at: int = 0


class LogPiece(msgspec.Struct, frozen=True):
    """The next piece of one worker's log: whole lines, except for a very long line, or the last of all."""

    worker: str
    text: str
    place: LogPlace  # behind it


class Printed:
    """Logs of one job's workers, each read on from where it was read to."""

    def __init__(self, folder: Path, worker: str | None, after: Mapping[str, LogPlace] | None = None) -> None:
        self.worker = worker
        self._folder = folder
        self._places = dict(after or {})

    def workers(self) -> list[str]:
        """Return the workers in the order in which they were made."""
        names = f"{self.worker}.log" if self.worker is not None else "*.log"
        found = {path.stem for pattern in (names, f"{names}.1") for path in self._folder.glob(pattern)}
        stems = {name.removesuffix(".log") for name in found}
        return sorted(stems, key=lambda name: (len(name), name))

    def lacking(self, job: str) -> str:
        return lacking(job, str(self.worker), Printed(self._folder, None).workers())

    def news(self, *, final: bool) -> Iterator[LogPiece]:
        """Yield what was printed since the last call. `final`: also a last line that has no end."""
        for worker in self.workers():
            yield from self._of(worker, final=final)

    def _of(self, worker: str, *, final: bool) -> Iterator[LogPiece]:
        path = self._folder / f"{worker}.log"
        with contextlib.ExitStack() as stack:
            files = {inode: file for name in (f"{worker}.log.1", path.name) if (file := self._opened(name, stack))
                     for inode in [os.fstat(file).st_ino]}  # fmt: skip
            known = self._places.get(worker, LogPlace())
            order = list(files)
            if known.inode in files and known.at <= os.fstat(files[known.inode]).st_size:
                order = order[order.index(known.inode) :]
            elif known.inode and order:  # or a number that was given on to another file
                known = self._places[worker] = LogPlace()  # it is said once
                yield LogPiece(worker, GONE, known)
            for inode in order:
                at = known.at if inode == known.inode else 0
                for text, at in _pieces(files[inode], at, final=final or inode != order[-1]):  # noqa: B020
                    self._places[worker] = LogPlace(inode, at)
                    yield LogPiece(worker, text, self._places[worker])

    def _opened(self, name: str, stack: contextlib.ExitStack) -> int | None:
        """Open a log, but no link: by a link, a job could name any file."""
        try:
            file = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        stack.callback(os.close, file)
        return file


def _pieces(file: int, at: int, *, final: bool) -> Iterator[tuple[str, int]]:
    """Yield each piece with the place behind it."""
    while piece := os.pread(file, PIECE, at):
        whole = piece[: piece.rfind(b"\n") + 1]
        if not whole and len(piece) == PIECE:
            whole = _of_whole_letters(piece)
        if not whole and final:
            whole = piece
        if not whole:
            return
        at += len(whole)
        yield whole.decode(errors="replace"), at


def _of_whole_letters(piece: bytes) -> bytes:
    """Cut off the beginning of a letter whose rest is in the next piece."""
    for back in range(1, 4):
        if piece[-back] & 0xC0 == 0xC0:
            return piece[:-back]
        if piece[-back] & 0x80 == 0:
            break
    return piece


def lacking(job: str, worker: str, others: Iterable[str]) -> str:
    """Say that a worker has printed nothing, and that others have."""
    named = in_brief(", ".join(others))
    return f"job {job} has no output of {f'a worker {worker}: there is some of {named}' if named else 'any worker'}"


def marked_lines(piece: LogPiece) -> str:
    return "".join(f"[{piece.worker}] {line}" for line in piece.text.splitlines(keepends=True))
