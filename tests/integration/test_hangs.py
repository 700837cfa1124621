"""A worker hangs, in each way: the others give up after one step time-out, know whom, and train on without it.

Each prints what it has seen: `pytest -rP -m "soak or not soak" tests/integration/test_hangs.py`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from elastic_job import Job
from pace import patient

sys.path.insert(0, str(Path(__file__).parent / "jobs"))

from hanging import cue

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STEP_TIMEOUT_S = 4.0
# Of a script that has ended by the error of its collective: what it raised, or what its leader has said of it by then.
ENDED_BY = "not all members came|its script was not where the others' scripts were"
MORE_S = 2.0  # from the end of that until the others are in their next ring, on a machine that is not busy
WAYS: dict[str, tuple[tuple[str, ...], str]] = {  # a script and its arguments, and its ring
    "horovod": (("torch_elastic.py",), "horovod"),
    "torch": (("torch_elastic.py",), "torch"),
    "tensorflow": (("tensorflow_elastic.py", "--way", "eager"), "horovod"),
}
HOW = ("asleep", "collective", "astray", "stopped", "loader")
WHOM = ("member", "newcomer", "leader's")
# Of each ring and each worker; the others are more of the same. Who is astray: test_disagreeing.py.
UNMARKED = {
    ("horovod", "asleep", "member"),
    ("horovod", "collective", "leader's"),
    ("torch", "stopped", "member"),
}


def cells() -> list[Any]:
    every = [(way, how, whom) for way in WAYS for how in HOW for whom in WHOM]
    return [pytest.param(*one, marks=[] if one in UNMARKED else pytest.mark.soak) for one in every]


def chosen(job: Job, whom: str) -> dict[str, Any]:
    """The worker that is to hang: with one newcomer, that is the last; else the leader's, or the other one."""
    status = job.status()
    if whom == "newcomer":
        return next(worker for worker in status["workers"] if worker["rank"] == status["size"] - 1)
    return next(one for one in status["workers"] if (one["id"] == status["leader"]) == (whom == "leader's"))


@pytest.mark.slow
@pytest.mark.parametrize(("way", "how", "whom"), cells())
def test_who_hangs_is_given_up_after_one_step_time_out(edl, tmp_path, way: str, how: str, whom: str) -> None:
    script, ring = WAYS[way]
    # Both must find that they wait within a quarter of it, else the one that is astray is told as late.
    step_timeout_s = STEP_TIMEOUT_S * (2 if how == "astray" else 1)
    times = {"EDL_STEP_TIMEOUT": f"{step_timeout_s:g}", "EDL_SESSION_TIMEOUT": "6"}
    environ: dict[str, Any] = {**times, "EDL_MAX_RESTARTS": "0", "EDL_RING": ring}
    job = Job(edl, tmp_path, 1 if whom == "newcomer" else 2, script=script, **environ)
    if whom == "newcomer":
        job.wait_size(1)
        job.wait_steps(3)
        job.scale(2)
    job.wait_size(2)
    job.wait_steps(5)
    victim = chosen(job, whom)

    if how == "stopped":
        os.kill(victim["pid"], signal.SIGSTOP)
    else:
        cue(tmp_path, victim["pid"], how)
    began = time.time()
    edl.wait(lambda: job.status()["size"] == 1, "the others are in a ring without it", timeout_s=60)
    job.wait_steps(5)
    events = job.finish()

    (loss,) = [event for event in events if event["kind"] == "worker_lost"]
    assert loss["worker"] == victim["id"]
    again = next(event for event in events if event["kind"] == "scaled" and event["ts"] > loss["ts"])
    void = min((event["ts"] for event in events if event["kind"] == "batch_voided"), default=loss["ts"])
    figures = " | ".join(f"{moment - began:.1f}" for moment in (void, loss["ts"], again["ts"]))
    sys.stdout.write(f"| {way} | {how} | {whom} | {figures} | {loss['reason']} |\n")
    if how == "collective":
        assert re.search(ENDED_BY, loss["reason"]), (
            "its own script has ended by the error, or by what the leader said of it"
        )
    elif how == "astray":
        assert "it waited instead of the gradients for" in loss["reason"]
    else:
        assert "others gave up waiting for it: it hangs in step" in loss["reason"]
    if how in {"asleep", "loader"}:
        assert "hanging.py" in loss["reason"] or f"{script[0]}:" in loss["reason"], "where its script stands"
    if how == "stopped":
        assert "SIGSTOP" in loss["reason"]
    assert again["ts"] - began < step_timeout_s + patient(MORE_S + 2), "one step time-out, and not two"
    job.expect_exactly_once()
