"""One of three workers is killed: when do the others train on? edl beside Horovod elastic and torchrun, in one run.

    python -m benchmarks.recovery [--rounds 3] [--frameworks torch tensorflow] [--modes edl horovod torchrun stream]
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

With the mode `stream` edl's job trains on an `ElasticStream`, by the same script.

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

import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Job, NotComeTrue, edl_run, horovodrun, medians, program
from benchmarks.worker import APART, DEVICE
from edl.proof.step_figures import Figures as Found
from edl.proof.step_figures import NotedWorker as Worker
from edl.proof.step_figures import recovery_figures

WORKERS = 3
NAME = "recovery"
OURS = ("edl", "stream")
STEPS = 40  # that must be made at the end
STEPS_BEFORE = 400  # before the kill, and half as many as the peers commit after: newcomers are forked by then
BOOT_S, PATIENCE_S = 240.0, 90.0
HOSTS = ("localhost", "127.0.0.1", "127.1")  # the same machine, by names that Horovod takes for three
FIGURES = ("first", "new", "again", "void", "back", "joining", "step")
PARTS = ("noticed", "planned", "left", "ring", "state", "first step")


class Round:
    """One job of one kind, in a folder of its own."""

    def __init__(self, mode: str, framework: str, folder: Path, options: Any) -> None:
        self.mode = mode
        self._before = STEPS_BEFORE + options.commit_every // 2
        environ = {
            DEVICE: options.device,
            APART: "1" if options.apart else "",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else restarted workers find addresses of those before them
        }
        words = ["--stream"] if mode == "stream" else []
        words += [
            "--mode",
            "edl" if mode in OURS else mode,
            "--framework",
            framework,
            "--commit-every",
            options.commit_every,
        ]
        words += ["--eager"] if mode == "horovod" or options.eager else []
        python, *worker = harness.worker(folder, *words)
        match mode:
            case "edl" | "stream":
                ring = options.ring if framework == "torch" else "horovod"
                command = [*edl_run(WORKERS, NAME, "--ring", ring), python, *worker]
            case "horovod":
                hosts = "\n".join(f"{host}:1" for host in HOSTS)
                again = ("--blacklist-cooldown-range", "1", "2")
                command = [*horovodrun(folder, hosts, WORKERS, WORKERS, *again), python, *worker]
            case _:
                nodes = ["--standalone", "--nnodes", "1", "--nproc-per-node", str(WORKERS), "--max-restarts", "3"]
                command = [program("torchrun"), *nodes, *worker]
        self.job = Job(folder, command, name=NAME, **environ)

    def measure(self, rank: int, *, whole: bool = False) -> Found:
        """Kill the worker of that rank; `whole`: its daemon, too."""
        job = self.job
        try:
            job.wait(lambda: self._train(0.0, self._before), "three workers train", BOOT_S)
            victim = next(one for one in self._workers() if one.noted["step"][-1]["ring"][0] == rank)
            doomed = [victim.pid, *([harness.daemon_of(victim.pid)] if whole else ())]
            killed, wall = time.monotonic(), time.time()
            for pid in doomed:
                os.kill(pid, signal.SIGKILL)
            left = WORKERS if self.mode == "torchrun" else WORKERS - 1
            job.wait(
                lambda: sum(bool(one.since(killed)) for one in self._workers()) >= left, "the others go on", PATIENCE_S
            )
            joins = time.monotonic()
            job.wait(lambda: self._train(killed), "three workers train again", BOOT_S)
            found = recovery_figures(self._workers(), victim.pid, killed, joins, WORKERS)
            if self.mode in OURS:
                survivors = [one for one in self._workers() if one.before(killed) and one.pid != victim.pid]
                found |= parts(survivors, job.events(), killed, wall)
            return found
        finally:
            self._end()

    def _workers(self) -> list[Worker]:
        return [Worker(pid, noted) for pid, noted in self.job.notes.read().items()]

    def _train(self, since: float, steps: int = STEPS) -> bool:
        return sum(one.trains(WORKERS, since, steps) for one in self._workers()) == WORKERS

    def _end(self) -> None:
        """All that was started, whatever it does."""
        if self.mode in OURS:
            self.job.stop()
        else:
            self.job.launcher.terminate()
            self.job.end()
        for worker in self._workers():
            if str(self.job.folder).encode() in harness.command_line(worker.pid):
                os.kill(worker.pid, signal.SIGKILL)


def parts(survivors: list[Worker], events: list[dict[str, Any]], killed: float, wall: float) -> Found:
    """Where a recovery's milliseconds go; and how many rings were planned, and leaders elected, until one stood."""
    until = next(event["ts"] for event in events if event["kind"] == "scaled" and event["ts"] > wall)
    during = [event for event in events if wall < event["ts"] <= until]
    stamps = {event["kind"]: event["ts"] - wall + killed for event in during}
    ended = [one.since(killed)[0]["at"] for one in survivors]
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
    broken = [call["began"] for one in survivors for call in one.noted["broken"] if call["began"] > killed]
    found["broken"] = 1000 * (max(broken, default=killed) - killed)
    found["plans"] = sum(event["kind"] == "switch_scheduled" for event in during)
    found["leaders"] = sum(event["kind"] == "leader_elected" for event in during)
    found["led"] = any(event["kind"] == "leader_elected" and event["ts"] > wall for event in events)  # the victim
    return found


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
    if mode in OURS and rounds:
        middle = medians(rounds)
        line += "\n  " + ", ".join(f"{name} {middle[name]:.0f}" for name in PARTS)
        plans, leaders = (max(one[name] for one in rounds) for name in ("plans", "leaders"))
        line += f"; at most {plans:g} rings planned, {leaders:g} new leaders"
    return line


def row(framework: str, mode: str, results: list[Found]) -> dict[str, Any]:
    """As data/results has it."""
    trained = f"{sum(map(bool, results))} of {len(results)}"
    told: dict[str, Any] = {"": f"{framework}, {mode}", "jobs that trained on": trained}
    for name in FIGURES:
        if values := [one[name] for one in results if name in one]:
            told[name] = f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"
    return told


def main() -> int:
    parser = harness.arguments(__doc__)
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
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of the ends of all that was started
    results: dict[tuple[str, str], list[Found]] = {}
    pairs = [
        pair for pair in itertools.product(options.frameworks, options.modes) if pair != ("tensorflow", "torchrun")
    ]
    for number, (framework, mode) in itertools.product(range(options.rounds), pairs):
        rounds, rank = results.setdefault((framework, mode), []), options.ranks[number % len(options.ranks)]
        try:
            with tempfile.TemporaryDirectory() as folder:
                job = Round(mode, framework, Path(folder), options)
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
    harness.keep(options.keep, [row(*pair, rounds) for pair, rounds in results.items()])
    ours = itertools.chain.from_iterable(rounds for (_, mode), rounds in results.items() if mode in OURS)
    return int(any(one.get("again", 1) for one in ours))


if __name__ == "__main__":
    sys.exit(main())
