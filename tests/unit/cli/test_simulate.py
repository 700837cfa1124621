"""`edl simulate`: what is typed, what is shown, and what is said of what is typed wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edl.cli import main
from edl.cli.cluster_flags import FLAGS

JOBS = "name,submitted,workers,duration,deadline\na,0,2,100,100\nb,10,1,50,70\nc,20,2,30,\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("EDL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text(JOBS)
    return tmp_path


def simulated(capsys: pytest.CaptureFixture[str], arguments: str) -> str:
    assert main(["simulate", *arguments.split()]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    shown = simulated(capsys, "jobs.csv --policy fifo --nodes 1x2 --change-cost 0").splitlines()
    told = dict(re.split(r"  +", line, maxsplit=1) for line in shown[1:])
    # a: 0 to 100. b: 100 to 150. c waits for both devices: 150 to 180.
    assert shown[0].startswith("fifo")
    assert told["jobs that finished"] == "3 of 3"
    assert (told["completion time, mean"], told["median"], told["makespan"]) == ("133 s", "140 s", "180 s")
    assert told["deadlines met"] == "1 of 2"
    assert told["devices in use"] == "86.1%, training 86.1%"


def test_one_object_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(simulated(capsys, "jobs.csv --policy backfill --nodes 1x2 --change-cost 5 --json"))
    names = {"name", "submitted", "started", "finished", "changes"}
    assert all(names <= one.keys() for one in found["jobs"])
    assert {"mean", "median", "p95", "p99", "makespan", "utilization"} <= found["summary"].keys()
    times = {one["name"]: (one["submitted"], one["started"], one["finished"]) for one in found["jobs"]}
    assert times == {"a": (0.0, 0.0, 105.0), "b": (10.0, 105.0, 160.0), "c": (20.0, 160.0, 195.0)}


def test_the_cost_of_a_change_has_several_spellings(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    def ends(cost: str) -> list[float]:
        told = simulated(capsys, f"jobs.csv --policy fifo --nodes 1x2 --json --change-cost {cost}")
        return [one["finished"] for one in json.loads(told)["jobs"]]

    assert ends("30") == ends("30s") == [130.0, 210.0, 270.0]
    events = [
        {"kind": "worker_ready", "joining_ms": 6000, "warming_ms": 1000},
        {"kind": "scaled", "pause_ms": 250.0, "from": 1, "to": 2},
        {"kind": "job_finished"},
    ]
    (home / "events").write_text("\n".join(map(json.dumps, events)) + "\n")
    assert ends("events") == [107.0, 164.0, 201.0]
    assert ends("measured") == [109.0, 168.0, 207.0]


def test_a_flag_has_a_twin_and_wins_over_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_POLICY", "fifo")
    monkeypatch.setenv("EDL_NODES", "1x2")
    monkeypatch.setenv("EDL_CHANGE_COST", "30")
    monkeypatch.setenv("EDL_JSON", "1")
    assert json.loads(simulated(capsys, "jobs.csv"))["jobs"][0]["finished"] == 130.0
    assert json.loads(simulated(capsys, "jobs.csv --change-cost 0"))["jobs"][0]["finished"] == 100.0
    monkeypatch.setenv("EDL_SET", "limits=20 promote=2")
    assert json.loads(simulated(capsys, "jobs.csv --policy tiresias"))["summary"]["finished"] == 3


@pytest.mark.integration  # processes that take seconds: not for scripts/check
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture(capsys: pytest.CaptureFixture[str], home: Path, ending: str) -> None:
    simulated(capsys, f"jobs.csv --policy fifo --nodes 1x2 --plot out.{ending}")
    assert (home / f"out.{ending}").stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("jobs.csv", "missing: --policy P; see 'edl simulate --help'"),
        ("--policy fifo", "missing: TRACE; see 'edl simulate --help'"),
        ("jobs.csv --policy best", "policy best: is none of "),
        ("none.csv --policy fifo", "there is no trace none.csv: name a CSV file, see 'edl simulate --help'"),
        ("jobs.csv --policy fifo --nodes 4", "--nodes 4: must be nodes times devices, such as 16x4"),
        ("jobs.csv --policy fifo --nodes 0x4", "--nodes 0x4: must be nodes times devices, such as 16x4"),
        (
            "jobs.csv --policy fifo --nodes 1x1",
            "trace jobs row 2: a asks for 2 workers, and the cluster has 1 devices: ",
        ),
        ("jobs.csv --policy fifo --interval -1", "--interval -1: must be a number of seconds, 0 or more"),
        ("jobs.csv --policy fifo --interval soon", "--interval soon: must be a number of seconds, 0 or more"),
        ("jobs.csv --policy fifo --change-cost -1", "--change-cost -1: must be 0 to 86400 seconds"),
        ("jobs.csv --policy fifo --change-cost nan", "--change-cost nan: must be 0 to 86400 seconds"),
        ("jobs.csv --policy fifo --change-cost little", "--change-cost little: must be seconds, measured, or a file"),
        ("jobs.csv --policy fifo --change-cost jobs.csv", "--change-cost jobs.csv row 1: is no event; write it by "),
        ("jobs.csv --policy fifo --speeds told", "--speeds told: must be fitted or oracle"),
        ("jobs.csv --policy fifo --placement any", "--placement any: must be pack or spread or most-free"),
        ("jobs.csv --policy fifo --seed x", "--seed x: must be a whole number of at least 0"),
        ("jobs.csv --policy fifo --failures 3", "--failures 3: must be MEAN:LENGTH:LOST, such as 86400:600:300"),
        ("jobs.csv --policy fifo --stragglers 9:9:0.5", "--stragglers 9:9:0.5: must be MEAN:LENGTH:TIMES, such as "),
        ("jobs.csv --policy fifo --applications no", "--applications no: there is no such folder"),
        ("jobs.csv --policy fifo --plot x.txt", "--plot x.txt: must be a .png, .svg or .pdf in a folder that is there"),
        ("jobs.csv --policy fifo --set promote=1", "policy fifo has no parameter promote: it has no parameters"),
        ("jobs.csv --policy tiresias --set promote", "--set promote: must be NAME=VALUE, such as promote=8"),
        (
            "jobs.csv --policy tiresias --set knob=1",
            "policy tiresias has no parameter knob: its parameters are limits, ",
        ),
        ("jobs.csv --policy tiresias --set promote=x", "policy tiresias: promote=x: expected `float`, got `str`"),
        ("jobs.csv --policy tiresias --set limits=5,3", "policy tiresias: limits=5,3: must be above 0, and each above"),
        ("jobs.csv --policy tiresias --set order=any", "policy tiresias: order=any: invalid enum value 'any'"),
        ("jobs.csv --policy tiresias --set rank=gittins", "policy tiresias: rank=gittins needs sample="),
        ("jobs.csv --policy srtf --set promote=-1", "policy srtf: promote=-1: must be 0 or more"),
        ("jobs.csv --policy backfill --set patience-s=-1", "policy backfill: patience_s=-1: must be 0 or more"),
        (
            "jobs.csv --policy elastic-tiresias --set shrink=2",
            "policy elastic-tiresias: shrink=2: must be above 0, and",
        ),
    ],
)
def test_wrong_input_is_one_clear_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    assert main(["simulate", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"edl: {line}")
    assert err.count("\n") == 1


def test_help_tells_of_each_flag_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--help"])
    assert ended.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "edl simulate jobs.csv --policy fifo" in told
    for name, (_, _, default) in FLAGS.items():
        assert f"--{name}" in told and f"[EDL_{name.upper().replace('-', '_')}]" in told
        assert default is None or f"(default: {default})" in told


@pytest.mark.integration  # processes that take seconds: not for scripts/check
def test_ctrl_c_is_one_line(home: Path) -> None:
    """While thousands of jobs are simulated."""
    rows = "".join(f"{at},1,1000000\n" for at in range(30_000))
    (home / "long.csv").write_text("submitted,workers,duration\n" + rows)
    script = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may be told to ignore it
from edl.cli import simulate
simulate.LINE_S = 0.1
from horovod_edl import main
sys.exit(main())
"""
    command = [sys.executable, "-c", script, "simulate", "long.csv", "--policy", "tiresias"]
    root = Path(__file__).parents[3]
    ran = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=home,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert ran.stderr is not None
    assert "jobs are over" in ran.stderr.readline()  # it says how far it is
    ran.send_signal(signal.SIGINT)
    out, err = ran.communicate(timeout=60)
    assert (ran.returncode, out) == (1, "")
    assert err.splitlines()[-1] == "edl: interrupted"
    assert "Traceback" not in err
