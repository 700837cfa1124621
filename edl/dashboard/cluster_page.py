"""The view of a cluster as plain values, and its page as HTML, readable without a script. Pure.

Owns: what is worth showing, in which words and how much of it, the page's parts, and that all text from outside is
escaped.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Sequence
from html import escape
from itertools import chain
from typing import Final
from zlib import crc32

import msgspec

from edl.cluster.queue.job_view import JobShown
from edl.cluster.queue.queue_entries import JobPhase, QueueEvent
from edl.dashboard.page_html import scrolling, tiles
from edl.dashboard.page_view import Tile, clipped, lasting
from edl.facts import counted
from edl.scheduler.cluster_client import ClusterStatus, NodeStatus

SPANS: Final = {"10 min": 600, "1 h": 3600, "6 h": 21_600, "1 d": 86_400}
SPAN: Final = 3600
SHOWN_OVER: Final = 20  # ended jobs that are shown
MOST_JOBS: Final = 200  # rows
MOST_LANES: Final = 128  # devices
MOST_BARS: Final = 2000
MOST_EVENTS: Final = 60
COLOURS: Final = 8
WAITING: Final = (JobPhase.QUEUED, JobPhase.PREEMPTED)
ENDS: Final = (JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED)


class HeldBar(msgspec.Struct, frozen=True):
    """The time in which a worker held a device: begin and end as fractions of the time shown, each from 0 to 1."""

    job: str
    worker: str
    begin: float
    end: float
    words: str
    colour: int


class DeviceLane(msgspec.Struct, frozen=True):
    device: int
    now: str  # the present worker; empty: the device is free
    colour: int
    bars: tuple[HeldBar, ...]


class NodeLanes(msgspec.Struct, frozen=True):
    node: str
    there: bool  # the node's agent is running
    left_out: bool  # the node has failed its workers, and gets none for a while
    lanes: tuple[DeviceLane, ...]
    more: int  # devices that are not shown


class QueueRow(msgspec.Struct, frozen=True):
    job: str
    user: str
    priority: int
    state: str
    workers: str
    step: int
    waited: str
    reason: str
    colour: int


class ClusterSight(msgspec.Struct, frozen=True):
    policy: str
    leads: str
    tiles: tuple[Tile, ...]
    rows: tuple[QueueRow, ...]
    more_jobs: int
    nodes: tuple[NodeLanes, ...]
    told: tuple[QueueEvent, ...]  # the newest first
    begin: float  # begin of the time shown
    end: float
    span: int


def cluster_sight(status: ClusterStatus, jobs: Sequence[JobShown], now: float, span: int) -> ClusterSight:
    begin = now - span
    nodes = _nodes(status.nodes, jobs, begin, now)
    name = status.scheduler.partition(" ")[0]
    leads = f"{name} leads, term {status.term}" if name else "no scheduler leads just now"
    listed = _listed(jobs)
    return ClusterSight(
        policy=status.policy,
        leads="the cluster is being stopped" if status.draining else leads,
        tiles=_tiles(status, jobs, nodes),
        rows=tuple(map(_row, listed[:MOST_JOBS])),
        more_jobs=max(0, len(jobs) - min(len(listed), MOST_JOBS)),
        nodes=nodes,
        told=_told(status, jobs),
        begin=begin,
        end=now,
        span=span,
    )


def colour_of(job: str) -> int:
    return crc32(job.encode()) % COLOURS


# -------------------------------------------------------------------------------------------------------------- devices


def _nodes(nodes: Iterable[NodeStatus], jobs: Sequence[JobShown], begin: float, now: float) -> tuple[NodeLanes, ...]:
    bars = _bars(jobs, begin, now)
    found, left = [], MOST_LANES
    for node in nodes:
        shown = node.devices[: max(0, left)]
        left -= len(shown)
        lanes = tuple(_lane(node, device, bars.get((node.name, device), [])) for device in shown)
        found.append(
            NodeLanes(node.name, node.agent, node.left_out_until is not None, lanes, len(node.devices) - len(shown))
        )
    return tuple(found)


def _lane(node: NodeStatus, device: int, bars: list[HeldBar]) -> DeviceLane:
    worker = node.held.get(str(device), "")
    return DeviceLane(device, worker, colour_of(worker.rpartition("-")[0]), tuple(bars))


def _bars(jobs: Sequence[JobShown], begin: float, now: float) -> dict[tuple[str, int], list[HeldBar]]:
    """Return the bars by node and device; the newest ones if there are very many."""
    spans = [(one.ended, one.began, one.node, one.device, one.worker, job.name) for job in jobs for one in job.held]
    spans += [
        (now, one.began, one.node, device, one.id, job.name)
        for job in jobs
        for one in job.workers
        for device in one.devices
    ]
    found: dict[tuple[str, int], list[HeldBar]] = {}
    for ended, began, node, device, worker, job in sorted(spans, reverse=True)[:MOST_BARS]:
        if ended <= begin:
            continue
        left = max(0.0, (began - begin) / (now - begin))
        words = f"{worker} on {node}, device {device}, for {lasting(ended - began)}"
        bar = HeldBar(job, worker, left, min(1.0, (ended - begin) / (now - begin)), words, colour_of(job))
        found.setdefault((node, device), []).append(bar)
    return found


# ---------------------------------------------------------------------------------------------------------------- queue


def _listed(jobs: Sequence[JobShown]) -> list[JobShown]:
    """Return jobs that have devices, then those that wait, then the newest that are over."""
    active = [job for job in jobs if not job.over and job.state not in WAITING]
    waiting = sorted((job for job in jobs if job.state in WAITING), key=lambda job: (-job.priority, job.submitted))
    over = sorted((job for job in jobs if job.over), key=lambda job: -(job.ended or 0.0))
    return [*active, *waiting, *over[:SHOWN_OVER]]


def _row(job: JobShown) -> QueueRow:
    bounds = "" if job.min_np == job.max_np else f" ({job.min_np}-{job.max_np})"
    of = f", {job.processes} processes each" if job.processes > 1 else ""
    workers = f"{len(job.workers)} of {job.wanted or job.np}{bounds}{of}"
    reason = clipped(job.reason)
    return QueueRow(
        job.name, job.user, job.priority, job.state, workers, job.step, lasting(job.waited_s), reason,
        colour_of(job.name),
    )  # fmt: skip


def _tiles(status: ClusterStatus, jobs: Sequence[JobShown], nodes: Sequence[NodeLanes]) -> tuple[Tile, ...]:
    devices = sum(len(node.devices) for node in status.nodes)
    held = sum(len(node.held) for node in status.nodes)
    away = [node.name for node in status.nodes if not node.agent]
    waiting = [job for job in jobs if job.state in WAITING]
    active = [job for job in jobs if not job.over and job.state not in WAITING]
    longest = max((job.waited_s for job in waiting), default=0.0)
    failed = status.jobs.get(JobPhase.FAILED.value, 0)
    lanes = [lane for node in nodes for lane in node.lanes]
    used = sum(bar.end - bar.begin for lane in lanes for bar in lane.bars) / len(lanes) if lanes else 0.0
    ended = ", ".join(f"{status.jobs[end.value]} {end.value}" for end in ENDS if status.jobs.get(end.value))
    over = sum(status.jobs.get(end.value, 0) for end in ENDS)
    return (
        Tile("running", str(len(active)), counted(sum(len(job.workers) for job in active), "worker")),
        Tile("waiting", str(len(waiting)), f"the longest for {lasting(longest)}" if waiting else "no job waits"),
        Tile("devices held", f"{held} of {devices}", f"{used:.0%} of the time shown"),
        Tile("nodes", str(len(nodes)), f"away: {', '.join(away)}" if away else "all there", "warn" if away else "good"),
        Tile("over", str(over), ended, "bad" if failed and failed == over else ""),
    )


def _told(status: ClusterStatus, jobs: Sequence[JobShown]) -> tuple[QueueEvent, ...]:
    found = chain(status.story, (event for job in jobs for event in job.events))
    newest = heapq.nlargest(MOST_EVENTS, found, key=lambda event: event.ts)
    return tuple(msgspec.structs.replace(event, words=clipped(event.words)) for event in newest)


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
        f"<h3>{escape(node.node)}</h3>{''.join(map(_lane_html, node.lanes))}{_rest(node.more, 'devices')}"
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


def _lane_html(lane: DeviceLane) -> str:
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
