"""When a process is kept that later workers are forked from, and for which commands."""

from __future__ import annotations

import importlib.util
import signal
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from edl.host.imported_modules import FILE, sort_out, tell_imported
from edl.launch.forking import Forks, hindrance_of
from edl.launch.warm_starts import (
    KEEP_BYTES,
    MOST_STARTS,
    START_BYTES,
    EndWarm,
    ImportsDone,
    LaunchEnds,
    PythonLine,
    RingSeen,
    StartWarm,
    WarmGone,
    WarmRefused,
    WarmStage,
    WarmStarts,
    python_line,
)

RING = RingSeen(stands=True, told=True, available_bytes=START_BYTES)


# ------------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("words", "flags", "kind", "name", "arguments"),
    [
        ("train.py", "", "script", "train.py", ""),
        ("-u -O train.py --lr 1 -c x", "-u -O", "script", "train.py", "--lr 1 -c x"),
        ("-Wd -W error -X dev -Xutf8 a/b.py -m", "-Wd -W error -X dev -Xutf8", "script", "a/b.py", "-m"),
        ("-m package.train --lr 1", "", "module", "package.train", "--lr 1"),
        ("-OOm train x", "-OO", "module", "train", "x"),
        ("-Iuc pass x", "-Iu", "code", "pass", "x"),
        ("-cpass", "", "code", "pass", ""),
        ("-uWerror train.py", "-uWerror", "script", "train.py", ""),
    ],
)
def test_a_line_of_python_is_taken_apart(words: str, flags: str, kind: str, name: str, arguments: str) -> None:
    line = python_line(["/usr/bin/python3.11", *words.split()])
    assert line == PythonLine("/usr/bin/python3.11", tuple(flags.split()), kind, name, tuple(arguments.split()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words",
    ["", "python", "bash train.py", "torchrun train.py", "python -", "python -i train.py", "python -v train.py",
     "python -x train.py", "python --version", "python -- train.py", "python -m", "python -c", "python -W",
     "python folder", "python app.pyz", "python train.pyc", "pythonw train.py", "python-config train.py"],
)  # fmt: skip
def test_any_other_command_is_started_anew(words: str) -> None:
    assert python_line(words.split()) is None


def test_only_the_python_of_edl_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.touch()
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    assert hindrance_of([sys.executable, str(script)]) == ""
    assert hindrance_of(["python", str(script)]) == ""
    assert "is not the Python that edl is in" in hindrance_of([str(other), str(script)])
    assert "is not one file" in hindrance_of(["python", str(tmp_path / "folder.py")])
    assert "the command is not" in hindrance_of(["bash", str(script)])


# --------------------------------------------------------------------------------------------------------- the modules


def module(name: str, file: str | None = None, path: str | None = None, spec: str | None = None) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(spec or name, None, origin=file, is_package=path is not None)
    made.__spec__.has_location = file is not None
    if path is not None:
        made.__spec__.submodule_search_locations = [path]
    return made


class Answers(ModuleType):
    """Has any attribute, as `torch.classes` does."""

    def __getattr__(self, name: str) -> object:
        return object()


def sorted_out(*modules: ModuleType, first: str = "/home/me/job") -> tuple[tuple[str, ...], tuple[str, ...]]:
    named = {one.__spec__.name: one for one in modules if one.__spec__ is not None}
    found = sort_out(named, ["/lib/python", "/venv/site", "/src/edl"], first)
    return found.modules, found.own


def test_installed_modules_are_told_in_the_order_of_their_imports() -> None:
    torch, nn = (
        module("torch", "/venv/site/torch/__init__.py", "/venv/site/torch"),
        module("torch.nn", "/venv/site/torch/nn.py"),
    )
    assert sorted_out(torch, nn, module("json", "/lib/python/json.py")) == (("torch", "torch.nn", "json"), ())


def test_nothing_of_the_scripts_own_is_imported_ahead() -> None:
    own = module("models", "/home/me/job/models.py"), module("lib.deep", "/home/me/lib/deep.py")
    assert sorted_out(*own, module("lib", None, "/home/me/lib")) == ((), ("models", "lib"))
    assert sorted_out(module("site2", "/venv/site-of-mine/site2.py")) == ((), ("site2",))


def test_a_module_beside_a_script_that_is_installed_is_its_own() -> None:
    beside = module("random", "/venv/site/tool/random.py"), module("random.deep", "/venv/site/tool/random/deep.py")
    assert sorted_out(*beside, first="/venv/site/tool") == ((), ("random",))


def test_a_module_that_answers_for_any_attribute_is_left_out() -> None:
    found = sort_out({"classes": Answers("classes")}, ["/venv/site"], "")
    assert (found.modules, found.own) == ((), ())


def test_edl_is_never_the_scripts_own() -> None:
    assert sorted_out(module("edl", "/src/edl/__init__.py", "/src/edl"), first="/src") == (("edl",), ())


def test_what_cannot_be_imported_by_its_name_is_left_out() -> None:
    alias = module("os.path", "/lib/python/posixpath.py", spec="posixpath")
    odd = module("a-b", "/venv/site/a-b.py")
    found = sort_out({"os.path": alias, "a-b": odd, "sys": module("sys")}, ["/lib/python", "/venv/site"], "")
    assert (found.modules, found.own) == ((), ())


# --------------------------------------------------------------------------------------------------------- the machine


def ready() -> WarmStarts:
    machine = WarmStarts()
    assert machine.handle(RING) == [StartWarm()]
    assert machine.handle(ImportsDone(5, 1.0)) == []
    assert machine.stage is WarmStage.READY
    return machine


def test_it_is_started_once_the_ring_stands_and_its_modules_are_known() -> None:
    machine = WarmStarts()
    for stands, told in ((False, False), (False, True), (True, False)):
        assert machine.handle(RingSeen(stands, told, START_BYTES)) == []
    assert machine.handle(RING) == [StartWarm()]
    assert machine.handle(RING) == []
    assert machine.stage is WarmStage.IMPORTING


def test_it_is_not_kept_where_memory_is_short() -> None:
    machine = WarmStarts()
    assert machine.handle(RingSeen(stands=True, told=True, available_bytes=START_BYTES - 1)) == []
    assert "memory" in machine.words
    machine = ready()
    assert machine.handle(RingSeen(stands=True, told=True, available_bytes=KEEP_BYTES)) == []
    assert machine.handle(RingSeen(stands=True, told=True, available_bytes=KEEP_BYTES - 1)) == [EndWarm()]
    assert machine.stage is WarmStage.NONE
    assert machine.handle(RING) == [StartWarm()]


def test_one_that_cannot_be_forked_is_ended_for_good() -> None:
    machine = WarmStarts()
    machine.handle(RING)
    assert machine.handle(WarmRefused("it has threads")) == [EndWarm()]
    assert machine.words == "off: it has threads"
    assert machine.handle(RING) == []


def test_one_that_has_ended_is_started_again_a_few_times() -> None:
    machine = WarmStarts()
    for _ in range(MOST_STARTS):
        assert machine.handle(RING) == [StartWarm()]
        assert machine.handle(WarmGone()) == [EndWarm()]
    assert machine.handle(RING) == []
    assert machine.stage is WarmStage.OFF


def test_the_end_of_the_launch_ends_it() -> None:
    machine = ready()
    assert machine.handle(LaunchEnds()) == [EndWarm()]
    assert machine.handle(LaunchEnds()) == machine.handle(RING) == machine.handle(ImportsDone(5, 1.0)) == []


def test_an_answer_that_comes_late_changes_nothing() -> None:
    machine = WarmStarts()
    machine.handle(RING)
    machine.handle(RingSeen(stands=True, told=True, available_bytes=0))
    assert machine.handle(ImportsDone(5, 1.0)) == []
    assert machine.stage is WarmStage.NONE


def test_a_hindrance_is_said_and_final() -> None:
    machine = WarmStarts("--warm-starts off")
    assert machine.handle(RING) == []
    assert machine.words == "off: --warm-starts off"


def test_a_module_that_is_loaded_lazily_is_not_loaded_by_the_question(tmp_path: Path) -> None:
    (tmp_path / "lazy_one.py").write_text("raise ImportError('no display')\n")
    spec = importlib.util.spec_from_file_location("lazy_one", tmp_path / "lazy_one.py")
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sort_out({"lazy_one": module}, [str(tmp_path)], "").modules == ("lazy_one",)


def test_modules_that_cannot_be_told_stop_no_training(tmp_path: Path) -> None:
    tell_imported(tmp_path / "not there")
    tell_imported(tmp_path)
    assert (tmp_path / FILE).exists()


def test_after_a_forked_worker_that_came_to_no_ring_none_is_forked(tmp_path: Path) -> None:
    said: list[str] = []
    forks = Forks(["python", "-c", "pass"], tmp_path / "log", said.append, "on")
    forks.forked(6)
    forks.forked(7)
    forks.proven(6)
    forks.ended(6, 1)
    for worker, code in ((8, 1), (1, None), (2, 0), (3, -signal.SIGKILL), (4, -signal.SIGTERM)):
        if worker != 8:
            forks.forked(worker)
        forks.ended(worker, code)
    assert said == []
    forks.ended(7, 1)
    assert said == ["off: a worker that was forked has ended before it was in a ring"]
