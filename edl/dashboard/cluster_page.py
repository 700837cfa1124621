"""The cluster's page as HTML, readable without a script. Pure.

Owns: the page's parts, and that all text from outside is escaped. Does not own: what is shown (`cluster_view`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from html import escape
from typing import Final

from edl.cluster.queue.queue_entries import QueueEvent
from edl.dashboard.cluster_view import SPANS, ClusterSight, DeviceLane, HeldBar, NodeLanes, QueueRow
from edl.dashboard.page_html import scrolling, tiles

HEAD: Final = (
    '<link rel="icon" href="data:,"><link rel="stylesheet" href="page.css"><link rel="stylesheet" href="cluster.css">'
    '<script src="cluster.js" defer></script>'
)
BAD: Final = frozenset({"job_failed", "worker_gone", "node_away", "node_left_out"})
GOOD: Final = frozenset({"job_finished", "job_running", "node_there"})
TICKS: Final = 4


def page(view: ClusterSight) -> str:
    parts = cluster_parts(view)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>cluster · edl</title>{HEAD}</head>
<body><header><h1>cluster</h1><span id="state">{parts["state"]}</span>
<span id="link" class="dot off">state when the page was loaded</span></header>
<main>
<section id="tiles" aria-label="At a glance">{parts["tiles"]}</section>
<section class="wide"><h2>Use of devices <span id="spans">{_spans(view.span)}</span></h2>
<div id="gantt">{parts["gantt"]}</div></section>
<section class="wide"><h2>Queue</h2><div id="queue">{parts["queue"]}</div></section>
<section class="wide"><h2>Nodes and their slots</h2><div id="nodes">{parts["nodes"]}</div></section>
<section class="wide"><h2>Events</h2>{scrolling("Events")}
<table id="events"><thead><tr><th>time</th><th>what</th>
<th>job</th><th>in words</th></tr></thead><tbody id="story">{parts["story"]}</tbody></table></div></section>
</main></body></html>"""


def cluster_parts(view: ClusterSight) -> dict[str, str]:
    """Return the parts by the ids of their elements."""
    return {
        "state": f'<b class="state">{escape(view.policy)}</b> <small>{escape(view.leads)}</small>',
        "tiles": tiles(view.tiles),
        "gantt": _gantt(view),
        "queue": _queue(view.rows, view.more_jobs),
        "nodes": "".join(map(_node, view.nodes)) or '<p class="empty">no nodes yet</p>',
        "story": "".join(map(_event, view.told)),
    }


def _spans(span: int) -> str:
    return " ".join(
        f"<b>{name}</b>" if seconds == span else f'<a href="?span={seconds}">{name}</a>'
        for name, seconds in SPANS.items()
    )


def _gantt(view: ClusterSight) -> str:
    """Draw a lane for each device, and times below."""
    lanes = "".join(
        f"<h3>{escape(node.node)}</h3>{''.join(map(_lane, node.lanes))}{_rest(node.more, 'devices')}"
        for node in view.nodes
    )
    form = "%H:%M:%S" if view.span < SPANS["1 h"] else "%H:%M"
    step = view.span / TICKS
    ticks = "".join(
        f"<span>{time.strftime(form, time.localtime(view.begin + n * step))}</span>" for n in range(TICKS + 1)
    )
    return (
        f'{lanes}<div class="ticks" aria-hidden="true">{ticks}</div>' if lanes else '<p class="empty">no nodes yet</p>'
    )


def _lane(lane: DeviceLane) -> str:
    bars = "".join(map(_bar, lane.bars))
    words = "; ".join(bar.words for bar in reversed(lane.bars)) or "free all the time"
    return (
        f'<div class="lane"><span>{lane.device}</span><svg class="bars" role="img" '
        f'aria-label="device {lane.device}: {escape(words)}">{bars}</svg></div>'
    )


def _bar(bar: HeldBar) -> str:
    width = max(0.1, 100 * (bar.end - bar.begin))
    return (
        f'<svg x="{100 * bar.begin:.2f}%" width="{width:.2f}%" height="22" data-worker="{escape(bar.worker)}">'
        f'<title>{escape(bar.words)}</title><rect class="j{bar.colour}" y="1" width="100%" height="20" rx="3"/>'
        f'<text x="5" y="15">{escape(bar.worker)}</text></svg>'
    )


def _queue(rows: Iterable[QueueRow], more: int) -> str:
    body = "".join(
        f'<tr><td><i class="j{row.colour}"></i>{escape(row.job)}</td><td>{escape(row.user)}</td>'
        f'<td class="n">{row.priority}</td><td><b class="state {escape(row.state)}">{escape(row.state)}</b></td>'
        f'<td>{escape(row.workers)}</td><td class="n">{row.step:,}</td><td class="n">{escape(row.waited)}</td>'
        f"<td>{escape(row.reason)}</td></tr>"
        for row in rows
    )
    if not body:
        return '<p class="empty">no jobs: <code>edl submit COMMAND...</code> submits one</p>'
    head = (
        '<tr><th>job</th><th>user</th><th class="n">priority</th><th>state</th><th>workers</th><th class="n">step</th>'
        '<th class="n">waited</th><th>reason</th></tr>'
    )
    table = f"{scrolling('Jobs')}<table><thead>{head}</thead><tbody>{body}</tbody></table></div>"
    return f"{table}{_rest(more, 'jobs')}"


def _node(node: NodeLanes) -> str:
    away = "" if node.there else ' <b class="away">the agent of this node is away; its workers train on</b>'
    away += (
        ' <b class="away">this node gets no workers for a while: workers have failed here</b>' if node.left_out else ""
    )
    slots = "".join(
        f'<li class="{f"j{lane.colour}" if lane.now else "free"}"><small>{lane.device}</small> '
        f"{escape(lane.now) or 'free'}</li>"
        for lane in node.lanes
    )
    return f'<h3>{escape(node.node)}{away}</h3><ul class="slots">{slots}</ul>{_rest(node.more, "devices")}'


def _rest(more: int, what: str) -> str:
    return f'<p class="empty">and {more} more {what}</p>' if more else ""


def _event(event: QueueEvent) -> str:
    tone = "bad" if event.kind in BAD else "good" if event.kind in GOOD else ""
    clock = time.strftime("%H:%M:%S", time.localtime(event.ts))
    return (
        f'<tr class="{tone}"><td><time>{clock}</time></td><td class="kind">{escape(event.kind)}</td>'
        f"<td>{escape(event.job)}</td><td>{escape(event.words)}</td></tr>"
    )
