"""Items of shards, read forward from a mark: in this process, or in processes of their own.

Owns: making items and marks in order, their checksums, and the processes that do it. Does not own: which shards are
read, and how far (`edl.trainer.data.stream_reader`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle  # noqa: TID251 - what a script's items are, from a process of this one's own
import signal
import time
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


class ItemChunk(NamedTuple):
    """Items of one reading, in a row."""

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
                chunk = self._read(chunk, count, time.monotonic() + within_s)
            except NotAlike:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a function of the script's raises
                self._take_in(chunk)
                self._error = error
        if self._error is not None and not chunk.items:
            raise self._error
        return chunk._replace(bytes=sum(map(bytes_of, chunk.items)))

    def _read(self, chunk: ItemChunk, count: int, until: float) -> ItemChunk:
        items, marks, clock = chunk.items, chunk.marks, time.monotonic
        if self._flow is None:
            self._flow = self._open()
        for one in self._flow:
            if type(one) is Barrier:
                self._take_in(chunk)
                if marks and marks[-1].item == self.at:  # a filter has left nothing in between
                    marks.pop()
                marks.append(Mark(self.at, msgspec.msgpack.encode(one.parts), self._check))
                if clock() > until:  # a filter may leave nothing for long
                    return chunk
                continue
            items.append(one)
            if self._known:
                self._take_in(chunk)
            if len(items) >= count or clock() > until:
                self._take_in(chunk)
                return chunk
        self._take_in(chunk)
        return chunk._replace(ended=True)

    def _take_in(self, chunk: ItemChunk) -> None:
        """Count the items that were read since, and compare them with what is known of them."""
        check = self._check
        for one in chunk.items[self.at - chunk.first :]:
            check = contents_check(one, check)
        self.at, self._check = chunk.first + len(chunk.items), check
        if self._known and self._known.pop(self.at, check) != check:
            raise NotAlike(
                f"shard {self._name} was read again, and its items up to {self.at} are others than before: what "
                "opens it, or an operator, is to give the same each time (no clock, no random numbers of its own, "
                "no file that changes)"
            )


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
    """The feeds of several shards. One thread calls."""

    def open(self, part: int, shard: int, mark: Mark, known: Mapping[int, int]) -> None:
        """Begin to read a part anew; what was asked of it before is not answered any more."""

    def close(self, part: int) -> None: ...

    def idle(self, part: int) -> bool:
        """Tell whether a question about the part would be answered next."""

    def ask(self, part: int, count: int) -> None: ...

    def answers(self, within_s: float) -> list[tuple[int, ItemChunk | ReadFailed]]:
        """Wait for answers if any is due, and return those that are there."""

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
    except SystemExit as error:
        return ReadFailed(UsageError(f"reading a stream calls sys.exit({error.code!r})"), feed.at)


class OtherFeeds:
    """ShardFeeds in `processes` processes of their own, each of which reads one of its shards at a time. One that dies
    is replaced: what it was reading has failed, and its other shards are opened again.
    """

    def __init__(self, stream: ElasticStream, processes: int, context: Any = None) -> None:
        self._stream = stream
        self._context: Any = (
            multiprocessing.get_context(context) if context is None or isinstance(context, str) else context
        )
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        for _ in range(processes):
            pipe, process = self._started()
            self._pipes.append(pipe)
            self._processes.append(process)
        self._at: dict[int, int] = {}  # which process reads a part
        self._opened: dict[int, int] = {}  # how often a part was opened
        self._opening: dict[int, tuple[Any, ...]] = {}  # of each part that is open: what its process was told
        self._reached: dict[int, int] = {}  # the item of a part that comes next
        self._busy: dict[int, int] = {}  # process -> the part that it was asked for

    def open(self, part: int, shard: int, mark: Mark, known: Mapping[int, int]) -> None:
        if part not in self._at:
            load = [sum(at == number for at in self._at.values()) for number in range(len(self._pipes))]
            self._at[part] = load.index(min(load))
        self._opened[part] = self._opened.get(part, 0) + 1
        self._opening[part] = ("open", part, self._opened[part], shard, mark, dict(known))
        self._reached[part] = mark.item
        self._send(part, self._opening[part])

    def close(self, part: int) -> None:
        if part in self._at:
            del self._opening[part], self._reached[part]
            self._send(part, ("close", part))
            self._opened[part] += 1
            del self._at[part]

    def idle(self, part: int) -> bool:
        return part in self._at and self._at[part] not in self._busy

    def ask(self, part: int, count: int) -> None:
        self._busy[self._at[part]] = part
        self._send(part, ("read", part, count))

    def answers(self, within_s: float) -> list[tuple[int, ItemChunk | ReadFailed]]:
        if not self._busy:
            return []
        found: list[tuple[int, ItemChunk | ReadFailed]] = []
        waiting = {self._pipes[number]: number for number in self._busy}
        ready: Any = multiprocessing.connection.wait([*waiting], within_s)
        for pipe in ready:
            number = waiting[pipe]
            part = self._busy.pop(number)
            opened: int | None
            answer: ItemChunk | ReadFailed
            try:
                opened, answer = pickle.loads(pipe.recv_bytes())  # noqa: S301 - our own process has sent it
            except (EOFError, OSError):
                code = self._replace(number)
                error = DataError(f"the process that was reading it has ended ({code})")
                opened, answer = self._opened.get(part), ReadFailed(error, self._reached.get(part, 0))
            if part in self._at and self._opened[part] == opened:
                if isinstance(answer, ItemChunk):
                    self._reached[part] = answer.first + len(answer.items)
                found.append((part, answer))
        return found

    def _send(self, part: int, message: tuple[Any, ...]) -> None:
        number = self._at[part]
        try:
            self._pipes[number].send(message)
        except OSError:
            self._replace(number)
            if message[0] == "read":  # else it is done; one that dies again is noticed where it is to answer
                with contextlib.suppress(OSError):
                    self._pipes[number].send(message)

    def _started(self) -> tuple[Any, Any]:
        ours, theirs = self._context.Pipe()
        parent = None if self._context.get_start_method() == "forkserver" else os.getpid()
        process = self._context.Process(
            target=_serve, args=(self._stream, theirs, parent), daemon=True, name="edl-stream"
        )
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UsageError(
                f"the stream cannot go to a process that does not begin as a copy of this one ({error}): give "
                "functions of a module, no lambdas, or leave multiprocessing_context away"
            ) from error
        theirs.close()
        return ours, process

    def _replace(self, number: int) -> int | None:
        """Start another process in the place of one that has died, and open its parts there; return its exit code."""
        old = self._processes[number]
        self._pipes[number].close()
        old.join(END_S)
        if (code := old.exitcode) is None:
            old.kill()
            old.join()
        self._pipes[number], self._processes[number] = self._started()
        for part, at in self._at.items():
            if at == number and part in self._opening:
                with contextlib.suppress(OSError):
                    self._pipes[number].send(self._opening[part])
        return int(old.exitcode) if code is None else code

    def end(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        for process in self._processes:
            process.join(END_S)
            if process.exitcode is None:
                process.kill()
                process.join()


def _serve(stream: ElasticStream, pipe: Any, parent: int | None) -> None:
    """Answer one question after the other, until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer hears it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    feeds: dict[int, tuple[int, ShardFeed]] = {}
    parent = os.getppid() if parent is None else parent
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
                pipe.send_bytes(_packed(opened, read_of(feed, rest[0])))


def _packed(opened: int, answer: ItemChunk | ReadFailed) -> bytes:
    """Pickle an answer. Not as `Connection.send` does: that sends tensors of torch's as open files, one each."""
    if isinstance(answer, ReadFailed):
        try:
            pickle.loads(pickle.dumps(answer))  # noqa: S301 - our own
        except Exception:  # noqa: BLE001 - an exception whose class is made otherwise than it is pickled
            error = answer.error
            told = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            answer = ReadFailed(UsageError(told) if isinstance(error, UsageError) else DataError(told), answer.at)
        return pickle.dumps((opened, answer))
    try:
        return pickle.dumps((opened, answer), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - whatever an item's class raises
        return pickle.dumps(
            (opened, ReadFailed(DataError(f"it cannot come from another process: {error}"), answer.first))
        )
