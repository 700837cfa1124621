"""Jobs that are asked to go while they are at something else than mini-batches, and that go on bit for bit."""

from __future__ import annotations

import signal
import time

import pytest
from pace import patient
from saved_job import Life, durable, manifest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SELDOM = ("--checkpoint-every", "1000000steps")
TORCH = ("torch_saved.py", "--epochs", "4")


def gone(life: Life) -> str:
    """Why, as the leader said it."""
    [event] = life.events("job_preempted")
    return str(event["reason"])


EVALUATES = ("--evaluate", "9")  # after that step


def wait_evaluation(life: Life) -> None:
    life.wait_step(8)
    life.edl.wait(lambda: len(list(life.out.glob("evaluates-*"))) == 2, "all evaluate", timeout_s=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        TORCH,  # soak: TensorFlow's own of this is that it goes on bit for bit, as in test_checkpoints.py
        pytest.param(("tf_saved.py", "--way", "dataset"), marks=pytest.mark.soak),
        pytest.param(("tf_saved.py", "--way", "function"), marks=pytest.mark.soak),
    ],
    ids=lambda script: script[-1],
)
def test_an_evaluation_is_not_waited_for_and_the_job_goes_on_bit_for_bit(edl, tmp_path, script):
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0")
    whole.finish()
    first = Life(edl, tmp_path / "first", *script, *EVALUATES, checkpoint=tmp_path / "ck", flags=SELDOM, audit=True)
    wait_evaluation(first)
    began = time.monotonic()
    asking = edl.start("preempt", "ck") if script is not TORCH else first.launcher.send_signal(signal.SIGTERM)
    said = first.finish(75)
    took = time.monotonic() - began
    assert took < patient(10), f"{took:.1f} s"  # the deadline is 25 s
    if asking is not None:  # it tells the end, also where the coordinator was gone before it could look
        out, err = asking.communicate(timeout=patient(30))
        assert (asking.returncode, out.startswith("job ck is preempted: ")) == (0, True), out + err
    assert durable(tmp_path / "ck"), first.events()
    [saved] = durable(tmp_path / "ck")
    step = manifest(saved)["step"]
    assert f"step {step} is saved" in said
    before = first.trained()
    assert before == first.trained(step)  # nothing was trained beyond it
    then = Life(edl, tmp_path / "then", *script, "--step-time", "0", checkpoint=tmp_path / "ck", audit=True)
    assert f"goes on from step {step}" in then.finish()
    assert set((before + then.trained()).values()) == {1}
    assert then.results() == whole.results()


@pytest.mark.slow
def test_weights_of_an_evaluation_are_not_saved_as_the_models(edl, tmp_path):
    """It evaluates by other weights than it trains: nothing is saved rather than these, and that is said."""
    folder = tmp_path / "ck"
    life = Life(edl, tmp_path / "a", *TORCH, *EVALUATES, "--swap", checkpoint=folder, flags=SELDOM)
    wait_evaluation(life)
    asked = edl("preempt", "ck", "--deadline", "8")  # that it stands is known after half a second
    life.finish(75)
    assert (asked.returncode, "it could not be saved within 8 s" in asked.stdout) == (1, True), asked
    assert not durable(folder)
    reasons = {event["reason"] for event in life.events("checkpoint_failed")}
    assert any("the script has other weights in the model than those that it trains" in one for one in reasons), reasons
    assert gone(life).endswith("it could not be saved within 8 s: nothing of it is saved")
