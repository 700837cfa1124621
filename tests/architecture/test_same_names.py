"""Both faces offer the same names with the same signatures, and neither drags the other's framework in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
ONLY_THERE = {
    "edl.tensorflow": {
        "GradientTape",
        "KerasCallback",
        "add_gradients",
        "elastic_dataset",
        "summed_gradients",
        "voidable",
    },
    "edl.torch": {"ElasticDataLoader", "ElasticDataset", "prepare"},
}
MORE_ARGUMENTS = {"Optimizer"}  # a framework may need more, after those of all
LOOK = """
import importlib, inspect, json, sys
def parameters(call):
    return [p.name for p in inspect.signature(call).parameters.values()]
face = importlib.import_module(sys.argv[1])
def called(one):
    return inspect.isroutine(one) or (inspect.isclass(one) and one.__module__.startswith(face.__name__))
functions = {name: getattr(face, name) for name in face.__all__ if called(getattr(face, name))}
found = {
    "names": face.__all__,
    "signatures": {
        name: [(p.name, str(p.kind), repr(p.default)) for p in inspect.signature(function).parameters.values()]
        for name, function in functions.items()
    },
    "documented": [name for name, function in functions.items() if inspect.getdoc(function)],
    "modules": [name for name in ("torch", "tensorflow", "keras", "horovod.torch", "horovod.tensorflow")
                if name in sys.modules],
}
original = importlib.import_module(sys.argv[1].replace("edl.", "horovod."))  # once it is known what the face brings
print(json.dumps(found | {
    "run": str(inspect.signature(face.elastic.run)),
    "ours": {name: parameters(getattr(face.elastic, name)) for name in face.elastic.__all__},
    "theirs": {name: parameters(getattr(original.elastic, name)) for name in original.elastic.__all__},
    "optimizers": [parameters(face.DistributedOptimizer), parameters(original.DistributedOptimizer)],
}))
"""
WITHOUT_HOROVOD = """
import os, sys
sys.modules["horovod"] = None
import torch, edl.torch as hvd
from edl.errors import ConfigError, UsageError
from edl.protocol.assignment import solo
from edl.torch.torch_horovod_names import COLLECTIVES, OTHERS
from edl.torch.torch_process import framework, trainer
framework.ring.enter(solo("w0"), 1.0)
model = torch.nn.Linear(2, 1)
framework.wrap(trainer, torch.optim.SGD(model.parameters(), lr=0.1), model, None)
assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]
def there(name):
    try:
        return getattr(hvd, name) is not None
    except UsageError as error:
        assert "--ring torch" in str(error), error
        return False
refused = {"SyncBatchNorm", "check_extension", "start_timeline", "stop_timeline"}
assert {name for name in (*COLLECTIVES, *OTHERS) if not there(name)} == refused
from edl.torch.mpi_ops import allreduce_async
from edl.torch.elastic.sampler import ElasticSampler
import edl.torch.functions
assert edl.torch.functions.broadcast_object is hvd.broadcast_object and ElasticSampler is hvd.elastic.ElasticSampler
assert hvd.allreduce(torch.ones(2), process_set=hvd.global_process_set).tolist() == [1.0, 1.0]
assert not any(name.startswith("horovod.") for name in sys.modules)
os.environ["EDL_RING"] = "horovod"
try:
    from edl.torch.tensor_ring import chosen
    chosen(framework.gpu, framework.named)
except ConfigError as error:
    assert "edl run --ring torch" in str(error), error
try:
    import edl.tensorflow
except ConfigError as error:
    assert "scripts/setup" in str(error) and "\\n" not in str(error), error
assert "tensorflow" not in sys.modules
print("{}")
"""
KERAS = """
import edl.keras as hvd
import edl.tensorflow.keras as theirs
import edl.keras.callbacks, edl.tensorflow.keras.elastic
from edl.errors import UsageError
from edl.tensorflow.keras.callbacks import LearningRateWarmupCallback
from edl.tensorflow.mpi_ops import size_op
import horovod.tensorflow, importlib, json
original = {name for name in dir(horovod.tensorflow) if not name.startswith("_")}
for name in ("os", "tf", "version", "warnings", "elastic"):
    original.discard(name)
import edl.tensorflow as face
missing = []
for name in original:
    try:
        getattr(face, name)
    except UsageError:
        pass
    except AttributeError:
        missing.append(name)
callbacks = ["BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback",
             "LearningRateWarmupCallback", "MetricAverageCallback"]
states = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
for module in (hvd, theirs):
    assert all(hasattr(module.callbacks, name) for name in callbacks)
    assert all(hasattr(module.elastic, name) for name in states)
    assert all(hasattr(module, name) for name in ("init", "size", "DistributedOptimizer", "load_model", "allreduce"))
print(json.dumps(missing))
"""
CONTRACT = {
    "init", "shutdown", "Optimizer", "register", "elastic_shard_generator", "notify_batch_end", "rank", "size",
    "local_rank", "step", "epoch", "generation", "rehearsing", "on_resize", "Leaving", "errors",
}  # fmt: skip


def looked(program: str, *arguments: str) -> Any:
    """What a program prints, in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def faces() -> dict[str, Any]:
    return {face: looked(LOOK, face) for face in ("edl.torch", "edl.tensorflow")}


@pytest.mark.slow
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
    assert faces["edl.torch"]["modules"] == ["torch"]  # and Horovod once the ring is chosen
    assert faces["edl.tensorflow"]["modules"] == ["tensorflow", "keras", "horovod.tensorflow"]


@pytest.mark.slow
def test_pytorch_needs_no_horovod_and_tensorflow_says_at_once_that_it_does() -> None:
    """Nor does a name of Horovod's bring it in. Where `--ring horovod` asks for it, one line says what to do."""
    looked(WITHOUT_HOROVOD)


@pytest.mark.slow
def test_the_names_of_horovods_keras_scripts_are_there() -> None:
    assert looked(KERAS) == []


def test_the_names_of_horovods_elastic_scripts_are_there(faces: dict[str, Any]) -> None:
    """With their arguments, in both faces."""
    torch, tensorflow = faces["edl.torch"], faces["edl.tensorflow"]
    assert torch["run"] == tensorflow["run"]
    for twins in faces.values():
        assert set(twins["theirs"]) <= set(twins["ours"])
        assert all(twins["ours"][name] == arguments for name, arguments in twins["theirs"].items())
    ours, theirs = torch["optimizers"]
    assert ours == theirs
    assert tensorflow["optimizers"][0][0] == tensorflow["optimizers"][1][0]


@pytest.mark.slow
def test_pytorchs_face_needs_no_library_that_stands_on_it() -> None:
    above = ("lightning", "transformers", "accelerate", "edl.lightning", "edl.transformers", "edl.accelerate")
    look = f"import sys, edl.torch; print([name for name in {above} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
