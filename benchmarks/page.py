"""A job's page and its metrics: how late, how large, and what they cost the job.

    python -m benchmarks.page delay  [--changes 30] [--pages 2] [--browsers 0] [--json]
    python -m benchmarks.page load   [--workers 64] [--events 20000] [--loads 10]
    python -m benchmarks.page cost   [--turns 40] [--turn 3] [--workers 1] [--batch 64] [--pages 2] [--json]
    python -m benchmarks.page scrape [--workers 1000] [--scrapes 20]

`delay`: how late an event is on the page, from when its leader wrote it down until one who looks at the page has it. A
real job of PyTorch goes from 2 to 3 workers by `edl scale`, one of them is killed by kill -9 and another comes for it,
and it goes back to 2, until there were so many changes. `edl dashboard` serves its page to so many who look as a
browser's script does, and to so many of Debian's chromium, where an event counts as soon as it is in the document.
Printed: the median, the 99th percentile and the longest delay of all events on all of them; and beside it the same for
a bare client of the coordinator, which is what no page can be faster than. Goal: 250 ms for the 99th percentile; exit
code 1 beyond. Events from before those who look had connected do not count.

`load`: how long a browser takes over the page of a day, and how much it fetches. A made-up job: so many workers, a day
of events of which each second one is a change of size, 5,000 points of its figures. Chromium loads the page so many
times without a cache. Printed: the median and the longest time until all is loaded and the charts are drawn; the bytes
of the page itself, which are data for the most part, and of all else. Goals: 1 s (median), 100,000 bytes besides data;
exit code 1 beyond.

`cost`: the steps of one job while it is looked at and while it is not, in turns. A job of PyTorch serves its metrics,
and `edl dashboard` its page. In each second turn a scraper reads all of its daemons each second, and so many look at
the page; in the others the dashboard's process is stopped (SIGSTOP) and no daemon is scraped. Two turns next to each
other are a pair, which of them comes first alternates: what the machine does for longer than that falls on both.
Printed: the ratio of the median times of a step, as the mean over all pairs with its standard error; and the share of a
core that the dashboard takes while it is looked at. A page may be served on another machine than the job; where it is
not, it needs a core that trainers leave free, so by default there is one worker. A second ratio is of the processor
time of trainers and daemons for a step: it bounds what a step can take longer where no core is free, and does not see
waiting, such as for memory. Goal: 1.001. The verdict is *within* where one of the two ratios is so by two standard
errors, *beyond* (exit code 1) where that of the wall clock is beyond by two, and else *open*: nothing is shown, and
more turns or a quiet machine are needed.

`scrape`: what a scrape of a leader costs. A made-up job is served by the real server of a daemon, and read by a process
of its own by HTTP. Scrapes come further apart than an answer is kept, so that each is made anew. The processor's time
is that of the process that serves, over all scrapes, and within it what keeps the daemon's loop from other work.
Besides it `status` is worked out for each scrape, which is what `edl status` costs a leader: `python -m
benchmarks.ledger` has a real one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from http.cookiejar import CookieJar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import numpy as np

from benchmarks import harness
from benchmarks.harness import (
    DigitsJob,
    EventWatch,
    Job,
    cpu_seconds,
    daemon_of,
    edl_run,
    mean_ratio,
    program,
    wait_true,
)
from edl.clock import ManualClock
from edl.daemon.metrics.families import Family, of_job
from edl.daemon.metrics.metrics_server import KEPT_S, MetricsServer
from edl.dashboard.page_feed import Feed
from edl.dashboard.page_server import PageServer
from edl.dashboard.site import Access
from edl.events import Kind
from edl.host.http_serving import listen
from edl.host.network import LOOPBACK
from edl.launch.locate_job import Whereabouts
from edl.launch.status_poller import Point
from edl.protocol.data_nouns import DataCounts
from edl.protocol.record import JobState, Stable, Status, WorkerState, WorkerStatus
from edl.protocol.tally import Doing, Rate, Tally, Usage

if TYPE_CHECKING:
    from benchmarks.page_browser import PageBrowser

PATIENCE_S: Final = 120.0


# ------------------------------------------------------------------------------------------------- one who looks at it


LISTEN_S: Final = 30.0


class PageListener:
    """A context: it listens until it is left, or the page tells of the job's end. `heard`: by number, when."""

    def __init__(self, link: str) -> None:
        self._address = urlsplit(link).netloc
        jar = CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        with opener.open(link, timeout=LISTEN_S) as page:
            self._place = urlsplit(page.url).path
            self.size = len(page.read())
        self._cookie = "; ".join(f"{one.name}={one.value}" for one in jar)
        self.heard: dict[int, float] = {}
        self.looks = 0
        self.times = 0  # that it connected
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PageListener:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join(LISTEN_S)

    def _run(self) -> None:
        while not self._left.is_set():
            try:
                if self._listen():
                    return
            except (OSError, http.client.HTTPException):  # the page is gone, or its connection broke off
                self._left.wait(0.2)

    def _listen(self) -> bool:
        """Until the connection ends. True: the job is over."""
        with closing(http.client.HTTPConnection(self._address, timeout=LISTEN_S)) as connection:
            after = max(self.heard, default=0)
            connection.request("GET", f"{self._place}events?after={after}", headers={"Cookie": self._cookie})
            answer = connection.getresponse()
            self.times += answer.status == 200
            kind = ""
            while not self._left.is_set() and (line := answer.readline()):
                if line.startswith(b"event: "):
                    kind = line[7:].strip().decode()
                elif line.startswith(b"data: ") and self._take(kind, json.loads(line[6:])):
                    return True
        return False

    def _take(self, kind: str, told: dict[str, object]) -> bool:
        if kind == "happened":
            number = told["number"]
            assert isinstance(number, int)
            self.heard.setdefault(number, time.time())
            return False
        self.looks += 1
        return bool(told["over"])


# ---------------------------------------------------------------------------------------------------------------- delay

GOAL_MS: Final = 250.0
SEEN_BY: Final = {"browser": "in a browser", "page": "who looks at it", "bare": "a bare client"}


@contextlib.contextmanager
def dashboard(name: str, environ: dict[str, str]) -> Iterator[str]:
    """The link that it prints."""
    with subprocess.Popen(
        [program("edl"), "dashboard", name], env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split(": ", 1)[1].strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)


ROUND: Final = ("grow", "kill", "replace", "shrink")


def change(job: DigitsJob, watch: EventWatch, number: int) -> None:
    """From 2 to 3 workers, from 3 to 2 by kill -9, to 3 as another one comes for it, and back to 2."""
    what = ROUND[number % len(ROUND)]
    known = len(watch.heard)
    if what == "kill":
        status = job.status()
        victim = next(worker for worker in status["workers"] if worker["rank"] == status["size"] - 1)
        os.kill(victim["pid"], signal.SIGKILL)
    elif what != "replace":
        job.edl("scale", job.name, "3" if what == "grow" else "2", "--wait", "--timeout", str(PATIENCE_S))
    if watch.wait_kind(Kind.SCALED, known, PATIENCE_S) is None:
        raise SystemExit(f"change {number} does not come:\n{job.log()}")
    print(f"change {number + 1}", file=sys.stderr, flush=True)


def delays(changes: int, pages: int, browsers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        job = DigitsJob("torch", Path(name), 2, 0.02, flags=("--max-restarts", str(changes)))
        try:
            job.wait_training()
            link = stack.enter_context(dashboard(job.name, job.environ))
            listeners = [stack.enter_context(PageListener(link)) for _ in range(pages)]
            windows = [stack.enter_context(window(link)) for _ in range(browsers)]
            watch = stack.enter_context(EventWatch(job.name, job.environ["EDL_HOME"]))
            everyone: list[PageListener | PageBrowser] = [*listeners, *windows]
            if not wait_true(lambda: all(one.looks for one in everyone), PATIENCE_S):
                raise SystemExit("the page tells nothing")
            began = time.time()
            for number in range(changes):
                change(job, watch, number)
            whole = len(watch.heard)
            if not wait_true(lambda: all(whole in one.heard for one in everyone), PATIENCE_S):
                raise SystemExit("the page has not all that happened")
            shown = [one.heard for one in windows]
            told = list(zip(watch.heard[:whole], watch.heard_at, strict=False))
        finally:
            job.launcher.send_signal(signal.SIGINT)
            job.launcher.wait(PATIENCE_S)
    counted = [(number, event, at) for number, (event, at) in enumerate(told, 1) if event.ts > began]
    late = [1000 * (one.heard[number] - event.ts) for one in listeners for number, event, _ in counted]
    bare = [1000 * (at - event.ts) for _, event, at in counted]
    found = {"changes": changes, "pages": pages, "browsers": browsers, "events": len(counted), "bare": spread(bare)}
    if late:
        found["page"] = spread(late)
    if shown:
        found["browser"] = spread(
            [1000 * (heard[number] - event.ts) for heard in shown for number, event, _ in counted]
        )
    return found


def window(link: str) -> PageBrowser:
    from benchmarks.page_browser import PageBrowser

    return PageBrowser(link)


def spread(late_ms: list[float]) -> dict[str, float]:
    late_ms = sorted(late_ms)
    last = len(late_ms) - 1
    return {
        "median": late_ms[last // 2],
        "p99": late_ms[min(last, math.ceil(0.99 * len(late_ms)) - 1)],
        "longest": late_ms[last],
    }


def in_words(spread: dict[str, float]) -> str:
    return (
        f"median {spread['median']:.0f} ms, 99 % within {spread['p99']:.0f} ms, the longest {spread['longest']:.0f} ms"
    )


# ----------------------------------------------------------------------------------------------------------------- load

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
    feed.take_events([event(n, BEGAN + DAY_S * n / events, workers) for n in range(events)])
    feed.history.take(
        Point(BEGAN + DAY_S * n / POINTS, 100 * n, 6400 * n, workers, {"loss": 1 / (1 + n), "accuracy": 0.9})
        for n in range(POINTS)
    )
    feed.take_status(msgspec.structs.replace(status(workers), started=BEGAN))
    return feed


def load(link: str, times: int) -> list[tuple[float, int, int]]:
    """Milliseconds, bytes of the page, bytes besides."""
    from selenium.webdriver.chrome.options import Options

    from benchmarks.page_browser import chromium

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


async def loaded(workers: int, events: int, loads: int) -> list[tuple[float, int, int]]:
    with listen("127.0.0.1", 0) as ear:
        access = Access.fresh(ear.getsockname()[1], "127.0.0.1")
        serving = asyncio.create_task(PageServer(day(workers, events), access).serve(ear))
        try:
            return await asyncio.to_thread(load, access.link, loads)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


# ----------------------------------------------------------------------------------------------------------------- cost

GOAL: Final = 1.001
NAME: Final = "looked-at"
SETTLE_S: Final = 0.25  # of each turn, which does not count
AHEAD: Final = 400  # steps from now to the end, for which all workers read of it


class Turn(msgspec.Struct, frozen=True):
    seen: bool
    began: float
    ended: float
    cpu_s: float  # of trainers and daemons


class Lookers:
    """A scraper of all daemons, and a dashboard with some pages."""

    def __init__(self, home: Path, environ: dict[str, str], pages: int, stack: contextlib.ExitStack) -> None:
        self._targets = home / "jobs" / NAME / "metrics"
        self._process = subprocess.Popen(
            [program("edl"), "dashboard", NAME], env=environ, stdout=subprocess.PIPE, text=True
        )
        stack.callback(self._end)
        assert self._process.stdout is not None
        link = self._process.stdout.readline().split(": ", 1)[1].strip()
        self.pages = [stack.enter_context(PageListener(link)) for _ in range(pages)]
        self._looking = threading.Event()
        self._left = threading.Event()
        self.scrapes = 0
        thread = threading.Thread(target=self._scrape, daemon=True)
        thread.start()

    def _scrape(self) -> None:
        while not self._left.wait(1.0):
            if self._looking.is_set():
                for file in self._targets.glob("*.json"):
                    target = json.loads(file.read_text())[0]["targets"][0]
                    with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
                        self.scrapes += bool(answer.read())

    def look(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._looking.set()

    def look_away(self) -> None:
        self._looking.clear()
        self._process.send_signal(signal.SIGSTOP)

    def cpu_s(self) -> float:
        return cpu_seconds(self._process.pid)

    def _end(self) -> None:
        self._left.set()
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)


def cost(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        worker = harness.worker(folder, "--model", "layers", "--batch", options.batch, "--step-ms", 0, "--report")
        job = Job(folder, [*edl_run(options.workers, NAME, "--metrics-port", "0"), *worker], name=NAME)
        stack.callback(job.launcher.send_signal, signal.SIGINT)
        job.wait(lambda: job.notes.newest() >= 100, "the job trains", PATIENCE_S)
        trainers = [worker["pid"] for worker in job.status()["workers"]]
        lookers = Lookers(folder / "home", job.environ, options.pages, stack)
        pids = [*trainers, *map(daemon_of, trainers)]
        turns, cpu_s = take_turns(lookers, pids, options.turns, options.turn)
        lookers.look()
        job.set("stop", job.notes.newest() + AHEAD)
        if job.launcher.wait(PATIENCE_S):
            raise SystemExit(f"the job failed:\n{job.log()}")
        steps = [ends_and_times(notes) for notes in job.notes.steps().values()]
        looks = [page.looks for page in lookers.pages]
    share = cpu_s / (options.turns * options.turn)
    return {**summary(turns, steps), "cpu": share, "looks": looks, "scrapes": lookers.scrapes}


def ends_and_times(notes: list[dict[str, Any]]) -> np.ndarray:
    """When each step but the first ended, and what it took."""
    ends = np.array([note["at"] for note in notes])
    return np.array([ends[1:], np.diff(ends)])


def take_turns(lookers: Lookers, pids: list[int], pairs: int, turn_s: float) -> tuple[list[Turn], float]:
    """And the processor time of the dashboard in those in which the job was looked at."""
    turns, dashboard_s = [], 0.0
    for pair in range(pairs):
        for seen in (True, False) if pair % 2 else (False, True):
            (lookers.look if seen else lookers.look_away)()
            before = lookers.cpu_s()
            time.sleep(SETTLE_S)
            spent, began = sum(map(cpu_seconds, pids)), time.monotonic()
            time.sleep(turn_s - SETTLE_S)
            turns.append(Turn(seen, began, time.monotonic(), sum(map(cpu_seconds, pids)) - spent))
            dashboard_s += lookers.cpu_s() - before if seen else 0.0
        print(f"pair {pair + 1}", file=sys.stderr, flush=True)
    return turns, dashboard_s


def summary(turns: list[Turn], steps: list[np.ndarray]) -> dict[str, Any]:
    """`steps`: of each worker, when each ended and what it took."""

    def wall_s(turn: Turn) -> float:
        return float(np.median(np.concatenate([took[(at > turn.began) & (at < turn.ended)] for at, took in steps])))

    def cpu_s(turn: Turn) -> float:
        """For a step of the job, and parts of the first and the last one."""
        ended = steps[0][0]
        first, last = np.interp([turn.began, turn.ended], ended, np.arange(len(ended)))
        return turn.cpu_s / float(last - first)

    pairs = [(one, other) if one.seen else (other, one) for one, other in zip(turns[::2], turns[1::2], strict=True)]
    walls = np.array([[wall_s(turn) for turn in pair] for pair in pairs])
    cpus = np.array([[cpu_s(turn) for turn in pair] for pair in pairs])
    wall, wall_error = mean_ratio(walls[:, 0] / walls[:, 1])
    cpu, cpu_error = mean_ratio(cpus[:, 0] / cpus[:, 1])
    return {
        "pairs": len(pairs),
        "seen_ms": 1000 * float(np.median(walls[:, 0])),
        "unseen_ms": 1000 * float(np.median(walls[:, 1])),
        "ratio": wall,
        "standard_error": wall_error,
        "median_ratio": float(np.median(walls[:, 0] / walls[:, 1])),
        "seen_cpu_ms": 1000 * float(np.mean(cpus[:, 0])),
        "unseen_cpu_ms": 1000 * float(np.mean(cpus[:, 1])),
        "cpu_ratio": cpu,
        "cpu_standard_error": cpu_error,
        "verdict": verdict((wall, wall_error), (cpu, cpu_error)),
    }


def verdict(wall: tuple[float, float], cpu: tuple[float, float]) -> str:
    if wall[0] - 2 * wall[1] > GOAL:
        return "beyond"
    return "within" if any(ratio + 2 * error <= GOAL for ratio, error in (wall, cpu)) else "open"


# --------------------------------------------------------------------------------------------------------------- scrape

READER: Final = """
import gzip, json, sys, time, urllib.request
url, scrapes, apart = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
for _ in range(scrapes):
    time.sleep(apart)
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        body = answer.read()
    took = time.perf_counter() - began
    print(json.dumps([took, len(body), len(gzip.compress(body))]), flush=True)
"""


def status(workers: int) -> Status:
    """Of a job in the middle of its life."""
    usage = Usage(1000.0, 7000, 301.25, 12.5, 900.0, 3_000_000_000, {"loss": 0.1234567, "accuracy": 0.98}, 686.25)
    return Status(
        job="job",
        state=JobState.RUNNING,
        reason="",
        term=3,
        generation=12,
        leader="w0",
        step=7000,
        epoch=3,
        size=workers,
        target=workers,
        min_workers=1,
        max_workers=0,
        workers=tuple(
            WorkerStatus(f"w{n:08x}", n, f"node{n // 8}", 1, 2, WorkerState.TRAINING, 7000, usage)
            for n in range(workers)
        ),
        data=DataCounts(3, 1_000_000, 600_000, 300_000, 100_000, 512),
        spec=None,
        rate=Rate(workers, 1000, 64_000, 100.0),
        tally=Tally(at=1.0, doing=Doing.TRAINING, good_s=9000.0, bad_s={"switch": 3.0}),
        stable=Stable(7000, 448_000),
    )


async def scraped(workers: int, scrapes: int) -> dict[str, Any]:
    seen, collecting = status(workers), []

    def read() -> list[Family]:
        began = time.thread_time()
        found = of_job(seen, 1000.0)
        collecting.append(time.thread_time() - began)
        return found

    server = MetricsServer(read)
    port = await server.start(LOOPBACK, 0)
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, f"http://{LOOPBACK}:{port}/metrics", str(scrapes), str(KEPT_S + 0.1),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdout is not None
    spent, waited, size, packed = [], [], 0, 0
    before = time.process_time()
    while line := await reader.stdout.readline():
        spent.append(time.process_time() - before)
        wall_s, size, packed = json.loads(line)
        waited.append(wall_s)
        before = time.process_time()
    if await reader.wait() or len(collecting) != scrapes:
        raise SystemExit(f"{len(waited)} of {scrapes} scrapes were read, {len(collecting)} made")
    await server.stop()
    wall, took, loop = (1000 * statistics.median(found) for found in (waited, spent, collecting))
    rows = {
        "until it is read, median, ms": round(wall),
        "longest, ms": round(1000 * max(waited)),
        "of a processor, ms": round(took),
        "of it in the daemon's loop, ms": round(loop, 1),
        "bytes, packed": f"{size:,}, {packed:,}",
    }
    print(
        f"{workers} workers, {scrapes} scrapes by HTTP: {wall:.1f} ms (median; the longest {1000 * max(waited):.1f}), "
        f"{took:.1f} ms of a processor, of which {loop:.1f} in the daemon's loop; "
        f"{size:,} bytes, {packed:,} packed"
    )
    return rows


# --------------------------------------------------------------------------------------------------------------- parts


def delay_part(options: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    result = delays(options.changes, options.pages, options.browsers)
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['events']} events of {options.changes} changes of size:")
    seen = {words: result[name] for name, words in SEEN_BY.items() if name in result}
    for words, spread_ms in seen.items() if not options.json else ():
        print(f"  {words:18} {in_words(spread_ms)}")
    return all(result[name]["p99"] <= GOAL_MS for name in ("page", "browser") if name in result), seen


def load_part(options: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    found = asyncio.run(loaded(options.workers, options.events, options.loads))
    times_ms = [ms for ms, _, _ in found]
    _, page, rest = found[-1]
    median = statistics.median(times_ms)
    print(
        f"{options.workers} workers, {options.events:,} events: loaded in {median:.0f} ms, "
        f"the longest {max(times_ms):.0f}; the page {page:,} bytes, besides {rest:,}"
    )
    figures = {
        "until the charts are drawn, median, ms": round(median),
        "longest, ms": round(max(times_ms)),
        "the page, bytes": f"{page:,}",
        "scripts and styles, bytes": f"{rest:,}",
    }
    return median <= 1000 * GOAL_S and rest <= GOAL_BYTES, figures


def cost_part(options: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    result = cost(options)
    print(
        json.dumps(result)
        if options.json
        else f"a step takes {result['unseen_ms']:.3f} ms unseen, {result['seen_ms']:.3f} ms looked at; ratio "
        f"{result['ratio']:.4f} +- {result['standard_error']:.4f} of {result['pairs']} pairs "
        f"(median {result['median_ratio']:.4f}); its processor time {result['unseen_cpu_ms']:.3f} and "
        f"{result['seen_cpu_ms']:.3f} ms, ratio {result['cpu_ratio']:.4f} +- {result['cpu_standard_error']:.4f}; "
        f"the goal of {GOAL}: {result['verdict']}; the dashboard takes {100 * result['cpu']:.1f} % of a core; "
        f"{result['scrapes']} scrapes, looks of the pages: {', '.join(map(str, result['looks']))}"
    )
    figures = {
        "a step unseen, ms": round(result["unseen_ms"], 3),
        "a step looked at, ms": round(result["seen_ms"], 3),
        f"median ratio of {result['pairs']} pairs": round(result["median_ratio"], 4),
        "mean ratio": f"{result['ratio']:.4f} ± {result['standard_error']:.4f}",
        "of processor time": f"{result['cpu_ratio']:.4f} ± {result['cpu_standard_error']:.4f}",
    }
    return result["verdict"] != "beyond", figures


def scrape_part(options: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    return True, asyncio.run(scraped(options.workers, options.scrapes))


PARTS: dict[str, Callable[[argparse.Namespace], tuple[bool, dict[str, Any]]]] = {
    "delay": delay_part,
    "load": load_part,
    "cost": cost_part,
    "scrape": scrape_part,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    delay, load, cost, scrape = (harness.add_common(parts.add_parser(name)) for name in PARTS)
    delay.add_argument("--changes", type=int, default=30)
    for part in (delay, cost):
        part.add_argument("--pages", type=int, default=2, help="that are looked at, at once")
    delay.add_argument("--browsers", type=int, default=0, help="of chromium, beside them (it takes selenium)")
    load.add_argument("--workers", type=int, default=64)
    load.add_argument("--events", type=int, default=20_000)
    load.add_argument("--loads", type=int, default=10)
    cost.add_argument("--turns", type=int, default=40, help="of each kind")
    cost.add_argument("--turn", type=float, default=3.0, help="seconds")
    cost.add_argument("--workers", type=int, default=1)
    cost.add_argument("--batch", type=int, default=64)
    scrape.add_argument("--workers", type=int, default=1000)
    scrape.add_argument("--scrapes", type=int, default=20)
    options = parser.parse_args()
    if options.part == "cost" and (options.turns < 2 or options.turn <= 2 * SETTLE_S):
        cost.error("at least two turns of each kind, of more than half a second")
    done, figures = PARTS[options.part](options)
    if options.part == "delay":
        names = {"median": "median, ms", "p99": "99th percentile, ms", "longest": "longest, ms"}
        rows = [{"": who, **{names[k]: round(v) for k, v in late.items()}} for who, late in figures.items()]
    else:
        rows = [{"": name, "figure": value} for name, value in figures.items()]
    harness.keep(options.keep, rows)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
