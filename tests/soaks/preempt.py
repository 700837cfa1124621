"""A job is preempted again and again, at random moments of all phases, and resumed at random sizes by the same line.

    python -m tests.soaks.preempt [--times 100] [--first 0] [--number N] [--folder DIR] [--phases PHASE...] [--seed 0]
        [--mb 5] [--seconds 8] [--json]

Each life of the job has 1 to 4 workers (the first one three), comes to one of these phases, and is told to go at a
random moment of it, by SIGTERM to `edl run` or by `edl preempt`:

    boot          its processes start, from `edl run` on
    first ring    all workers have come, up to their first steps
    training      any time
    compile       its first mini-batch holds the interpreter for --seconds
    evaluation    workers make no step for --seconds
    waiting       the process that loads data gives none for --seconds
    rehearsal     a newcomer is at its first mini-batch, which takes that long
    switch        another size was asked for just now, or the next ring is planned

A table says of each phase how many were saved (a checkpoint that was begun after the request is durable), had nothing
to save (no step was made in that life), or neither; the exit codes, and how long `edl run` took to end from the request
on, beyond the time that so many bytes take to write. The request is the signal, or the moment at which the job's leader
writes down that `edl preempt` asks; how long that command took until then is told beside it: where workers keep every
core busy, it starts as slowly as anything else. After the last one the job trains two epochs more, and one audit over
all of its lives says what was lost and repeated. Goal: code 75 each time, nothing unsaved, none later than 2 s; nothing
lost or repeated. Exit code 1 unless so.

A run goes on in pieces: `--folder` keeps all of it, `--first 40 --number 20` are twenty from the fortieth on, and the
piece with the last of `--times` ends the job. Equal --seed and number are the same moment, as far as a machine allows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl import client
from edl.checkpoints.checkpoint_paths import JobFolder, files_at
from edl.checkpoints.checkpoint_reader import newest
from edl.core.audit.sample_account import Account, account
from edl.errors import EdlError
from edl.launch.job_processes import marked
from edl.launch.job_records import find
from edl.protocol.audit_lines import Committed, decoded
from edl.trainer.data.audit_files import read
from tests.soaks.preempt_worker import END, NOW, PLAN

NAME = "preempted"
PHASES = ("boot", "first ring", "training", "compile", "evaluation", "waiting", "rehearsal", "switch")
ACTED = ("compile", "evaluation", "waiting", "rehearsal")  # they take `--seconds`
BOOT_S = 8.0
TRAIN_S = 4.0
SWITCH_S = 6.0
PATIENCE_S = 180.0  # machines may be busy
GOAL_S = 2.0
RESUMABLE = 75
EPOCHS_MORE = 2
SESSION_S = 5
POLL_S = 0.01
RESULTS = "results.jsonl"
GOING_ON = {"EDL_MAX_NP": "4", "EDL_SESSION_TIMEOUT": str(SESSION_S), "CUDA_VISIBLE_DEVICES": ""}


class Life:
    """One life of the job, from `edl run` to its end."""

    def __init__(self, folder: Path, workers: int, plan: dict[str, Any], mb: float) -> None:
        self._folder = folder
        shutil.rmtree(folder / NOW, ignore_errors=True)
        (folder / NOW).mkdir()
        (folder / PLAN).write_text(json.dumps(plan))
        self._audits = set((folder / "audit").glob("*"))
        worker = [sys.executable, "-m", "tests.soaks.preempt_worker", str(folder), "--mb", str(mb)]
        self._edl = str(Path(sys.executable).with_name("edl"))
        self._environ = {**os.environ, **GOING_ON, "EDL_HOME": str(folder / "home")}
        flags = ["--job", NAME, "--checkpoint", str(folder / "ck"), "--checkpoint-every", "40steps"]
        flags += ["--audit", str(folder / "audit")]
        with (folder / "output.log").open("ab") as log:
            self.launcher = subprocess.Popen(
                [self._edl, "run", "-np", str(workers), *flags, *worker],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
            )

    def wait(self, ready: Callable[[], bool]) -> None:
        """Raises PhaseMissed when it does not come to that."""
        until = time.monotonic() + PATIENCE_S
        while not ready():
            if self.launcher.poll() is not None:
                raise PhaseMissed("the job was over before")
            if time.monotonic() > until:
                raise PhaseMissed(f"it did not come within {PATIENCE_S:g} s")
            time.sleep(POLL_S)

    def wait_phase(self, phase: str) -> None:
        self.wait(lambda: any(path.read_text() == phase for path in (self._folder / NOW).iterdir()))

    def wait_event(self, kind: str, since: float) -> None:
        self.wait(lambda: any(one["kind"] == kind and one["ts"] > since for one in self.events()))

    def events(self) -> list[dict[str, Any]]:
        done = subprocess.run(
            [self._edl, "events", NAME, "--json"], env=self._environ, capture_output=True, text=True, check=False
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def scale(self, size: int) -> None:
        with client.Job(NAME) as job:
            job.scale(size)

    def go(self, way: str) -> None:
        """Ask it to."""
        if way == "SIGTERM":
            self.launcher.send_signal(signal.SIGTERM)
        else:
            subprocess.Popen(
                [self._edl, "preempt", NAME], env=self._environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

    def heard_at(self, since: float) -> float:
        """When the job's leader was asked to go; `since`, if it tells of no request."""
        return next((one["ts"] for one in self.events() if one["kind"] == "preempt_asked" and one["ts"] > since), since)

    def end(self) -> str:
        """What it said. A job that does not end is killed."""
        try:
            said = self.launcher.communicate(timeout=PATIENCE_S)[1]
        except subprocess.TimeoutExpired:
            self.launcher.terminate()
            said = self.launcher.communicate()[1]
        with (self._folder / "output.log").open("a") as log:
            log.write(said)
        return said

    def steps(self) -> int:
        """That any worker of it has committed."""
        new = set((self._folder / "audit").glob("*")) - self._audits
        lines = (line for path in new for line in decoded(path.read_bytes()))
        return max((line.step for line in lines if isinstance(line, Committed)), default=0)

    def left(self) -> list[int]:
        """Processes that outlive it."""
        record = find(self._folder / "home", NAME)
        read = None if record is None else record.read()
        return [] if read is None else marked(read.mark)


class PhaseMissed(Exception):
    """The moment did not come."""


def preempt(index: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    chance = random.Random(f"{options.seed}/{index}")
    phase = options.phases[index % len(options.phases)]
    size = chance.randint(1, 3 if phase == "rehearsal" else 4) if index else 3
    life = Life(folder, size, {"phase": phase, "seconds": options.seconds}, options.mb)
    missed = ""
    try:
        await_moment(life, phase, size, chance, options)
    except (PhaseMissed, EdlError) as error:
        missed = str(error)
    way = "SIGTERM" if phase == "boot" or missed else chance.choice(["SIGTERM", "SIGTERM", "edl preempt"])
    asked, asked_at = time.monotonic(), time.time()
    life.go(way)
    said = life.end()
    took_s = time.monotonic() - asked
    command_s = life.heard_at(asked_at) - asked_at if way == "edl preempt" else 0.0
    last = said.strip().splitlines()[-1] if said.strip() else ""
    best = newest(JobFolder(files_at(str(folder / "ck")), NAME))
    path = "" if best.checkpoint is None else best.checkpoint.path
    is_saved = bool(path) and f" is saved: {path}" in last
    write_s = writing_s(Path(path), folder) if is_saved else 0.0
    steps = life.steps()
    saved = "saved" if is_saved else "nothing" if not steps else "unsaved"
    return {
        "index": index,
        "phase": phase,
        "size": size,
        "way": way,
        "missed": missed,
        "steps": steps,
        "code": life.launcher.returncode,
        "saved": saved,
        "passed_over": len(best.passed_over),
        "took_s": took_s,
        "command_s": command_s,
        "write_s": write_s,
        "left": life.left(),
        "last": last,
    }


def await_moment(life: Life, phase: str, size: int, chance: random.Random, options: argparse.Namespace) -> None:
    """A random one of that phase."""
    if phase == "boot":
        time.sleep(chance.uniform(0, BOOT_S))
    elif phase == "switch":
        life.wait_phase("training")
        to = chance.choice([other for other in range(1, 5) if other != size])
        planned = chance.random() < 0.5
        since = time.time()
        life.scale(to)
        if planned:
            life.wait_event("switch_scheduled", since)
        time.sleep(chance.uniform(0, 0.2 if planned else SWITCH_S))
    else:
        if phase == "rehearsal":
            life.wait_phase("training")
            life.scale(size + 1)
        life.wait_phase(phase)
        time.sleep(chance.uniform(0, options.seconds * 0.9 if phase in ACTED else TRAIN_S))


def writing_s(checkpoint: Path, folder: Path) -> float:
    """What it takes to write as many bytes, and to flush them."""
    contents = [path.read_bytes() for path in checkpoint.iterdir()]
    began = time.monotonic()
    for number, content in enumerate(contents):
        with (folder / f"written-{number}").open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    took = time.monotonic() - began
    for number in range(len(contents)):
        (folder / f"written-{number}").unlink()
    return took


def finish(folder: Path, options: argparse.Namespace) -> str:
    """The job trains on to its end; why not, if it does not."""
    begun = len(account(read(folder / "audit")).epochs)
    (folder / END).write_text(str(begun + EPOCHS_MORE))
    life = Life(folder, 3, {"phase": "training", "seconds": 0}, options.mb)
    said = life.end()
    return "" if life.launcher.returncode == 0 else said[-2000:]


def beyond_s(one: dict[str, Any]) -> float:
    return float(one["took_s"] - one["command_s"] - one["write_s"])


def is_good(one: dict[str, Any]) -> bool:
    served = one["code"] == RESUMABLE and one["saved"] != "unsaved" and beyond_s(one) <= GOAL_S
    return served and not (one["missed"] or one["left"] or one["passed_over"])


def show(results: list[dict[str, Any]], phases: list[str]) -> None:
    rows: list[tuple[str, ...]] = [
        (
            "phase",
            "times",
            "saved",
            "nothing",
            "unsaved",
            "codes",
            "beyond: median",
            "longest",
            "late",
            "command",
            "missed",
        )
    ]
    for phase in [*phases, "all"]:
        ones = [one for one in results if phase in (one["phase"], "all")]
        if not ones:
            continue
        saved, codes = Counter(one["saved"] for one in ones), Counter(one["code"] for one in ones)
        beyond = sorted(map(beyond_s, ones))
        rows.append(
            (
                phase,
                str(len(ones)),
                *(str(saved[word]) for word in ("saved", "nothing", "unsaved")),
                " ".join(f"{number}x{code}" for code, number in sorted(codes.items())),
                f"{beyond[len(beyond) // 2]:.2f} s",
                f"{beyond[-1]:.2f} s",
                str(sum(time_s > GOAL_S for time_s in beyond)),
                f"{max(one['command_s'] for one in ones):.2f} s",
                str(sum(bool(one["missed"]) for one in ones)),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show_one(one: dict[str, Any]) -> None:
    print(
        f"{one['index']:3} {one['phase']:11} of {one['size']} by {one['way']}: {one['saved']}, code {one['code']}, "
        f"{beyond_s(one):.2f} s beyond {one['write_s']:.2f} s of writing"
        + (f" and {one['command_s']:.2f} s of the command" if one["command_s"] else ""),
        file=sys.stderr,
        flush=True,
    )
    if not is_good(one):
        print(f"    not good: {one['missed']} {one['left'] or ''} {one['last']}", file=sys.stderr, flush=True)


def show_audit(found: Account, fault: str) -> None:
    lost, repeated = (sum(getattr(epoch, what) for epoch in found.epochs) for what in ("lost", "repeated"))
    print(
        f"{len(found.lives)} lives, {found.steps} steps, {len(found.epochs)} epochs: {lost} lost, {repeated} repeated, "
        f"{found.wrong} wrong; {found.void_steps} steps ({found.again} samples) were trained again"
    )
    if fault:
        print(f"the job did not come to its end: {fault}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, help="of the whole run")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--number", type=int, help="in this piece (default: all that are left)")
    parser.add_argument("--folder", type=Path, help="of a run in pieces")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mb", type=float, default=5.0, help="of parameters, and as much of momentum")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="edl-preempt-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    os.environ["EDL_HOME"] = str(folder / "home")  # where the client finds the job
    last = options.times if options.number is None else min(options.times, options.first + options.number)
    for index in range(options.first, last):
        one = preempt(index, folder, options)
        with (folder / RESULTS).open("a") as file:
            file.write(json.dumps(one) + "\n")
        show_one(one)
    results = [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]
    fault = finish(folder, options) if last == options.times else ""
    found = account(read(folder / "audit"))
    good = all(map(is_good, results)) and not fault and found.clean
    if options.json:
        print(json.dumps({"results": results, "clean": found.clean, "fault": fault, "good": good}))
    else:
        show(results, options.phases)
        show_audit(found, fault)
    if options.folder is None and good:
        shutil.rmtree(folder)
    else:
        print(f"all of it is in {folder}", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
