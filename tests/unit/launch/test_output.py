"""Workers' output: whole lines, each with its prefix, whatever pieces it comes in."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.launch.output import LONGEST_LINE, LinePrefixer, Printer, Sink, rank_folder


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
