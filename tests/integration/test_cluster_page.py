"""The cluster's page in a real browser: as it happens, wide and narrow, light and dark, with and without scripts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from browser import Browser
from seen_cluster import a_busy_hour, entry, looked_at

from edl.cluster.queue.queue_entries import JobPhase
from edl.dashboard.cluster_server import ClusterFeed, ClusterPageServer, ClusterSeen
from edl.dashboard.site import Access
from edl.host.http_serving import listen

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]
BARS = "return [...document.querySelectorAll('.bars [data-worker]')].map((one) => one.dataset.worker)"
SEEN = "return document.querySelector('#queue').textContent"
LIVE = "return document.querySelector('#link').textContent"


def picture(browser: Browser, name: str) -> None:
    """EDL_PICTURES: a folder to keep it in."""
    if folder := os.environ.get("EDL_PICTURES"):
        browser.picture(Path(folder) / f"{name}.png")


@pytest.mark.slow
async def test_the_clusters_page_shows_what_happens(edl) -> None:
    seen: list[ClusterSeen] = [looked_at(a_busy_hour())]

    async def look() -> ClusterSeen:
        return seen[-1]

    feed = ClusterFeed(look)
    ear = listen("127.0.0.1", 0)
    access = Access.fresh(ear.getsockname()[1], "127.0.0.1")
    tasks = [asyncio.create_task(feed.run()), asyncio.create_task(ClusterPageServer(feed, access).serve(ear))]

    def watch() -> None:
        with Browser(1280) as wide, Browser(375, dark=True) as phone:
            for browser in (wide, phone):
                browser.driver.get(access.link)
                edl.wait(lambda one=browser: one.run(LIVE) == "live", "it is told of what happens", 60)
                assert {"digits-1", "language-3", "vision-2", "broken-1"} <= set(browser.run(BARS))
                browser.expect_to_fit_dark_and_light()
            assert "token" not in wide.driver.current_url
            picture(wide, "cluster")
            picture(phone, "cluster-phone-dark")
            seen.append(looked_at([*a_busy_hour(), entry("newest", JobPhase.RUNNING, ("node2", 3), ago=5)]))
            for browser in (wide, phone):
                edl.wait(lambda one=browser: "newest" in one.run(SEEN), "the new job on the page", 60)
                assert "newest-1" in browser.run(BARS)
            wide.driver.find_element("link text", "10 min").click()
            edl.wait(lambda: "broken-1" not in wide.run(BARS), "the newest ten minutes", 60)
            assert wide.complaints() == phone.complaints() == []
            assert wide.hosts() | phone.hosts() == {f"127.0.0.1:{access.port}"}
        with Browser(375, dark=True, scripts=False) as plain:
            plain.driver.get(access.link)
            text = plain.driver.find_element("css selector", "body").text
            for word in ("digits-1", "node2", "no devices are left for it", "free", "10 min"):
                assert word in text, word
            plain.expect_to_fit_dark_and_light()
            plain.resize(1920)
            plain.expect_to_fit_dark_and_light()

    try:
        await asyncio.to_thread(watch)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ear.close()
