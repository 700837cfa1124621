"""Both faces offer the same names with the same signatures, and neither drags the other's framework in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ONLY_THERE = {
    "edl.tensorflow": {"KerasCallback", "elastic_dataset", "voidable"},
    "edl.torch": {"ElasticDataLoader", "ElasticDataset"},
}
MORE_ARGUMENTS = {"Optimizer"}  # a framework may need more, after those of all
LOOK = """
import importlib, inspect, json, sys
face = importlib.import_module(sys.argv[1])
functions = {name: getattr(face, name) for name in face.__all__ if inspect.isroutine(getattr(face, name))}
print(json.dumps({
    "names": face.__all__,
    "signatures": {
        name: [(p.name, str(p.kind), repr(p.default)) for p in inspect.signature(function).parameters.values()]
        for name, function in functions.items()
    },
    "documented": [name for name, function in functions.items() if inspect.getdoc(function)],
    "modules": [name for name in ("torch", "tensorflow", "keras", "horovod.torch", "horovod.tensorflow")
                if name in sys.modules],
}))
"""
CONTRACT = {
    "init", "shutdown", "Optimizer", "register", "elastic_shard_generator", "notify_batch_end", "rank", "size",
    "local_rank", "step", "epoch", "generation", "rehearsing", "on_resize", "Leaving", "errors",
}  # fmt: skip


@pytest.fixture(scope="module")
def faces() -> dict[str, Any]:
    """What is found in each face, in a process of its own."""
    found = {}
    for face in ("edl.torch", "edl.tensorflow"):
        command = [sys.executable, "-c", LOOK, face]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        found[face] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_the_names_of_the_contract_are_there(faces: dict[str, Any]) -> None:
    names = {face: set(found["names"]) - ONLY_THERE[face] for face, found in faces.items()}
    assert names["edl.torch"] == names["edl.tensorflow"] >= CONTRACT
    assert all(ONLY_THERE[face] <= set(found["names"]) for face, found in faces.items())


def test_all_functions_are_documented(faces: dict[str, Any]) -> None:
    for found in faces.values():
        assert set(found["documented"]) == set(found["signatures"])


def test_signatures_are_the_same(faces: dict[str, Any]) -> None:
    torch, tensorflow = faces["edl.torch"]["signatures"], faces["edl.tensorflow"]["signatures"]
    for name in set(torch) & set(tensorflow):
        mine, theirs = torch[name], tensorflow[name]
        if name in MORE_ARGUMENTS:
            shared = min(len(mine), len(theirs))
            assert shared >= 2
            mine, theirs = mine[:shared], theirs[:shared]
        assert mine == theirs, name


def test_a_face_imports_its_own_framework_only(faces: dict[str, Any]) -> None:
    assert faces["edl.torch"]["modules"] == ["torch", "horovod.torch"]
    assert faces["edl.tensorflow"]["modules"] == ["tensorflow", "keras", "horovod.tensorflow"]
