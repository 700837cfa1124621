"""Jobs of one size end with the same weights, bit for bit, far beyond what is leased at any time: at whatever pace they
train, and when they are told to go again and again.
"""

from __future__ import annotations

import re
import signal

import pytest
from saved_job import Life, durable, manifest

from edl.core.audit.sample_account import account
from edl.protocol.audit_lines import BatchGiven, Sat
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
EPOCH = 150  # steps; dealt for 64 of them, for 128, and for the rest
SIZED = ("--epochs", "2", "--samples", str(2 * 8 * EPOCH - 5))
TORCH = ("torch_saved.py", *SIZED)
TENSORFLOW = ("tf_saved.py", *SIZED, "--batch", "8", "--way")
PREEMPTED_AT = (60, 130)  # steps of each life; the last one has the rest
SHORT = {"EDL_SESSION_TIMEOUT": "2"}  # leases of 5 s


def leased_until(checkpoint: dict) -> int:
    """The last step of all lives that was leased when it was saved."""
    [lease, *_] = [member[3][-1] for member in checkpoint["ledger"]["members"]]
    return checkpoint["base"] + lease[1] + lease[2]


# soak: lives in simulated time: tests/simulation/test_dealing.py; a real one that goes on: test_checkpoints.py
@pytest.mark.soak
@pytest.mark.parametrize(
    "script",
    [
        TORCH,
        (*TENSORFLOW, "dataset"),
        (*TENSORFLOW, "function"),
        (*TENSORFLOW, "fit"),
        (*TENSORFLOW, "graph"),
    ],
    ids=lambda script: script[-1] if script[0] == "tf_saved.py" else "torch",
)
def test_at_whatever_pace_and_in_however_many_lives_the_weights_are_the_same(edl, tmp_path, script):
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0")
    whole.finish(timeout_s=120)
    slow = Life(edl, tmp_path / "slow", *script, "--step-time", "0.04", environ=SHORT)
    slow.finish(timeout_s=180)
    assert slow.results() == whole.results()
    audits, saved = [], []
    how = {"checkpoint": tmp_path / "ck", "audit": True, "environ": SHORT}
    for number, step in enumerate(PREEMPTED_AT):
        life = Life(edl, tmp_path / str(number), *script, "--step-time", "0.05", **how)
        life.wait_size(2)
        life.wait_step(step)
        life.launcher.send_signal(signal.SIGTERM)
        assert re.search(r"; step \d+ is saved: ", life.finish(75).splitlines()[-1])
        audits.append(life.audit)
        saved.append(manifest(durable(tmp_path / "ck")[0]))
    then = Life(edl, tmp_path / "then", *script, "--step-time", "0.01", **how)
    then.finish(timeout_s=120)
    assert leased_until(saved[0]) < saved[-1]["base"] + saved[-1]["step"] < 2 * EPOCH  # what came later was not leased
    assert then.results() == whole.results()
    found = account([one for folder in (*audits, then.audit) for one in read(folder)])
    assert found.clean and all(epoch.over for epoch in found.epochs), found
    assert len(found.lives) == len(audits) + 1 and len(found.epochs) == 2


@pytest.mark.soak
@pytest.mark.parametrize("ring", ["horovod", "torch"])
def test_three_workers_are_given_the_same_samples_and_end_alike(edl, tmp_path, ring):
    """In Horovod's ring each gradient is reduced alone: else what is ready at one moment decides how sums are made."""
    found = []
    for pace, session_timeout in (("0", "5"), ("0.04", "2")):
        environ = {"EDL_RING": ring, "HOROVOD_FUSION_THRESHOLD": "0", "EDL_SESSION_TIMEOUT": session_timeout}
        script = ("torch_saved.py", "--epochs", "2", "--samples", str(3 * 8 * 180 - 5), "--step-time", pace)
        job = Life(edl, tmp_path / pace, *script, workers=3, audit=True, environ=environ)
        job.finish(timeout_s=180)
        found.append((given(job), job.results()))
    assert found[0] == found[1]


def given(job: Life) -> dict:
    """What each rank of the only ring was handed, step by step."""
    by_rank = {next(line.rank for line in one.lines if isinstance(line, Sat)): one for one in read(job.audit)}
    return {
        (rank, line.step): (line.ranges, line.check)
        for rank, audit in by_rank.items()
        for line in audit.lines
        if isinstance(line, BatchGiven)
    }
