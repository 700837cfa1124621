"""What it costs a job to be looked at: the steps of one job while it is and while it is not, in turns.

    python -m benchmarks.seen_overhead [--turns 40] [--turn 3] [--workers 1] [--batch 64] [--pages 2] [--json]

A job of PyTorch serves its metrics, and `edl dashboard` its page. In each second turn a scraper reads all of its
daemons each second, and so many look at the page; in the others the dashboard's process is stopped (SIGSTOP) and
no daemon is scraped. Two turns next to each other are a pair, which of them comes first alternates: what the
machine does for longer than that falls on both. Printed: the ratio of the median times of a step, as the mean over all
pairs with its standard error; and the share of a core that the dashboard takes while it is looked at. A page may be
served on another machine than the job; where it is not, it needs a core that trainers leave free, so by default there
is one worker.

On a shared machine pairs of wall-clock times differ by far more than a thousandth. So there is a second ratio: the
processor time of trainers and daemons for a step, looked at, over that unseen. It bounds what a step can take longer
for it where no core is free, as what the daemons do is counted as if trainers waited for it; where a core is free, they
do it beside the steps. It does not see waiting, such as for memory.

Goal: 1.001. The verdict is *within* where one of the two ratios is so by two standard errors, *beyond* (exit code 1)
where that of the wall clock is beyond by two, and else *open*: nothing is shown, and more turns or a quiet machine are
needed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.overhead_worker import cpu_seconds, daemon_of
from benchmarks.page_listener import PageListener

GOAL: Final = 1.001
NAME: Final = "looked-at"
SETTLE_S: Final = 0.25  # of each turn, which does not count
PATIENCE_S: Final = 120.0
AHEAD: Final = 400  # steps from now to the end, for which all workers read of it


class Turn(msgspec.Struct, frozen=True):
    seen: bool
    began: float
    ended: float
    cpu_s: float  # of trainers and daemons


class Lookers:
    """A scraper of all daemons, and a dashboard with some pages."""

    def __init__(self, home: Path, environ: dict[str, str], pages: int, stack: contextlib.ExitStack) -> None:
        edl = str(Path(sys.executable).with_name("edl"))
        self._targets = home / "jobs" / NAME / "metrics"
        self._process = subprocess.Popen([edl, "dashboard", NAME], env=environ, stdout=subprocess.PIPE, text=True)
        stack.callback(self._end)
        assert self._process.stdout is not None
        link = self._process.stdout.readline().split(": ", 1)[1].strip()
        self.pages = [stack.enter_context(PageListener(link)) for _ in range(pages)]
        self._looking = threading.Event()
        self._left = threading.Event()
        self.scrapes = 0
        thread = threading.Thread(target=self._scrape, daemon=True)
        thread.start()

    def _scrape(self) -> None:
        while not self._left.wait(1.0):
            if self._looking.is_set():
                for file in self._targets.glob("*.json"):
                    target = json.loads(file.read_text())[0]["targets"][0]
                    with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
                        self.scrapes += bool(answer.read())

    def look(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._looking.set()

    def look_away(self) -> None:
        self._looking.clear()
        self._process.send_signal(signal.SIGSTOP)

    def cpu_s(self) -> float:
        return cpu_seconds(self._process.pid)

    def _end(self) -> None:
        self._left.set()
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        environ = {**os.environ, "EDL_HOME": str(folder / "home"), "TF_CPP_MIN_LOG_LEVEL": "3"}
        worker = [sys.executable, "-m", "benchmarks.seen_overhead_worker", str(folder), "--batch", str(options.batch)]
        flags = ["-np", str(options.workers), "--job", NAME, "--metrics-port", "0"]
        with (folder / "log").open("wb") as log:
            job = subprocess.Popen(
                [str(Path(sys.executable).with_name("edl")), "run", *flags, *worker],
                env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        stack.callback(job.send_signal, signal.SIGINT)
        wait_step(environ, 100, job, folder)
        pids = those_of_the_job(environ)
        lookers = Lookers(folder / "home", environ, options.pages, stack)
        turns, cpu_s = take_turns(lookers, pids, options.turns, options.turn)
        lookers.look()
        (folder / "end.new").write_text(str(status(environ)["step"] + AHEAD))
        (folder / "end.new").rename(folder / "end")
        if job.wait(PATIENCE_S):
            raise SystemExit(f"the job failed:\n{(folder / 'log').read_text()[-3000:]}")
        steps = [np.load(file) for file in sorted(folder.glob("steps-*.npy"))]
        looks = [page.looks for page in lookers.pages]
    return {**summary(turns, steps), "cpu": cpu_s / (options.turns * options.turn), "looks": looks,
            "scrapes": lookers.scrapes}  # fmt: skip


def those_of_the_job(environ: dict[str, str]) -> list[int]:
    """Trainers, and the daemon of each."""
    trainers = [worker["pid"] for worker in status(environ)["workers"]]
    return [*trainers, *map(daemon_of, trainers)]


def take_turns(lookers: Lookers, pids: list[int], pairs: int, turn_s: float) -> tuple[list[Turn], float]:
    """And the processor time of the dashboard in those in which the job was looked at."""
    turns, dashboard_s = [], 0.0
    for pair in range(pairs):
        for seen in (True, False) if pair % 2 else (False, True):
            (lookers.look if seen else lookers.look_away)()
            before = lookers.cpu_s()
            time.sleep(SETTLE_S)
            spent, began = sum(map(cpu_seconds, pids)), time.time()
            time.sleep(turn_s - SETTLE_S)
            turns.append(Turn(seen, began, time.time(), sum(map(cpu_seconds, pids)) - spent))
            dashboard_s += lookers.cpu_s() - before if seen else 0.0
        print(f"pair {pair + 1}", file=sys.stderr, flush=True)
    return turns, dashboard_s


def summary(turns: list[Turn], steps: list[np.ndarray]) -> dict[str, Any]:
    """`steps`: of each worker, when each ended and what it took."""

    def wall_s(turn: Turn) -> float:
        return float(np.median(np.concatenate([took[(at > turn.began) & (at < turn.ended)] for at, took in steps])))

    def cpu_s(turn: Turn) -> float:
        """For a step of the job, and parts of the first and the last one."""
        ended = steps[0][0]
        first, last = np.interp([turn.began, turn.ended], ended, np.arange(len(ended)))
        return turn.cpu_s / float(last - first)

    pairs = [(one, other) if one.seen else (other, one) for one, other in zip(turns[::2], turns[1::2], strict=True)]
    walls = np.array([[wall_s(turn) for turn in pair] for pair in pairs])
    cpus = np.array([[cpu_s(turn) for turn in pair] for pair in pairs])
    wall, wall_error = mean_ratio(walls)
    cpu, cpu_error = mean_ratio(cpus)
    return {
        "pairs": len(pairs),
        "seen_ms": 1000 * float(np.median(walls[:, 0])),
        "unseen_ms": 1000 * float(np.median(walls[:, 1])),
        "ratio": wall,
        "standard_error": wall_error,
        "median_ratio": float(np.median(walls[:, 0] / walls[:, 1])),
        "seen_cpu_ms": 1000 * float(np.mean(cpus[:, 0])),
        "unseen_cpu_ms": 1000 * float(np.mean(cpus[:, 1])),
        "cpu_ratio": cpu,
        "cpu_standard_error": cpu_error,
        "verdict": verdict((wall, wall_error), (cpu, cpu_error)),
    }


def mean_ratio(pairs: np.ndarray) -> tuple[float, float]:
    """And its standard error."""
    ratios = pairs[:, 0] / pairs[:, 1]
    return float(np.mean(ratios)), float(np.std(ratios, ddof=1) / len(ratios) ** 0.5)


def verdict(wall: tuple[float, float], cpu: tuple[float, float]) -> str:
    if wall[0] - 2 * wall[1] > GOAL:
        return "beyond"
    return "within" if any(ratio + 2 * error <= GOAL for ratio, error in (wall, cpu)) else "open"


def status(environ: dict[str, str]) -> dict[str, Any]:
    edl = str(Path(sys.executable).with_name("edl"))
    done = subprocess.run([edl, "status", NAME, "--json"], env=environ, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"step": 0}
    return found


def wait_step(environ: dict[str, str], step: int, job: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while status(environ)["step"] < step:
        if job.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the job does not train:\n{(folder / 'log').read_text()[-3000:]}")
        time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40, help="of each kind")
    parser.add_argument("--turn", type=float, default=3.0, help="seconds")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pages", type=int, default=2, help="that are looked at, at once")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.turns < 2 or options.turn <= 2 * SETTLE_S:
        parser.error("at least two turns of each kind, of more than half a second")
    result = measure(options)
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"a step takes {result['unseen_ms']:.3f} ms unseen, {result['seen_ms']:.3f} ms looked at; ratio "
            f"{result['ratio']:.4f} +- {result['standard_error']:.4f} of {result['pairs']} pairs "
            f"(median {result['median_ratio']:.4f}); its processor time {result['unseen_cpu_ms']:.3f} and "
            f"{result['seen_cpu_ms']:.3f} ms, ratio {result['cpu_ratio']:.4f} +- {result['cpu_standard_error']:.4f}; "
            f"the goal of {GOAL}: {result['verdict']}; the dashboard takes {100 * result['cpu']:.1f} % of a core; "
            f"{result['scrapes']} scrapes, looks of the pages: {', '.join(map(str, result['looks']))}"
        )
    return 1 if result["verdict"] == "beyond" else 0


if __name__ == "__main__":
    sys.exit(main())
