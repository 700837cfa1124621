"""The same bits at any size: jobs with virtual workers that are disturbed end with the digest of one that is not.

    python -m tests.soaks.same_bits [--models mlp cnn transformer] [--rings torch horovod] [--cases CASE...]
        [--launchers edl horovodrun] [--resizes 50] [--kills 10] [--preemptions 2] [--epochs 60] [--pace 0.05]
        [--framework torch|tensorflow] [--seed 0] [--json]

Each case is a whole job of real processes that trains a model with four virtual workers:

    1 2 3 4       so many workers from the beginning to the end
    resize        random sizes within 1 to 4, one after the other
    kill          `kill -9` of random workers of three, each of which is replaced
    preempt       preempted, and resumed at another size

Workers are started by `edl run`, as plain processes, or by plain `horovodrun`, whose discovery script gives the sizes.
It prints the digest of weights, statistics, optimizer and moving average for each, and how often what was done. Goal:
one digest for each model. Exit code 1 unless so, or if a job was over before all was done to it, which is told as "not
shown", or failed; the list goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from edl import client
from edl.errors import EdlError

LAUNCHERS = ("edl", "horovodrun")

VIRTUAL = 4
JOBS = Path(__file__).parents[1] / "integration" / "jobs"
SCRIPTS = {"torch": JOBS / "same_bits.py", "tensorflow": JOBS / "tf_same_bits.py"}
CASES = ("1", "2", "3", "4", "resize", "kill", "preempt")
RESUMABLE = 75
PATIENCE_S = 600.0


class CaseFailed(Exception):
    """A job did not end as it should."""


class Run:
    """One job, of which `pace` tells how long a step takes at least."""

    def __init__(self, folder: Path, options: argparse.Namespace, model: str, ring: str, launched_by: str) -> None:
        self.folder, self.launched_by = folder, launched_by
        (folder / "home").mkdir(mode=0o700)
        self.pace = folder / "pace"
        self.environ = {
            **os.environ, "EDL_HOME": str(folder / "home"), "EDL_RING": ring, "EDL_MAX_RESTARTS": "1000",
            "EDL_VIRTUAL_WORKERS": str(VIRTUAL), "EDL_AUDIT": str(folder / "audit"), "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3",
        }  # fmt: skip
        self.script = [
            sys.executable,
            str(SCRIPTS[options.framework]),
            "--out",
            str(folder),
            "--model",
            model,
            "--epochs",
            str(options.epochs),
        ]
        self.script += ["--pace", str(self.pace), "--loading", str(options.loading)]
        self.log = (folder / "output.log").open("ab")
        self.launcher: subprocess.Popen[bytes] | None = None
        self.done: Counter[str] = Counter()

    def set_pace(self, seconds: float) -> None:
        working = self.pace.with_suffix(".new")
        working.write_text(str(seconds))
        working.rename(self.pace)

    def start(self, workers: int, checkpoint: Path | None = None) -> None:
        environ = {**self.environ, **({"EDL_CHECKPOINT": str(checkpoint)} if checkpoint else {})}
        self.launcher = subprocess.Popen(
            self.command(workers), env=environ, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )

    def command(self, workers: int) -> list[str]:
        if self.launched_by == "edl":
            return [sys.executable, "-m", "edl", "run", "-np", str(workers), "--job", "bits", *self.script]
        self.environ["EDL_JOB"] = "bits"
        hosts = self.folder / "hosts.sh"
        hosts.write_text(f"#!/bin/sh\ncat {self.folder / 'hosts'}\n")
        hosts.chmod(0o755)
        self.discover(workers)
        sizes = ["-np", str(workers), "--min-np", "1", "--max-np", str(VIRTUAL)]
        discovery = ["--network-interface", "lo", "--host-discovery-script", str(hosts)]
        return [str(Path(sys.executable).with_name("horovodrun")), *sizes, *discovery, *self.script]

    def discover(self, slots: int) -> None:
        working = self.folder / "hosts.new"
        working.write_text(f"localhost:{slots}\n")
        working.rename(self.folder / "hosts")

    def scale(self, size: int) -> None:
        if self.launched_by == "horovodrun":
            self.discover(size)
            return
        with contextlib.suppress(EdlError), client.Job("bits") as job:
            job.scale(size)

    def status(self) -> dict[str, Any] | None:
        """Return None before the job has begun, and between two leaders."""
        try:
            with client.Job("bits") as job:
                found: dict[str, Any] = msgspec.to_builtins(job.status())
        except EdlError:
            return None
        return found

    @property
    def is_over(self) -> bool:
        assert self.launcher is not None  # it was started
        return self.launcher.poll() is not None

    def wait(self, *, size: int | None = None, steps: int = 0) -> dict[str, Any] | None:
        """Wait until the job stands, at this size, and has made so many more steps; None: it is over."""
        deadline, since = time.monotonic() + PATIENCE_S, None
        while not self.is_over:
            if time.monotonic() > deadline:
                raise CaseFailed(f"not at size {size} in time: {self.output()}")
            status = self.status()
            if status is not None and status["state"] == "running" and size in {None, status["size"]}:
                since = status["step"] if since is None else since
                if status["step"] - since >= steps and len(status["workers"]) == status["size"]:
                    return status
            time.sleep(0.05)
        return None

    def end(self) -> int:
        assert self.launcher is not None  # it was started
        try:
            return self.launcher.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise CaseFailed(f"not over in time: {self.output()}") from error

    def stop(self) -> None:
        """End the job, if it has not ended."""
        if self.launcher is not None and self.launcher.poll() is None:
            self.launcher.terminate()
            try:
                self.launcher.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.launcher.kill()

    def output(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-9000:]

    def digests(self) -> set[str]:
        return {json.loads(path.read_text())["digest"] for path in self.folder.glob("digest*.json")}


def resized(run: Run, source: random.Random, times: int) -> None:
    size = 2
    run.wait(size=size)
    for _ in range(times):
        size = source.choice([one for one in range(1, VIRTUAL + 1) if one != size])
        run.scale(size)
        if run.wait(size=size, steps=source.randrange(1, 6)) is None:
            return
        run.done["resize"] += 1


def killed(run: Run, source: random.Random, times: int) -> None:
    for _ in range(times):
        status = run.wait(size=3, steps=source.randrange(1, 6))
        if status is None:
            return
        time.sleep(source.random() * 0.1)
        os.kill(source.choice(status["workers"])["pid"], signal.SIGKILL)
        run.done["kill"] += 1
        time.sleep(0.5)  # until a leader has noticed: the size is 3 still


def measured(
    case: str, options: argparse.Namespace, model: str, ring: str, launched_by: str, folder: Path
) -> dict[str, Any]:
    source = random.Random(f"{options.seed} {case} {model} {ring} {launched_by}")
    run = Run(folder, options, model, ring, launched_by)
    try:
        return played(run, case, options, source)
    finally:
        run.stop()


def played(run: Run, case: str, options: argparse.Namespace, source: random.Random) -> dict[str, Any]:
    launched_by = run.launched_by
    os.environ["EDL_HOME"] = run.environ["EDL_HOME"]  # for the client
    began, disturbed = time.monotonic(), case in {"resize", "kill", "preempt"}
    run.set_pace(options.pace if disturbed else 0.0)
    checkpoint = run.folder / "saved" if case == "preempt" else None
    run.start({"resize": 2, "kill": 3, "preempt": 2}.get(case) or int(case), checkpoint)
    if case == "resize":
        resized(run, source, options.resizes)
    elif case == "kill":
        killed(run, source, options.kills)
    elif case == "preempt":
        for workers in [source.choice((1, 3, 4)) for _ in range(options.preemptions)]:
            if run.wait(steps=source.randrange(5, 30)) is None:
                break
            with contextlib.suppress(EdlError), client.Job("bits") as job:
                job.preempt()
            if not (code := run.end()):
                break  # it was over before it heard
            if code != (RESUMABLE if launched_by == "edl" else 1):  # horovodrun says no more
                raise CaseFailed(f"preempted, and ended with {code}: {run.output()}")
            run.done["preempt"] += 1
            run.start(workers, checkpoint)
    run.set_pace(0.0)
    if code := run.end():
        raise CaseFailed(f"exit code {code}: {run.output()}")
    found = sorted(run.digests())
    took_s = round(time.monotonic() - began, 1)
    is_shown = run.done[case] >= options.times.get(case, 0)
    return {"digests": found, "done": dict(run.done), "seconds": took_s, "shown": is_shown}


def results(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for model in options.models:
        for ring, launched_by, case in itertools.product(options.rings, options.launchers, options.cases):
            if ring == "torch" and (launched_by == "horovodrun" or options.framework == "tensorflow"):  # Horovod's only
                continue
            named = {"case": case, "model": model, "ring": ring, "launcher": launched_by}
            with tempfile.TemporaryDirectory() as folder:
                try:
                    yield {**named, **measured(case, options, model, ring, launched_by, Path(folder))}
                except CaseFailed as failure:
                    yield {**named, "digests": [], "done": {}, "seconds": 0.0, "shown": False, "failure": str(failure)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn", "transformer"])
    parser.add_argument("--framework", default="torch", choices=tuple(SCRIPTS))
    parser.add_argument("--rings", nargs="+", default=["torch", "horovod"])
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--launchers", nargs="+", default=["edl"], choices=LAUNCHERS)
    parser.add_argument("--resizes", type=int, default=50)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--preemptions", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--loading", type=int, default=-1)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds of a step at least, while it is disturbed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.times = {"resize": options.resizes, "kill": options.kills, "preempt": options.preemptions}
    of_model: dict[str, set[str]] = {}
    missing: list[str] = []
    for found in results(options):
        name = f"{found['model']:12} {found['ring']:8} {found['launcher']:10} {found['case']:8}"
        if not found["shown"]:
            missing.append(name)
        of_model.setdefault(found["model"], set()).update(found["digests"])
        if options.json:
            print(json.dumps(found), flush=True)
        else:
            digests = " ".join(one[:16] for one in found["digests"])
            done = ", ".join(f"{count} x {what}" for what, count in found["done"].items())
            not_shown = "" if found["shown"] else "  not shown: " + found.get("failure", "over too early")
            print(f"{name} {digests} {found['seconds']:6.1f} s  {done}{not_shown}", flush=True)
    wrong = {model for model, digests in of_model.items() if len(digests) > 1}
    print("one digest for each model" if not wrong else f"digests differ: {', '.join(sorted(wrong))}")
    for name in missing:
        print(f"not shown: {name} (if its job was over too early, give --epochs or --pace more)")
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
