"""The page as HTML, readable without a script. The parts that scripts insert later are made here too. Pure.

Owns: the page's parts, and that all text from outside is escaped. Does not own: what is shown
(`edl.dashboard.page_view`), nor the drawing of charts by scripts (`shipped/page.js`).

No part has a script, a style or a handler of its own: the content security policy refuses them all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Final, NamedTuple

import msgspec

from edl.dashboard.page_view import CHANGES_OF_JOB, ROUTINE, PageValues, Tile, ToldEvent, WorkerRow, lasting
from edl.facts import counted

BAD: Final = frozenset({"worker_lost", "batch_voided", "diverged", "job_failed", "worker_unfit", "checkpoint_failed"})
GOOD: Final = frozenset({"scaled", "job_finished", "checkpoint_durable", "worker_ready", "migrated"})
PARTS: Final = ("compute", "data", "wait")


class Charts(msgspec.Struct, frozen=True):
    """Data that `shipped/page.js` reads."""

    size: Any  # {"at": [...], "size": [...], "changes": [...]}
    series: Any  # `edl.dashboard.page_feed.Series`


class Controls(msgspec.Struct, frozen=True):
    check: str  # secret of this page, which a form of another site does not have
    said: str = ""  # result of the last press


def page(
    view: PageValues,
    events: Sequence[ToldEvent],
    charts: Charts,
    head: str,
    controls: Controls | None = None,
    *,
    live: bool = True,
) -> str:
    """`head` names styles and scripts. With `live`, the page gets further messages as things happen."""
    link = "" if view.over or not live else '<span id="link" class="dot off">state when the page was loaded</span>'
    if live:
        link += f'<a id="share" href="report" download="{escape(view.job)}.html">save as one file</a>'
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(view.job)} · edl</title>{head}</head>
<body><header><h1>{escape(view.job)}</h1><span id="state">{state(view)}</span>{link}</header>
<main>
<section id="tiles" aria-label="At a glance">{tiles(view.tiles)}</section>
{_controls(controls)}
<section class="wide"><h2>Workers over time</h2>
<div class="chart" id="chart-size">{size_picture(charts.size)}</div></section>
<section class="wide" id="rates"><h2>Throughput</h2>
<div class="chart" id="chart-rate">{rate_picture(charts.series)}</div></section>
<div id="figures">{figure_pictures(charts.series)}</div>
<section class="wide"><h2>Workers</h2><div id="workers">{workers(view.rows, view.more_workers)}</div></section>
<section><h2>Samples of the epoch</h2><div id="data">{bar(view.data, "samples")}</div></section>
<section><h2>Where the time went</h2><div id="time">{time_bar(view.time)}</div></section>
<section class="wide"><h2>Events</h2>
<label class="filter"><input type="checkbox" id="routine">also routine events: epochs, boots, plans</label>
{scrolling("Events")}<table id="events"><thead><tr><th>time</th><th>what</th>
<th class="n">step</th><th>in words</th></tr></thead><tbody id="story">{rows(events)}</tbody></table></div>
<div id="earlier">{earlier_events(view.job, events[-1].number - 1 if events else 0)}</div></section>
</main>
<script type="application/json" id="charts">{embedded(charts)}</script>
</body></html>"""


def embedded(value: Any) -> str:
    """Encode a value as JSON for a page, so that no text in it ends the enclosing element."""
    text = json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def state(view: PageValues) -> str:
    reason = f" <small>{escape(view.reason)}</small>" if view.reason else ""
    return f'<b class="state {escape(view.state)}">{escape(view.state)}</b>{reason}'


def tiles(found: Iterable[Tile]) -> str:
    return "".join(
        f'<div class="tile {escape(one.tone)}"><span class="name">{escape(one.name)}</span>'
        f'<span class="value">{escape(one.value)}</span><span class="note">{escape(one.note)}</span></div>'
        for one in found
    )


def _controls(controls: Controls | None) -> str:
    if controls is None:
        return ""
    buttons = "".join(
        f'<button name="do" value="{name}"{" class=danger" if name == "stop" else ""}>{name}</button>'
        for name in ("grow", "shrink", "checkpoint", "stop")
    )
    said = f'<output id="said">{escape(controls.said)}</output>'
    hidden = f'<input type="hidden" name="check" value="{escape(controls.check)}">'
    return f'<form class="wide" id="controls" method="post" action="act">{hidden}{buttons}{said}</form>'


def scrolling(name: str) -> str:
    """Begin a part that scrolls sideways on a narrow screen, also by the keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">'


def workers(found: Iterable[WorkerRow], more: int) -> str:
    body = "".join(_worker(row) for row in found)
    if not body:
        return '<p class="empty">no workers</p>'
    rest = f'<p class="empty">and {more} more</p>' if more else ""
    head = "".join(f"<th{_numeric(name)}>{name}</th>" for name in _COLUMNS)
    return f"{scrolling('Workers')}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{rest}{_KEY}"


_COLUMNS: Final = ("rank", "worker", "host", "state", "step", "compute · data · wait", "pace", "memory", "")
_KEY: Final = (
    '<p class="key"><span><i class="compute"></i>computes</span><span><i class="data"></i>waits for samples</span>'
    '<span><i class="wait"></i>waits for other workers, or for the transfer</span></p>'
)


def _numeric(name: str) -> str:
    return ' class="n"' if name in {"rank", "step", "pace", "memory"} else ""


def _worker(row: WorkerRow) -> str:
    spent = "" if row.spending is None else _shares([(name, getattr(row.spending, name)) for name in PARTS])
    slow = ' class="slow"' if row.remark else ""
    return (
        f'<tr{slow}><td class="n">{escape(row.rank)}</td><td>{escape(row.worker)}</td><td>{escape(row.host)}</td>'
        f'<td>{escape(row.state)}</td><td class="n">{row.step:,}</td><td>{spent}</td>'
        f'<td class="n">{escape(row.pace)}</td><td class="n">{escape(row.memory)}</td>'
        f'<td class="remark">{escape(row.remark)}</td></tr>'
    )


def _shares(parts: Sequence[tuple[str, float]]) -> str:
    """Draw shares as a bar, and write them beside it."""
    words = " · ".join(f"{share:.0%}" for _, share in parts)
    return f'<span class="shares">{_bar_picture(parts)}<small>{words}</small></span>'


def _bar_picture(parts: Sequence[tuple[str, float]]) -> str:
    total = sum(value for _, value in parts) or 1.0
    drawn, x = [], 0.0
    for name, value in parts:
        width = 100 * value / total
        drawn.append(f'<rect class="{escape(name)}" x="{x:.2f}" width="{width:.2f}" height="8"/>')
        x += width
    return f'<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{"".join(drawn)}</svg>'


def bar(parts: Sequence[tuple[str, int]], unit: str) -> str:
    if not parts:
        return '<p class="empty">the script takes no samples from edl</p>'
    words = "".join(
        f'<span><i class="{escape(name)}"></i>{escape(name)} <b>{value:,}</b></span>' for name, value in parts
    )
    return f'{_bar_picture(parts)}<p class="key">{words}<small>{sum(value for _, value in parts):,} {unit}</small></p>'


def time_bar(parts: Sequence[tuple[str, float]]) -> str:
    if not parts:
        return '<p class="empty">no time measured yet</p>'
    words = "".join(
        f'<span><i class="{escape(name)}"></i>{escape(name)} <b>{lasting(value)}</b></span>' for name, value in parts
    )
    return f'{_bar_picture(parts)}<p class="key">{words}</p>'


def rows(events: Iterable[ToldEvent]) -> str:
    """Newest first."""
    return "".join(row(event) for event in events)


def earlier_events(job: str, count: int) -> str:
    """Name the command that shows the events that the page does not."""
    if not count:
        return ""
    return f'<p class="empty">and {count:,} earlier: <code>edl events {escape(job)}</code></p>'


def row(event: ToldEvent) -> str:
    tone = "bad" if event.kind in BAD else "good" if event.kind in GOOD else ""
    tone += " change" if event.kind in CHANGES_OF_JOB else " routine" if event.kind in ROUTINE else ""
    clock = time.strftime("%H:%M:%S", time.localtime(event.ts)) + f".{int(event.ts % 1 * 1000):03d}"
    return (
        f'<tr id="e{event.number}" class="{tone.strip()}" data-ts="{event.ts:.3f}"><td><time>{clock}</time></td>'
        f'<td class="kind">{escape(event.kind)}</td><td class="n">{event.step:,}</td>'
        f"<td>{escape(event.words)}</td></tr>"
    )


# ------------------------------------------------------------------------------------------- charts without a script


STILL_POINTS: Final = 400  # points of a figure's line
STILL_MARKS: Final = 200  # newest changes that are marked
CHANGES_TOLD: Final = 12  # newest changes listed below the picture


def size_picture(size: Any) -> str:
    """Draw the size as steps, with a mark for each change of the ring and its words as a tooltip; list the newest
    changes below.
    """
    at, sizes = size["at"], size["size"]
    if len(at) < 2:
        return '<p class="empty">no ring yet</p>'
    points = size_steps(at, sizes)
    marks = [(ts, count, words) for ts, count, _, words in size["changes"][-STILL_MARKS:]]
    return _line_picture(points, f"up to {counted(max(sizes), 'worker')}", marks=marks) + changes_in_words(size)


def size_steps(at: Sequence[float], sizes: Sequence[int]) -> list[tuple[float, float]]:
    """Return the corners of a line that stays at each size until the next one."""
    points: list[tuple[float, float]] = []
    for n, (ts, value) in enumerate(zip(at, sizes, strict=True)):
        if n:
            points.append((ts, sizes[n - 1]))
        points.append((ts, value))
    return points


def changes_in_words(size: Any) -> str:
    """List the newest changes, newest first."""
    changes = size["changes"]
    sizes = [size["size"][0], *(count for _, count, _, _ in changes)]
    earlier = max(0, len(changes) - CHANGES_TOLD)
    told = [
        f"{time.strftime('%H:%M:%S', time.localtime(ts))} {before} → {counted(count, 'worker')}{_paused(pause_ms)}"
        for before, (ts, count, pause_ms, _) in zip(sizes[earlier:-1], changes[earlier:], strict=True)
    ]
    rest = [f"{earlier:,} earlier"] if earlier else []
    return f'<p class="changes">{"; ".join([*reversed(told), *rest])}</p>' if told else ""


def _paused(pause_ms: float | None) -> str:
    if pause_ms is None:
        return ""
    return f", paused {pause_ms:.0f} ms" if pause_ms < 1000 else f", paused {lasting(pause_ms / 1000)}"


def figure_pictures(series: Any) -> str:
    """Draw a chart for each figure that the script reports; `shipped/page.js` draws in their places."""
    found = msgspec.to_builtins(series)
    return "".join(
        f'<section><h2>{escape(name)}</h2><div class="chart" data-name="{escape(name)}">'
        f"{_figure_picture(found['at'], values)}</div></section>"
        for name, values in found["figures"].items()
    )


def _figure_picture(at: Sequence[float], values: Sequence[float | None]) -> str:
    points = [(ts, value) for ts, value in zip(at, values, strict=True) if value is not None]
    if len(points) < 2:
        return '<p class="empty">reported once</p>' if points else '<p class="empty">not reported of late</p>'
    kept = points[:: -(-len(points) // STILL_POINTS)]
    kept = kept if kept[-1] is points[-1] else [*kept, points[-1]]
    low, high = min(value for _, value in points), max(value for _, value in points)
    return _line_picture(kept, f"{low:.4g} to {high:.4g}, {points[-1][1]:.4g} at the end", low=low)


def rate_picture(series: Any) -> str:
    found = msgspec.to_builtins(series)
    values = found["samples_s"] if any(found["samples_s"]) else found["steps_s"]
    points = [(ts, value) for ts, value in zip(found["at"], values, strict=True) if value is not None]
    unit = "samples a second" if any(found["samples_s"]) else "steps a second"
    if len(points) < 2:
        return '<p class="empty">no throughput measured yet</p>'
    return _line_picture(points, f"up to {max(value for _, value in points):.4g} {unit}")


def _line_picture(
    points: Sequence[tuple[float, float]],
    says: str,
    *,
    low: float = 0.0,
    marks: Iterable[tuple[float, float, str]] = (),
) -> str:
    """Draw a line. `says` is its label, `low` the value at the lower edge, and `marks` are points with words."""
    begin, end = points[0][0], points[-1][0]
    place = _placing([points], low)
    path = " ".join(place(ts, value) for ts, value in points)
    # A line of no length with round ends: a dot that stays round however the picture is stretched.
    dots = "".join(
        f'<path class="mark" d="M{place(ts, value)}h0"><title>{escape(words)}</title></path>'
        for ts, value, words in marks
    )
    return _figure(f'<polyline points="{path}"/>{dots}', f"{says}, over {lasting((end - begin) or 1)}")


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]
    mark: str  # class by which its looks differ


def lines_picture(lines: Sequence[Line], unit: str, over: str) -> str:
    """Draw lines into one picture. `over` says how far its lower edge goes."""
    place = _placing([line.points for line in lines], min(0.0, *(value for line in lines for _, value in line.points)))
    drawn = "".join(
        f'<polyline class="{line.mark}" points="{" ".join(place(x, value) for x, value in line.points)}"/>'
        for line in lines
    )
    said = "; ".join(f"{line.name} up to {max(v for _, v in line.points):.4g}, {line.points[-1][1]:.4g} at the end"
                     for line in lines)  # fmt: skip
    return _figure(drawn, escape(f"{unit}: {said}; over {over}"))


def _placing(lines: Sequence[Sequence[tuple[float, float]]], low: float) -> Callable[[float, float], str]:
    """Return what gives a point its place in a picture that all these lines fit."""
    begin, end = min(line[0][0] for line in lines), max(line[-1][0] for line in lines)
    span = (end - begin) or 1
    height = (max(value for line in lines for _, value in line) - low) or 1
    return lambda x, value: f"{1000 * (x - begin) / span:.1f},{194 - 188 * (value - low) / height:.1f}"


def _figure(drawn: str, label: str) -> str:
    return (
        f'<figure><svg class="still" viewBox="0 0 1000 200" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f"{drawn}</svg><figcaption>{label}</figcaption></figure>"
    )
