"""`edl checkpoint ls|show|verify`: what they print, their exit codes, and one line for what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from stored import folder_at, save, write

from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.checkpoint_paths import JobFolder
from edl.checkpoints.object_store import ObjectFiles
from edl.checkpoints.resume_choice import only_job
from edl.cli import main

OLD, NEW, NEXT = (CheckpointName(1, 1, step) for step in (10, 20, 30))


@pytest.fixture(autouse=True)
def checkpoints(tmp_path, monkeypatch) -> Path:
    for variable in [name for name in os.environ if name.startswith("EDL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("TZ", "UTC")
    root = tmp_path / "checkpoints"
    for name in (OLD, NEW):
        save(folder_at(root), name)
    monkeypatch.chdir(tmp_path)
    return root


def tear(root: Path, name: CheckpointName) -> None:
    (root / "mnist" / str(name) / "part-0001-of-0003.safetensors").write_bytes(b"torn")


def test_ls(checkpoints, capsys) -> None:
    write(folder_at(checkpoints), NEXT)
    tear(checkpoints, OLD)
    assert main(["checkpoint", "ls", "checkpoints"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["job", "checkpoint", "step", "workers", "MB", "when"]
    assert lines[1].split() == ["mnist", str(NEXT), "-", "-", "-", "-", "unfinished"]
    assert lines[2].split()[:5] == ["mnist", str(NEW), "20", "3", "0.0118"]
    assert lines[2].endswith("durable")
    assert lines[3].endswith("broken")
    assert lines[4] == (
        f"checkpoint checkpoints/mnist/{OLD} is broken: part-0001-of-0003.safetensors has 4 bytes, and was written "
        "with 4416"
    )


def test_what_lies_beside_the_jobs_is_passed_over(checkpoints, capsys) -> None:
    (checkpoints / "notes.txt").touch()
    (checkpoints / "latest").symlink_to("mnist")
    assert main(["checkpoint", "ls", "checkpoints", "--json"]) == 0
    assert {one["job"] for one in json.loads(capsys.readouterr().out)["checkpoints"]} == {"mnist"}
    assert only_job("checkpoints") == "mnist"  # as `edl run --checkpoint checkpoints` goes on with


def test_ls_for_programs(checkpoints, capsys) -> None:
    save(folder_at(checkpoints, "other"), OLD)
    assert main(["checkpoint", "ls", "checkpoints", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [(one["job"], one["step"], one["condition"]) for one in found] == [
        ("mnist", 20, "durable"), ("mnist", 10, "durable"), ("other", 10, "durable"),
    ]  # fmt: skip
    assert found[0]["path"] == f"checkpoints/mnist/{NEW}"
    assert main(["checkpoint", "ls", "checkpoints", "--job", "other", "--json"]) == 0
    assert [one["job"] for one in json.loads(capsys.readouterr().out)["checkpoints"]] == ["other"]


def test_show_tells_of_the_newest_that_is_whole(checkpoints, capsys) -> None:
    tear(checkpoints, NEW)
    assert main(["checkpoint", "show", "checkpoints"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith(f"edl: checkpoint checkpoints/mnist/{NEW} is broken: ") and err.count("\n") == 1
    assert f"checkpoint checkpoints/mnist/{OLD}: every byte is as it was written" in out
    assert "  job mnist   life 1   step 10 (0 in the lives before)" in out
    assert "  torch, by edl 0.1.0, " in out
    assert "  with python 3.11.1, torch 2.5.0\n" in out
    assert "  data: epoch 0 of 1000 samples, seed 7" in out
    assert "  model: 7 tensors, 0.0105 MB" in out
    assert "own-0002.msgpack" in out


def test_show_for_programs_is_the_manifest(checkpoints, capsys) -> None:
    assert main(["checkpoint", "show", f"checkpoints/mnist/{OLD}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["path"], found["step"], found["ledger"]["spec"]["seed"]) == (f"checkpoints/mnist/{OLD}", 10, 7)
    assert found["parts"][0]["file"] == "part-0000-of-0003.safetensors"


def test_verify_says_by_its_exit_code_whether_the_newest_is_whole(checkpoints, capsys) -> None:
    write(folder_at(checkpoints), NEXT)
    tear(checkpoints, OLD)
    assert main(["checkpoint", "verify", "checkpoints"]) == 0
    assert "whole" in capsys.readouterr().out
    assert main(["checkpoint", "verify", f"checkpoints/mnist/{OLD}"]) == 1
    tear(checkpoints, NEW)
    assert main(["checkpoint", "verify", "checkpoints/mnist", "--json"]) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["checkpoints"]
    assert [one["condition"] for one in found] == ["unfinished", "broken", "broken"]
    assert "has 4 bytes" in found[1]["reason"]


def test_verify_reads_what_ls_does_not(checkpoints, capsys) -> None:
    path = checkpoints / "mnist" / str(NEW) / "own-0000.msgpack"
    path.write_bytes(path.read_bytes()[::-1])
    assert main(["checkpoint", "ls", "checkpoints"]) == 0
    assert "broken" not in capsys.readouterr().out
    assert main(["checkpoint", "verify", "checkpoints"]) == 1
    assert "own-0000.msgpack is not as it was written: crc32c:" in capsys.readouterr().out


def test_of_several_jobs_each_newest_counts(checkpoints) -> None:
    save(folder_at(checkpoints, "other"), OLD)
    tear(checkpoints, NEW)
    assert main(["checkpoint", "verify", "checkpoints"]) == 1
    assert main(["checkpoint", "verify", "checkpoints", "--job", "other"]) == 0


def test_urls_are_looked_at_as_folders_are(capsys) -> None:
    import fsspec

    url = "memory://bucket/checkpoints"
    folder = JobFolder(ObjectFiles(url), "mnist")
    for name in (OLD, NEW):
        save(folder, name)
    for path in (url, f"{url}/", f"{url}/mnist", f"{url}/mnist/{NEW}"):
        assert main(["checkpoint", "verify", path]) == 0
        assert f"mnist  {NEW}  20    3        0.0118" in capsys.readouterr().out
        assert main(["checkpoint", "show", path]) == 0
        assert f"checkpoint {url}/mnist/{NEW}: every byte" in capsys.readouterr().out
    fsspec.filesystem("memory").rm("bucket", recursive=True)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        ("ls", 2, "missing: DIR; see 'edl checkpoint ls --help'"),
        ("verify nothing", 2, "there is no checkpoint in nothing: name the folder that --checkpoint named"),
        ("verify checkpoints --job x", 2, "there is no checkpoint of job x in checkpoints; there are those of mnist"),
        ("show checkpoints --job a/b", 2, "--job a/b: must be 1 to 64 letters, digits, '.', '_' or '-'"),
        ("ls nosuch://x", 2, "nosuch://x: Protocol not known: nosuch"),
        ("export checkpoints", 2, "missing: FILE; see 'edl checkpoint export --help'"),
        ("export checkpoints checkpoints", 2, "checkpoints exists already: name another file, or remove it first"),
        ("export checkpoints m.safetensors", 2, "text is of <U5, which a safetensors file cannot hold"),
        (f"show checkpoints/mnist/{NEXT}", 1, f"checkpoint checkpoints/mnist/{NEXT} is unfinished"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, code, line, capsys) -> None:
    assert main(["checkpoint", *arguments.split()]) == code
    said = capsys.readouterr().err
    assert said.startswith(f"edl: {line}") and said.count("\n") == 1
