"""Workers of two processes, over which FSDP2 shards a model, beside FSDP2's own mesh and torchft's replica groups.

    python -m benchmarks.sharded step [--turns 20] [--model mlp|large|both] [--torchft FOLDER]
    python -m benchmarks.sharded kill [--rounds 4] [--step-ms 50] [--torchft FOLDER]

`step`: two replicas of two processes train one model, joined by FSDP2's mesh of two dimensions under torchrun, by edl,
and by torchft, where `--torchft` names a folder with its wheel. All jobs live at a time and take turns of some steps.
Printed: the median step of each, and the ratio to FSDP2's own of each turn, as mean with its standard error. Exit code
1 where edl's ratio is more than two standard errors above 1.05.

`kill`: one process of one of two replicas gets a `kill -9`; its replica is started anew, by edl, or for torchft by this
benchmark at once. Printed, of the slowest survivor: *first*, seconds from the kill until its first step that counts;
*void mini-batches*, which edl makes again, and whose samples torchft passes over; *joining*, the longest time between
two steps from then on until both replicas train again, less a median step; *back*, seconds until they do. torchft's
lighthouse is given a second to join and for heartbeats, where its own defaults are 60 s and 5 s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Job, edl_run, mean_ratio, wait_true
from benchmarks.sharded_script import PACE, PROCESSES
from edl.launch.function_run import INTERRUPTED_WITH_PARENT
from edl.proof.paired_turns import TORCHRUN, PairedModel, paired_turns

SCRIPT = Path(__file__).with_name("sharded_script.py")
MODELS = {
    "mlp": PairedModel(256, 6, 32, 60, SCRIPT),
    "large": PairedModel(2048, 6, 8, 8, SCRIPT),
}
REPLICAS = 2
NOT_DONE = 1.05
STEPS = 40  # before a kill, and after it
PATIENCE_S = 240.0
JOIN_MS, HEARTBEAT_MS, TICK_MS = 1000, 1000, 50  # of torchft's lighthouse: quicker than its own 60 s, 5 s, 100 ms


def ways(torchft: Path | None, least: int) -> dict[str, Sequence[str]]:
    count = str(REPLICAS * PROCESSES)
    found: dict[str, Sequence[str]] = {
        "hsdp": [*TORCHRUN, "--standalone", "--nproc-per-node", count],
        "edl": [*edl_run(REPLICAS, "sharded", "--processes", str(PROCESSES)), sys.executable],
    }
    if torchft is not None:
        found["torchft"] = [sys.executable, "-m", "benchmarks.sharded", "replicas", str(torchft), str(least)]
    return found


def step(options: argparse.Namespace) -> tuple[bool, list[dict[str, Any]]]:
    done, rows = True, []
    for name in (name for name in MODELS if options.model in {name, "both"}):
        found = paired_turns(ways(options.torchft, REPLICAS), MODELS[name], options.turns + 1, REPLICAS * PROCESSES)
        row: dict[str, Any] = {"model": name, "turns": len(found["hsdp"]) - 1}
        row |= {f"{kind}, ms a step": round(statistics.median(times[1:]), 2) for kind, times in found.items()}
        for kind in (kind for kind in found if kind != "hsdp"):
            ratio, error = mean_ratio(np.array(found[kind][1:]) / np.array(found["hsdp"][1:]))
            row |= {f"{kind} over FSDP2's own": round(ratio, 3), f"its error ({kind})": round(error, 3)}
            done = done and (kind != "edl" or ratio - 2 * error <= NOT_DONE)
        show(row, options)
        rows.append(row)
    return done, rows


# ----------------------------------------------------------------------------------------------------------- a death


@dataclass(frozen=True)
class Noted:
    """The steps of one process."""

    pid: int
    replica: int
    at: list[float]
    number: list[int]
    counts: list[bool]

    def first_after(self, moment: float) -> float:
        return next(at for at, counts in zip(self.at, self.counts, strict=True) if counts and at > moment)

    def since(self, moment: float) -> int:
        return sum(counts and at > moment for at, counts in zip(self.at, self.counts, strict=True))


def noted(folder: Path, kind: str) -> list[Noted]:
    found = []
    for path in folder.glob(f"steps {kind} *"):
        *_, place, pid = path.name.split()
        lines = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        at, number, counts = ([float(line[column]) for line in lines] for column in range(3))
        found.append(Noted(int(pid), int(place) // PROCESSES, at, list(map(int, number)), list(map(bool, counts))))
    return found


def of_death(kind: str, way: Sequence[str], number: int, step_ms: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / PACE).write_text(str(step_ms / 1000))
        model = MODELS["mlp"]
        words = model.words(0, name, kind, "cpu")
        command = [*INTERRUPTED_WITH_PARENT, *way, str(SCRIPT), *words]
        job = Job(folder, command, name="sharded", OMP_NUM_THREADS="1")
        try:
            everyone = REPLICAS * PROCESSES
            wait(job, lambda: sum(len(one.at) >= STEPS for one in noted(folder, kind)) == everyone, "all train")
            replica, process = divmod(number % everyone, PROCESSES)
            before = sorted((one for one in noted(folder, kind) if one.replica == replica), key=lambda one: one.pid)
            victims = {one.pid for one in before}
            killed = time.monotonic()
            os.kill(before[process].pid, signal.SIGKILL)

            def back() -> bool:
                new = [one for one in noted(folder, kind) if one.since(killed) >= STEPS]
                return len([one for one in new if one.pid not in victims]) == everyone

            wait(job, back, "both replicas train again")
            return figures([one for one in noted(folder, kind) if one.pid not in victims], killed)
        finally:
            job.launcher.terminate()
            job.launcher.wait()


def figures(after: list[Noted], killed: float) -> dict[str, float]:
    survivors = [one for one in after if one.at[0] < killed]
    newcomers = [one for one in after if one.at[0] >= killed]
    firsts = [one.first_after(killed) for one in survivors]
    joined = max(one.at[0] for one in newcomers)
    gaps = [
        max(later - earlier for earlier, later in itertools.pairwise(one.at) if first <= earlier <= joined)
        - statistics.median(later - earlier for earlier, later in itertools.pairwise(one.at))
        for one, first in zip(survivors, firsts, strict=True)
    ]
    void = [sum(not counts for at, counts in zip(one.at, one.counts, strict=True) if at > killed) for one in survivors]
    return {
        "first, s": max(firsts) - killed,
        "void mini-batches": max(void),
        "joining, s": max(gaps),
        "back, s": joined - killed,
    }


def wait(job: Job, condition: Any, what: str) -> None:
    if not wait_true(lambda: condition() or job.launcher.poll() is not None, PATIENCE_S) or not condition():
        raise SystemExit(f"{what}: not within {PATIENCE_S:g} s, or the job has ended:\n{job.log()[-3000:]}")


def kill(options: argparse.Namespace) -> tuple[bool, list[dict[str, Any]]]:
    kinds = {kind: way for kind, way in ways(options.torchft, 1).items() if kind != "hsdp"}
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    failed: dict[str, int] = dict.fromkeys(kinds, 0)
    for number in range(options.rounds):
        for kind in list(kinds)[:: -1 if number % 2 else 1]:
            try:
                found[kind].append(of_death(kind, kinds[kind], number, options.step_ms))
            except SystemExit as error:
                failed[kind] += 1
                print(f"{kind}, round {number}: {error}", file=sys.stderr, flush=True)
    rows = []
    for kind, rounds in found.items():
        row: dict[str, Any] = {"kind": kind, "kills": options.rounds, "jobs that did not go on": failed[kind]}
        for name in rounds[0] if rounds else ():
            values = [one[name] for one in rounds]
            row[name] = f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        show(row, options)
        rows.append(row)
    return not failed["edl"], rows


# ------------------------------------------------------------------------------------------------------- torchft's job


def replicas(torchft: str, least: int, command: Sequence[str]) -> int:
    """Run replica groups of torchft's as its users do: each under a torchrun of its own, started anew when it ends.

    They train once there are `least`.
    """
    sys.path.insert(0, torchft)
    from torchft.coordination import LighthouseServer  # type: ignore[import-not-found] # an optional peer

    lighthouse = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=least,
        join_timeout_ms=JOIN_MS,
        quorum_tick_ms=TICK_MS,
        heartbeat_timeout_ms=HEARTBEAT_MS,
    )
    path = os.pathsep.join(filter(None, [str(Path.cwd()), torchft, os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path, "TORCHFT_LIGHTHOUSE": lighthouse.address()}
    torchrun = [*INTERRUPTED_WITH_PARENT, *TORCHRUN, "--standalone", "--nproc-per-node", str(PROCESSES)]

    def start(number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*torchrun, *command], env={**environ, "REPLICA_GROUP_ID": str(number)})

    running = {number: start(number) for number in range(REPLICAS)}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        while running:
            for number, replica in list(running.items()):
                if replica.poll() is None:
                    continue
                if replica.returncode:
                    running[number] = start(number)
                else:
                    del running[number]
            time.sleep(0.05)
        return 0
    finally:
        for replica in running.values():
            replica.terminate()
        for replica in running.values():
            replica.wait()
        lighthouse.shutdown()


def show(row: dict[str, Any], options: argparse.Namespace) -> None:
    told = json.dumps(row) if options.json else "  ".join(f"{name} {value}" for name, value in row.items())
    print(told, flush=True)


def main() -> int:
    if sys.argv[1:2] == ["replicas"]:
        return replicas(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    steps = harness.add_common(parts.add_parser("step"))
    steps.add_argument("--turns", type=int, default=20)
    steps.add_argument("--model", choices=[*MODELS, "both"], default="both")
    deaths = harness.add_common(parts.add_parser("kill"))
    deaths.add_argument("--rounds", type=int, default=4)
    deaths.add_argument("--step-ms", type=float, default=50.0)
    for part in (steps, deaths):
        part.add_argument("--torchft", type=Path, help="a folder that torchft's wheel was installed to")
    options = parser.parse_args()
    done, rows = (step if options.part == "step" else kill)(options)
    harness.keep(options.keep, rows)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
