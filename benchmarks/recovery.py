"""One of three workers is killed: when do the others train on? edl beside Horovod elastic and torchrun, in one run.

    python -m benchmarks.recovery [--rounds 3] [--frameworks torch tensorflow] [--modes edl horovod torchrun]
                                  [--ring horovod] [--eager] [--ranks 0 1 2] [--kill trainer] [--commit-every 10]
                                  [--json]

The same model and data, three workers on loopback, gloo. In each round the trainer of another of `--ranks` gets a
`kill -9`; with `--kill worker` edl's daemon beside it, too. Each worker notes when it has made which step. All figures
are of the slowest worker, from the kill on:

    first     until the first step in a ring without the victim, whichever step that is
    new       until the first step that no worker had made before the kill
    again     steps that were made before the kill, and are lost or trained again
    void      mini-batches that a survivor of edl had in flight, and had to do again
    back      until three workers train again
    joining   what a survivor lost when the third came: its longest time between two steps, less the median
    step      what a step took before the kill (median)

The peers keep their state every `--commit-every` steps, as their own examples do: `state.commit()`, and a checkpoint
file, which workers of torchrun read when they are all started again (`--standalone --nnodes 1 --nproc-per-node 3
--max-restarts 3`, with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: pytorch/pytorch#135712). Horovod counts a failing host out
and ends its other workers; so here its workers are three hosts of one slot each, which are all this machine, and a host
may come back after two seconds (`--blacklist-cooldown-range 1 2`). `edl run` and torchrun start another
worker by themselves.

A step of TensorFlow is a `tf.function` inside `edl.voidable()`, and eager under Horovod, whose elastic mode does not
know what a `tf.function` raises; `--eager`: under edl, too.

Where edl's milliseconds go:

    noticed     until the leader has it on record that the worker is lost
    planned     until the ring of the others is on record
    left        until the last of them has left the old ring, and comes to the new one
    ring        until that stands on all
    state       until all have agreed on the newest step, and have its state
    first step  until the last of them has made its first step

Exit code 1 if a round of edl lost a step, or never trained on; of a peer that is a figure.
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pause import program
from benchmarks.pause_worker import APART, DEVICE
from benchmarks.recovery_worker import EAGER

WORKERS = 3
STEPS = 40  # that must be made before the kill, and at the end; before it half as many more as the peers commit after
BOOT_S, PATIENCE_S, END_S = 240.0, 90.0, 30.0
HOSTS = ("localhost", "127.0.0.1", "127.1")  # the same machine, by names that Horovod takes for three
FIGURES = ("first", "new", "again", "void", "back", "joining", "step")
PARTS = ("noticed", "planned", "left", "ring", "state", "first step")
Found = dict[str, float]


class NotComeTrue(Exception):
    """What was waited for did not happen in time."""


class Step(NamedTuple):
    ended: float
    ring_began: float
    number: int
    rank: int
    size: int


@dataclass
class Worker:
    """What one worker has noted."""

    pid: int
    steps: list[Step] = field(default_factory=list)
    voids: list[float] = field(default_factory=list)
    calls: list[tuple[str, float, float]] = field(default_factory=list)  # what, began, ended

    @classmethod
    def read(cls, path: Path) -> Worker:
        worker = cls(int(path.stem))
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            match line.split():
                case ["step", ended, ring_began, number, rank, size]:
                    worker.steps.append(Step(float(ended), float(ring_began), int(number), int(rank), int(size)))
                case ["void", at]:
                    worker.voids.append(float(at))
                case [what, began, ended]:
                    worker.calls.append((what, float(began), float(ended)))
        return worker

    def since(self, moment: float) -> list[Step]:
        """Steps in rings that began later."""
        return [step for step in self.steps if step.ring_began > moment]

    def before(self, moment: float) -> list[Step]:
        return [step for step in self.steps if step.ring_began <= moment]

    def trains(self, size: int, since: float, steps: int) -> bool:
        last = self.since(since)[-steps:]
        return len(last) == steps and all(step.size == size for step in last)

    def ended(self, what: str, since: float, until: float) -> tuple[float, float]:
        """When the last such call began and ended."""
        return [(began, ended) for name, began, ended in self.calls if name == what and since < began < until][-1]


class Round:
    """One job of one kind, in a folder of its own."""

    def __init__(
        self,
        mode: str,
        framework: str,
        ring: str,
        commit_every: int,
        folder: Path,
        device: dict[str, str],
    ) -> None:
        self.mode, self.ring, self.folder = mode, ring, folder
        self._before = STEPS + commit_every // 2
        self.log = folder / "output.log"
        self.environ = {
            **os.environ,
            **device,
            "EDL_HOME": str(folder / "home"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else restarted workers find addresses of those before them
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self._worker = ["-m", "benchmarks.recovery_worker", mode, framework, str(folder)]
        self._worker += ["--commit-every", str(commit_every)]
        self._started: list[subprocess.Popen[bytes]] = []

    def measure(self, rank: int, *, whole: bool = False) -> Found:
        """Kill the worker of that rank; `whole`: its daemon, too."""
        self._start(self._command())
        try:
            self._wait(
                lambda: len(self._training(WORKERS, 0.0, self._before)) == WORKERS, "three workers train", BOOT_S
            )
            victim = next(worker for worker in self._workers() if worker.steps[-1].rank == rank)
            doomed = [victim.pid, *(daemons_of(victim.pid) if whole else ())]
            killed, wall = time.monotonic(), time.time()
            for pid in doomed:
                os.kill(pid, signal.SIGKILL)
            left = WORKERS if self.mode == "torchrun" else WORKERS - 1
            self._wait(
                lambda: sum(bool(one.since(killed)) for one in self._workers()) >= left,
                "the others train on",
                PATIENCE_S,
            )
            joins = time.monotonic()
            self._wait(lambda: len(self._training(WORKERS, killed)) == WORKERS, "three workers train again", BOOT_S)
            found = figures(self._workers(), victim.pid, killed, joins)
            if self.mode == "edl":
                survivors = [one for one in self._workers() if one.before(killed) and one.pid != victim.pid]
                found |= parts(survivors, self._events(), killed, wall)
            return found
        finally:
            self._end()

    def _command(self) -> list[str]:
        python = [sys.executable, *self._worker]
        match self.mode:
            case "edl":
                return [program("edl"), "run", "-np", str(WORKERS), "--ring", self.ring, "--job", "recovery", *python]
            case "horovod":
                script = self.folder / "hosts.sh"
                script.write_text("#!/bin/sh\n" + "".join(f"echo {host}:1\n" for host in HOSTS))
                script.chmod(0o755)
                limits = ["-np", str(WORKERS), "--min-np", "1", "--max-np", str(WORKERS)]
                limits += ["--network-interface", "lo", "--blacklist-cooldown-range", "1", "2"]
                return [program("horovodrun"), *limits, "--host-discovery-script", str(script), *python]
            case _:
                nodes = ["--standalone", "--nnodes", "1", "--nproc-per-node", str(WORKERS), "--max-restarts", "3"]
                return [program("torchrun"), *nodes, *self._worker]

    def _start(self, command: list[str], **environ: str) -> None:
        with self.log.open("ab") as log:
            environ = {**self.environ, **environ}
            started = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._started.append(started)

    def _workers(self) -> list[Worker]:
        return [Worker.read(path) for path in self.folder.glob("*.notes")]

    def _training(self, size: int, since: float, steps: int = STEPS) -> list[Worker]:
        return [worker for worker in self._workers() if worker.trains(size, since, steps)]

    def _wait(self, true: Callable[[], Any], what: str, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not true():
            job = self._started[0].poll()
            if job is not None or time.monotonic() > deadline:
                raise NotComeTrue(f"never: {what} (exit {job}); the last lines:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _events(self) -> list[dict[str, Any]]:
        command = [program("edl"), "events", "recovery", "--json"]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _end(self) -> None:
        """All that was started, whatever it does."""
        if self.mode == "edl":
            newest = max((step.number for one in self._workers() for step in one.steps), default=0)
            working = self.folder / "stop.new"
            working.write_text(str(newest + 50))  # the same step for all
            working.rename(self.folder / "stop")
        else:
            self._started[0].terminate()
        for process in self._started:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()  # horovodrun waits for ever for workers that all crashed
                process.wait()
        for worker in self._workers():
            if f"{self.folder}".encode() in command_line(worker.pid):
                os.kill(worker.pid, signal.SIGKILL)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def daemons_of(trainer: int) -> list[int]:
    found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline")]
    begun = b"edl.daemon.daemon\0", b"--trainer\0%d\0" % trainer
    return [pid for pid in found if all(part in command_line(pid) for part in begun)]


def figures(workers: list[Worker], victim: int, killed: float, joins: float) -> Found:
    """In milliseconds, but for numbers of steps."""
    old = [one for one in workers if one.pid != victim and one.before(killed)]
    survivors = [one for one in old if one.since(killed)] or [one for one in workers if one.since(killed)]
    newest = max(step.number for one in old for step in one.before(killed))
    after = [one.since(killed) for one in survivors]
    first = max(steps[0].ended for steps in after)
    new = max(next(step.ended for step in steps if step.number > newest) for steps in after)
    back = max(next(s.ended for s in one.since(killed) if s.size == WORKERS) for one in workers if one.since(killed))
    found = {
        "first": 1000 * (first - killed),
        "new": 1000 * (new - killed),
        "again": max(newest + 1 - steps[0].number for steps in after) + holes(survivors, newest),
        "void": max(sum(at > killed for at in one.voids) for one in survivors),
        "back": 1000 * (back - killed),
        "step": 1000 * max(step_s(one.before(killed)) for one in old),
    }
    if any(step.size == WORKERS - 1 for steps in after for step in steps):
        found["joining"] = 1000 * max(longest_gap(steps, joins) for steps in after)
    return found


def holes(survivors: list[Worker], newest: int) -> int:
    """Steps that a survivor should have made by the newest of before the kill, and has not."""
    return sum(
        len(set(range(1, newest + 1)) - {step.number for step in one.steps})
        for one in survivors
        if one.steps[0].number == 1
    )


def step_s(steps: Iterable[Step]) -> float:
    """What a step takes."""
    return statistics.median(later.ended - earlier.ended for earlier, later in itertools.pairwise(steps))


def longest_gap(steps: Iterable[Step], since: float) -> float:
    """Less what a step takes."""
    ends = [step.ended for step in steps]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends) if later > since]
    return max(gaps) - statistics.median(gaps)


def parts(survivors: list[Worker], events: list[dict[str, Any]], killed: float, wall: float) -> Found:
    """Where a recovery's milliseconds go; and how many rings were planned, and leaders elected, until one stood."""
    until = next(event["ts"] for event in events if event["kind"] == "scaled" and event["ts"] > wall)
    during = [event for event in events if wall < event["ts"] <= until]
    stamps = {event["kind"]: event["ts"] - wall + killed for event in during}
    ended = [one.since(killed)[0].ended for one in survivors]
    enters = [one.ended("enter", killed, end) for one, end in zip(survivors, ended, strict=True)]
    states = [one.ended("state", killed, end)[1] for one, end in zip(survivors, ended, strict=True)]
    moments = [
        killed,
        stamps["worker_lost"],
        stamps["switch_scheduled"],
        max(began for began, _ in enters),
        max(ended for _, ended in enters),
        max(states),
        max(ended),
    ]
    found = {name: 1000 * (end - begin) for name, (begin, end) in zip(PARTS, itertools.pairwise(moments), strict=True)}
    broken = [began for one in survivors for name, began, _ in one.calls if name == "broken" and began > killed]
    found["broken"] = 1000 * (max(broken, default=killed) - killed)
    found["plans"] = sum(event["kind"] == "switch_scheduled" for event in during)
    found["leaders"] = sum(event["kind"] == "leader_elected" for event in during)
    found["led"] = any(event["kind"] == "leader_elected" and event["ts"] > wall for event in events)  # the victim
    return found


def medians(rounds: list[Found]) -> Found:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def shown(framework: str, mode: str, results: list[Found]) -> str:
    rounds = [one for one in results if one]
    line = f"{framework:<10} {mode:<9}  {len(rounds)} of {len(results)} jobs trained on"
    for name in FIGURES:
        values = [one[name] for one in rounds if name in one]
        if not values:
            line += f"  {name} -"
        elif name in ("again", "void"):
            line += f"  {name} {statistics.median(values):g} (at most {max(values):g})"
        else:
            line += f"  {name} {statistics.median(values):.0f} ms ({min(values):.0f}-{max(values):.0f})"
    if mode == "edl" and rounds:
        middle = medians(rounds)
        line += "\n  " + ", ".join(f"{name} {middle[name]:.0f}" for name in PARTS)
        plans, leaders = (max(one[name] for one in rounds) for name in ("plans", "leaders"))
        line += f"; at most {plans:g} rings planned, {leaders:g} new leaders"
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--modes", nargs="+", default=["edl", "horovod", "torchrun"])
    parser.add_argument("--ring", choices=["horovod", "torch"], default="horovod", help="of edl's jobs in PyTorch")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of edl's jobs in PyTorch")
    parser.add_argument("--eager", action="store_true", help="steps of TensorFlow in edl's jobs, too")
    parser.add_argument("--apart", action="store_true", help="workers share a GPU as if each were of another host")
    parser.add_argument("--ranks", type=int, nargs="+", default=[0, 1, 2], help="who is killed, round by round")
    parser.add_argument("--kill", choices=["trainer", "worker"], default="trainer")
    parser.add_argument("--commit-every", type=int, default=10, help="steps, of the peers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of the ends of all that was started
    device = {DEVICE: options.device, APART: "1" if options.apart else "", EAGER: "1" if options.eager else ""}
    results: dict[tuple[str, str], list[Found]] = {}
    pairs = [
        pair for pair in itertools.product(options.frameworks, options.modes) if pair != ("tensorflow", "torchrun")
    ]
    for number, (framework, mode) in itertools.product(range(options.rounds), pairs):
        rounds, rank = results.setdefault((framework, mode), []), options.ranks[number % len(options.ranks)]
        ring = options.ring if framework == "torch" else "horovod"
        try:
            with tempfile.TemporaryDirectory() as folder:
                job = Round(mode, framework, ring, options.commit_every, Path(folder), device)
                rounds.append(job.measure(rank, whole=options.kill == "worker"))
            told = ", ".join(f"{name} {value:.0f}" for name, value in rounds[-1].items())
        except NotComeTrue as error:
            rounds.append({})
            told = str(error)
        print(f"round {number + 1}, rank {rank}: {framework} {mode}: {told}", file=sys.stderr, flush=True)
    for (framework, mode), rounds in results.items():
        if options.json:
            print(json.dumps({"framework": framework, "mode": mode, "rounds": rounds}))
        else:
            print(shown(framework, mode, rounds))
    if not options.json:
        print("load averages: " + " ".join(f"{load:.1f}" for load in os.getloadavg()))
    ours = itertools.chain.from_iterable(rounds for (_, mode), rounds in results.items() if mode == "edl")
    return int(any(one.get("again", 1) for one in ours))


if __name__ == "__main__":
    sys.exit(main())
