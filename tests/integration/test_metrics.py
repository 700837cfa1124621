"""Prometheus reads a real job, whichever worker leads it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from elastic_job import Job
from scraper import Scraper

pytestmark = pytest.mark.integration


@pytest.mark.soak  # the tally is in the job's record: tests/unit/core/job/test_counters.py
def test_the_numbers_of_a_job_outlive_its_leaders(edl, tmp_path: Path) -> None:
    job = Job(edl, tmp_path, 2, EDL_METRICS_PORT="0", EDL_SESSION_TIMEOUT="4")
    job.wait_size(2)
    scraper = Scraper(edl.home)
    steps = "edl_job_steps_total,job=s"
    edl.wait(lambda: scraper.scrape().get(steps, 0) > 20, "20 steps in the metrics")

    job.scale(3)
    job.wait_size(3)
    edl.wait(lambda: scraper.scrape().get("edl_job_scalings_total,job=s,reason=grow") == 1, "the change")
    leader = job.status()["leader"]
    os.kill(next(one["daemon_pid"] for one in job.status()["workers"] if one["id"] == leader), signal.SIGKILL)
    edl.wait(lambda: scraper.scrape().get("edl_job_term,job=s", 0) > 1, "another leader's metrics")
    before = scraper.highest[steps]
    edl.wait(lambda: scraper.scrape().get(steps, 0) > before + 20, "steps under another leader")

    victim = next(one for one in job.status()["workers"] if one["rank"] == 1)
    os.kill(victim["pid"], signal.SIGKILL)
    edl.wait(lambda: scraper.scrape().get("edl_job_scalings_total,job=s,reason=fault", 0) >= 1, "the fault", 60)
    last = edl.wait(scraper.scrape, "metrics")
    assert last["edl_job_workers_lost_total,cause=died,job=s"] >= 1
    bad = {name: value for name, value in last.items() if name.startswith("edl_job_badput")}
    assert bad["edl_job_badput_seconds_total,cause=fault,job=s"] > 0
    assert bad["edl_job_badput_seconds_total,cause=starting,job=s"] > 0
    pauses = [event["pause_ms"] or 0.0 for event in job.events() if event["kind"] == "scaled"]
    assert last["edl_job_pause_seconds_total,job=s"] == pytest.approx(sum(pauses) / 1000)
    activities = [name for name in last if name.startswith("edl_worker_seconds_total")]
    assert len(activities) == 3 * len(job.status()["workers"])
    job.finish()
    job.expect_exactly_once()


@pytest.mark.slow
def test_a_worker_says_where_its_metrics_are(edl, tmp_path: Path) -> None:
    job = Job(edl, tmp_path, 1, 1, EDL_METRICS_PORT="0")
    out, err = job.launcher.communicate(timeout=120)
    assert job.launcher.returncode == 0, out + err
    assert re.search(r"edl: metrics of worker w\w+: http://127\.0\.0\.1:\d+/metrics", err), err
