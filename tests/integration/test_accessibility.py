"""Pages, for readers who cannot see them, or their colours: axe-core finds nothing serious, wide or narrow."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from axe import serious_findings
from browser import Browser
from seen_cluster import a_busy_hour
from seen_cluster import looked_at as seen_cluster
from seen_job import BEGAN, event, feed, scaled, status
from seen_proof import MACHINE, PROOF

from edl.cli.dashboard import compared
from edl.dashboard.cluster_server import ClusterFeed, ClusterPageServer, ClusterSeen
from edl.dashboard.page_feed import Feed, History
from edl.dashboard.page_report import comparison, report
from edl.dashboard.page_server import PageServer
from edl.dashboard.site import Access, GuardedSite
from edl.host.http_serving import listen
from edl.launch.status_poller import Point
from edl.proof.proof_report import HorovodTurns, ProofHost, as_page
from edl.protocol.record import JobState

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
SIZES = [(1920, False), (1920, True), (375, False), (375, True)]


def looked_at(browser: Browser, width: int, dark: bool, name: str) -> list[str]:
    browser.resize(width)
    browser.look(dark=dark)
    if folder := os.environ.get("EDL_PICTURES"):
        browser.picture(Path(folder) / f"{name}-{width}-{'dark' if dark else 'light'}.png")
        browser.resize(width)
    found = [] if browser.fits() else ["it has to be scrolled sideways"]
    found += serious_findings(browser.driver)
    return [f"{width}, {'dark' if dark else 'light'}: {line}" for line in found]


def looked_through(url: str, name: str) -> list[str]:
    with Browser(1920) as browser:
        browser.driver.get(url)
        return [line for width, dark in SIZES for line in looked_at(browser, width, dark, name)]


def a_job(name: str = "j", rate: int = 640, loss: float = 1.0, state: JobState = JobState.RUNNING) -> Feed:
    told = msgspec.structs.replace(status(), job=name, state=state)
    shown = feed([*(event(number) for number in range(1, 8)), scaled(8, 2, 3), scaled(20, 3, 2)], told, points=0)
    shown.history = History()
    shown.history.take(Point(BEGAN + n, 10 * n, rate * n, 2, {"loss": loss / (n + 1)}) for n in range(50))
    return shown


@asynccontextmanager
async def served(site: GuardedSite, ear: socket.socket) -> AsyncIterator[None]:
    serving = asyncio.create_task(site.serve(ear))
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.slow
async def test_the_page_of_a_job_can_be_used_without_sight() -> None:
    with listen("127.0.0.1", 0) as ear:
        access = Access.fresh(ear.getsockname()[1], "127.0.0.1")
        async with served(PageServer(a_job(), access), ear):
            assert await asyncio.to_thread(looked_through, access.link, "page") == []


@pytest.mark.slow
async def test_the_page_of_a_cluster_can_be_used_without_sight() -> None:
    async def look() -> ClusterSeen:
        return seen_cluster(a_busy_hour())

    clusters = ClusterFeed(look)
    feeding = asyncio.create_task(clusters.run())
    assert await clusters.heard(60)
    with listen("127.0.0.1", 0) as ear:
        access = Access.fresh(ear.getsockname()[1], "127.0.0.1")
        async with served(ClusterPageServer(clusters, access), ear):
            assert await asyncio.to_thread(looked_through, access.link, "cluster") == []
    feeding.cancel()
    await asyncio.gather(feeding, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report", "comparison", "proof", "broken-proof"])
def test_a_file_can_be_used_without_sight(name: str, tmp_path: Path) -> None:
    broken = msgspec.structs.replace(PROOF, outcome=msgspec.structs.replace(PROOF.outcome, lost=3))
    hosts = [ProofHost(f"node{n}.cluster.example", 2, MACHINE, 0.2) for n in range(3)]
    there = msgspec.structs.replace(PROOF, hosts=hosts, horovod=HorovodTurns([11.0, 10.0], [10.0, 10.0]))
    made = {
        "report": lambda: report(a_job(state=JobState.FINISHED)),
        "comparison": lambda: comparison([compared(a_job("slow")), compared(a_job("fast-one", 900, 2.0))]),
        "proof": lambda: as_page(there),
        "broken-proof": lambda: as_page(broken),
    }
    file = tmp_path / f"{name}.html"
    file.write_text(made[name](), encoding="utf-8")
    assert looked_through(file.as_uri(), name) == []


def test_what_is_seriously_wrong_is_found() -> None:
    with Browser(1280) as browser:
        browser.driver.get("data:text/html,<html lang=en><title>x</title><img src=x><button></button>")
        found = [line.partition(":")[0] for line in serious_findings(browser.driver)]
    assert {"image-alt", "button-name"} <= set(found)
