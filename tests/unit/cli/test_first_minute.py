"""The first minute at the command line: help, what is typed wrong, completion, a file of settings, what is imported."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from edl.cli import main
from edl.cli.cluster_flags import OF_REACH
from edl.cli.command_arguments import TWINS
from edl.cli.completion import fitting
from edl.cli.job_flags import RUN_GROUPS
from edl.cli.parser import ALIASES, GROUPS, build
from edl.config import TABLE, Settings
from edl.errors import ConfigError
from edl.launch.job_records import claim, launch_record
from edl.launch.locate_job import recorded_status
from edl.launch.worker_output import KEPT_BYTES, OutputFile

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's, with a script, a file of settings, and a job named mnist on record."""
    for name in [name for name in os.environ if name.startswith("EDL_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("EDL_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_environment({"EDL_HOME": str(home), "EDL_JOB": "mnist"})
    claim(home, launch_record(settings, ("python", "train.py")))
    (tmp_path / "train.py").touch()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "python3").write_text("#!/bin/sh\nexit 77\n")  # a Python that finds no edl
    (tmp_path / "bare" / "python3").chmod(0o755)
    return tmp_path


# --------------------------------------------------------------------------------------------------------- typed wrong


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("stauts", "unknown command stauts: did you mean status?; see 'edl --help'"),
        ("list", "unknown command list: did you mean status?; see 'edl --help'"),
        ("help stpo", "unknown command stpo: did you mean stop?; see 'edl --help'"),
        ("cluster strat", "unknown command strat: did you mean start?; see 'edl cluster --help'"),
        ("help run python", "unknown command run python; see 'edl --help'"),
        ("help submit train.py", "unknown command submit train.py; see 'edl --help'"),
        ("completion", "missing: bash|zsh|fish; see 'edl completion --help'"),
        ("completion zhs", "unknown shell zhs: did you mean zsh?; see 'edl completion --help'"),
        ("cluster", "missing: COMMAND (start, stop, status, manifests, token, accounts); see 'edl cluster --help'"),
        ("report mnist", "missing: --html FILE; see 'edl report --help'"),
        ("replay mnits --step 0", "--step 0: must be a whole number of at least 1"),
        ("--verison", "unknown flag or argument --verison: did you mean --version?; see 'edl --help'"),
        ("run --npp 3 python train.py", "unknown flag or argument --npp: did you mean -np?; see 'edl run --help'"),
        ("run --maxnp=4 python train.py",
         "unknown flag or argument --maxnp=4: did you mean --max-np?; see 'edl run --help'"),
        ("run --nproc-per-node 2 python train.py",
         "unknown flag or argument --nproc-per-node: did you mean -np?; see 'edl run --help'"),
        ("submit --priorty 3 true",
         "unknown flag or argument --priorty: did you mean --priority?; see 'edl submit --help'"),
        ("run --ring torhc python train.py", "--ring torhc: must be .*: did you mean torch?"),
        ("run --ring torch python train.py",
         "--ring torch (EDL_RING): torch is not installed: pip install 'horovod-edl[torch]'"),
        ("run --stragglers shrae python train.py", "--stragglers shrae: must be .* or share: did you mean share?"),
        ("run --log-level verbose python train.py", "--log-level verbose: must be debug, info, warning or error"),
        ("run -np two python train.py", "-np two: must be a whole number of at least 1"),
        ("run -np 0 python train.py",
         "-np 0 waits for a job that trains elsewhere: name it by --job, and its --coordinator HOST:PORT"),
        ("run -np 4 --max-np 2 python train.py", "-np 4 is more than --max-np 2"),
        ("run", "COMMAND is missing, such as `python train.py`; see 'edl run --help'"),
        ("run train.py", "train.py is not executable: did you mean `python train.py`?"),
        ("run pyhton train.py", "command not found: pyhton: did you mean python?"),
        ("run python trian.py", "there is no script trian.py: did you mean train.py?"),
        ("run python -u -W error other/eval.py", "there is no script other/eval.py in HERE"),
        ("run bare/python3 train.py",
         "bare/python3 has no edl: write `python`, which is PYTHON, or install edl there, by `bare/python3 -m pip .*`"),
        ("run --config nosuch.toml python train.py", "--config nosuch.toml: cannot be read: No such file .*"),
        ("run --config . python train.py", "--config .: is no plain file"),
        ("run --checkpoint train.py python train.py",
         "--checkpoint HERE/train.py: is a file; name a folder, which may be a new one"),
        ("run --checkpoint-every 30 python train.py",
         "--checkpoint-every 30: must be a number of seconds, at least 1, or of steps: 30s or 500steps; or auto"),
        ("status mnits", "no job mnits was started on this machine: did you mean mnist? `edl status` lists those .*"),
        ("logs mnits", "no job mnits was started on this machine: did you mean mnist? `edl status` lists those .*"),
        ("stop", "missing: JOB; see 'edl stop --help'"),
        ("scale mnist", "missing: N; see 'edl scale --help'"),
        ("scale mnist 0", "0: the number of workers must be a whole number of at least 1"),
        ("queue", "there is no cluster in EDL_HOME=HERE/home: start one by `edl cluster start`"),
    ],
)  # fmt: skip
def test_what_is_typed_wrong_is_answered_by_one_line_with_the_remedy(capsys, monkeypatch, folder, line, answer):
    monkeypatch.setattr("edl.cli.run.find_spec", lambda name: None)
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    wanted = re.escape(answer.replace("HERE", str(folder)).replace("PYTHON", sys.executable)).replace(r"\.\*", ".*")
    assert out == "" and re.fullmatch(f"edl: {wanted}\n", err), err


def test_a_command_in_quotes_is_answered_with_the_remedy(capsys, folder):
    assert main(["run", "sh train.py"]) == 2
    assert capsys.readouterr().err == "edl: 'sh train.py' is one word, so no command: leave away the quotes around it\n"


def test_only_a_command_that_is_there_is_suggested(capsys, monkeypatch, tmp_path):
    """Debian has no `python`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    monkeypatch.setattr("edl.cli.run.search_path", lambda _: str(tmp_path / "bin"))
    assert main(["run", "python", "train.py"]) == 2
    assert capsys.readouterr().err == "edl: command not found: python: did you mean python3?\n"


def test_where_no_job_was_started_one_line_says_how_to(capsys, tmp_path):
    assert main(["status", "--home", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == (
        "no job was started on this machine: `edl run -np 2 python train.py` starts one\n"
    )


@pytest.mark.parametrize("word", ["", " "])
def test_an_empty_word_is_no_command(capsys, word):
    assert main(["run", word, "train.py"]) == 2
    assert capsys.readouterr().err.startswith("edl: COMMAND is missing, such as")


def test_a_mistyped_variable_is_told(capsys, monkeypatch):
    monkeypatch.setenv("EDL_NPP", "2")
    monkeypatch.setenv("EDL_JSON", "1")  # of other commands
    assert main(["run"]) == 2
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "edl: EDL_NPP is no variable of edl: did you mean EDL_NP?"


@pytest.mark.parametrize(
    "line", ["python -m trian", "python -c pass trian.py", "python -um trian", "bare/python3.0 x", "sh trian.py"]
)
def test_what_may_well_run_is_not_refused(folder, line):
    from edl.cli.run import checked_command

    (folder / "bare" / "python3.0").symlink_to("/bin/true")
    (folder / "x").touch()
    assert checked_command(line.split()) == tuple(line.split())


# ---------------------------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("line", ["", "help", "--help"])
def test_help_has_each_command_once_and_in_a_group(capsys, line):
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    out = capsys.readouterr().out
    assert ended.value.code == 0
    commands = next(action.choices for action in build()._actions if action.dest == "command")
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(commands.keys() - set(ALIASES))
    assert [one for one in re.findall(r"^  ([a-z]+)  ", out, re.MULTILINE) if one != "-h"] == grouped
    assert all(f"`{name}`" in out for name in ALIASES)


def test_help_of_a_command_and_the_version_are_commands_too(capsys):
    for words, said in ((["help", "cluster", "start"], "usage: edl cluster start"), (["version"], "edl 0.")):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0 and capsys.readouterr().out.startswith(said)


def test_the_flags_of_edl_run_are_in_groups(capsys):
    with pytest.raises(SystemExit):
        main(["help", "run"])
    out = capsys.readouterr().out
    assert {field for fields in RUN_GROUPS.values() for field in fields} <= {setting.field for setting in TABLE}
    ungrouped = out[: out.index(f"\n{next(iter(RUN_GROUPS))}:")]
    assert "--max-np B" not in ungrouped.partition("positional")[2]
    assert [out.index(f"\n{title}:\n") for title in RUN_GROUPS] == sorted(out.index(f"\n{t}:\n") for t in RUN_GROUPS)


def test_python_m_edl_is_edl_and_its_start_imports_no_framework():
    look = (
        "import sys, runpy; sys.argv = ['edl', '--version']\n"
        "try: runpy.run_module('edl', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "print(*sorted(name for name in sys.modules if '.' not in name))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", look], env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    )
    version, modules = done.stdout.splitlines()
    assert version.startswith("edl ")
    heavy = {"numpy", "torch", "tensorflow", "horovod", "grpc", "kazoo", "asyncio", "rich", "fsspec", "difflib"}
    assert not {*heavy, "tomllib"} & set(modules.split())


# ---------------------------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("sta", "status"),
        ("cluster st", "start status stop"),
        ("run --max", "--max-np --max-num-proc --max-restarts"),
        ("run --stragglers ", "off replace share tell"),
        ("run -np 2 --log-level d", "debug"),
        ("run python --max", ""),
        ("run --job ", ""),
        ("status ", "mnist other"),
        ("scale m", "mnist"),
        ("scale mnist ", ""),
        ("events --follow o", "other"),
        ("completion z", "zsh"),
        ("help sta", "status"),
        ("help cluster st", "start status stop"),
        ("help status ", ""),
        ("help run ", ""),
        ("nosuch x", ""),
    ],
)
def test_words_that_fit(typed, words):
    assert fitting(build(), typed.split(" "), lambda: ["mnist", "other"]) == words.split()


TAB = {
    "bash": """source <(edl completion bash)
complete -p edl
COMP_WORDS=(edl status mn); COMP_CWORD=2; _edl edl mn status; echo "${COMPREPLY[@]}"
COMP_WORDS=(edl run --strag); COMP_CWORD=2; _edl edl --strag run; echo "${COMPREPLY[@]}"
""",
    "zsh": """compdef() { print complete $1 }; compadd() { print -- ${(P)2} }; _files() { print files }
source <(edl completion zsh)
words=(edl status mn); CURRENT=3; _edl
words=(edl run --strag); CURRENT=3; _edl
words=(edl run ''); CURRENT=3; _edl
""",
    "fish": """edl completion fish | source
echo complete
complete -C 'edl status mn'
complete -C 'edl run --strag'
""",
}


@pytest.mark.parametrize("shell", TAB)
def test_a_shell_completes(folder, monkeypatch, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    (folder / "edl").write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m edl "$@"\n')
    (folder / "edl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([shell, *options], input=TAB[shell], capture_output=True, text=True, check=False)
    first, *found = done.stdout.splitlines()
    assert "complete" in first and found[:2] == ["mnist", "--stragglers"], (done.stdout, done.stderr)


def test_a_job_that_is_submitted_is_named_as_one_that_is_run():
    for flag in ("--job", "--name"):
        assert build().parse_args(["submit", flag, "mnist", "true"]).name == "mnist"


# -------------------------------------------------------------------------------------------------- a file of settings


def settings_by(folder: Path, text: str, *flags: str, **environ: str) -> Settings:
    from edl.cli.parser import parse

    (folder / "job.toml").write_text(text)
    given = parse(["run", "--config", "job.toml", *flags, "true"]).given
    return Settings.from_given(given, environ)


def test_flags_win_over_variables_over_the_file_over_defaults(folder):
    text = 'np = 2\nmax_np = 4\nmin-np = 1\njob = "digits"\nsession-timeout = 4.5\nring = "torch"'
    found = settings_by(folder, text, "-np", "3", EDL_NP="4", EDL_MAX_NUM_PROC="8", EDL_JOB="other")
    assert (found.np, found.max_workers, found.job) == (3, 8, "other")
    assert (found.session_timeout_s, found.ring, found.max_restarts) == (4.5, "torch", 3)
    assert "EDL_CONFIG" not in found.to_environment()
    by_variable = Settings.from_environment({"EDL_CONFIG": "job.toml"})
    assert (by_variable.np, by_variable.job) == (2, "digits")


def test_any_flag_of_a_setting_is_known_to_the_file(folder):
    for setting in TABLE:
        for flag in setting.flags:
            if setting.field == "config":
                continue
            (folder / "job.toml").write_text(f"{flag.lstrip('-')} = []")
            with pytest.raises(ConfigError, match=f"^{flag.lstrip('-')} in job.toml: must be one number or text"):
                Settings.from_environment({"EDL_CONFIG": "job.toml"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-pn = 4", r"max-pn in FILE is no flag of edl: did you mean max-np\?"),
        ("colour = 4", "colour in FILE is no flag of edl; `edl help run` lists them"),
        ('config = "x"', "config in FILE is no flag of edl; .*"),
        ('np = "few"', "np = few in FILE: must be a whole number of at least 1"),
        ("np = 2.5", "np = 2.5 in FILE: must be a whole number of at least 1"),
        ("np = true", "np in FILE: must be one number or text, as after --np"),
        ("[job]", "job in FILE: must be one number or text, as after --job"),
        ("np = 2\nnum-proc = 3", "num-proc in FILE says once more what np = 2 in FILE says: leave one of them away"),
        ("np = 4\nmax-np = 2", "np = 4 in FILE is more than max-np = 2 in FILE"),
        ('ring = "torhc"', r"ring = torhc in FILE: must be .*: did you mean torch\?"),
        ("np = ", "--config FILE: is no TOML: .*"),
        ("np = " + 5000 * "9", "--config FILE: is no TOML: .*"),
        ("np = " + 100_000 * "[", "--config FILE: is no TOML: .*"),
    ],
)
def test_a_wrong_line_of_the_file_is_named(folder, text, said):
    with pytest.raises(ConfigError) as wrong:
        settings_by(folder, text)
    assert re.fullmatch(said.replace("FILE", "job.toml"), str(wrong.value)), wrong.value


# ------------------------------------------------------------------------------------------------------- what is kept


def test_no_variable_of_a_command_reaches_the_commands_that_a_job_calls(folder, monkeypatch):
    from edl.cli import run

    build()
    assert {"EDL_JSON", "EDL_WAIT", "EDL_FOLLOW", "EDL_DETACH", "EDL_TIMEOUT"} <= TWINS
    assert not TWINS & {name for setting in TABLE for name in setting.variables}
    monkeypatch.setattr(run, "_run", lambda *_, **__: 0)
    for name in TWINS:
        monkeypatch.setenv(name, "1")
    assert main(["run", "true"]) == 0
    assert TWINS & os.environ.keys() == OF_REACH


def test_of_what_a_job_has_shown_the_newest_is_kept(tmp_path):
    kept = OutputFile(tmp_path / "output.log")
    for number in range(5):
        kept.write(b"%d\n" % number + b"x" * (KEPT_BYTES // 2))
    assert (tmp_path / "output.log").read_bytes()[:1] == b"4"
    assert (tmp_path / "output.log.1").read_bytes()[:1] == b"2"
    assert (tmp_path / "output.log").stat().st_mode & 0o777 == 0o600


def test_logs_of_a_job_of_edl_run_are_what_it_has_shown(folder, capsys):
    from edl.launch.job_records import Folder

    kept = Folder(folder / "home" / "jobs" / "mnist")
    kept.output.write_text("[0]<stdout>:one\n[1]<stdout>:two\nedl: job mnist finished\n")
    assert main(["logs", "mnist"]) == 0
    assert capsys.readouterr().out == kept.output.read_text()
    assert main(["logs", "mnist", "--worker", "1"]) == 0
    assert capsys.readouterr().out == "[1]<stdout>:two\n"
    assert main(["logs", "mnist", "--worker", "7"]) == 2
    assert capsys.readouterr().err == "edl: job mnist has no output of a worker 7: there is some of 0, 1\n"
    kept.output.unlink()
    assert main(["logs", "mnist"]) == 2
    assert capsys.readouterr().err == "edl: no output of job mnist is kept: edl run keeps none\n"


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [("finished", 0, "has finished"), ("failed", 1, "failed: boom"), ("preempted", 75, "is preempted: boom")],
)
def test_wait_ends_as_the_job_of_edl_run_did(folder, capsys, state, code, said):
    from edl.launch.job_records import Folder

    kept = Folder(folder / "home" / "jobs" / "mnist")
    record = kept.read()
    assert main(["wait", "mnist", "--timeout", "0.01"]) == 1
    assert "is not over within 0.01 s: it is starting" in capsys.readouterr().err
    assert record is not None
    kept.write_status(msgspec.json.encode(msgspec.structs.replace(recorded_status(kept, record), state="finished")))
    assert main(["wait", "mnist", "--timeout", "0.01"]) == 1, "its launcher lives, and may say that it failed"
    kept.write(msgspec.structs.replace(record, state=state, reason="boom", ended=2.0))
    assert main(["wait", "mnist"]) == code
    out, err = capsys.readouterr()
    assert said in out + err


def test_a_daemon_logs_at_the_level_that_is_asked_for(monkeypatch, tmp_path):
    import logging

    from edl.daemon import daemon

    class Logs:
        def __init__(self, *_: object, **__: object) -> None: ...

        async def run(self) -> None:
            levels.append(root.level)  # "edl" has one of its own where another test has set it

    levels: list[int] = []
    root = logging.getLogger()
    monkeypatch.setattr(daemon, "Daemon", Logs)
    monkeypatch.setattr(daemon, "collect_seldom", lambda: None)
    monkeypatch.setattr(daemon, "yield_to_trainers", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["daemon", "--folder", str(tmp_path), "--trainer", "1"])
    before = root.level
    try:
        for level in ("", "WARNING", "debug"):
            monkeypatch.setenv("EDL_LOG_LEVEL", level)
            assert daemon.main() == 0
    finally:
        root.setLevel(before)
    assert levels == [logging.INFO, logging.WARNING, logging.DEBUG]
