"""`edl run`: what was asked for is checked here, before anything is started.

Owns: these checks, signals that come before there is an event loop, and `--detach`: the launcher runs in the
background, and the command returns once the job has begun. Does not own: signals that come later
(`edl.launch.job_run`).

While Python imports edl, `horovod_edl` holds SIGTERM and SIGHUP back: what they mean is not known before the settings
are. From then until the loop takes over, one of them ends the process at once, as nothing was started yet.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

import msgspec

from edl.checkpoints.resume_choice import GOES_ON, only_job
from edl.cli.cluster_flags import OF_REACH
from edl.cli.command_arguments import TWINS
from edl.cli.torchrun_script import look_before, script_of
from edl.cluster.queue.end_causes import REFUSED
from edl.config import TABLE, Given, Settings, mistyped
from edl.control_characters import visible
from edl.daemon.policy_loader import tabulated, try_policy
from edl.errors import CheckpointError, ConfigError, UsageError, did_you_mean
from edl.host.host_processes import raise_open_files
from edl.host.memory_folders import check_parent
from edl.launch import export_process
from edl.launch.child_worker import search_path
from edl.launch.job_records import Folder, launch_record, new_name
from edl.launch.job_run import JobRun
from edl.launch.life_outcome import INTERRUPTED, NOT_BEGUN, LaunchVerdict
from edl.launch.local_launch import Outcome
from edl.launch.worker_output import OutputFile
from edl.protocol.assignment import RingKind
from edl.protocol.record import JobState
from edl.protocol.tally import LossCause
from edl.trainer.data.audit_files import check_free, prepare

LOOK_S = 0.05
HINTS = """edl: job {0} runs in the background
  edl status {0}             how far it is
  edl logs {0} --follow      what its workers print
  edl dashboard {0}          a page of it: prints the link
  edl stop {0}               ends it
"""


def in_background() -> tuple[int, int] | None:
    """Fork. In the parent, return the launcher's pid and the pipe with its messages; None in the launcher, which no
    terminal reaches any more.
    """
    heard, said = os.pipe()
    if pid := os.fork():
        os.close(said)
        return pid, heard
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, end in enumerate((null, null, said)):
        os.dup2(end, descriptor)
    for descriptor in (heard, said, null):
        os.close(descriptor)
    return None


def wait_begun(launcher: int, heard: int, folder: Folder) -> int:
    """Wait until the job has a coordinator, or its launcher has ended. Return the exit code."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda number, _: os.kill(launcher, number))
    pid = status = 0
    while not pid and not _has_begun(folder, launcher):
        time.sleep(LOOK_S)
        pid, status = os.waitpid(launcher, os.WNOHANG)
    os.set_blocking(heard, False)
    with contextlib.suppress(BlockingIOError):
        sys.stderr.write(os.read(heard, 1 << 16).decode(errors="replace"))
    if code := os.waitstatus_to_exitcode(status):
        return abs(code)
    sys.stderr.write(HINTS.format(folder.path.name))
    sys.stdout.write(f"{folder.path.name}\n")
    return 0


def _has_begun(folder: Folder, launcher: int) -> bool:
    record = folder.read()
    return record is not None and record.launcher_pid == launcher and bool(record.coordinator)


SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EarlyEnd(NamedTuple):
    code: int
    line: str


@contextlib.contextmanager
def ends_early(end: Callable[[signal.Signals], EarlyEnd]) -> Iterator[None]:
    """End the process at once on a signal, until the loop's own handlers replace these. Call it in the main thread."""

    def act(number: int, _frame: FrameType | None) -> NoReturn:
        code, line = end(signal.Signals(number))
        os.write(2, f"edl: {line}\n".encode())
        os._exit(code)

    heeded = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]  # nohup edl run ...
    before = {one: signal.signal(one, act) for one in heeded}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


# ring -> its module, and what to do where it is not there
PACKAGES = {
    "torch": ("torch", "pip install 'horovod-edl[torch]'"),
    "horovod": ("horovod", "train with --ring torch, or build Horovod by scripts/setup, as docs/setup.md says"),
}
NEAR_COMMANDS = ("python", "python3", "bash", "torchrun", "horovodrun")
OF_SCRIPTS = (LossCause.SCRIPT, LossCause.OVERDUE, LossCause.DIFFERED)


def run(arguments: argparse.Namespace) -> int:
    for line in mistyped(os.environ, TWINS):
        sys.stderr.write(f"edl: {visible(line)}\n")
    for name in TWINS - OF_REACH:  # they are this command's, and none of an `edl` that the job calls
        os.environ.pop(name, None)
    given, environ, waits = _waiting(arguments.given, os.environ)
    settings = Settings.from_given(given, environ)
    if waits and (settings.coordinator is None or settings.job is None):
        raise UsageError(
            f"{waits} waits for a job that trains elsewhere: name it by --job, and its --coordinator HOST:PORT"
        )
    if arguments.as_torchrun and settings.processes > 1:
        raise UsageError(
            f"--processes {settings.processes}: a script of torchrun's has workers of one process; make it edl's, as "
            "docs/larger-models.md shows"
        )
    script = script_of(arguments.line, module=arguments.module) if arguments.as_torchrun else None
    with ends_early(lambda signum: early_end(settings, signum, waits=bool(waits))):
        if script is not None:
            if settings.ring == Settings().ring:  # such a script's groups are PyTorch's
                settings = msgspec.structs.replace(settings, ring=RingKind.TORCH.value)
            os.environ.update(look_before(script, settings.np, os.environ, fixed=arguments.fixed_size))
        command = arguments.line if script is None else script.command
        return _run(settings, command, waits=bool(waits), detach=arguments.detach)


def _run(settings: Settings, line: Sequence[str], *, waits: bool, detach: bool) -> int:
    command = checked_command(line)
    if settings.ring != Settings().ring:
        _check_ring(settings.ring, command[0])
    policy = try_policy(settings)
    export_process.check(settings)
    table = tabulated(settings.batch_policy, settings.max_workers)
    raise_open_files()
    check_parent()
    if settings.checkpoint and Path(settings.checkpoint).is_file():
        raise ConfigError(f"--checkpoint {settings.checkpoint}: is a file; name a folder, which may be a new one")
    known = _saved_job(settings.checkpoint) if settings.checkpoint and not settings.job else None
    job = settings.job or known or new_name(settings.home)
    if not waits:
        _prepare_audit(settings, job if settings.checkpoint else None)
    settings = msgspec.structs.replace(settings, batch_policy=table, job=job)
    source, folder = policy.source if policy is not None and policy.file else None, Folder(settings.job_home)
    if detach and (launcher := in_background()) is not None:
        return wait_begun(*launcher, folder)
    outcome = asyncio.run(_live(settings, command, source, waits=waits))
    said = f"edl: {visible(last_line(outcome, folder, settings.resume))}\n"
    if (record := folder.read()) is not None and record.launcher_pid == os.getpid():
        with contextlib.suppress(OSError):  # its logs were removed, or a full disk
            OutputFile(folder.output).write(said.encode())
    sys.stderr.write(said)
    return outcome.verdict.code


def _saved_job(checkpoint: str) -> str | None:
    try:
        return only_job(checkpoint)
    except CheckpointError as error:
        raise ConfigError(f"--checkpoint: {error}") from error


async def _live(settings: Settings, command: Sequence[str], policy: bytes | None, *, waits: bool) -> Outcome:
    lives = JobRun(settings, launch_record(settings, command), policy, waits=waits)  # inside the loop it belongs to
    return await lives.run()


def _waiting(
    given: Mapping[str, Given], environ: Mapping[str, str]
) -> tuple[Mapping[str, Given], Mapping[str, str], str]:
    """Return what is left without `-np 0`, which is no size of a job, and how that was said, if it was."""
    names = next(setting.variables for setting in TABLE if setting.field == "np")
    zeros = [name for name in names if environ.get(name) == "0"]
    said = given["np"].quote if "np" in given and given["np"].text == "0" else ""
    if "np" not in given and zeros:
        said = f"{zeros[0]}=0"
    if not said:
        return given, environ, ""
    kept = {field: one for field, one in given.items() if field != "np"}
    return kept, {name: value for name, value in environ.items() if name not in zeros}, said


def _prepare_audit(settings: Settings, lives_of: str | None) -> None:
    """`lives_of`: the job of which earlier lives may be in that folder. Raises ConfigError."""
    if settings.audit is None:
        return
    prepare(settings.audit)
    if settings.coordinator is None:  # else workers of other machines may be there already
        check_free(settings.audit, lives_of)


def checked_command(line: Sequence[str]) -> tuple[str, ...]:
    """Return the command after the flags. Raises UsageError or ConfigError if it cannot be run."""
    command = tuple(line[1:] if line[:1] == ["--"] else line)
    if not "".join(command[:1]).strip():
        raise UsageError("COMMAND is missing, such as `python train.py`; see 'edl run --help'")
    program = command[0]
    if (found := shutil.which(program, path=search_path(os.environ))) is not None:
        _find_setpriv()
        if re.fullmatch(r"python[0-9.]*", Path(found).name):
            _check_script(command[1:])
            _check_python(program, found)
        return command
    if program.endswith(".py") and Path(program).is_file():
        raise UsageError(f"{program} is not executable: did you mean `python {shlex.join(command)}`?")
    if Path(program).is_dir():
        raise UsageError(f"{program} is a folder, not a command")
    if Path(program).is_file() and "/" in program:
        raise UsageError(f"{program} is not executable: `chmod +x {program}`, or name its interpreter before it")
    if len(words := program.split()) > 1 and shutil.which(words[0], path=search_path(os.environ)) is not None:
        raise UsageError(f"{program!r} is one word, so no command: leave away the quotes around it")
    there = [one for one in NEAR_COMMANDS if shutil.which(one, path=search_path(os.environ)) is not None]
    raise UsageError(f"command not found: {program}{did_you_mean(program, there)}")


def _check_script(words: Sequence[str]) -> None:
    """Raises UsageError for a script that is not there, which each worker's Python would say in lines of its own."""
    for place, word in enumerate(words):
        if word in {"-W", "-X"} or (place and words[place - 1] in {"-W", "-X"}):
            continue
        if not word.startswith("-"):
            script = Path(word)
            if not script.exists():
                near = did_you_mean(script.name, [one.name for one in script.parent.glob("*")])
                raise UsageError(f"there is no script {word}{near or f' in {Path.cwd()}'}")
            return
        if word == "-" or word.startswith("--") or {"c", "m"} & set(word):  # no script follows, or its place is unknown
            return


def _check_ring(ring: str, program: str) -> None:
    """Raises ConfigError where this Python runs the script and lacks what the ring is made of."""
    module, remedy = PACKAGES.get(ring, ("", ""))
    found = shutil.which(program, path=search_path(os.environ))
    if module and found and Path(found).parent == Path(sys.executable).parent and find_spec(module) is None:
        raise ConfigError(f"--ring {ring} (EDL_RING): {module} is not installed: {remedy}")


def _check_python(program: str, found: str) -> None:
    """Raises ConfigError for another Python than this one, if it has no edl."""
    if Path(found).parent == Path(sys.executable).parent:
        return
    look = "import sys, importlib.util; sys.exit(77 if importlib.util.find_spec('edl') is None else 0)"
    if subprocess.run([found, "-c", look], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 77:
        raise ConfigError(
            f"{program} has no edl: write `python`, which is {sys.executable}, or install edl there, by `{program} -m "
            "pip install horovod-edl`"
        )


def early_end(settings: Settings, signum: signal.Signals, *, waits: bool) -> EarlyEnd:
    """Return how a signal ends `edl run` before there is a job: as before the job trains (`edl.launch.job_run`)."""
    if signum is not signal.SIGTERM or not settings.checkpoint or waits:
        return EarlyEnd(INTERRUPTED.code, INTERRUPTED.reason)
    job = f"job {settings.job}" if settings.job else "the job"
    return EarlyEnd(NOT_BEGUN.code, _preempted(job, NOT_BEGUN, settings.resume))


def last_line(outcome: Outcome, folder: Folder, resume: str = "auto") -> str:
    """Return the line that tells how the job ended. `resume`: what the job was to go on from."""
    verdict, job = outcome.verdict, folder.path.name
    if verdict.code == 0 and _trained_nothing(outcome):
        return f"job {job} has finished: nothing is left to train"
    if verdict.code == 0:
        finished = f"job {job} finished{_to_be_known(outcome)}{_lost_on_its_way(outcome, job)}"
        return f"job {job}: {verdict.note}" if verdict.note else finished
    if verdict.state == "preempted":
        return _preempted(f"job {job}", verdict, resume)
    if verdict.reason == "interrupted":
        return f"job {job} interrupted"
    if outcome.status is None:  # no worker has joined it, so there are neither events nor logs
        return f"job {job} failed: {verdict.reason}"
    more = "" if verdict.cause == REFUSED else f"; see `edl events {job}`"
    return f"job {job} failed: {verdict.reason}{more}; logs: {folder.logs}"


def _preempted(job: str, verdict: LaunchVerdict, resume: str) -> str:
    again = "the same line is typed again"
    if resume not in GOES_ON and verdict != NOT_BEGUN:  # that line would begin once more where this one did
        again = f"the line is typed again without --resume {resume}"
    return f"{job} is preempted, and goes on when {again}: {verdict.reason}"


def _to_be_known(outcome: Outcome) -> str:
    """Repeat what the leader says of a good end."""
    status = outcome.status
    return f": {status.reason}" if status is not None and status.state is JobState.FINISHED and status.reason else ""


def _lost_on_its_way(outcome: Outcome, job: str) -> str:
    """Say how many workers were lost by what their scripts did, though others came to the end without them."""
    lost = {} if outcome.status is None else outcome.status.tally.lost
    count = sum(lost.get(cause, 0) for cause in OF_SCRIPTS)
    if not count:
        return ""
    return f"; {count} worker{'s' if count > 1 else ''} failed, or hung, on its way: see `edl events {job}`"


def _trained_nothing(outcome: Outcome) -> bool:
    """Tell whether the job went on from where a life before had come to its end."""
    status = outcome.status
    return status is not None and bool(status.resumed) and not outcome.newest_step and status.state.value == "finished"


def _find_setpriv() -> None:
    if shutil.which("setpriv") is None:
        raise ConfigError("setpriv is missing, which ends workers together with edl: apt-get install util-linux")
