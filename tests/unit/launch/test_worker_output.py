"""Workers' output: whole lines, each with its prefix, whatever pieces it comes in."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.launch.worker_output import (
    LONGEST_LINE,
    LinePrefixer,
    LineTarget,
    Printer,
    Sink,
    ToldOnce,
    WorkerNumbers,
    forward,
    rank_folder,
)


def prefixed(*pieces: bytes) -> bytes:
    lines = LinePrefixer("[0]<stdout>:")
    return b"".join([*(lines.feed(piece) for piece in pieces), lines.finish()])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"", b""),
        (b"one\n", b"[0]<stdout>:one\n"),
        (b"one\n\ntwo", b"[0]<stdout>:one\n[0]<stdout>:\n[0]<stdout>:two\n"),
        (b"10%\r20%\r\n", b"[0]<stdout>:10%\r[0]<stdout>:20%\r\n"),
        (b"\xff\xfe\n", b"[0]<stdout>:\xff\xfe\n"),
    ],
)
def test_each_line_has_its_prefix(text, shown):
    assert prefixed(text) == shown


@given(st.lists(st.text(alphabet="ab\r\n").map(str.encode)))
def test_the_pieces_do_not_matter(pieces):
    assert prefixed(*pieces) == prefixed(b"".join(pieces))


def test_a_line_shows_as_soon_as_it_ends():
    lines = LinePrefixer(">")
    assert lines.feed(b"on") == b""
    assert lines.feed(b"e\ntw") == b">one\n"


def test_a_prefix_that_changes_is_that_of_the_lines_to_come():
    lines = LinePrefixer("[1]")
    lines.feed(b"one\ntw")
    lines.prefix = "[0]"
    assert lines.feed(b"o\n") == b"[0]two\n"


def test_a_stream_without_line_ends_takes_no_memory_without_bound():
    lines = LinePrefixer(">")
    assert lines.feed(b"x" * (LONGEST_LINE + 1)) == b">" + b"x" * LONGEST_LINE + b"\n"
    assert lines.finish() == b">x\n"


@pytest.mark.parametrize(
    ("rank", "most", "name"), [(0, 1, "rank.0"), (3, 10, "rank.3"), (3, 11, "rank.03"), (0, 2, "rank.0")]
)
def test_folders_sort_like_numbers(rank, most, name):
    assert rank_folder(Path("out"), rank, most) == Path("out") / name


async def test_a_reader_that_went_away_does_not_stop_the_writer():
    read, write = os.pipe()
    os.close(read)
    printer, sink = Printer(), Sink(write)
    await printer.write(b"one\n", sink)
    await printer.write(b"two\n", sink)
    await printer.close(1)
    sink.close()


async def test_a_stalled_reader_stalls_neither_the_loop_nor_the_end():
    read, write = os.pipe()
    printer, sink = Printer(), Sink(write)
    writing = asyncio.create_task(printer.write(b"x" * 1_000_000, sink))  # far more than a pipe holds
    await asyncio.sleep(0)
    await printer.close(0.1)
    assert not writing.done()
    os.close(read)
    await writing
    sink.close()


class TestNumbers:
    def test_are_ranks_whatever_the_order_in_which_workers_were_started(self):
        numbers = WorkerNumbers()
        assert [numbers.start(slot) for slot in range(3)] == [0, 1, 2]
        assert numbers.rank({0: 2, 1: 0, 2: 1}) == {0: 2, 1: 0, 2: 1}
        assert numbers.rank({0: 1, 1: 0}) == {}, "a worker keeps its own for life"

    def test_of_a_replacement_are_no_living_workers_nor_the_dead_ones(self):
        numbers = WorkerNumbers()
        for slot in range(3):
            numbers.start(slot)
        numbers.rank({0: 0, 1: 1, 2: 2})
        assert numbers.start(3) == 3
        assert numbers.rank({0: 0, 2: 1, 3: 2}) == {3: 3}, "2 is what the worker of rank 1 began with"

    def test_of_a_machine_that_is_not_the_first_are_its_ranks_too(self):
        numbers = WorkerNumbers()
        assert [numbers.start(0), numbers.start(1)] == [0, 1]
        assert numbers.rank({0: 2, 1: 3}) == {0: 2, 1: 3}
        assert numbers.start(2) == 4, "2 is another's here"
        assert numbers.rank({0: 2, 1: 3, 2: 5}) == {2: 5}

    @given(st.data())
    def test_are_never_shared(self, data):
        numbers, shown = WorkerNumbers(), {}
        for _ in range(data.draw(st.integers(1, 8))):
            if data.draw(st.booleans()):
                shown[len(shown)] = numbers.start(len(shown))
            else:
                living = data.draw(st.permutations(list(shown)))
                shown |= numbers.rank({slot: rank for rank, slot in enumerate(living)})
            assert len(set(shown.values())) == len(shown)


class TestToldOnce:
    def test_what_all_workers_say_alike_is_shown_once_and_their_own_lines_always(self):
        once = ToldOnce()
        first, second = LinePrefixer("[0]<stderr>:"), LinePrefixer("[1]<stderr>:")
        lines = b"mine\nedl: the job cannot go on\nedl: %d\n"
        assert once.lines(first.feed(lines % 1), first) == LinePrefixer("[0]<stderr>:").feed(lines % 1)
        assert once.lines(second.feed(lines % 2), second) == b"[1]<stderr>:mine\n[1]<stderr>:edl: 2\n"
        assert once.lines(second.feed(b"[rank1]: edl: the job cannot go on\n"), second) == b""
        again = first.feed(b"edl: the job cannot go on\n")
        assert once.lines(again, first) == again, "what one worker says twice has happened twice"

    async def test_files_keep_each_workers_lines(self, tmp_path):
        printer, once = Printer(), ToldOnce()
        shown, *kept = (os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("shown", "first", "second"))
        screen, files = Sink(shown), [Sink(one) for one in kept]
        for number, file in enumerate(files):
            stream = asyncio.StreamReader()
            stream.feed_data(b"edl: no\n")
            stream.feed_eof()
            lines = LinePrefixer(f"[{number}]<stderr>:")
            await forward(stream, lines, printer, LineTarget(screen, [file], once))
        await printer.close(1)
        assert (tmp_path / "shown").read_text() == (tmp_path / "first").read_text() == "[0]<stderr>:edl: no\n"
        assert (tmp_path / "second").read_text() == "[1]<stderr>:edl: no\n"
        for sink in (screen, *files):
            sink.close()
