"""Each public name has an example in its docstring, and the example does what it shows."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "tests" / "fixtures" / "docstring_examples.py"
IN_JOB = ("edl.client", "edl.testing.chaos")  # their examples look at a job that trains
MODULES = {
    "edl.torch": "torch",
    "edl.tensorflow": "tensorflow",
    "edl.trainer.data.shards": "torch",
    "edl.callbacks": "mlflow",
    "edl.client": "torch",
    "edl.errors": "",
    "edl.launch.function_run": "",
    "edl.testing.chaos": "torch",
}
NO_EXAMPLE = {  # not what a script calls, or played elsewhere
    "edl.tensorflow": {"ElasticStream"},  # edl.torch's, whose loader its example takes
    "edl.trainer.data.shards": {"CurrentItem"},
    "edl.launch.function_run": {"RunSettings", "keywords_of"},
    "edl.testing.chaos": {"main"},
}


def public_names(module: str) -> list[str]:
    """Return the names of a face: those of its `__all__`, or the classes and functions that it defines."""
    source = (ROOT / f"{module.replace('.', '/')}.py").with_suffix("")
    tree = ast.parse((source / "__init__.py" if source.is_dir() else source.with_suffix(".py")).read_text())
    lists = [one.value for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"]
    if lists:
        names = [name for name in ast.literal_eval(lists[0]) if name not in ("elastic", "errors", "run")]
    else:
        defined = (ast.ClassDef, ast.FunctionDef)
        names = [one.name for one in tree.body if isinstance(one, defined) and not one.name.startswith("_")]
    return [name for name in dict.fromkeys(names) if name not in NO_EXAMPLE.get(module, ())]


@pytest.mark.slow
@pytest.mark.parametrize("module", [module for module in MODULES if module not in IN_JOB])
def test_every_public_name_has_an_example_that_runs(module, edl, tmp_path) -> None:
    if MODULES[module]:
        pytest.importorskip(MODULES[module])
    play(module, edl, tmp_path)


@pytest.mark.slow
def test_every_public_name_that_looks_at_a_job_has_an_example_that_runs_beside_one(edl, tmp_path) -> None:
    pytest.importorskip("torch")
    script = [sys.executable, str(ROOT / "examples/torch_digits.py"), "--epochs", "1000", "--step-time", "0.05"]
    done = edl("run", "--detach", "-np", "1", "--max-np", "3", "--job", "mnist", *script, timeout_s=90.0)
    assert done.returncode == 0, done.stderr
    for module in IN_JOB:
        assert edl("scale", "mnist", "1", "--wait", timeout_s=120.0).returncode == 0
        play(module, edl, tmp_path)
    edl("stop", "mnist", timeout_s=60.0)
    edl.wait(lambda: not edl.processes(), "its launcher has ended", timeout_s=60)


def play(module: str, edl, folder: Path) -> None:
    names = public_names(module)
    assert names
    environ = {**edl.environ, "EDL_LOCAL_COORDINATOR": "embedded", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environ |= edl.warm.own()
    environ |= {
        "WANDB_MODE": "offline",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "EDL_MAX_RESTARTS": "3",
        "PATH": os.environ["PATH"],
    }
    framework = "tensorflow" if MODULES[module] == "tensorflow" else "torch"
    line = [*edl.warm.command(RUNNER, framework), module, *names]
    done = subprocess.run(
        line, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=patient(600)
    )
    played = [json.loads(text) for text in done.stdout.splitlines() if text.startswith('["')]
    assert {name for name, *_ in played} == set(names), done.stderr[-3000:]
    assert not [said for _, _, said in played if said], "\n".join(said for _, _, said in played)
    assert not [name for name, count, _ in played if not count], "without an example"


def test_all_of_the_reference_is_played() -> None:
    reference = (ROOT / "docs" / "api.md").read_text()
    assert {line.strip("#` ") for line in reference.splitlines() if line.startswith("## `edl")} == set(MODULES)


def test_an_example_that_is_wrong_is_noticed(tmp_path) -> None:
    lines = ["def double(a):", '    """Twice.', "", "    >>> double(2)", "    5", '    """', "    return 2 * a", ""]
    (tmp_path / "wrongly.py").write_text("\n".join(lines))
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    line = [sys.executable, str(RUNNER), "wrongly", "double"]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
    name, count, said = json.loads(done.stdout)
    assert (name, count) == ("double", 1) and "Expected:\n    5\nGot:\n    4" in said
    assert import_module("edl").__version__
