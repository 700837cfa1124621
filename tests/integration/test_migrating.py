"""Scripts of Horovod elastic that were moved to edl, as docs/migrating.md shows them: real jobs of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SCRIPTS = ["horovod_pytorch.py", "horovod_tensorflow2.py"]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def command(edl, script: str, *arguments: str) -> list[str]:
    data = str(ROOT / "data" / "digits" / "digits.csv.gz")
    return [*edl.warm.command(ROOT / "examples" / script), "--data", data, *arguments]


# soak: a script of Horovod's names for PyTorch grows and shrinks in test_paths.py too, one for TensorFlow learns there
@pytest.mark.slow
@pytest.mark.parametrize("script", [pytest.param(SCRIPTS[0], marks=pytest.mark.soak), SCRIPTS[1]])
def test_it_grows_and_shrinks_without_a_stop(edl, script):
    size = ("-np", "2", "--max-np", "3", "--job", "m")
    launcher = edl.start("run", *size, *command(edl, script, "--epochs", "10000", "--step-time", "0.05"), **QUIET)

    def trains() -> dict[str, int]:
        status = edl.status("m")
        if status["step"] <= 3:
            return {}
        trainers = (one for one in status["workers"] if one["rank"] is not None)  # who leaves has none
        return {one["id"]: one["pid"] for one in trainers}

    first = edl.wait(trains, "two workers that train", timeout_s=90)
    for wanted in ("3", "2"):
        scaled = edl("scale", "m", wanted, "--wait", timeout_s=90)
        assert scaled.returncode == 0, scaled.stderr
        assert "its survivors paused for" in scaled.stdout
        last_line = scaled.stderr.splitlines()[-1]  # perhaps with a leaver that has not left yet
        assert last_line.startswith(f"edl: {wanted} of {wanted} workers train")
    assert trains() == first  # the same processes, which were not started anew
    events = edl("events", "m", "--json").stdout
    assert '"batch_voided"' not in events
    assert '"worker_lost"' not in events
    assert edl("stop", "m", timeout_s=60).returncode == 0
    launcher.communicate(timeout=patient(60))


@pytest.mark.parametrize("script", [SCRIPTS[0], pytest.param(SCRIPTS[1], marks=pytest.mark.soak)])
def test_it_learns(edl, script):
    done = edl("run", "-np", "2", "--audit", "audit", *command(edl, script, "--epochs", "4"), timeout_s=120, **QUIET)
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"accuracy ([\d.]+)", done.stdout)
    assert float(accuracy) > 0.6
    assert edl("data", "verify", "audit").returncode == 0


def test_a_gpu_can_be_pinned_after_init(edl, tmp_path):
    """As all scripts of Horovod do it: TensorFlow refuses once it has been used."""
    script = tmp_path / "pin.py"
    script.write_text(
        "import tensorflow as tf, edl.tensorflow as edl\n"
        "edl.init()\n"
        "tf.config.set_visible_devices(tf.config.list_physical_devices('CPU')[:1], 'CPU')\n"
        "for ids in edl.elastic_shard_generator(64, epochs=1).batches(8):\n"
        "    edl.notify_batch_end()\n"
    )
    done = edl("run", "-np", "2", *edl.warm.command(script), timeout_s=120, **QUIET)
    assert done.returncode == 0, done.stderr
