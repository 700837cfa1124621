"""A thousand strangers at the page and at the metrics of a real job: it trains on, and changes its size."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from elastic_job import Job
from scraper import Scraper
from test_dashboard import Dashboard

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CROWD = 1000
WORDS = (b"", b"GET / HTTP/1.1\r\nHo", b"GET /metrics HTTP/1.1\r\nHost: elsewhere\r\n\r\n", b"\0\xff" * 50)
WINDOW_S = 4.0


@contextlib.contextmanager
def crowd(ports: list[int]) -> Iterator[None]:
    """So many connections to these ports at once; some are silent, some say half a question, some a wrong one."""
    with contextlib.ExitStack() as held:
        for number in range(CROWD):
            with contextlib.suppress(ConnectionError, TimeoutError):
                stranger = held.enter_context(socket.create_connection(("127.0.0.1", ports[number % len(ports)]), 5))
                stranger.sendall(WORDS[number // len(ports) % len(WORDS)])
        yield


def pace(job: Job) -> float:
    """Steps a second."""
    before, began = job.status()["step"], time.monotonic()
    time.sleep(WINDOW_S)
    return float((job.status()["step"] - before) / (time.monotonic() - began))


@pytest.mark.soak  # bounds: tests/unit/dashboard/test_page_server.py, tests/unit/daemon/metrics/test_metrics.py
def test_a_thousand_strangers_at_page_and_metrics_hold_up_no_training(edl, tmp_path) -> None:
    job = Job(edl, tmp_path, 2, EDL_METRICS_PORT="0")
    job.wait_size(2)
    page = Dashboard(edl)
    scraper = Scraper(edl.home)
    edl.wait(lambda: scraper.scrape().get("edl_job_steps_total,job=s", 0) > 20, "20 steps in the metrics")
    ports = [int(page.port), *(int(target.rpartition(":")[2]) for target in scraper.targets())]
    before = pace(job)
    with crowd(ports):
        beside = pace(job)
        job.scale(3)
        job.wait_size(3)
    assert beside > before / 2  # each step waits 30 ms for itself
    edl.wait(lambda: scraper.scrape().get("edl_job_scalings_total,job=s,reason=grow") == 1, "the metrics once more")
    page.end()
    events = job.finish()
    assert not {"worker_lost", "leader_resigned"} & {event["kind"] for event in events}
    assert [event["pause_ms"] is not None for event in events if event["kind"] == "scaled"] == [True]
    job.expect_exactly_once()
    job.expect_equal_models()
