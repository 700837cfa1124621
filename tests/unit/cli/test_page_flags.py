"""What is said about a wrong `edl dashboard`, `edl top` or `edl report`, and reports of jobs that are over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from seen_job import EVIL, event, scaled, status

from edl.cli import main
from edl.host.host_processes import process_start_time
from edl.launch.job_records import Folder, LaunchRecord, claim
from edl.launch.status_poller import FigureLog, Point, point_of, read_figures
from edl.protocol.record import JobState


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("EDL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def past_job(home: Path) -> Folder:
    """On record, and over."""
    record = LaunchRecord(
        job="j",
        launcher_pid=os.getpid(),
        launcher_start=process_start_time(os.getpid()) or 0,
        mark="m",
        started=1.0,
        command=("python", "train.py"),
        np=2,
        min_workers=1,
        max_workers=None,
        own_coordinator=True,
    )
    folder = claim(home, record)
    folder.append_events([json.dumps(one) for one in (event(1), scaled(2, 2, 3), event(3, "job_failed", reason=EVIL))])
    folder.write_status(msgspec.json.encode(status(state=JobState.FAILED, reason=EVIL)))
    folder.write(msgspec.structs.replace(record, state="failed", reason=EVIL, ended=2.0))
    return folder


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["dashboard", "nix"], "no job nix was started on this machine"),
        (["dashboard", "j", "--port", "70000"], "--port 70000: must be a port from 1 to 65535, or 0 for any"),
        (["dashboard", "j", "--port", "-1"], "--port"),
        (["top"], "no job runs here"),
        (["report", "j"], "missing: --html"),
        (["report", "nix", "--html", "x.html"], "no job nix was started on this machine"),
        (["report", "j", "--html", "no/such/x.html"], "--html no/such/x.html: there is no folder no/such"),
        (["report", "j", "--html", "."], "--html .: cannot be written: Is a directory"),
    ],
)
def test_wrong_use(home: Path, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    past_job(home)
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1, err


def test_the_story_of_a_job_that_is_over_in_one_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = past_job(home)
    for n in range(3):
        folder.append_figures(msgspec.json.encode(Point(1000.0 + n, 10 * n, 640 * n, 2, {"loss": 0.5})) + b"\n")
    folder.append_figures(b"[1003.0, broken")
    assert main(["report", "j", "--html", "j.html"]) == 0
    text = Path("j.html").read_text()
    assert "2 → 3 workers" in text and "job_failed" in text and "640.0" in text
    assert "<script>alert" not in text and "&lt;script&gt;" in text
    assert "job j: j.html" in capsys.readouterr().out
    assert main(["top", "j"]) == 0
    shown = capsys.readouterr().out
    assert "failed" in shown and "job_failed" in shown


def test_how_far_a_job_is_goes_on_record_ever_more_seldom(home: Path) -> None:
    folder = past_job(home)
    log = FigureLog(folder)
    for second in range(4000):
        log.take(status(), 1000.0 + second)
    assert point_of(status(stable=None), 0.0) is None
    found = list(read_figures(folder))
    assert 1000 < len(found) < 2500
    assert found[0] == Point(1000.0, 800, 44_800, 2, {"loss": 0.5}, 100, "host", 2)
    assert folder.figures.stat().st_mode & 0o077 == 0
