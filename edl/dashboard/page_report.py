"""Pages as one file, which loads nothing else: the page of a job, made from its record, and two jobs side by side.

Owns: the frame of such a file, what of two jobs is compared, and how it looks. Does not own: their data
(`edl.dashboard.page_feed`), nor what is shown of one job (`edl.dashboard.page_view`).
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from edl.dashboard import page_feed, page_html
from edl.dashboard.page_feed import MOST, NAMES, Feed, thinned
from edl.dashboard.page_html import Line, lines_picture, scrolling, size_steps, state, time_bar
from edl.dashboard.page_view import REPORT_ROWS, PageValues, Tile, lasting
from edl.launch.status_poller import Point

SHIPPED: Final = Path(__file__).with_name("shipped")


def report(feed: Feed) -> str:
    """The page's policy allows the two scripts and styles in it, by their digests, and no loading."""
    shown = page_feed.view(feed), page_feed.newest(feed, REPORT_ROWS), page_feed.charts(feed)
    styles = [_shipped(name) for name in ("uPlot.min.css", "page.css")]
    scripts = [_shipped(name) for name in ("uPlot.iife.min.js", "page.js")]
    policy = (
        f"default-src 'none'; img-src data:; style-src {_digests(styles)}; script-src {_digests(scripts)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="data:,">'
    head += "".join(f"<style>{style}</style>" for style in styles)
    body = page_html.page(*shown, head, live=False)
    tail = "".join(f"<script>{script}</script>" for script in scripts)
    return body.replace("</body>", f"{tail}</body>")


def alone_in_file(title: str, body: str) -> str:
    """Make a file that runs no script. `title` and `body` are HTML."""
    style = _shipped("page.css")
    policy = f"default-src 'none'; img-src data:; style-src {_digests([style])}; base-uri 'none'; form-action 'none'"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,"><style>{style}</style></head>
{body}"""


def _shipped(name: str) -> str:
    return (SHIPPED / name).read_text(encoding="utf-8")


def _digests(texts: list[str]) -> str:
    found = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in found)


MARKS: Final = ("first", "second")  # classes of lines, and of their keys
EMPTY: Final = '<p class="empty">neither job has it on record</p>'


class ComparedRun(msgspec.Struct, frozen=True):
    view: PageValues
    at: Sequence[float]  # times of its sizes
    sizes: Sequence[int]
    points: Sequence[Point]


def comparison(runs: Sequence[ComparedRun]) -> str:
    names = " and ".join(run.view.job for run in runs)
    heads = "".join(
        f'<span><i class="{mark}"></i><b>{escape(run.view.job)}</b> {state(run.view)}</span>'
        for mark, run in zip(MARKS, runs, strict=True)
    )
    times = "".join(f"<h3>{escape(run.view.job)}</h3>{time_bar(run.view.time)}" for run in runs)
    body = f"""<body><header><h1>{escape(names)}</h1><p class="key">{heads}</p></header>
<main>
<section class="wide"><h2>At a glance</h2>{_glance(runs)}</section>
{_chart("Workers over time", runs, "workers", _sizes)}
{_chart("Throughput over time", runs, "samples a second", _rates)}
{"".join(_chart(f"{name} by samples trained", runs, name, _figure_of(name), by_time=False) for name in _figures(runs))}
<section class="wide"><h2>Where the time went</h2>{times}</section>
</main></body></html>
"""
    return alone_in_file(f"{escape(names)} · edl", body)


def _glance(runs: Sequence[ComparedRun]) -> str:
    """Make a row for each figure that either page shows at a glance."""
    found = [{tile.name: tile for tile in (_lasted(run), *run.view.tiles)} for run in runs]
    names = list(dict.fromkeys(name for tiles in found for name in tiles))
    head = "".join(f"<th>{escape(run.view.job)}</th>" for run in runs)
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(_cell(tiles.get(name)) for tiles in found)}</tr>" for name in names
    )
    table = f'<table class="beside"><thead><tr><th>figure</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"{scrolling('At a glance')}{table}</div>"


def _lasted(run: ComparedRun) -> Tile:
    began = f"since {time.strftime('%Y-%m-%d %H:%M', time.localtime(run.at[0]))}"
    return Tile("took", lasting(run.at[-1] - run.at[0]), began)


def _cell(tile: Tile | None) -> str:
    if tile is None:
        return "<td>-</td>"
    note = f" <small>{escape(tile.note)}</small>" if tile.note else ""
    return f'<td class="{escape(tile.tone)}"><b>{escape(tile.value)}</b>{note}</td>'


def _chart(
    title: str,
    runs: Sequence[ComparedRun],
    unit: str,
    points_of: Callable[[ComparedRun], list[tuple[float, float]]],
    *,
    by_time: bool = True,
) -> str:
    drawn = [
        Line(run.view.job, points, mark)
        for mark, run in zip(MARKS, runs, strict=True)
        if len(points := points_of(run)) > 1
    ]
    span = max((line.points[-1][0] for line in drawn), default=0.0)
    over = lasting(span) if by_time else f"{span:,.0f} samples"
    picture = lines_picture(drawn, unit, over) if drawn else EMPTY
    return f'<section class="wide"><h2>{escape(title)}</h2>{picture}</section>'


def _sizes(run: ComparedRun) -> list[tuple[float, float]]:
    return [(at - run.at[0], size) for at, size in size_steps(run.at, run.sizes)]


def _rates(run: ComparedRun) -> list[tuple[float, float]]:
    """Return samples a second by the time since the job's begin."""
    points = thinned(run.points, MOST)
    return [
        (after.ts - run.at[0], (after.samples - before.samples) / (after.ts - before.ts))
        for before, after in pairwise(points)
        if after.samples >= before.samples
    ]


def _figures(runs: Sequence[ComparedRun]) -> list[str]:
    return sorted({name for run in runs for point in run.points for name in point.figures})[:NAMES]


def _figure_of(name: str) -> Callable[[ComparedRun], list[tuple[float, float]]]:
    def values(run: ComparedRun) -> list[tuple[float, float]]:
        return [(point.samples, point.figures[name]) for point in thinned(run.points, MOST) if name in point.figures]

    return values
