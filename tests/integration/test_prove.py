"""`edl prove` on this machine: a whole run with its report, and one that Ctrl-C ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from pace import patient

pytest.importorskip("torch")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PROVE = [sys.executable, "-m", "edl", "prove", "--quick", "--device", "cpu"]


@pytest.fixture
def environ(tmp_path) -> dict[str, str]:
    """A home of its own, settings that must not reach the jobs, and a folder of temporary files to look into."""
    (tmp_path / "temporary").mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
    elsewhere = {"EDL_JOB": "other", "EDL_COORDINATOR": "127.0.0.1:1", "EDL_CHECKPOINT": str(tmp_path / "checkpoints")}
    return {**clean, **elsewhere, "TMPDIR": str(tmp_path / "temporary")}


def left(folder: Path) -> list[str]:
    """Processes that were told a file of the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


@pytest.mark.soak  # minutes; its parts: tests/unit/proof, and it begins, in the test of Ctrl-C
def test_a_quick_run_holds_and_writes_both_files(tmp_path, environ) -> None:
    done = subprocess.run(
        [*PROVE, "--output", str(tmp_path)], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.glob("edl-proof-*.json")
    found = json.loads(file.read_text())
    assert found["holds"] and found["outcome"]["trained"] > 0 and found["outcome"]["states_compared"] > 4
    assert [(one["before"], one["after"]) for one in found["resizes"]] == [(2, 3), (3, 2)] * 2
    assert [one["steps_lost"] for one in found["kills"]] == [0]
    assert found["kills"][0]["whole_ms"] > found["kills"][0]["first_ms"] > 0
    assert len(found["turns"]["edl_ms"]) == len(found["turns"]["torchrun_ms"]) == 2
    if find_spec("horovod") is not None:
        assert len(found["horovod"]["edl_ms"]) == len(found["horovod"]["horovodrun_ms"]) == 1
    assert found["written_mb"] < 100
    assert "all holds" in done.stdout and f"{file.stem}.json and .html" in done.stdout
    assert '<b class="state finished">holds</b>' in file.with_suffix(".html").read_text()
    assert not list((tmp_path / "temporary").iterdir()) and not left(tmp_path / "temporary")
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_ctrl_c_ends_its_jobs_and_leaves_nothing(tmp_path, environ) -> None:
    command = [*PROVE, "--output", str(tmp_path)]
    with subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as prove:
        deadline = time.monotonic() + patient(240.0)
        while not any(path.stat().st_size for path in (tmp_path / "temporary").glob("*/*.jsonl")):  # a worker trains
            assert prove.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        prove.send_signal(signal.SIGINT)
        said = prove.communicate(timeout=patient(90.0))[1]
    assert prove.returncode == 1 and said.endswith("edl: interrupted\n")
    assert not list((tmp_path / "temporary").iterdir()) and not left(tmp_path / "temporary")
    assert not list(tmp_path.glob("edl-proof-*"))


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--device", "tpu"], "--device tpu: must be one of auto, cpu, cuda"),
        (["--output", "nowhere"], "--output nowhere: must be a folder to which you may write"),
        (["-np", "zwei"], "-np zwei: must be"),
    ],
)
def test_what_cannot_be_tried_is_said_in_one_line(tmp_path, environ, flags, line) -> None:
    done = subprocess.run([*PROVE, *flags], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith(f"edl: {line}") and done.stderr.count("\n") == 1
