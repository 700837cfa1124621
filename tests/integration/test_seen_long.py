"""A job through 100 changes of size and 20 leaders; two pages, a scraper and a Prometheus look all the time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_job import Job
from real_prometheus import RealPrometheus
from scraper import Scraper

from benchmarks.page import PageListener

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(2400)]

CHANGES = int(os.environ.get("EDL_TEST_CHANGES", "100"))
EACH_LEADER = 5  # changes
EACH_S = 0.5  # from one scrape to the next


class Scraping:
    """A scraper in a thread. A context: it raises in the end what one scrape has raised."""

    def __init__(self, home: Path) -> None:
        self.scraper = Scraper(home)
        self.scrapes = 0
        self.wrong: list[AssertionError] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Scraping:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()
        assert self.wrong == []

    def _run(self) -> None:
        while not self._left.wait(EACH_S):
            try:
                self.scrapes += bool(self.scraper.scrape())
            except AssertionError as error:
                self.wrong.append(error)
                return


@contextlib.contextmanager
def dashboard(edl) -> Iterator[str]:
    process: subprocess.Popen[str] = edl.start("dashboard", "s")
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(": ", 1)[1].strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def seen_by_launcher(edl, size: int) -> None:
    """It looks each second, and starts workers for what is asked for beyond what it has seen asked for."""
    kept = edl.home / "jobs" / "s" / "status.json"
    edl.wait(lambda: json.loads(kept.read_text())["target"] == size, "the launcher's look")


def depose(edl, job: Job, *, whole_worker: bool) -> None:
    """Kill the leader's daemon; its trainer starts another one, unless it is killed, too."""
    status = job.status()
    term = status["term"]
    leader = next(one for one in status["workers"] if one["id"] == status["leader"])
    for pid in (leader["daemon_pid"], *([leader["pid"]] if whole_worker else [])):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def led() -> bool:
        found = job.status()
        return found["term"] > term and found["state"] == "running" and found["size"] == found["target"]

    edl.wait(led, "another leader", 120)


def test_counters_never_shrink_and_two_pages_miss_nothing(edl, tmp_path: Path) -> None:
    job = Job(edl, tmp_path, 2, EDL_METRICS_PORT="0", EDL_SESSION_TIMEOUT="2", EDL_MAX_RESTARTS="100")
    job.wait_size(2)
    with contextlib.ExitStack() as stack:
        pages = [stack.enter_context(PageListener(stack.enter_context(dashboard(edl)))) for _ in range(2)]
        scraping = stack.enter_context(Scraping(edl.home))
        prometheus = stack.enter_context(RealPrometheus(edl.home, tmp_path / "prometheus"))
        for number in range(CHANGES):
            size = 3 - number % 2
            job.scale(size)
            job.wait_size(size)
            seen_by_launcher(edl, size)
            if number % EACH_LEADER == 0:
                depose(edl, job, whole_worker=number % (4 * EACH_LEADER) == 0)
        term = job.status()["term"]
        edl.wait(lambda: job.events()[-1]["term"] == term, "the last leader's word")
        seen = job.events()
        edl.wait(lambda: all(len(page.heard) >= len(seen) for page in pages), "the whole story on both pages", 60)
        changes = sum(event["kind"] == "scaled" for event in seen)

        def told() -> dict[str, float] | None:
            """What was read is given again for a second."""
            found = scraping.scraper.scrape()
            reasons = [value for name, value in found.items() if name.startswith("edl_job_scalings_total")]
            return found if sum(reasons) == changes else None

        scraped = edl.wait(told, "all changes in the metrics")
        total = "sum(max by (reason) (edl_job_scalings_total))"
        edl.wait(lambda: [one["value"][1] for one in prometheus.ask(total) or ()] == [str(changes)], "them there, too")
        resets = prometheus.resets()
    assert [sorted(page.heard)[: len(seen)] for page in pages] == [list(range(1, len(seen) + 1))] * 2
    assert len(resets) > 10 and not any(resets.values()), resets
    kinds = [event["kind"] for event in seen]
    assert kinds.count("leader_elected") >= CHANGES // EACH_LEADER
    assert kinds.count("scaled") >= CHANGES
    assert scraped["edl_job_term,job=s"] == term
    late = sorted(1000 * (page.heard[number] - event["ts"]) for page in pages for number, event in enumerate(seen, 1))
    found = {"changes": changes, "leaders": kinds.count("leader_elected"), "counters": len(resets)}
    found |= {"scrapes": scraping.scrapes, "p50_ms": late[len(late) // 2], "p99_ms": late[len(late) * 99 // 100]}
    sys.stdout.write(f"{found}\n")
    job.finish()
    job.expect_exactly_once()
