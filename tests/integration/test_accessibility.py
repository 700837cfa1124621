"""The page of a job, for readers who cannot see it, or its colours: axe-core finds nothing serious, wide or narrow."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from axe import serious_findings
from browser import Browser
from seen_job import BEGAN, event, feed, status

from edl.dashboard.access import Access
from edl.dashboard.page_server import PageServer
from edl.host.http_serving import listen
from edl.launch.progress_log import Point

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
SIZES = [(1920, False), (1920, True), (375, False), (375, True)]


def looked_at(browser: Browser, width: int, dark: bool, name: str) -> list[str]:
    browser.resize(width)
    browser.look(dark=dark)
    if folder := os.environ.get("EDL_PICTURES"):
        browser.picture(Path(folder) / f"{name}-{width}-{'dark' if dark else 'light'}.png")
        browser.resize(width)
    return [f"{width}, {'dark' if dark else 'light'}: {line}" for line in serious_findings(browser.driver)]


async def test_the_page_of_a_job_can_be_used_without_sight() -> None:
    ear = listen("127.0.0.1", 0)
    access = Access.fresh(ear.getsockname()[1], "127.0.0.1")
    shown = feed([event(number) for number in range(1, 9)], status(), points=0)
    shown.history.take(Point(BEGAN + n, 10 * n, 640 * n, 2, {"loss": 1 / (n + 1)}) for n in range(50))
    serving = asyncio.create_task(PageServer(shown, access).serve(ear))

    def look() -> list[str]:
        with Browser(1920) as browser:
            browser.driver.get(access.link)
            return [line for width, dark in SIZES for line in looked_at(browser, width, dark, "page")]

    try:
        assert await asyncio.to_thread(look) == []
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        ear.close()


def test_what_is_seriously_wrong_is_found() -> None:
    with Browser(1280) as browser:
        browser.driver.get("data:text/html,<html lang=en><title>x</title><img src=x><button></button>")
        found = [line.partition(":")[0] for line in serious_findings(browser.driver)]
    assert {"image-alt", "button-name"} <= set(found)
