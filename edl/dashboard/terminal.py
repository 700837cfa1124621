"""A job's view on a terminal."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from edl.control_characters import visible
from edl.dashboard import page_feed
from edl.dashboard.page_feed import Feed
from edl.dashboard.page_view import ROUTINE, PageValues, ToldEvent, WorkerRow, lasting

TONES: Final = {"good": "green", "warn": "yellow", "bad": "red", "": "bold"}
STATES: Final = {"running": "green", "finished": "green", "failed": "red"}
EVENTS: Final = 12


def screen(feed: Feed) -> Group:
    view = page_feed.view(feed)
    return Group(
        _head(view),
        _tiles(view),
        Text(),
        _workers(view.rows, view.more_workers),
        _parts(view),
        Text(),
        _story([event for event in page_feed.newest(feed) if event.kind not in ROUTINE][:EVENTS]),
    )


def print_screen(feed: Feed) -> None:
    """Print plain lines if the output is no terminal."""
    Console(highlight=False, soft_wrap=False).print(screen(feed))


def _head(view: PageValues) -> Text:
    reason = f"  {visible(view.reason)}" if view.reason else ""
    return Text.assemble(("job ", ""), (view.job, "bold"), "  ", (view.state, STATES.get(view.state, "cyan")), reason)


def _tiles(view: PageValues) -> Table:
    shown = Table.grid(padding=(0, 3))
    for tile in view.tiles:
        note = f"  ({visible(tile.note)})" if tile.note else ""
        shown.add_row(Text(tile.name, "dim"), Text.assemble((visible(tile.value), TONES[tile.tone]), (note, "dim")))
    return shown


def _workers(rows: tuple[WorkerRow, ...], more: int) -> Table:
    heads = ("rank", "worker", "host", "state", "step", "compute", "data", "wait", "pace", "")
    shown = Table(*heads, box=None, pad_edge=False, header_style="dim")
    for row in rows:
        spent = row.spending
        shares = (
            ("", "", "") if spent is None else tuple(f"{one:.0%}" for one in (spent.compute, spent.data, spent.wait))
        )
        cells = (row.rank, row.worker, row.host, row.state, f"{row.step:,}", *shares, row.pace)
        shown.add_row(*(Text(visible(cell)) for cell in cells), Text(visible(row.remark), "yellow"))
    if more:
        shown.add_row("", f"and {more} more")
    return shown


def _parts(view: PageValues) -> Text:
    data = ", ".join(f"{name} {count:,}" for name, count in view.data)
    spent = ", ".join(f"{name} {lasting(seconds)}" for name, seconds in view.time)
    return Text.assemble(
        ("samples ", "dim"), data or "none from edl", ("   time ", "dim"), spent or "none measured yet"
    )


def _story(events: list[ToldEvent]) -> Table:
    shown = Table.grid(padding=(0, 2))
    for event in events:
        clock = time.strftime("%H:%M:%S", time.localtime(event.ts))
        words = Text(visible(event.words), overflow="ellipsis", no_wrap=True)
        shown.add_row(Text(clock, "dim"), Text(event.kind), words)
    return shown
