"""Every example by the lines of its docstring, as they stand: from the root of a clone, with the environment active.

One boots; the workers of the others are forks of a process that has imported their framework.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path

import pytest
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
OF_HOROVOD = {"horovod_pytorch.py", "horovod_tensorflow2.py"}  # moved to edl: tests/integration/test_migrating.py
# As others write them, by edl in two lines: tests/integration/test_two_lines.py
OF_LIBRARIES = {"lightning_digits.py", "transformers_digits.py", "accelerate_digits.py"}
SCHEDULER = "scheduler.py"
PREEMPTED = "torch_preempted.py"
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
TRAINING = [name for name in EXAMPLES if name not in {SCHEDULER, PREEMPTED, *OF_HOROVOD, *OF_LIBRARIES}]
# soak: plain ones of PyTorch run always, and scripts of Keras in test_listings.py
LONG = {"torch_rates.py", "torch_resize.py", "tfrecord_digits.py", "torch_language_model.py", "keras_digits.py"}
LONG |= {"ddp_digits.py", "fsdp2_language_model.py"}  # what they show: test_torchrun.py, test_larger_models.py
BOOTED = {"keras_digits.py", "function_digits.py"}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
MOST_LINES = 100
BOOT_S = 180.0
END_S = 240.0
AFTER_THE_SWITCH = {
    "torch_resize.py": r"2 -> 1 workers: rate 0\.(0[5-9]|1)\d* -> 0\.050",  # its first ramp may not be over
    "torch_rates.py": r"size 3 batch 24 here",  # 72 at most, in three parts
}
LOSS = {"torch_language_model.py": 2.6, "fsdp2_language_model.py": 2.6}  # at most, in the end; others tell an accuracy


def docstring_lines(name: str) -> list[str]:
    """What is to be typed: the first line starts a job, the others go into a second shell."""
    doc = ast.get_docstring(ast.parse((ROOT / "examples" / name).read_text())) or ""
    return [line for line in doc.splitlines() if line.startswith(("edl ", "python "))]


def shell(edl, line: str, warm: Path | None = None):
    """As typed: `python` and `edl` are those of the environment that runs this test. `warm`: which script is forked."""
    edl.cwd = ROOT
    path = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    return edl.start_command(["bash", "-c", line], **(edl.warm.typed(warm) if warm else path), **QUIET)


def done(process, code: int = 0) -> str:
    out, err = process.communicate(timeout=patient(END_S))
    assert process.returncode == code, out + err
    return out if code == 0 else err


def found_by(out: str, word: str) -> list[float]:
    return [float(figure) for figure in re.findall(rf"{word} ([\d.]+)", out)]


def wait_training(edl, line: str) -> None:
    (name,) = re.findall(r"--job (\w+)", line)

    edl.wait(lambda: edl.status(name)["step"] > 10, "a job that trains", timeout_s=BOOT_S)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in LONG else name for name in TRAINING]
)
def test_it_runs_by_the_lines_of_its_docstring_and_learns(edl, name):
    first, *others = docstring_lines(name)
    job = shell(edl, first, None if name in BOOTED else ROOT / "examples" / name)
    for line in others:
        wait_training(edl, first)
        said = done(shell(edl, line))
        assert "its survivors paused for" in said
    out = done(job)
    if others:
        assert re.search(AFTER_THE_SWITCH[name], out), out
    if name in LOSS:
        first_loss, *_, last_loss = found_by(out, "loss")
        assert last_loss < min(first_loss, LOSS[name]), out
    else:
        assert found_by(out, "accuracy")[-1] > 0.85, out


@pytest.mark.soak  # its calls: tests/contract/test_scaling_calls.py; real growth: test_scaling.py
def test_the_scheduler_grows_and_shrinks_a_job_by_the_lines_of_its_docstring(edl):
    first, second = docstring_lines(SCHEDULER)
    job = shell(edl, first, ROOT / "examples" / "torch_digits.py")
    wait_training(edl, first)
    workers = {worker["id"] for worker in edl.json("status", "digits")["workers"]}
    lines = done(shell(edl, second)).splitlines()
    assert [line for line in lines if "asked" in line or "train" in line][::2] == [
        "3 workers asked for",
        "2 workers train",
    ]
    assert [line.partition(":")[0] for line in lines if "paused" in line] == ["2 -> 3", "3 -> 2"]
    refused = edl("scale", "digits", "9")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "at most 3 workers, so not 9: ask for 1 to 3" in refused.stderr
    assert edl("stop", "digits", timeout_s=60).returncode == 0
    job.communicate(timeout=patient(60))
    events = [json.loads(line) for line in edl("events", "digits", "--json").stdout.splitlines()]
    (newcomer,) = {event["worker"] for event in events if event["kind"] == "worker_ready"}
    assert {event["worker"] for event in events if event["kind"] == "worker_left"} == {newcomer}
    assert newcomer not in workers
    grown, shrunk = [event for event in events if event["kind"] == "scaled"]
    assert grown["asked_ms"] > grown["switching_ms"] > 0 < grown["pause_ms"]
    assert (shrunk["from"], shrunk["to"], shrunk["forced"]) == (3, 2, False)


@pytest.mark.soak  # that a preempted job goes on: test_preempted.py
def test_a_job_is_preempted_and_goes_on_by_the_lines_of_the_docstring(edl, tmp_path):
    lines = [line.replace("out/", f"{tmp_path}/") for line in docstring_lines(PREEMPTED)]
    first, preempt, again, verify = lines
    assert again == first
    script = ROOT / "examples" / PREEMPTED
    job = shell(edl, first, script)
    wait_training(edl, first)
    done(shell(edl, preempt))
    assert "outlive is preempted, and goes on when the same line is typed again" in done(job, 75)
    job = shell(edl, again, script)
    out, err = job.communicate(timeout=patient(END_S))
    assert job.returncode == 0, out + err
    (step,) = re.findall(r"edl: job outlive goes on from step (\d+)", err)
    (accuracy, steps) = re.findall(r"accuracy ([\d.]+) after (\d+) steps", out)[0]
    assert float(accuracy) > 0.85 and int(steps) > int(step) > 10
    said = done(shell(edl, verify))
    assert said.startswith(f"job outlive: {steps} steps, 2 lives, 4 workers"), said
    assert said.splitlines()[-1] == "0 lost, 0 repeated"


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_short_and_in_the_table(name):
    assert len((ROOT / "examples" / name).read_text().splitlines()) < MOST_LINES
    assert f"[{name}]({name})" in (ROOT / "examples" / "README.md").read_text()
