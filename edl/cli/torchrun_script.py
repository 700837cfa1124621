"""`edl check`, and what `edl torchrun` finds out about a script before any worker starts.

Owns: reading and trying the script, and what is said of it. Does not own: the rules (`edl.torchrun.script_reading`).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from edl.cli.torchrun_flags import MODULE, python_line
from edl.control_characters import visible
from edl.coordination.child_server import dying_with
from edl.errors import UsageError
from edl.torchrun.refusals import ACCUMULATE, TRIAL, TrialResult
from edl.torchrun.script_files import module_file, script_files
from edl.torchrun.script_reading import LineKind, Reading, folder_of, read

TRIAL_S: Final = 300.0
MOST_LINES: Final = 5  # about a script, as its job begins
TOLD: Final = (LineKind.SHARE, LineKind.FILE, LineKind.NUMBER, LineKind.FIRST)


class WorkerScript(NamedTuple):
    command: tuple[str, ...]
    name: str
    module: bool

    def reading(self) -> tuple[Reading, int]:
        """Return what was found, and in how many files. Raises UsageError where the script is not Python."""
        folder = folder_of(Path(self.name), module=self.module)
        path = module_file(self.name, folder) if self.module else Path(self.name)
        if path is None:
            if importlib.util.find_spec(self.name.partition(".")[0]) is None:
                raise UsageError(f"there is no module {self.name}: -m looks in {folder} and among installed packages")
            return Reading((), adds_up=False, wraps=True), 0  # a module of a package that is installed
        files = script_files(path, folder.resolve())
        return read(files), len(files)


def script_of(line: Sequence[str], *, module: bool) -> WorkerScript:
    """Raises UsageError."""
    command = python_line(line, module=module)
    words = command[len(MODULE) :]
    return WorkerScript(command, words[1] if words[0] == "-m" else words[0], words[0] == "-m")


def look_before(script: WorkerScript, size: int, environ: Mapping[str, str], *, fixed: bool) -> dict[str, str]:
    """Say what there is to know before the job begins, and return variables for it. `size`: its first workers.

    A script that may make one update of several batches is tried, alone, as these batches are one step of the job.
    """
    reading, _ = script.reading()
    if not fixed:
        told = reading.of(*TOLD)
        for finding in told[:MOST_LINES]:
            _say(str(finding))
        if len(told) > MOST_LINES:
            _say(f"and {len(told) - MOST_LINES} more such lines: `edl check {script.name}` shows them")
    if not reading.adds_up or environ.get(ACCUMULATE):
        return {}
    _say(f"a trial of {script.name}: how many batches make one update? `--accumulate K` leaves it out")
    began = time.monotonic()
    result = try_script(script, size)
    took = f"({time.monotonic() - began:.1f} s)"
    if result.refused:
        raise UsageError(result.refused)
    if result.failed or result.ended:
        _say(f"the trial has made no update {took}: {result.failed or 'the script has ended'}; one batch is taken")
        return {}
    if result.batches <= 1:
        return {}
    _say(f"one update is made of {result.batches} batches {took}")
    return {ACCUMULATE: str(result.batches)}


def try_script(script: WorkerScript, size: int) -> TrialResult:
    """Run the script alone until its first update."""
    reads, writes = os.pipe()
    environ = {**os.environ, TRIAL: f"{writes} {size}"}
    process = subprocess.Popen(
        dying_with(os.getpid(), [*script.command]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ,
        pass_fds=(writes,),
        start_new_session=True,  # so that what the script has started ends with it
    )
    os.close(writes)
    with os.fdopen(reads, "rb") as answers, os.fdopen(os.pidfd_open(process.pid)) as end:
        try:
            ready, _, _ = select.select([answers, end], [], [], TRIAL_S)
            answered, _, _ = select.select([answers], [], [], 0)  # a child of the script may keep it open
            line = answers.readline() if answered else b""
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not ready:
        return TrialResult(failed=f"it has taken more than {TRIAL_S:.0f} s")
    return msgspec.json.decode(line, type=TrialResult) if line else TrialResult(failed="its process has died")


def check(arguments: argparse.Namespace) -> int:
    script = script_of(arguments.line, module=arguments.module)
    reading, files = script.reading()
    result = try_script(script, 2) if arguments.trial else None
    refused = reading.of(LineKind.REFUSED)
    code = 1 if refused or not reading.wraps or (result is not None and result.refused) else 0
    if arguments.json:
        print(msgspec.json.encode(_table(reading, files, result)).decode())
        return code
    for finding in reading.findings:
        print(visible(str(finding)))
    lines = [_tried(result)] if result is not None else []
    if result is None and reading.adds_up:
        lines.append("it may make one update of several batches: `edl torchrun` finds out of how many by a short trial")
    if not reading.wraps:
        lines.append("it does not name DistributedDataParallel: an update without it is refused")
    told = len(reading.of(*TOLD))
    lines.append(
        f"{files} file{'s' * (files != 1)} read: {told} line{'s' * (told != 1)} to know, "
        f"{len(refused)} that {'is' if len(refused) == 1 else 'are'} refused where reached"
    )
    for line in lines:
        print(visible(f"{script.name}: {line}"))
    return code


def _tried(result: TrialResult) -> str:
    if result.refused:
        return f"refused: {result.refused}"
    if result.failed or result.ended:
        return f"a trial of it has made no update: {result.failed or 'it has ended'}"
    if result.batches > 1:
        return f"one update is made of {result.batches} batches: `edl torchrun` finds that, or --accumulate says it"
    return "its first update was made, of one batch" if result.batches else "its first update was made"


def _table(reading: Reading, files: int, result: TrialResult | None) -> dict[str, object]:
    findings = [
        {"file": one.file, "line": one.line, "kind": one.kind.name.lower(), "text": one.text, "remedy": one.remedy}
        for one in reading.findings
    ]
    return {
        "files": files,
        "findings": findings,
        "adds_up": reading.adds_up,
        "wraps": reading.wraps,
        "trial": result,
    }


def _say(line: str) -> None:
    sys.stderr.write(f"edl: {visible(line)}\n")
