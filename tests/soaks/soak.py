"""A job under a random fault every few seconds: does it go on, lose nothing, differ in nothing, leave nothing behind?

    python -m tests.soaks.soak [--seconds 1800] [--frameworks torch tensorflow] [--every 5 10] [--seed 0] [--json]
                              [--faults FAULT...] [--no-fixed]        # EDL_LOCAL_COORDINATOR=etcd: on an etcd

Three workers learn the UCI digits under `edl run`, which replaces crashed ones, while `edl.testing.chaos` kills and
freezes trainers, daemons, whole workers and the job's coordinator, tells workers to leave and asks for more. At the
end: every sample must have been trained once an epoch, all workers must have had the same weights after each switch,
the loss must lie within what jobs of fixed size come to, and no process, port, file or node may be left over; memory is
that of the processes that lived longest. A job that makes no step for `--hang` seconds hangs. Exit code 1 if not sound.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import DIGITS, DigitsJob, compared, fixed_loss, near
from edl.launch.job_processes import marked
from edl.launch.job_records import find
from edl.testing.chaos import Chaos, Rage, What

SESSION_S, STEP_TIMEOUT_S = 5, 6
FEWEST, MOST = 2, 4
STEP_S = 0.02
FLAGS = ("--max-restarts", "1000000", "--session-timeout", str(SESSION_S), "--step-timeout", str(STEP_TIMEOUT_S))
OLD_S = 60.0  # before that a process still grows into its work
LEFT_WITHIN_S = 10.0


class Progress:
    """The job's newest step, and how long none was made. Raises SystemExit when it hangs, or is over."""

    def __init__(self, framework: str, job: DigitsJob, hang_s: float) -> None:
        self.longest_s = 0.0
        self._framework, self._job, self._hang_s = framework, job, hang_s
        self._newest, self._at = 0, time.monotonic()

    def look(self) -> None:
        job, step, now = self._job, self._job.newest_step(), time.monotonic()
        if job.launcher.poll() is not None:
            raise SystemExit(f"{self._framework}: the job has ended\n{job.log()}")
        if step > self._newest:
            self.longest_s = max(self.longest_s, now - self._at)
            self._newest, self._at = step, now
        elif now - self._at > self._hang_s:
            raise SystemExit(
                f"{self._framework}: no step after {self._newest} for {self._hang_s:g} s\n"
                f"{job.edl('status', job.name)}\n{job.log()}"
            )


class Memory:
    """Resident bytes of the processes of a launch, as they grow older."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[float, int]] = {}
        self.growth: dict[str, tuple[float, float]] = {}  # of the longest-lived of its kind: seconds, MiB a minute
        self._born: dict[int, float] = {}

    def look(self, pids: list[int]) -> None:
        now = time.monotonic()
        for pid in pids:
            born, size, kind = self._born.setdefault(pid, now), _resident(pid), _kind(pid)
            if now - born < OLD_S or not size:
                continue
            since, before = self._first.setdefault(pid, (now, size))
            if now - since > self.growth.get(kind, (0.0, 0.0))[0]:
                self.growth[kind] = (now - since, 60 * (size - before) / 2**20 / (now - since))


def soak(framework: str, options: argparse.Namespace) -> dict[str, Any]:
    def say(line: str) -> None:
        print(f"{framework}: {time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)

    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="edl-soak-"))
    say(f"in {folder}, which stays if anything is wrong")
    os.environ["EDL_HOME"] = str(folder / "home")  # where the kit finds the job
    os.environ["XDG_RUNTIME_DIR"] = str(folder / "run")  # of trainers and their daemons
    (folder / "run").mkdir()
    job = DigitsJob(framework, folder, 3, STEP_S, flags=FLAGS)
    try:
        return _soak(framework, job, folder, options, say)
    finally:
        job.launcher.terminate()  # all that it has started ends with it
        job.launcher.wait()


def _soak(
    framework: str, job: DigitsJob, folder: Path, options: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, Any]:
    job.wait_training()
    record = find(folder / "home", job.name).read()
    memory, progress = Memory(), Progress(framework, job, options.hang)

    def look() -> None:
        memory.look([record.launcher_pid, *marked(record.mark)])
        progress.look()

    with Chaos(job.name, seed=options.seed, say=say) as chaos:
        chaos.rage(options.seconds, Rage(_faults(options), tuple(options.every), fewest=FEWEST, most=MOST), look)
        struck = Counter(struck.fault.what.value for struck in chaos.struck)
    say(f"{len(chaos.struck)} faults; the end")
    epochs = job.finish()
    left = _left(record.mark)
    files = [path.name for path in (folder / "run").iterdir()]
    notes, events, data = job.notes.all(), job.events(), harness.audited(folder / "audit")
    scaled = [event for event in events if event["kind"] == "scaled"]
    return {
        "framework": framework,
        "seconds": options.seconds,
        "faults": dict(struck),
        "generations": max(note.get("generation", 0) for note in notes),
        "forced": sum(event["forced"] for event in scaled),
        "leaders": sum(event["kind"] == "leader_elected" for event in events),
        "longest_without_step_s": progress.longest_s,
        "steps": max(note.get("step", 0) for note in notes),
        "epochs": epochs,
        **compared(notes),
        "lost": epochs * DIGITS - data["trained"],
        "repeated": data["repeated"],
        "wrong": data["wrong"],
        "loss": next(note["loss"] for note in notes if note["kind"] == "end"),
        "folder": str(folder),
        "left_processes": left,
        "left_files": files,
        "growth_mib_per_min": {kind: [seconds, rate] for kind, (seconds, rate) in memory.growth.items()},
    }


def _faults(options: argparse.Namespace) -> tuple[What, ...]:
    return tuple(map(What, options.faults)) or tuple(What)


def _left(mark: str) -> list[int]:
    """Processes of the launch that outlive it. Where there are none, no port is listened on either."""
    deadline = time.monotonic() + LEFT_WITHIN_S
    while (pids := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return pids


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _kind(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return "gone"
    known = {
        "zookeeper": "ZooKeeper",
        "--listen-client-urls": "etcd",
        "edl.coordination.embedded": "embedded coordinator",
        "edl.daemon.daemon": "daemon",
        "benchmarks.worker": "trainer",
        "edl\0run": "edl run",
    }
    return next((kind for word, kind in known.items() if word in line and "guard" not in line), "other")


def is_sound(result: dict[str, Any]) -> bool:
    bad = ("different", "lost", "repeated", "wrong", "left_processes", "left_files")
    close = not result["fixed_losses"] or near(result["loss"], result["fixed_losses"])
    return close and not any(result[name] for name in bad)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"], choices=["torch", "tensorflow"])
    parser.add_argument("--every", type=float, nargs=2, default=[5.0, 10.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", nargs="+", default=[], choices=[what.value for what in What])
    parser.add_argument("--hang", type=float, default=120.0)
    parser.add_argument("--no-fixed", action="store_true", help="no jobs of fixed size to compare the loss with")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sound = True
    for framework in options.frameworks:
        result = soak(framework, options)
        print(json.dumps(result), file=sys.stderr, flush=True)  # what it is compared with takes long
        sizes = () if options.no_fixed else (1, MOST)
        result["fixed_losses"] = [fixed_loss(framework, workers, result["epochs"]) for workers in sizes]
        if is_sound(result):
            shutil.rmtree(result["folder"])
        else:
            sound = False
        if options.json:
            print(json.dumps(result), flush=True)
            continue
        faults = ", ".join(f"{number} {what}" for what, number in sorted(result["faults"].items()))
        growth = ", ".join(f"{kind} {rate:+.2f}" for kind, (_, rate) in sorted(result["growth_mib_per_min"].items()))
        print(
            f"{framework}: {result['seconds']:g} s, {sum(result['faults'].values())} faults: {faults}\n"
            f"  {result['steps']} steps, {result['generations']} generations ({result['forced']} forced), "
            f"{result['leaders']} leaders; {result['longest_without_step_s']:.1f} s at most without a step seen\n"
            f"  weights compared {result['compared']} times, different {result['different']}; "
            f"{result['epochs']} epochs, {result['lost']} samples lost, {result['repeated']} repeated\n"
            f"  loss {result['loss']:.4f}; of 1 and {MOST} workers all the time: "
            f"{', '.join(f'{loss:.4f}' for loss in result['fixed_losses']) or 'not looked at'}\n"
            f"  left: {len(result['left_processes'])} processes, {len(result['left_files'])} files; "
            f"MiB a minute of the longest-lived: {growth or 'none lived for so long'}",
            flush=True,
        )
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
