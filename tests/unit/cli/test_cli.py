"""What can be typed, what is said about what is typed wrong, and how jobs look: all without starting anything."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edl.cli import cluster_flags, main, tables
from edl.cli.job_flags import NOW
from edl.cli.parser import build, parse
from edl.cli.run import EarlyEnd, ends_early, last_line
from edl.cluster.queue.end_causes import REFUSED
from edl.config import TABLE, Settings
from edl.events import Event, Kind
from edl.facts import told
from edl.host.host_processes import process_start_time
from edl.launch import life_outcome
from edl.launch.job_records import Folder, LaunchRecord, claim, invent
from edl.launch.life_outcome import LaunchVerdict
from edl.launch.local_launch import Outcome
from edl.launch.locate_job import recorded_status
from edl.protocol.data_nouns import DataCounts
from edl.protocol.record import JobState, Status, WorkerState, WorkerStatus
from edl.protocol.tally import LimbSeen, LossCause, Tally

DOCS = Path(__file__).parents[3] / "docs" / "cli.md"
SAVED = LaunchVerdict(75, "preempted", "step 9 is saved")
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    for name in [name for name in os.environ if name.startswith("EDL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def a_record(**changes: object) -> LaunchRecord:
    record = LaunchRecord(
        job="x", launcher_pid=os.getpid(), launcher_start=process_start_time(os.getpid()) or 0, mark="m", started=1.0,
        command=("python", "train.py"), np=2, min_workers=1, max_workers=None, own_coordinator=True,
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)


STATUS = Status(
    job="x", state=JobState.SCALING, reason="", term=1, generation=2, leader="w1", step=30, epoch=1, size=1, target=2,
    min_workers=1, max_workers=0, data=DataCounts(1, 100, 60, 30, 10, 8), spec=None,
    workers=(
        WorkerStatus("w1", 0, "here", 11, 12, WorkerState.TRAINING, 30),
        WorkerStatus("w2", None, "here", 21, 22, WorkerState.JOINING, 0),
    ),
)  # fmt: skip

# ------------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("run", "COMMAND is missing, such as `python train.py`; see 'edl run --help'"),
        (
            "run -np 0 true",
            "-np 0 waits for a job that trains elsewhere: name it by --job, and its --coordinator HOST:PORT",
        ),
        ("run -np -1 true", "-np -1: must be a whole number of at least 1"),
        ("run -np two true", "-np two: must be a whole number of at least 1"),
        ("batch x 0", "0: the samples of a step must be a whole number from 1 to 1,000,000,000"),
        ("batch x 9999999999", "9999999999: the samples of a step must be a whole number from 1 to 1,000,000,000"),
        ("run -np", "-np/--num-proc: expected one argument; see 'edl run --help'"),
        ("run --colour red true", "unknown flag or argument --colour; see 'edl run --help'"),
        ("run --num 2 true", "unknown flag or argument --num: did you mean --num-proc?; see 'edl run --help'"),
        ("run -np 2 --min-np 3 true", "-np 2 is less than --min-np 3"),
        ("run -np 4 --max-np 3 true", "-np 4 is more than --max-np 3"),
        ("run --min-np 4 --max-np 3 true", "--min-np 4 is more than --max-np 3"),
        ("run --min-np 0 true", "--min-np 0: must be a whole number of at least 1"),
        ("run --job a/b true", "--job a/b: must be 1 to 64 letters, digits, '.', '_' or '-'"),
        ("run --max-restarts -1 true", "--max-restarts -1: must be a whole number of at least 0"),
        ("run nosuchcommand", "command not found: nosuchcommand"),
        ("run -np 2 train.py --lr 1", "train.py is not executable: did you mean `python train.py --lr 1`?"),
        ("run ./train.py", "./train.py is not executable: did you mean `python ./train.py`?"),
        ("run ./script", "./script is not executable: `chmod +x ./script`, or name its interpreter before it"),
        ("run home", "home is a folder, not a command"),
        ("run --coordinator zk true", "--coordinator zk: must be HOST:PORT, of an etcd etcd://HOST:PORT, more of them"),
        ("run --session-timeout 0.1 true", "--session-timeout 0.1: must be a number of seconds from 1 to 60"),
        ("run --network-interface nope0 true", "--network-interface nope0: is no network interface of this machine"),
        ("status nosuch", "no job nosuch was started on this machine"),
        ("status x y", "unknown flag or argument y; see 'edl status --help'"),
        ("events nosuch", "no job nosuch was started on this machine"),
        ("events", "missing: JOB; see 'edl events --help'"),
        ("stop nosuch", "no job nosuch was started on this machine"),
        ("scale nosuch 0", "0: the number of workers must be a whole number of at least 1"),
        ("migrate nosuch", "--from HOST is missing: `edl status` shows the hosts of a job's workers"),
        (
            "migrate nosuch --from a --to b",
            "--to b: must be HOST:SLOTS, more of them after commas, such as node1:4,node2:4",
        ),
        ("migrate nosuch --from a --to b:1,b:2", "--to b:1,b:2: names b twice: add up its slots"),
        ("scale nosuch", "missing: N; see 'edl scale --help'"),
        ("data", "missing: COMMAND (verify); see 'edl data --help'"),
        ("data verify", "missing: DIR; see 'edl data verify --help'"),
        ("data verify x y", "x is no folder: name the one that EDL_AUDIT or --audit named"),
        ("frobnicate", "unknown command frobnicate; see 'edl --help'"),
    ],
)
def test_wrong_input_is_one_clear_line_and_exit_code_2(home, capsys, arguments, line):
    (home.parent / "train.py").touch()
    (home.parent / "script").touch()
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"edl: {line}")
    assert err.count("\n") == 1


def test_a_wrong_variable_is_named_instead_of_a_flag(capsys, monkeypatch):
    monkeypatch.setenv("EDL_NP", "few")
    assert main(["run", "true"]) == 2
    assert capsys.readouterr().err == "edl: EDL_NP=few: must be a whole number of at least 1\n"
    monkeypatch.setenv("EDL_NP", "0")
    assert main(["run", "true"]) == 2
    assert capsys.readouterr().err.startswith("edl: EDL_NP=0 waits for a job that trains elsewhere: name it by --job")


def test_an_interrupt_is_one_line(capsys, monkeypatch):
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("edl.cli.run.run", interrupted)
    assert main(["run", "true"]) == 1
    assert capsys.readouterr().err == "edl: interrupted\n"


def test_an_interrupt_during_the_imports_is_not_lost():
    """A KeyboardInterrupt would be: Python drops what is raised in a finalizer, and imports run some."""
    script = """
import os, signal, sys, types, horovod_edl
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may be told to ignore it
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        [None for _ in range(1000)]
def main():
    Finalized()
    return 0
sys.modules["edl.cli"] = types.SimpleNamespace(main=main)
sys.exit(horovod_edl.main())
"""
    here = DOCS.parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "edl: interrupted\n")


WHILE_IMPORTED = """
class Finder:  # is asked for each module
    def find_spec(self, name, path=None, target=None):
        if name == "edl.launch.job_run":
            asked()
sys.meta_path.insert(0, Finder())
"""
ONCE_SETTINGS_ARE_KNOWN = """
import edl.cli.run
real = edl.cli.run.checked_command
edl.cli.run.checked_command = lambda line: asked() or real(line)
"""
NOT_BEGUN = (75, "edl: job x is preempted, and goes on when the same line is typed again: it had not begun to train\n")


@pytest.mark.parametrize("moment", [WHILE_IMPORTED, ONCE_SETTINGS_ARE_KNOWN])
@pytest.mark.parametrize(
    ("signum", "flags", "end"),
    [
        (signal.SIGTERM, [], (1, "edl: interrupted\n")),
        (signal.SIGHUP, ["--checkpoint", "ck"], (1, "edl: interrupted\n")),
        (signal.SIGTERM, ["--checkpoint", "ck"], NOT_BEGUN),
    ],
)
def test_a_signal_before_edl_run_has_begun_ends_it_in_order(tmp_path, home, moment, signum, flags, end):
    """The end of a machine does not wait for a Python to boot, and code 75 has a job queued once more."""
    line = ["edl", "run", "--job", "x", *flags, "touch", "begun"]
    script = f"""
import os, signal, sys
def asked():
    os.kill(os.getpid(), {int(signum)})
    [None for _ in range(1000)]
    return None
sys.argv = {line}
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
{moment}
import horovod_edl
sys.exit(horovod_edl.main())
"""
    environ = {**os.environ, "PYTHONPATH": str(DOCS.parents[1]), "EDL_HOME": str(home)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == end
    assert (list(tmp_path.iterdir()), list(home.iterdir())) == ([home], [])


def test_nohup_is_heeded_from_the_start():
    act = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ends_early(lambda signum: EarlyEnd(3, f"{signum} is not ignored")):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, act)


# ------------------------------------------------------------------------------------------------------- flags


def test_a_flag_wins_over_its_variable():
    arguments = parse(["run", "-np", "3", "--job", "mine", "python", "train.py"])
    settings = Settings.from_given(arguments.given, {"EDL_NP": "2", "EDL_MAX_NP": "4"})
    assert (settings.np, settings.max_workers, settings.job) == (3, 4, "mine")


def test_flags_after_the_command_are_the_commands_own():
    arguments = parse(["run", "-np", "3", "python", "train.py", "--job", "theirs", "-np", "9"])
    assert arguments.line == ["python", "train.py", "--job", "theirs", "-np", "9"]
    assert arguments.given.keys() == {"np"}


def test_two_dashes_may_stand_before_the_command():
    assert parse(["run", "--", "python", "-m", "train"]).line == ["--", "python", "-m", "train"]


def typed_flags() -> dict[str, set[str]]:
    """Command -> what its help offers, without --help."""
    commands = next(action.choices for action in build()._actions if action.dest == "command")
    edls = {name: parser for name, parser in commands.items() if name not in {"torchrun", "check"}}  # told elsewhere
    return {name: _flags_of(parser) - {"-h", "--help", "-f", "-d"} for name, parser in edls.items()}


def _flags_of(parser) -> set[str]:
    """Also those of the commands of a group."""
    groups = [action.choices.values() for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    own = {flag for action in parser._actions for flag in action.option_strings}
    return own.union(*(_flags_of(one) for group in groups for one in group))


OTHERS = {"--json", "--follow", "--wait", "--timeout", "--hosts", "--older-than", "--deadline", "--from", "--to"}
OTHERS |= {"--allow-scale", "--port", "--html", "--detach", "--name", "--as-torchrun"}
OTHERS |= {"--quick", "--device", "--output", "--step", "--virtual-worker", "--ssh", "--beside"}
PROFILE = {"--min", "--max", "--stride", "--batches", "--plot"}
CLUSTER = {
    "--quota",
    "--highest-priority",
    "--spread",
    "--now",
    "--csv",
    "--worker",
    "--env",
    "--revoke",
    "--foreground",
}
OF_CLUSTERS = (*cluster_flags.START_FLAGS, *cluster_flags.SUBMIT_FLAGS, *cluster_flags.REACH_FLAGS)
OF_CLUSTERS = (*OF_CLUSTERS, *cluster_flags.MANIFESTS_FLAGS)
CLUSTER |= {f"--{name}" for name in OF_CLUSTERS}
SIMULATE = {"--policy", "--set", *(f"--{name}" for name in cluster_flags.FLAGS)}


def test_each_flag_has_a_twin_in_the_environment():
    twins = {flag: setting.variables for setting in TABLE for flag in setting.flags}
    for flags in typed_flags().values():
        for flag in flags - OTHERS - PROFILE - SIMULATE - CLUSTER:
            assert f"EDL_{flag.strip('-').replace('-', '_').upper()}" in twins[flag]


@pytest.mark.parametrize("flag", ["json", "follow"])
def test_switches_have_one_too(flag, monkeypatch, capsys):
    monkeypatch.setenv(f"EDL_{flag.upper()}", "1")
    assert getattr(parse(["events", "x"]), flag)
    monkeypatch.setenv(f"EDL_{flag.upper()}", "0")
    assert not getattr(parse(["events", "x"]), flag)
    monkeypatch.setenv(f"EDL_{flag.upper()}", "perhaps")
    assert main(["events", "x"]) == 2
    assert f"EDL_{flag.upper()}=perhaps: must be 1 or 0" in capsys.readouterr().err


def test_the_docs_tell_of_all_flags_and_variables_and_of_no_others():
    text = DOCS.read_text()
    told = {flag for flag in FLAG.findall(text) if flag.startswith("--") or flag == "-np"}
    of_others = {"--epochs", "--host-discovery-script", "--network-interfaces"}
    assert told - {"--version", "--help"} - of_others == set().union(*typed_flags().values())
    variables = {name for setting in TABLE for name in setting.variables}
    twins = {f"EDL_{flag.lstrip('-').replace('-', '_').upper()}" for flag in told}  # by the rule that the page has
    assert variables <= set(re.findall(r"EDL_[A-Z_]+", text)) | twins


def all_commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, ...]]:
    """Every command by its words, groups too."""
    if words:
        yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from all_commands(below, *words, name)


@pytest.mark.parametrize("words", list(all_commands(build())), ids=" ".join)
def test_the_help_of_each_command_has_an_example(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    _, heading, examples = capsys.readouterr().out.partition("\nexample")
    typed = " ".join(word for word in words if word != NOW)  # `edl checkpoint JOB` means `edl checkpoint now JOB`
    assert heading and re.search(rf"(?m)^  (source <\()?edl {typed}\b", examples), f"no example of edl {typed}"


# ------------------------------------------------------------------------------------------------- what is shown


def test_the_processes_of_a_worker_stand_below_it(home, capsys):
    limbs = (LimbSeen(11, "training", 30), LimbSeen(13, "training", 29))
    worker = msgspec.structs.replace(STATUS.workers[0], processes=limbs)
    claim(home, a_record()).write_status(msgspec.json.encode(msgspec.structs.replace(STATUS, workers=(worker,))))
    assert main(["status", "x"]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    at = told.index(["w1", "0", "here", "11", "12", "training", "30"])
    assert told[at + 1 : at + 3] == [["process", "0", "11", "training", "30"], ["process", "1", "13", "training", "29"]]


def test_a_job_that_is_over_is_shown_as_it_was_seen_last(home, capsys):
    folder = claim(home, a_record())
    folder.write_status(msgspec.json.encode(STATUS))
    folder.write(a_record(state="failed", reason="interrupted", ended=2.0))
    assert main(["status", "x", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["reason"], shown["step"]) == ("failed", "interrupted", 30)
    names = ["job", "state", "term", "generation", "leader", "step", "epoch", "size", "target", "workers", "data"]
    assert set(names) <= shown.keys()
    assert shown["workers"][1] == {
        "id": "w2", "rank": None, "host": "here", "pid": 21, "daemon_pid": 22, "state": "joining", "step": 0,
        "usage": None, "pace": 1.0, "processes": [],
    }  # fmt: skip
    assert shown["data"] == {
        "epoch": 1, "total": 100, "trained": 60, "leased": 30, "unassigned": 10, "ahead": 8, "lost": 0, "repeated": 0,
        "stream": None,
    }  # fmt: skip


def test_a_job_that_no_leader_was_ever_heard_of_has_the_same_names(home):
    folder = claim(home, a_record())
    status = recorded_status(folder, a_record())
    assert (status.state, status.target, status.workers) == (JobState.STARTING, 2, ())


def test_a_killed_launcher_is_no_running_job(home):
    folder = claim(home, a_record(launcher_start=1))
    folder.write_status(msgspec.json.encode(STATUS))
    assert recorded_status(folder, a_record(launcher_start=1)).reason == "edl run was killed"


def test_the_only_living_job_need_not_be_named(home, capsys):
    claim(home, a_record())
    claim(home, a_record(job="old")).write(a_record(job="old", state="finished", ended=2.0))
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"] == "x"
    claim(home, a_record(job="y"))
    assert main(["status", "--json"]) == 0
    assert {job["job"]: job["state"] for job in json.loads(capsys.readouterr().out)["jobs"]} == {
        "x": "starting", "y": "starting", "old": "finished",
    }  # fmt: skip


def test_a_status_for_people(capsys):
    tables.show_status(STATUS)
    assert capsys.readouterr().out.splitlines() == [
        "job x: scaling",
        "  workers 1, wanted 2   step 30   epoch 1   generation 2",
        "  leader w1   term 1",
        "  data of epoch 1: 60 of 100 samples trained, 30 leased, 10 unassigned; steps leased ahead: 8",
        "worker  rank  host  pid  daemon  state     step",
        "w1      0     here  11   12      training  30",
        "w2      -     here  21   22      joining   0",
    ]


def test_events_for_people_and_for_programs(home, capsys):
    event = Event(1.5, "x", Kind.SCALED, 1, 2, 30, {"from": 1, "to": 2, "pause_ms": 41.25})
    folder = claim(home, a_record())
    folder.append_events([event.to_json()])
    assert main(["events", "x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == event.flat()
    assert main(["events", "x"]) == 0
    line = capsys.readouterr().out
    assert line.endswith("  scaled            step 30      generation 2    1 → 2 workers; survivors paused for 41 ms\n")


@pytest.mark.parametrize(
    ("kind", "details", "words"),
    [
        ("scale_asked", {"size": 1, "before": 3, "leavers": ["w1", "w2"]}, "3 → 1 worker; to leave: w1, w2"),
        ("worker_ready", {"worker": "w3", "joining_ms": 2930, "warming_ms": 480},
         "w3 after 2.9 s of booting and 0.5 s of rehearsing"),
        ("worker_left", {"worker": "w3", "leaving_ms": None}, "w3"),
        ("worker_left", {"worker": "w3", "leaving_ms": 400, "why": "a size of 2 was asked for"},
         "w3 after 0.4 s of leaving: a size of 2 was asked for"),
        ("switch_scheduled", {"next_generation": 3, "after_step": 40, "size": 3, "newcomers": 1},
         "generation 3 after step 40: 3 workers, 1 of them new"),
        ("switch_scheduled", {"next_generation": 3, "after_step": None, "size": 2, "newcomers": 0, "why": "w1 is gone"},
         "generation 3 at once: 2 workers, as w1 is gone"),
        ("job_finished", {"reason": "all scripts ended at step 3, before their data did"},
         "all scripts ended at step 3, before their data did"),
        ("switch_put_off", {"next_generation": 3, "after_step": 40},
         "generation 3: its word came after step 40; planned anew"),
        ("switch_put_off", {"next_generation": 3, "after_step": None, "reason": "the others did not reach w3"},
         "generation 3: the others did not reach w3; training goes on"),
        ("scaled", {"from": 2, "to": 3, "pause_ms": 41.2, "leave_ms": 1.0, "enter_ms": 30.0, "state_ms": 8.0,
                    "forced": False, "switching_ms": 500, "asked_ms": 4100},
         "2 → 3 workers; survivors paused for 41 ms (leave 1, enter 30, state 8); 4.1 s after it was asked for"),
        ("worker_lost", {"worker": "w3", "was": "warming", "reason": "killed"}, "w3, which was warming: killed"),
        ("worker_lost", {"worker": "w3", "reason": "killed"}, "worker=w3 reason=killed"),
        (
            "worker_unfit",
            {"worker": "w3", "host": "h", "reason": "no route"},
            "w3 of h can be part of no ring: no route",
        ),
        ("decision", {"size": 4, "reason": "efficient"}, "size=4 reason=efficient"),
        ("decision", {"gain": 1.5, "size": 4, "reason": "efficient", "act": True}, "4 workers: efficient"),
        ("batch_voided", {"worker": "w3", "voided_step": 7, "reason": "cut off"}, "w3 in step 7: cut off"),
        ("of_a_later_version", {"size": 4}, "size=4"),
    ],
)  # fmt: skip
def test_what_events_say(kind, details, words):
    assert told(kind, details) == words


def test_progress_says_who_is_on_the_way(home):
    status = msgspec.structs.replace(STATUS, target=4)
    assert (
        tables.progress(status)
        == "1 of 4 workers train; w2 is importing; 2 more have not come yet; the switch is scheduled"
    )
    leaving = msgspec.structs.replace(status.workers[0], state=WorkerState.LEAVING)
    status = msgspec.structs.replace(status, target=1, state=JobState.RUNNING, workers=(leaving, status.workers[1]))
    assert tables.progress(status) == "1 of 1 workers train; w1 is leaving; w2 is importing"
    done = tuple(msgspec.structs.replace(worker, state=WorkerState.DONE) for worker in status.workers)
    status = msgspec.structs.replace(status, target=3, workers=done)
    told = "1 of 3 workers train; 2 have come to the end of the script; 1 more has not come yet"
    assert tables.progress(status) == told, "not that all three have not come"


def test_progress_is_written_when_it_changes_and_in_lines_where_there_is_no_terminal(capsys):
    progress = tables.Progress(sys.stderr)
    for line in ("one", "one", "two"):
        progress.show(line)
    progress.end()
    assert capsys.readouterr().err == "edl: one\nedl: two\n"


def test_a_limit_of_time_is_checked(home, capsys, monkeypatch):
    claim(home, a_record())
    assert main(["scale", "x", "2", "--timeout", "soon"]) == 2
    assert capsys.readouterr().err == "edl: --timeout soon: must be a number of seconds, more than 0\n"
    monkeypatch.setenv("EDL_TIMEOUT", "0")
    assert main(["scale", "x", "2"]) == 2


def test_following_ends_with_the_job(home, capsys):
    folder = claim(home, a_record(launcher_start=1))
    folder.append_events(["{}", "{}"])
    assert main(["events", "x", "--json", "--follow"]) == 0
    assert capsys.readouterr().out == "{}\n{}\n"


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.FAILED, JobState.PREEMPTED])
def test_a_job_that_is_over_shows_no_worker_that_has_none_of_its_processes_left(capsys, state):
    first, *others = STATUS.workers
    done = msgspec.structs.replace(first, state=WorkerState.DONE)
    tables.show_status(msgspec.structs.replace(STATUS, state=state, workers=(done, *others)))
    shown = capsys.readouterr().out
    assert "  had 1 worker   step 30" in shown
    assert "leader" not in shown and "leased" not in shown
    assert "done" in shown and "joining" not in shown


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (LaunchVerdict(0, "finished"), "job x finished"),
        (LaunchVerdict(0, "finished", note="its workers left"), "job x: its workers left"),
        (LaunchVerdict(1, "failed", "interrupted"), "job x interrupted"),
        (LaunchVerdict(1, "failed", "boom"), "job x failed: boom; see `edl events x`; logs: h/x/logs"),
        (LaunchVerdict(1, "failed", "no", cause=REFUSED), "job x failed: no; logs: h/x/logs"),
    ],
)
def test_the_last_line(verdict, line):
    assert last_line(Outcome(verdict, STATUS), Folder(Path("h/x"))) == line


@pytest.mark.parametrize(
    ("lost", "more"),
    [
        ({LossCause.DIED: 2, LossCause.SESSION: 1}, ""),
        ({LossCause.OVERDUE: 1, LossCause.DIED: 1}, "; 1 worker failed, or hung, on its way: see `edl events x`"),
        (
            {LossCause.SCRIPT: 2, LossCause.DIFFERED: 1},
            "; 3 workers failed, or hung, on its way: see `edl events x`",
        ),
    ],
)
def test_the_last_line_of_a_good_end_hides_no_script_that_came_to_none(lost, more):
    status = msgspec.structs.replace(STATUS, tally=Tally(lost=lost))
    assert last_line(Outcome(LaunchVerdict(0, "finished"), status), Folder(Path("h/x"))) == f"job x finished{more}"


@pytest.mark.parametrize(("state", "more"), [(JobState.FINISHED, ": w0 was not compared"), (JobState.RUNNING, "")])
def test_the_last_line_of_a_good_end_says_what_is_to_be_known_of_it(state, more):
    status = msgspec.structs.replace(STATUS, state=state, reason="w0 was not compared")
    assert last_line(Outcome(LaunchVerdict(0, "finished"), status), Folder(Path("h/x"))) == f"job x finished{more}"


@pytest.mark.parametrize(
    ("resume", "verdict", "again"),
    [
        ("auto", SAVED, "the same line is typed again"),
        ("must", SAVED, "the same line is typed again"),
        ("never", SAVED, "the line is typed again without --resume never"),
        ("ck/y", SAVED, "the line is typed again without --resume ck/y"),
        ("ck/y", life_outcome.NOT_BEGUN, "the same line is typed again"),
    ],
)
def test_what_is_to_be_typed_after_a_preemption(resume, verdict, again):
    line = last_line(Outcome(verdict), Folder(Path("h/x")), resume)
    assert line == f"job x is preempted, and goes on when {again}: {verdict.reason}"


def test_invented_names_are_names():
    import random

    names = {invent(random.Random(seed)) for seed in range(100)}
    assert len(names) > 90
    assert all(re.fullmatch(r"[a-z]+-[a-z]+-\d\d", name) for name in names)
