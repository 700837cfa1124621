"""Jobs with virtual workers end with the same bits, at any size, on both rings, and after a death.

`python -m tests.soaks.same_bits` is the long list: random sizes, many deaths, preemptions, three models.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pace import patient

from edl import client

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

JOBS = Path(__file__).parent / "jobs"
ACCELERATE, TRAINER, LIGHTNING = (JOBS / f"{name}_same_bits.py" for name in ("accelerate", "transformers", "lightning"))
TORCH, TENSORFLOW = JOBS / "same_bits.py", JOBS / "tf_same_bits.py"
QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "EDL_VIRTUAL_WORKERS": "4",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


class Run:
    def __init__(
        self,
        edl: Any,
        out: Path,
        workers: int,
        *options: str,
        ring: str = "torch",
        pace: float = 0.0,
        script: Path = TORCH,
    ) -> None:
        out.mkdir()
        self.edl, self.out, self.pace = edl, out, out / "pace"
        self.set_pace(pace)
        arguments = ["--out", str(out), "--pace", str(self.pace), "--epochs", "3", *options]
        ring = "horovod" if script is TENSORFLOW else ring
        program = edl.warm.command(script)
        self.job = edl.start(
            "run", "-np", str(workers), "--job", "bits", "--ring", ring, *program, *arguments, **QUIET
        )  # fmt: skip

    def set_pace(self, seconds: float) -> None:
        working = self.pace.with_suffix(".new")
        working.write_text(str(seconds))
        working.rename(self.pace)

    def wait(self, size: int, steps: int) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            status: dict[str, Any] = self.edl.status("bits")
            assert status["state"] not in {"failed", "finished"}, self.job.communicate()
            return status if status["size"] == size and status["step"] >= steps else None

        return self.edl.wait(there, f"{size} workers", timeout_s=90)

    def digest(self) -> str:
        out, err = self.job.communicate(timeout=patient(150))
        assert self.job.returncode == 0, out + err
        found = {json.loads(path.read_text())["digest"] for path in self.out.glob("digest*.json")}
        assert len(found) == 1, "the workers differ"
        return found.pop()


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    return {}


def digest_alone(edl, tmp_path: Path, known: dict[str, str], model: str, script: Path = TORCH) -> str:
    name = f"{script.stem} {model}"
    if name not in known:
        known[name] = Run(edl, tmp_path / "alone", 1, "--model", model, script=script).digest()
    return known[name]


@pytest.mark.parametrize(
    ("script", "options"),
    [(TORCH, ()), pytest.param(TENSORFLOW, ("--loading", "0"), marks=[pytest.mark.timeout(600), pytest.mark.soak])],
)
def test_three_workers_on_horovod_s_ring_have_the_bits_of_one(edl, tmp_path, alone, script: Path, options) -> None:
    run = Run(edl, tmp_path / "three", 3, "--model", "transformer", *options, ring="horovod", script=script)
    assert run.digest() == digest_alone(edl, tmp_path, alone, "transformer", script)


@pytest.mark.slow
@pytest.mark.parametrize("script", [TORCH, TENSORFLOW])
def test_growth_a_death_and_shrinking_change_no_bit(edl, tmp_path, alone, script: Path) -> None:
    run = Run(edl, tmp_path / "changing", 2, "--model", "cnn", pace=1.0, script=script)
    run.wait(2, 2)
    with client.Job("bits") as job:
        job.scale(3)
    status = run.wait(3, 0)
    os.kill(status["workers"][1]["pid"], signal.SIGKILL)
    run.edl.wait(lambda: any(one["kind"] == "worker_lost" for one in run.edl.events("bits")), "the loss", timeout_s=60)
    with client.Job("bits") as job:
        job.scale(1)
    assert run.wait(1, 0)["bits"] == "held"
    run.set_pace(0.0)
    assert run.digest() == digest_alone(edl, tmp_path, alone, "cnn", script)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        ACCELERATE,
        # soaks, as they boot slow libraries four times, for what Accelerate's loop shows of the same mechanism
        pytest.param(TRAINER, marks=[pytest.mark.timeout(600), pytest.mark.soak]),
        pytest.param(LIGHTNING, marks=[pytest.mark.timeout(600), pytest.mark.soak]),
    ],
)
def test_a_library_s_loop_has_the_bits_of_one_worker_after_a_death(edl, tmp_path, script: Path) -> None:
    run = Run(edl, tmp_path / "three", 3, pace=0.3, script=script)
    os.kill(run.wait(3, 2)["workers"][1]["pid"], signal.SIGKILL)
    run.edl.wait(lambda: any(one["kind"] == "worker_lost" for one in run.edl.events("bits")), "the loss", timeout_s=60)
    run.set_pace(0.0)
    assert run.digest() == Run(edl, tmp_path / "alone", 1, script=script).digest()


@pytest.mark.parametrize("wrong", ["rounding", "order"])
def test_one_rounding_or_two_samples_in_another_order_show(edl, tmp_path, alone, wrong: str) -> None:
    run = Run(edl, tmp_path / "wrong", 1, "--model", "cnn", "--wrong", wrong)
    assert run.digest() != digest_alone(edl, tmp_path, alone, "cnn")


def test_a_script_that_does_not_take_parts_is_told_how(edl, tmp_path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "import torch, edl.torch as edl\n"
        "edl.init(virtual_workers=2)\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)\n"
        "for ids in edl.elastic_shard_generator(8, epochs=1).batches(2):\n"
        "    model(torch.ones(len(ids), 2)).sum().backward()\n"
    )
    job = edl.start("run", "-np", "1", "--max-restarts", "0", *edl.warm.command(script), CUDA_VISIBLE_DEVICES="")
    out, err = job.communicate(timeout=patient(100))
    assert job.returncode == 1
    assert "for part, share in edl.microbatches(batch):" in out + err


def test_fit_is_refused_in_one_line(edl, tmp_path) -> None:
    script = tmp_path / "fit.py"
    script.write_text(
        "import keras, numpy as np, edl.tensorflow as edl\n"
        "edl.init()\n"
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "model.compile(edl.Optimizer(keras.optimizers.SGD(0.1), model=model), 'mse')\n"
        "data = edl.elastic_dataset((np.ones((8, 2)), np.ones((8, 1))), 2)\n"
        "model.fit(data, callbacks=[edl.KerasCallback()])\n"
    )
    job = edl.start("run", "-np", "1", "--max-restarts", "0", *edl.warm.command(script), **QUIET)
    out, err = job.communicate(timeout=patient(150))
    assert job.returncode == 1
    assert "UsageError: fit() computes a step at once" in out + err


def test_more_workers_than_virtual_ones_are_refused(edl) -> None:
    job = edl.start("run", "-np", "5", "--virtual-workers", "4", "true")
    assert "-np 5 is more than --virtual-workers 4" in job.communicate(timeout=patient(30))[1]
    assert job.returncode == 2
