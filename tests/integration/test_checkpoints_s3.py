"""A job whose checkpoints lie in a bucket, by S3's protocol: an outage, a death and a preemption, as a user meets them.

The endpoint and the credentials come by the environment, as docs/checkpoints.md has them.
"""

from __future__ import annotations

import json

import pytest
from s3_store import DROPPED, WELL, found_by_this_process, one_in_three, serving
from saved_job import Life

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]
SCRIPT = "torch_preempted.py"


def newest(edl, url: str, environ: dict[str, str]) -> dict[str, object]:
    """The newest one that is whole, as `edl checkpoint verify` finds it by the same environment. None is broken."""
    verified = edl("checkpoint", "verify", url, "--json", timeout_s=60, **environ)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    found = json.loads(verified.stdout)["checkpoints"]
    assert {one["condition"] for one in found} <= {"whole", "unfinished"}, found
    return next(one for one in found if one["condition"] == "whole")


def test_digits_are_trained_once_over_three_lives_that_lie_in_a_bucket(edl, tmp_path, monkeypatch) -> None:
    with serving() as server, found_by_this_process(server, monkeypatch):
        url, environ = f"{server.bucket()}/digits", server.environ
        every = ("--checkpoint-every", "20steps", "--keep", "2")

        def life(step_time: str) -> Life:
            return Life(
                edl, tmp_path, SCRIPT, "--step-time", step_time, "--epochs", "30",
                checkpoint=url, flags=every, audit=True, environ=environ, example=True,
            )  # fmt: skip

        first = life("0.2")
        first.wait_event("checkpoint_durable")
        server.answer = lambda asked: DROPPED
        reason = first.wait_failure()
        assert "s3://" in reason and reason.endswith("look at that store"), reason
        first.wait_step(first.step() + 5)  # an outage stops no training
        server.answer = lambda asked: WELL
        first.wait_durable_after("the store answers again")
        first.kill()
        saved = newest(edl, url, environ)

        second = life("0.2")
        server.answer = one_in_three(0)
        second.wait_event("checkpoint_durable")
        server.answer = lambda asked: WELL
        told = edl("preempt", "ck", timeout_s=60)
        assert told.returncode == 0, told.stdout + told.stderr
        assert f"edl: job ck goes on from step {saved['step']}, {saved['path']}" in second.finish(75)
        saved = newest(edl, url, environ)

        third = life("0")
        assert f"edl: job ck goes on from step {saved['step']}, {saved['path']}" in third.finish()
        verified = edl("data", "verify", str(tmp_path / "audit"))
        assert verified.stdout.splitlines()[-1] == "0 lost, 0 repeated", verified
