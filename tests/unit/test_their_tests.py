"""What the libraries' own tests come to, in a table; and each of them in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import their_horovod_tests
import their_tests


def test_the_table_counts_what_passes_alone_and_says_why_the_rest_fails() -> None:
    alone = {
        "a.py::Of::one": ["passed", ""],
        "a.py::Of::two": ["passed", ""],
        "a.py::Of::three": ["failed", "no network"],
        "b.py::four": ["passed", ""],
        "b.py::five": ["skipped", "a GPU"],
    }
    with_edl = {
        "a.py::Of::one": ["passed", ""],
        "a.py::Of::two": ["failed", "object at 0x7f12 is wrong"],
        "a.py::Of::three": ["passed", ""],
    }
    assert their_tests.table(alone, with_edl).splitlines()[2:] == [
        "| `a.py` | 2 | 1 | 1 |",
        "| `b.py` | 1 | 0 | 1 |",
        "| together | 3 | 1 | |",
        "",
        "- 1: object at N is wrong",
        "  (two)",
        "- 1: it was not run",
        "  (four)",
    ]


def test_a_wrong_library_is_refused_with_what_there_is(tmp_path: Path) -> None:
    assert "keras, accelerate, lightning" in their_tests.refused("jax", "")
    assert their_tests.refused("lightning", "").endswith("say lightning=CHECKOUT")
    assert "no checkout of lightning" in their_tests.refused("lightning", str(tmp_path))
    assert not their_tests.refused("keras", "")
    for pattern in their_tests.SELECTED["lightning"]:
        (tmp_path / pattern).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / pattern).touch()
    assert not their_tests.refused("lightning", str(tmp_path))


@pytest.mark.integration  # runs tests in processes: not for scripts/check
def test_tests_that_import_from_their_package_keep_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they import is with them, and is no file of tests."""
    source = tmp_path / "checkout"
    for name in their_tests.SELECTED["transformers"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("from .trainer_test_utils import found\ndef test_it(): assert found == 1\n")
    assert their_tests.refused("transformers", str(source)).endswith("there is no tests/__init__.py")
    for name in their_tests.PACKAGED["transformers"]:
        (source / name).write_text("found = 1\ndef test_of_none(): pass\n")
    assert not their_tests.refused("transformers", str(source))
    monkeypatch.setattr(their_tests, "WORK", tmp_path / "not" / "there")
    folder = their_tests.selected("transformers", source)
    ended = their_tests.ran("transformers", folder, "", in_place=False)
    assert ended == {f"{name}::test_it": ["passed", ""] for name in their_tests.SELECTED["transformers"]}


@pytest.mark.integration  # runs tests in processes: not for scripts/check
def test_each_test_ends_by_itself(tmp_path: Path) -> None:
    """One that passes, one that fails, one whose process ends, one that hangs; and what one sets no other sees."""
    (tmp_path / "test_them.py").write_text(
        "import os, sys, time\n"
        "seen = []\n"
        "def test_passes(): seen.append(1)\n"
        "def test_fails(): assert seen == [1], 'of its own'\n"
        "def test_ends(): os._exit(3)\n"
        "def test_hangs(): time.sleep(600)\n"
        "def test_finds_it_imported(): assert 'heavy' in sys.modules\n"
    )
    (tmp_path / "heavy.py").touch()
    told = tmp_path / "told"
    environ = {**os.environ, "THEIR_TESTS_TOLD": str(told), "THEIR_TESTS_SECONDS": "1"}
    environ |= {"THEIR_TESTS_IMPORT": "heavy"}
    environ["PYTHONPATH"] = os.pathsep.join([str(Path(their_tests.__file__).parent), str(tmp_path)])
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "each_by_itself", "-p", "no:cacheprovider"]
    subprocess.run([*command, str(tmp_path)], env=environ, cwd=tmp_path, check=False, capture_output=True, timeout=60)
    found: dict[str, Any] = {}
    for line in told.read_text().splitlines():
        test, outcome, why = json.loads(line)
        found[test.partition("::")[2]] = outcome, why
    assert found["test_passes"] == ("passed", "")
    assert found["test_finds_it_imported"] == ("passed", "")
    assert found["test_fails"][0] == "failed" and "of its own" in found["test_fails"][1]
    assert found["test_ends"][0] == "failed" and "its process ended" in found["test_ends"][1]
    assert found["test_hangs"] == ("failed", "it did not end in time")


def test_a_test_of_horovods_passes_if_it_does_on_all_workers() -> None:
    passed, failed, skipped = ("passed", ""), ("failed", "wrong sum"), ("skipped", "a GPU")
    ends = [
        their_horovod_tests.of_all(seen, hung=hung)
        for seen, hung in (
            ([passed, passed], False),
            ([passed, failed], True),
            ([passed], True),
            ([], False),
            ([skipped, skipped], False),
        )
    ]
    assert ends == [passed, failed, ("failed", "it hung"), ("failed", "a worker ended in it"), skipped]


def test_their_table_names_what_passes_with_stock_horovod_alone() -> None:
    stock = {"a.py::A::one": ["passed", ""], "a.py::A::two": ["passed", ""], "a.py::A::three": ["failed", "old"]}
    lines = their_horovod_tests.table({"stock": stock, "torch": {"a.py::A::one": ["passed", ""]}}).splitlines()
    assert "| edl, `--ring torch` | 1 | 0 | 0 | 1 of 2 |" in lines
    assert "- 1: failed: old (three)" in lines
    assert lines[-1] == "- 1: lost: it was not run (two)"


def test_only_the_import_is_another(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in (*their_horovod_tests.SELECTED, their_horovod_tests.COMMON, *their_horovod_tests.BESIDE.values()):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("import horovod.torch as hvd\nimport horovod.tensorflow as hvd\n")
    assert not their_tests.refused("horovod", str(checkout))
    assert their_tests.refused("horovod", "").endswith("say horovod=CHECKOUT")
    assert their_tests.refused("ddp", str(checkout)).startswith("ddp takes no checkout")
    folder = their_horovod_tests.prepared(checkout, "test_tensorflow.py", tmp_path / "there")
    for package in ("horovod", "edl"):
        for name in ("tests/test_tensorflow.py", "utils/base_test_tensorflow.py"):
            written = (folder / package / name).read_text()
            assert written == f"import horovod.torch as hvd\nimport {package}.tensorflow as hvd\n"


def test_what_workers_tell_is_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('["a", "begun", ""]\n["a", "failed", "x"]\n["a", "ov')
    (tmp_path / "2.jsonl").write_text('["a", "begun", ""]\n["b", "begun", ""]\n')
    assert their_horovod_tests.ended(tmp_path, hung=True) == {"a": ["failed", "x"], "b": ["failed", "it hung"]}
