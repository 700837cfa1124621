"""One run of a job's in the real MLflow, and in the real Weights & Biases offline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edl.callbacks import STEP

pytestmark = pytest.mark.integration

REAL = """
import sys
sys.path[:0] = {paths!r}
import json
from tracked import *
from edl.callbacks import *
{body}
"""


def run_alone(body: str, cwd: Path, **environ: str) -> str:
    """The libraries start threads, and processes, and warn of much: in a process of their own."""
    root = Path(__file__).parents[2]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "EDL_JOB": "j", **environ}
    code = REAL.format(paths=[str(root / "tests" / "fixtures"), str(root)], body=body)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environ,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


MLFLOW = """
through_it_all(lambda face: MlflowCallback(face, every=1, experiment="digits"))
from mlflow.tracking import MlflowClient
client = MlflowClient()
place = client.get_experiment_by_name("digits").experiment_id
runs = client.search_runs([place])
def steps(name): return sorted(one.step for one in client.get_metric_history(runs[0].info.run_id, name))
history = {name: steps(name) for name in ("loss", "size")}
print(json.dumps([len(runs), runs[0].info.status, runs[0].info.run_name, runs[0].data.tags["edl.job"], history]))
"""


@pytest.mark.slow
def test_mlflow_has_one_run_with_each_step_once(tmp_path: Path) -> None:
    variables = {"MLFLOW_TRACKING_URI": f"file:{tmp_path / 'runs'}", "MLFLOW_ALLOW_FILE_STORE": "true"}
    found = json.loads(run_alone(MLFLOW, tmp_path, **variables).splitlines()[-1])
    steps = list(range(1, 16))
    assert found == [1, "FINISHED", "j", "j", {"loss": steps, "size": steps}]


WANDB = """
face = FakeFace(0, {})
track = WandbCallback(face, every=1, project="digits")
train([(face, track)], 1, 5)
track.close()
print(track.run)
"""


@pytest.mark.slow
def test_weights_and_biases_offline_has_the_steps_under_the_jobs_run(tmp_path: Path) -> None:
    ident = run_alone(WANDB, tmp_path, WANDB_MODE="offline", WANDB_SILENT="true").splitlines()[-1]
    (file,) = tmp_path.glob(f"wandb/offline-run-*-{ident}/run-{ident}.wandb")
    assert STEP.encode() in file.read_bytes()
    assert b"loss" in file.read_bytes()
