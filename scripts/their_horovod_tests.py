"""Horovod's own tests in real jobs of two workers: with stock Horovod, and with edl on each of its rings.

Owns: which of them, these jobs, and what is told of each test by name. A test passes if it does on both workers. Where
one hangs, or leaves a broken ring, the job is ended, and the rest runs in a new one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from in_place_horovod import lines

ROOT = Path(__file__).parent.parent
WORKERS = 2
TEST_S = 60  # of a test that moves nothing any more; most take less than a second
JOB_S = 180  # for a job to begin its first test
ALONE_S = 20  # for a worker to end a test that has failed on the other one
END_S = 5  # for a job to end once it is told to
FILES = {  # and what `hvd` is in them
    "test_torch.py": "torch",
    "test_tensorflow.py": "tensorflow",
}
SELECTED = tuple(f"test/parallel/{name}" for name in FILES)
COMMON = "test/utils/common.py"
BESIDE = {"tensorflow": "test/parallel/base_test_tensorflow.py"}  # what one of them imports
WAYS = {"torch": ("stock", "horovod", "torch"), "tensorflow": ("stock", "horovod")}
Ends = dict[str, list[str]]  # of each test how it ended, and if it has not passed with what


def compare(checkout: Path, work: Path, extra: Path, chosen: str) -> None:
    """Runs all, and prints a table for each file."""
    for file, face in FILES.items():
        folder = prepared(checkout, file, work / face)
        ends = {way: ran(folder, file, face, way, extra, chosen) for way in WAYS[face]}
        print(f"\n{file}, {WORKERS} workers\n\n{table(ends)}", flush=True)


def prepared(checkout: Path, file: str, folder: Path) -> Path:
    """A folder for each of stock Horovod and edl, which differ in the line of the import alone."""
    shutil.rmtree(folder, ignore_errors=True)
    face = FILES[file]
    for package in ("horovod", "edl"):
        tests, utils = folder / package / "tests", folder / package / "utils"  # which they look for beside them
        tests.mkdir(parents=True)
        utils.mkdir()
        shutil.copy(checkout / COMMON, utils)
        for name, into in ((f"test/parallel/{file}", tests), (BESIDE.get(face, ""), utils)):
            if name:
                text = (checkout / name).read_text()
                changed = text.replace(f"import horovod.{face} as hvd", f"import {package}.{face} as hvd")
                (into / Path(name).name).write_text(changed)
    return folder


def ran(folder: Path, file: str, face: str, way: str, extra: Path, chosen: str) -> Ends:
    """One job after the other, until each test has ended."""
    ends: Ends = {}
    package = "horovod" if way == "stock" else "edl"
    for number in range(1000):
        told = folder / f"told-{way}" / str(number)
        told.mkdir(parents=True)
        done = told / "done.json"
        done.write_text(json.dumps(sorted(ends)))
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("EDL_", "PYTEST_"))}
        environ |= {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts"), str(extra)]),
            "THEIR_TESTS_TOLD": str(told),
            "THEIR_TESTS_DONE": str(done),
            "THEIR_TESTS_FACE": f"{package}.{face}",
            "THEIR_TESTS_WORKERS": str(WORKERS),
            "EDL_HOME": os.environ.get("EDL_HOME", str(folder / "home")),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        command = [*launcher(way), sys.executable, "-m", "pytest", "-c", os.devnull, "--import-mode=importlib", "-q"]
        command += [f"--rootdir={folder / package / 'tests'}", "-p", "no:cacheprovider", "-p", "no:asyncio"]
        command += ["-p", "in_place_horovod", *(["-k", chosen] if chosen else []), file]
        with (told / "log").open("w") as log:
            job = subprocess.Popen(
                command, env=environ, cwd=folder / package / "tests", stdout=log, stderr=log, start_new_session=True
            )
            hung = watched(job, told)
        found = ended(told, hung=hung)
        ends |= found
        if not found:  # nothing is left, or nothing begins at all
            return ends
    return ends


def launcher(way: str) -> list[str]:
    """What starts the workers."""
    bin_folder = Path(sys.executable).parent
    if way == "stock":
        return [str(bin_folder / "horovodrun"), "--gloo", "-np", str(WORKERS)]
    return [str(bin_folder / "edl"), "run", "-np", str(WORKERS), "--max-restarts", "0", "--ring", way]


def watched(job: subprocess.Popen[bytes], told: Path) -> bool:
    """Until the job has ended, or is ended; whether a test in it hung."""
    said, moved = 0, time.monotonic()
    while job.poll() is None:
        time.sleep(0.1)
        words, now = list(lines(told)), time.monotonic()
        if len(words) != said:
            said, moved = len(words), now
        over = sum(outcome == "over" for _, outcome, _ in words)
        if over == WORKERS or (over and now - moved > ALONE_S):
            stop(job)
            return False
        if now - moved > (TEST_S if said else JOB_S):
            stop(job)
            return True
    return False


def stop(job: subprocess.Popen[bytes]) -> None:
    """The job, with all that it has started."""
    for number, patience_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        try:
            os.killpg(job.pid, number)
            job.wait(patience_s)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
        return


def ended(told: Path, *, hung: bool) -> Ends:
    """What is known of each test that has begun in a job which is over."""
    outcomes: dict[str, list[tuple[str, str]]] = {}
    for test, outcome, why in lines(told):
        seen = outcomes.setdefault(test, [])
        if outcome not in {"begun", "over"}:
            seen.append((outcome, why))
    return {test: list(of_all(seen, hung=hung)) for test, seen in outcomes.items()}


def of_all(seen: list[tuple[str, str]], *, hung: bool) -> tuple[str, str]:
    """How a test ended, of how it did on each worker."""
    failed = [why for outcome, why in seen if outcome == "failed"]
    if failed:
        return "failed", failed[0]
    if len(seen) < WORKERS:
        return "failed", "it hung" if hung else "a worker ended in it"
    skipped = [why for outcome, why in seen if outcome == "skipped"]
    return ("skipped", skipped[0]) if skipped else ("passed", "")


def table(ends: dict[str, Ends]) -> str:
    """In Markdown: how many pass, and of those that pass with stock Horovod, by name why others do not with edl."""
    stock = ends["stock"]
    passing = [test for test, (outcome, _) in stock.items() if outcome == "passed"]
    found = ["| | pass | fail | skipped | of those that pass with stock Horovod |", "| --- | --- | --- | --- | --- |"]
    for way, its in ends.items():
        counts = [sum(outcome == one for outcome, _ in its.values()) for one in ("passed", "failed", "skipped")]
        also = sum(its.get(test, ["", ""])[0] == "passed" for test in passing)
        name = "stock Horovod" if way == "stock" else f"edl, `--ring {way}`"
        found.append(f"| {name} | {counts[0]} | {counts[1]} | {counts[2]} | {also} of {len(passing)} |")
    for way, its in ends.items():
        reasons: dict[str, list[str]] = {}
        for test in stock if way == "stock" else passing:
            outcome, why = its.get(test, ["lost", "it was not run"])
            if outcome != "passed":
                reasons.setdefault(f"{outcome}: {why}", []).append(test.rpartition("::")[2])
        found += ["", f"{'stock Horovod' if way == 'stock' else f'--ring {way}'}:", ""]
        for why, tests in sorted(reasons.items(), key=lambda one: -len(one[1])):
            found.append(f"- {len(tests)}: {why} ({', '.join(sorted(tests))})")
    return "\n".join(found)
