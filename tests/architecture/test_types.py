"""What type checkers say of scripts: right lines pass as strictly as can be, and each wrong line is an error.

pyright is tried where there is one: it comes by Node.js, which scripts/setup does not bring.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
RIGHT = ROOT / "tests" / "fixtures" / "typed_script.py"
BEFORE = """
import torch

import edl
import edl.keras as keras_hvd
import edl.tensorflow as tf_edl
import edl.torch as hvd

model = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset()
"""
WRONG = [
    "",
    "hvd.elastc_shard_generator(10)",
    "hvd.Optimizr(sgd)",
    "hvd.alreduce(torch.ones(2))",
    "hvd.elastic_shard_generator(10, epoch=3)",
    'hvd.elastic_shard_generator(10, epochs="three")',
    'hvd.elastic_shard_generator(10).batches("64")',
    "hvd.elastic_shard_generator(10).batchs(64)",
    "hvd.elastic_shard_generator(10).batches(64).__next__().shpe",
    'hvd.elastic_shard_generator("a.csv").batches(2).__next__().shape',
    'hvd.init(jobs="mnist")',
    "hvd.Optimizer(model)",
    "hvd.Optimizer(sgd, modl=model)",
    'hvd.Optimizer(sgd, unused="zero")',
    'hvd.ElasticDataLoader(data, batch_size="32")',
    'hvd.ElasticDataLoader(data, 32, epochs="3")',
    "hvd.ElasticDataLoader(data, 32).shrds",
    "hvd.allreduce([1.0])",
    "hvd.allreduce(torch.ones(2), operation=hvd.Average)",
    'hvd.allreduce(torch.ones(2), op="sum")',
    'hvd.broadcast_parameters(model.state_dict(), root="0")',
    'hvd.broadcast_object("a", root_rank="0")',
    "hvd.DistributedOptimizer(sgd, backward_passes=2)",
    "hvd.local_size(1)",
    "hvd.join()",
    "hvd.on_resize(3)",
    "hvd.notify_batch_end(sample=64)",
    "hvd.rank().bit_count(3)",
    "hvd.prepare(sgd, model, [])",
    "hvd.load_checkpoint(3, model)",
    "tf_edl.elastic_datset(10, 2)",
    "tf_edl.Optimizr(sgd)",
    "tf_edl.allreduce(1.0, opp=tf_edl.Sum)",
    'tf_edl.broadcast(1.0, root_rank="0")',
    "tf_edl.elastic_shard_generator(10).batches(2).__next__().shpe",
    "tf_edl.KerasCallbck()",
    "tf_edl.GradientTape(persistnt=True)",
    'keras_hvd.load_modl("model.keras")',
    'keras_hvd.allreduce(3.0, nam="loss")',
    "",
][1:-1]

SERVED = """
import importlib, inspect, json, sys
face = importlib.import_module(sys.argv[1])
short = {"edl.torch": "torch", "edl.tensorflow": "tf"}[sys.argv[1]]
names = importlib.import_module(f"{sys.argv[1]}.{short}_horovod_names")
def parameters(call):
    try:
        found = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return None
    plain = (type(None), int, float, str)
    return [(one.name, one.kind.name, one.default is not one.empty,
             repr(one.default) if isinstance(one.default, plain) else "...") for one in found]
served = {name: getattr(face, name) for name in (*names.COLLECTIVES, *names.OTHERS, *names.OURS)}
print(json.dumps({name: None if isinstance(one, type) else parameters(one) for name, one in served.items()}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[tuple[str, int, str]]]:
    """(file, line, message) of all errors that a type checker finds in the right lines and in the wrong ones."""
    folder = tmp_path_factory.mktemp("typed")
    shutil.copy(RIGHT, folder / "right.py")
    (folder / "wrong.py").write_text("\n".join([*BEFORE.splitlines(), *WRONG, ""]))
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}))
    known: dict[str, list[tuple[str, int, str]]] = {}

    def by(checker: str) -> list[tuple[str, int, str]]:
        if checker not in known:
            known[checker] = {"mypy": _mypy, "pyright": _pyright}[checker](folder)
        return known[checker]

    return by


def _mypy(folder: Path) -> list[tuple[str, int, str]]:
    """As for a user who has installed edl: of a package that is installed, mypy tells no errors."""
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'typed'}"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", cache]
    return _errors([*command, "right.py", "wrong.py"], folder, {"MYPYPATH": str(ROOT)})


def pyright() -> str:
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which("pyright", path=beside)
    if found is None:
        pytest.skip("there is no pyright here: `uv tool install pyright`, or `npm install -g pyright`")
    return found


def _pyright(folder: Path) -> list[tuple[str, int, str]]:
    return _errors([pyright(), "--pythonpath", sys.executable, "right.py", "wrong.py"], folder, {})


def _errors(command: list[str], folder: Path, more: dict[str, str]) -> list[tuple[str, int, str]]:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, check=False, timeout=300
    )
    lines = re.findall(r"(right|wrong)\.py:(\d+)(?::\d+)?(?: -|:) error: (.*)", done.stdout)
    assert lines, done.stdout + done.stderr
    return [(name, int(line), said) for name, line, said in lines]


@pytest.mark.slow
@pytest.mark.timeout(360)  # mypy reads PyTorch once, and keeps what it has read
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_right_lines_pass(checker: str, told: Callable[[str], list[tuple[str, int, str]]]) -> None:
    assert [one for one in told(checker) if one[0] == "right"] == []


@pytest.mark.timeout(360)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_each_wrong_line_is_an_error(checker: str, told: Callable[[str], list[tuple[str, int, str]]]) -> None:
    found = {line for name, line, _ in told(checker) if name == "wrong"}
    first = len(BEFORE.splitlines()) + 1
    assert [line for number, line in enumerate(WRONG, first) if number not in found] == []
    assert min(found) >= first


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_pyright_finds_nothing_in_the_examples_of_pytorch() -> None:
    """Those of TensorFlow meet its own types and those of Keras, which contradict each other."""
    examples = [path for path in sorted((ROOT / "examples").glob("*.py")) if "tensorflow" not in path.read_text()]
    assert len(examples) > 12
    found = pyright()
    done = subprocess.run(
        [found, "--pythonpath", sys.executable, *examples], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "0 errors" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("face", ["torch", "tensorflow"])
def test_horovods_names_are_listed_as_they_are_served(face: str) -> None:
    """Name by name, with their parameters and defaults, so that the list for type checkers does not drift."""
    served = _served(f"edl.{face}")
    listed = _listed(ROOT / "edl" / face / "horovod_types.pyi")
    assert set(listed) == set(served)
    for name, parameters in served.items():
        if parameters is not None and (ours := listed[name]) is not None:
            assert [one[:3] for one in ours] == [tuple(one[:3]) for one in parameters], name
            assert all(mine[3] in {"...", its[3]} for mine, its in zip(ours, parameters, strict=True)), name


def test_the_ring_of_torch_takes_what_is_listed() -> None:
    listed = _listed(ROOT / "edl" / "torch" / "horovod_types.pyi")
    tree = ast.parse((ROOT / "edl" / "torch" / "torch_ring_names.py").read_text())
    own = {one.name: [arg.arg for arg in one.args.args] for one in tree.body if isinstance(one, ast.FunctionDef)}
    shared = {name: parameters for name, parameters in listed.items() if name in own and parameters is not None}
    assert len(shared) > 30
    for name, parameters in shared.items():
        assert [one[0] for one in parameters] == own[name], name


def _served(face: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SERVED, face], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _listed(stub: Path) -> dict[str, list[tuple[str, str, bool, str]] | None]:
    """Public names of a stub; with their parameters, where these stand there."""
    found: dict[str, list[tuple[str, str, bool, str]] | None] = {}
    for one in ast.parse(stub.read_text()).body:
        match one:
            case ast.FunctionDef(name=name, args=arguments):
                found[name] = _parameters(arguments)
            case ast.ClassDef(name=name):
                found[name] = None
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = None
            case ast.ImportFrom(module=module, names=names) if module and module.startswith("edl."):
                found |= {alias.name: None for alias in names}
            case _:
                pass
    return {name: parameters for name, parameters in found.items() if not name.startswith("_")}


def _parameters(arguments: ast.arguments) -> list[tuple[str, str, bool, str]]:
    assert not arguments.kwonlyargs and not arguments.posonlyargs
    missing = [None] * (len(arguments.args) - len(arguments.defaults))
    found = [
        (one.arg, "POSITIONAL_OR_KEYWORD", default is not None, "..." if default is None else ast.unparse(default))
        for one, default in zip(arguments.args, [*missing, *arguments.defaults], strict=True)
    ]
    for one, kind in ((arguments.vararg, "VAR_POSITIONAL"), (arguments.kwarg, "VAR_KEYWORD")):
        if one is not None:
            found.append((one.arg, kind, False, "..."))
    return found
