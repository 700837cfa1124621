"""How long a browser takes over the page of a job of a day, and how much it fetches.

    python -m benchmarks.page_load [--workers 64] [--events 20000] [--loads 10]

A made-up job: so many workers, a day of events of which each second one is a change of size, 5,000 points of its
figures. `edl dashboard`'s server shows it to Debian's chromium, which loads the page so many times without a cache.
Printed: the median and the longest time until all is loaded and the charts are drawn; the bytes of the page itself,
which are data for the most part, and of all else. Goals: 1 s (median), 100,000 bytes besides data; exit code 1 beyond.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from typing import Any, Final

import msgspec
from selenium.webdriver.chrome.options import Options

from benchmarks.page_browser import chromium
from benchmarks.scrape import status
from edl.clock import ManualClock
from edl.dashboard.access import Access
from edl.dashboard.feed import Feed
from edl.dashboard.server import PageServer
from edl.host.serving import listen
from edl.launch.figures import Point
from edl.launch.whereabouts import Whereabouts

GOAL_S: Final = 1.0
GOAL_BYTES: Final = 100_000
DAY_S: Final = 86_400.0
BEGAN: Final = 1_800_000_000.0
POINTS: Final = 5000
LOADED: Final = """const [page] = performance.getEntriesByType("navigation");
const rest = performance.getEntriesByType("resource").filter((one) => one.initiatorType !== "eventsource");
if (!page.loadEventEnd || !document.querySelector("#chart-size .uplot")) return null;
return [page.loadEventEnd, page.transferSize, rest.reduce((sum, one) => sum + one.transferSize, 0)]"""


def event(number: int, ts: float, workers: int) -> dict[str, Any]:
    place = {"ts": ts, "job": "job", "term": 1, "generation": number, "step": 10 * number}
    if number % 2:
        return {**place, "kind": "epoch_ended", "epoch": number}
    sizes = (workers, workers - 1) if number % 4 else (workers - 1, workers)
    return {**place, "kind": "scaled", "from": sizes[0], "to": sizes[1], "pause_ms": 50.0, "forced": False}


def day(workers: int, events: int) -> Feed:
    def nowhere() -> Whereabouts:
        raise AssertionError("a made-up job is nowhere")

    feed = Feed(nowhere, ManualClock(BEGAN + DAY_S))
    feed._add([event(n, BEGAN + DAY_S * n / events, workers) for n in range(events)])
    feed.history.take(
        Point(BEGAN + DAY_S * n / POINTS, 100 * n, 6400 * n, workers, {"loss": 1 / (1 + n), "accuracy": 0.9})
        for n in range(POINTS)
    )
    feed._see(msgspec.structs.replace(status(workers), started=BEGAN))
    return feed


def load(link: str, times: int) -> list[tuple[float, int, int]]:
    """Milliseconds, bytes of the page, bytes besides."""
    found = []
    with chromium(Options(), 1920, 1200) as driver:
        driver.execute_cdp_cmd("Network.enable", {})
        driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
        for _ in range(times):
            driver.get(link)
            while (seen := driver.execute_script(LOADED)) is None:
                pass
            ms, page, rest = seen
            found.append((float(ms), int(page), int(rest)))
    return found


async def measure(workers: int, events: int, loads: int) -> list[tuple[float, int, int]]:
    with listen("127.0.0.1", 0) as ear:
        access = Access.fresh(ear.getsockname()[1], "127.0.0.1")
        serving = asyncio.create_task(PageServer(day(workers, events), access).serve(ear))
        try:
            return await asyncio.to_thread(load, access.link, loads)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--loads", type=int, default=10)
    options = parser.parse_args()
    found = asyncio.run(measure(options.workers, options.events, options.loads))
    times_ms = [ms for ms, _, _ in found]
    _, page, rest = found[-1]
    median = statistics.median(times_ms)
    print(
        f"{options.workers} workers, {options.events:,} events: loaded in {median:.0f} ms, "
        f"the longest {max(times_ms):.0f}; the page {page:,} bytes, besides {rest:,}"
    )
    return 0 if median <= 1000 * GOAL_S and rest <= GOAL_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
