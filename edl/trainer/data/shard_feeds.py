"""Items of shards, read forward from a mark: in this process, or in processes of their own.

Owns: making items and marks in order, their checksums, and the processes that do it. Does not own: which shards are
read, and how far (`edl.trainer.data.stream_reader`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np

from edl.errors import DataError, UsageError
from edl.protocol.data_nouns import Mark
from edl.sources.streams.elastic_stream import ElasticStream
from edl.sources.streams.stream_operators import Barrier, contents_check

CHUNK_S: Final = 0.02  # the longest that one reading goes on, but for one item
END_S: Final = 2.0
BEGIN: Final = Mark(0, b"")
UNPLACED: Final = "its place has values that are neither numbers, text, bytes, lists nor dicts"


class ItemChunk(NamedTuple):
    """What one reading has given."""

    first: int  # number of the first item
    items: list[Any]
    marks: list[Mark]
    bytes: int
    ended: bool


class ReadFailed(NamedTuple):
    error: Exception
    at: int  # the item that it came instead of


class NotAlike(DataError):
    """A shard that was read again has given other items."""


class ShardFeed:
    """Items of one shard from `mark` on. `known`: checksums by item, as an earlier reader has found them."""

    def __init__(self, stream: ElasticStream, shard: int, mark: Mark, known: Mapping[int, int]) -> None:
        place = msgspec.msgpack.decode(mark.state, strict=False) if mark.state else None
        self._name = stream.names[shard]
        self._open: Callable[[], Iterator[Any]] = lambda: stream.items(shard, place)
        self._flow: Iterator[Any] | None = None
        self._error: Exception | None = None
        self._known = {item: check for item, check in known.items() if item > mark.item}
        self.at, self._check = mark.item, mark.check

    def read(self, count: int, within_s: float = CHUNK_S) -> ItemChunk:
        """Read up to `count` items. Raises what the shard, or a function of the script's, raises: once what came before
        that was given out.
        """
        chunk = ItemChunk(self.at, [], [], 0, ended=False)
        if self._error is None:
            try:
                return self._read(chunk, count, time.monotonic() + within_s)
            except NotAlike:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a function of the script's raises
                self._error = error
        if not chunk.items:
            raise self._error
        return chunk._replace(bytes=sum(map(bytes_of, chunk.items)))

    def _read(self, chunk: ItemChunk, count: int, until: float) -> ItemChunk:
        items, marks, size = chunk.items, chunk.marks, 0
        if self._flow is None:
            self._flow = self._open()
        for one in self._flow:
            if type(one) is Barrier:
                marks.append(Mark(self.at, _encoded(one.parts, self._name), self._check))
                continue
            items.append(one)
            self._check = contents_check(one, self._check)
            self.at += 1
            size += bytes_of(one)
            if self._known and self._known.get(self.at, self._check) != self._check:
                raise NotAlike(
                    f"shard {self._name} was read again, and its items up to {self.at} are others than before: what "
                    "opens it, or an operator, is to give the same each time (no clock, no random numbers of its own, "
                    "no file that changes)"
                )
            if len(items) >= count or time.monotonic() > until:
                return chunk._replace(bytes=size)
        return chunk._replace(bytes=size, ended=True)


def _encoded(parts: Any, name: str) -> bytes:
    try:
        return msgspec.msgpack.encode(parts)
    except (TypeError, OverflowError) as error:
        raise UsageError(f"ElasticStream: shard {name} cannot be gone on with: {UNPLACED} ({error})") from None


def bytes_of(item: Any) -> int:
    """Return about how much memory an item takes."""
    if isinstance(item, np.ndarray):
        return item.nbytes + 100
    if isinstance(item, Mapping):
        return sum(map(bytes_of, item.values())) + 200
    if isinstance(item, list | tuple):
        return sum(map(bytes_of, item)) + 60 if len(item) < 32 else 36 * len(item)
    if hasattr(item, "element_size"):
        return int(item.element_size() * item.numel()) + 100
    return len(item) + 60 if isinstance(item, bytes | str) else 60


class ShardFeeds(Protocol):
    """ShardFeeds of several shards. One thread calls."""

    def open(self, part: int, shard: int, mark: Mark, known: Mapping[int, int]) -> None:
        """Begin to read a part anew; what was asked of it before is not answered any more."""

    def close(self, part: int) -> None: ...

    def idle(self, part: int) -> bool:
        """Tell whether a question about the part would be answered next."""

    def ask(self, part: int, count: int) -> None: ...

    def answers(self, within_s: float) -> list[tuple[int, ItemChunk | ReadFailed]]:
        """Wait for answers, and return those that are there."""

    def end(self) -> None: ...


class OwnFeeds:
    """ShardFeeds in this process: a question is answered where answers are waited for."""

    def __init__(self, stream: ElasticStream) -> None:
        self._stream = stream
        self._feeds: dict[int, ShardFeed] = {}
        self._asked: tuple[int, int] | None = None

    def open(self, part: int, shard: int, mark: Mark, known: Mapping[int, int]) -> None:
        self.close(part)
        self._feeds[part] = ShardFeed(self._stream, shard, mark, known)

    def close(self, part: int) -> None:
        self._feeds.pop(part, None)
        if self._asked is not None and self._asked[0] == part:
            self._asked = None

    def idle(self, part: int) -> bool:
        return part in self._feeds and self._asked is None

    def ask(self, part: int, count: int) -> None:
        self._asked = part, count

    def answers(self, within_s: float) -> list[tuple[int, ItemChunk | ReadFailed]]:  # noqa: ARG002 - the port's
        asked, self._asked = self._asked, None
        return [] if asked is None else [(asked[0], read_of(self._feeds[asked[0]], asked[1]))]

    def end(self) -> None:
        self._feeds.clear()


def read_of(feed: ShardFeed, count: int) -> ItemChunk | ReadFailed:
    try:
        return feed.read(count)
    except Exception as error:  # noqa: BLE001 - whatever the shard or a function of the script's raises
        return ReadFailed(error, feed.at)


class OtherFeeds:
    """ShardFeeds in `processes` processes of their own, each of which reads one of its shards at a time."""

    def __init__(self, stream: ElasticStream, processes: int, context: Any = None) -> None:
        made: Any = multiprocessing.get_context(context) if context is None or isinstance(context, str) else context
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        for _ in range(processes):
            ours, theirs = made.Pipe()
            process = made.Process(target=_serve, args=(stream, theirs, os.getpid()), daemon=True, name="edl-stream")
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._at: dict[int, int] = {}  # which process reads a part
        self._opened: dict[int, int] = {}  # how often a part was opened
        self._busy: dict[int, int] = {}  # process -> the part that it was asked for
        self._failed: deque[tuple[int, ReadFailed]] = deque()

    def open(self, part: int, shard: int, mark: Mark, known: Mapping[int, int]) -> None:
        if part not in self._at:
            load = [sum(at == number for at in self._at.values()) for number in range(len(self._pipes))]
            self._at[part] = load.index(min(load))
        self._opened[part] = self._opened.get(part, 0) + 1
        self._send(part, ("open", part, self._opened[part], shard, mark, dict(known)))

    def close(self, part: int) -> None:
        if part in self._at:
            self._send(part, ("close", part))
            self._opened[part] += 1
            del self._at[part]

    def idle(self, part: int) -> bool:
        return part in self._at and self._at[part] not in self._busy

    def ask(self, part: int, count: int) -> None:
        self._busy[self._at[part]] = part
        self._send(part, ("read", part, count))

    def answers(self, within_s: float) -> list[tuple[int, ItemChunk | ReadFailed]]:
        found: list[tuple[int, ItemChunk | ReadFailed]] = [*self._failed]
        self._failed.clear()
        if not self._busy:
            time.sleep(0 if found else within_s)
            return found
        waiting = {self._pipes[number]: number for number in self._busy}
        ready: Any = multiprocessing.connection.wait([*waiting], 0 if found else within_s)
        for pipe in ready:
            number = waiting[pipe]
            part = self._busy.pop(number)
            try:
                opened, answer = pipe.recv()
            except (EOFError, OSError):
                self._lose(number, part)
                found += self._failed
                self._failed.clear()
                continue
            if self._opened.get(part) == opened:
                found.append((part, answer))
        return found

    def _send(self, part: int, message: tuple[Any, ...]) -> None:
        try:
            self._pipes[self._at[part]].send(message)
        except OSError:
            self._lose(self._at[part], part)

    def _lose(self, number: int, part: int) -> None:
        self._busy.pop(number, None)
        self._processes[number].join(END_S)
        code = self._processes[number].exitcode
        self._failed.append((part, ReadFailed(DataError(f"a process that reads shards has ended ({code})"), 0)))

    def end(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        for process in self._processes:
            process.join(END_S)
            if process.exitcode is None:
                process.kill()
                process.join()


def _serve(stream: ElasticStream, pipe: Any, parent: int) -> None:
    """Answer one question after the other, until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer hears it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    feeds: dict[int, tuple[int, ShardFeed]] = {}
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while os.getppid() == parent:
            if not pipe.poll(1.0):
                continue
            kind, part, *rest = pipe.recv()
            if kind == "open":
                opened, shard, mark, known = rest
                feeds[part] = opened, ShardFeed(stream, shard, mark, known)
            elif kind == "close":
                feeds.pop(part, None)
            else:
                opened, feed = feeds[part]
                answer = read_of(feed, rest[0])
                try:
                    pipe.send((opened, answer))
                except (TypeError, AttributeError, ValueError) as error:  # what cannot be pickled
                    at = answer.first if isinstance(answer, ItemChunk) else answer.at
                    pipe.send((opened, ReadFailed(DataError(f"it cannot come from another process: {error}"), at)))
