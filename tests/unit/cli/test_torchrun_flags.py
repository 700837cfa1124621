"""torchrun's flags in the words of `edl run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edl.cli.torchrun_flags import MODULE, WITH_VALUE, WITHOUT_MEANING, python_line, translated
from edl.config import Given
from edl.errors import UsageError


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def told(given: dict[str, Given] | None = None, **flags: Any) -> dict[str, str]:
    names = {name.replace("_", "-"): value for name, value in flags.items()}
    return {field: one.text for field, one in translated(names, given or {}, ["train.py"]).given.items()}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {"np": "1"}),
        ({"standalone": True, "nproc_per_node": "2"}, {"np": "2"}),
        ({"nnodes": "1:3", "nproc_per_node": "2"}, {"np": "2", "min_workers": "2", "max_workers": "6"}),
        ({"nnodes": "2", "nproc_per_node": "4"}, {"np": "4", "min_workers": "4", "max_workers": "8"}),
        ({"rdzv_id": "mnist", "max_restarts": "2", "log_dir": "logs"},
         {"np": "1", "job": "mnist", "max_restarts": "2", "output_filename": "logs"}),
        ({"rdzv_backend": "etcd-v2", "rdzv_endpoint": "host:2379"}, {"np": "1", "coordinator": "etcd://host:2379"}),
        ({"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}, {"np": "1"}),
    ],
)  # fmt: skip
def test_each_flag_means_what_it_means_there(flags: dict[str, Any], expected: dict[str, str]) -> None:
    assert told(**flags) == expected


def test_a_job_of_fixed_size_ends_with_a_worker_that_is_lost() -> None:
    bounds = {"min_workers": "2", "max_workers": "2", "max_restarts": "0"}
    assert told(nproc_per_node="2", nnodes="1:4", fixed_size=True) == {"np": "2", **bounds}
    for flags in ({}, {"nproc_per_node": "5"}):
        assert told({"np": Given("2", "-np 2")}, fixed_size=True, **flags) == {"np": "2", **bounds}
    more = {"max_workers": Given("4", "--max-np 4")}
    for given, flags, line in ((more, {}, "--max-np 4"), ({}, {"max_restarts": "3"}, "--max-restarts 3")):
        with pytest.raises(UsageError, match=f"leave {line} away"):
            told(given, fixed_size=True, **flags)


def test_flags_of_edl_run_win() -> None:
    assert told({"np": Given("3", "-np 3")}) == {"np": "3"}
    assert told({"max_workers": Given("4", "--max-np 4")}, nnodes="1:9")["max_workers"] == "4"


def test_what_means_nothing_is_one_line_each() -> None:
    found = translated(dict.fromkeys(WITHOUT_MEANING, "x"), {}, ["train.py"])
    assert len(found.notes) == len(WITHOUT_MEANING)
    assert all("means nothing here: " in note and "\n" not in note for note in found.notes)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"rdzv_endpoint": "host:29400"}, "--coordinator HOST:PORT"),
        ({"no_python": True}, "give a script, or a module with -m"),
        ({"nnodes": "3:1"}, "a number of nodes, or MIN:MAX"),
        ({"nnodes": "x"}, "a number of nodes, or MIN:MAX"),
        ({"nproc_per_node": "0"}, "a whole number of at least 1"),
        ({"accumulate": "x"}, "--accumulate x: must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_is_refused(flags: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line) as caught:
        told(**flags)
    assert "\n" not in str(caught.value)


def test_the_page_tells_of_each_flag_that_means_something() -> None:
    text = (Path(__file__).parents[3] / "docs/torchrun.md").read_text()
    assert [name for name in WITH_VALUE if f"--{name}" not in text] == []


def test_the_command_of_a_worker() -> None:
    assert python_line(["train.py", "--lr", "1"]) == (*MODULE, "train.py", "--lr", "1")
    assert python_line(["--", "python3", "train.py"]) == ("python3", *MODULE[1:], "train.py")
    assert python_line(["python", "-m", "package.train", "x"]) == ("python", *MODULE[1:], "-m", "package.train", "x")
    assert python_line(["package.train"], module=True) == (*MODULE, "-m", "package.train")
    for line, remedy in {("tran.py",): "did you mean train.py", (): "SCRIPT is missing"}.items():
        with pytest.raises(UsageError, match=remedy):
            python_line(line)
