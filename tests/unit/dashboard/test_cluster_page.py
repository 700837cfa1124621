"""The cluster's page: who had which device when, the queue, and that nothing from outside is more than text."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from seen_cluster import a_busy_hour, cluster_status, entry, held, looked_at

from edl.cluster.queue.job_view import shown
from edl.cluster.queue.queue_entries import JobPhase, QueueEvent
from edl.coordination.memory_store import MemoryServer
from edl.dashboard import cluster_server
from edl.dashboard.cluster_page import MOST_JOBS, MOST_LANES, ClusterSight, cluster_parts, cluster_sight, page
from edl.dashboard.cluster_server import ClusterFeed, ClusterPageServer, ClusterSeen, LooksHere
from edl.dashboard.site import Access
from edl.errors import StoreUnavailable
from edl.host.http_serving import listen
from edl.scheduler.cluster_client import ClusterClient
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome
from edl.scheduler.queue_store import JOBS, QueueStore

EVIL = "<script>alert(1)</script>\"'&"


def test_a_device_is_drawn_from_when_it_was_given_to_when_it_was_free() -> None:
    now = time.time()
    job = entry("a", JobPhase.RUNNING, ("node1", 0), ago=300, held=(held("a", 9, "node1", 1, 7200, 1800),))
    view = cluster_sight(cluster_status(job), [shown(job, now)], now, 3600)
    first, second = view.nodes[0].lanes[:2]
    assert (first.now, second.now) == ("a-1", "")
    [bar] = first.bars
    assert (bar.worker, round(bar.begin, 3), bar.end) == ("a-1", round(1 - 300 / 3600, 3), 1.0)
    [bar] = second.bars
    assert (bar.worker, bar.begin, round(bar.end, 3)) == ("a-9", 0.0, 0.5)
    assert cluster_sight(cluster_status(job), [shown(job, now)], now, 600).nodes[0].lanes[1].bars == ()


def test_who_has_devices_comes_first_and_then_who_is_next() -> None:
    status, jobs = looked_at(a_busy_hour())
    view = cluster_sight(status, jobs, time.time(), 3600)
    assert [row.job for row in view.rows][:5] == ["digits", "language", "speech", "sweep-7", "late"]
    assert {tile.name: tile.value for tile in view.tiles} == {
        "running": "3", "waiting": "2", "devices held": "6 of 8", "nodes": "2", "over": "2",
    }  # fmt: skip
    assert view.rows[1].workers == "3 of 2 (1-4)"


def test_a_node_that_is_left_out_is_said_to_be() -> None:
    status = cluster_status(nodes=("n", "m"))
    nodes = (msgspec.structs.replace(status.nodes[0], left_out_until=time.time() + 60), status.nodes[1])
    text = page(cluster_sight(msgspec.structs.replace(status, nodes=nodes), [], time.time(), 3600))
    assert text.count("gets no workers for a while") == 1
    assert "left out" not in page(cluster_sight(status, [], time.time(), 3600))


def test_a_page_is_bounded_however_large_the_cluster_is() -> None:
    jobs = [entry(f"j{n}", ago=n) for n in range(1000)]
    status = cluster_status(*jobs, nodes=("n", "m"), devices=100)
    view = cluster_sight(status, [shown(job, time.time()) for job in jobs], time.time(), 3600)
    assert (len(view.rows), view.more_jobs) == (MOST_JOBS, 1000 - MOST_JOBS)
    assert sum(len(node.lanes) for node in view.nodes) == MOST_LANES
    assert [node.more for node in view.nodes] == [0, 72]
    text = page(view)
    assert "and 800 more jobs" in text
    assert "and 72 more devices" in text


def test_what_comes_from_outside_is_text() -> None:
    event = QueueEvent(time.time(), EVIL, "a", EVIL)
    job = entry("a", JobPhase.RUNNING, (EVIL, 0), reason=EVIL, story=(event,))
    status = cluster_status(job, nodes=(EVIL,))
    text = page(cluster_sight(status, [shown(job, time.time())], time.time(), 3600))
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert(1)") >= 4
    assert not re.search(r"\son\w+=|style=", text)


@contextlib.asynccontextmanager
async def served(seen: list[ClusterSeen]) -> AsyncIterator[tuple[ClusterFeed, Access]]:
    """The last of `seen` is looked at; with none left the cluster is away."""

    async def look() -> ClusterSeen:
        if not seen:
            raise StoreUnavailable("gone")
        return seen[-1]

    feed = ClusterFeed(look)
    with listen("127.0.0.1", 0) as ear:
        access = Access.fresh(ear.getsockname()[1], "127.0.0.1")
        tasks = [asyncio.create_task(feed.run()), asyncio.create_task(ClusterPageServer(feed, access).serve(ear))]
        try:
            assert await feed.heard(10)
            yield feed, access
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def ask(access: Access, path: str, cookie: bool = True, until: bytes = b"") -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", access.port)
    held = f"Cookie: {access.cookie}={access.token}\r\n" if cookie else ""
    head = f"GET {access.place}{path} HTTP/1.0\r\nHost: 127.0.0.1:{access.port}\r\n{held}\r\n"
    writer.write(head.encode())
    told = await asyncio.wait_for(reader.readuntil(until) if until else reader.read(), 20)
    writer.close()
    return told.decode()


@pytest.mark.integration
async def test_the_page_opens_by_its_link_only_and_tells_as_it_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_server, "LOOK_S", 0.02)
    seen = [looked_at(a_busy_hour())]
    async with served(seen) as (_, access):
        for path in ("/", "/events", "/cluster.js", "/cluster.css"):
            assert " 403 " in (await ask(access, path, cookie=False)).splitlines()[0]
        text = await ask(access, "/?span=600")
        assert " 200 " in text.splitlines()[0]
        assert "default-src 'none'" in text
        assert '<b>10 min</b> <a href="?span=3600">1 h</a>' in text
        reader, writer = await asyncio.open_connection("127.0.0.1", access.port)
        cookie = f"Cookie: {access.cookie}={access.token}\r\n"
        writer.write(f"GET {access.place}/events HTTP/1.0\r\nHost: 127.0.0.1:{access.port}\r\n{cookie}\r\n".encode())
        first = await asyncio.wait_for(reader.readuntil(b"\n\n"), 20)
        assert set(told(first)) == {"state", "tiles", "gantt", "queue", "nodes", "story"}
        seen.append(looked_at([*a_busy_hour(), entry("newest")]))
        while "newest" not in (parts := told(await asyncio.wait_for(reader.readuntil(b"\n\n"), 20))).get("queue", ""):
            assert "state" not in parts  # it has not changed
        seen.clear()
        assert b"the cluster does not answer" in await asyncio.wait_for(reader.readuntil(b"away\ndata: {"), 20) + (
            await reader.readline()
        )
        writer.close()


async def test_parts_are_made_once_a_look_for_all_who_see_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(view: ClusterSight) -> dict[str, str]:
        made.append(view.span)
        return cluster_parts(view)

    monkeypatch.setattr(cluster_server, "cluster_parts", counted)
    async with served([looked_at(a_busy_hour())]) as (feed, access):
        answers = [await ask(access, f"/events?span={span}", until=b"\n\n") for span in (600, 3600, 600)]
        first = [told(answer.encode()) for answer in answers]
        assert made == [600, 3600]
        assert first[0] == first[2] and first[0]["gantt"] != first[1]["gantt"]
        feed.looks += 1
        await ask(access, "/events?span=600", until=b"\n\n")
        assert made == [600, 3600, 600]


def told(message: bytes) -> dict[str, str]:
    found = re.search(rb"^data: (.*)$", message, re.MULTILINE)
    parts: dict[str, str] = json.loads(found[1])["parts"] if found else {}
    return parts


async def test_jobs_that_are_over_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = QueueStore(MemoryServer().connect())
    await queue.prepare()
    client = ClusterClient(ClusterHome(tmp_path), ClusterConfig((), "fifo", {}, {}, "h", False, 1, 1.0, 0.0), queue)
    for job in (entry("over", JobPhase.FINISHED), entry("waits")):
        await queue.submit(job.asked, {})
        await queue.store.write(f"{JOBS}/{job.name}", msgspec.json.encode(job))
    asked: list[str] = []
    read = queue.job

    async def counted(name: str) -> object:
        asked.append(name)
        return await read(name)

    monkeypatch.setattr(queue, "job", counted)

    @contextlib.asynccontextmanager
    async def opened(_: ClusterHome) -> AsyncIterator[ClusterClient]:
        yield client

    monkeypatch.setattr(cluster_server, "opened", opened)
    looks = LooksHere(ClusterHome(tmp_path))
    for _ in range(2):
        status, jobs = await looks()
        assert sorted(job.name for job in jobs) == ["over", "waits"]
        assert status.jobs == {"finished": 1, "queued": 1}
    assert sorted(asked) == ["over", "waits", "waits"]
