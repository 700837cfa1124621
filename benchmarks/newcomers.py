"""What a newcomer takes from the request to its first step, and what the others pay meanwhile: forked and started anew.

    python -m benchmarks.newcomers [--frameworks torch tensorflow] [--rings torch horovod] [--starts warm cold]
                                   [--rounds 1] [--step-ms 30] [--json]

Two workers train; `edl scale` asks for three, and then one of the three gets a `kill -9` and is replaced. Of each:

    start    from the moment at which `edl scale` is typed, or from the kill, until the last of three workers has made
             its first step in the new ring
    longest  the longest step of the two others until then, as a ratio to their median step before; after a kill from
             the first step of their own ring on
    warm     how long the process that newcomers are forked from took to import, and the others' longest step meanwhile

Exit code 1 if the job fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pause
from benchmarks.pause import Run, Worker, wait

STEPS = 40


class Options(pause.Options):
    rings: list[str]
    starts: list[str]
    state_mb = 0
    device = "cpu"
    apart = False


def longest(workers: list[Worker], median: float, since: float, until: float) -> float:
    return max(gap for worker in workers for end, gap in worker.gaps if since < end <= until + 0.001) / median


class Newcomers(Run):
    """One job."""

    def measure_all(self, start: str) -> dict[str, float]:
        os.environ["EDL_WARM_STARTS"] = "on" if start == "warm" else "off"
        with self.log.open("wb") as log:
            job = self._start(log)
            try:
                wait(lambda: self._training(2, STEPS), "two workers", job, self.log)
                began = time.time()
                if start == "warm":
                    wait(lambda: self._warm_words()[:2] not in {"", "no"}, "a process to fork from", job, self.log)
                time.sleep(1.5)
                found = {"median ms": 1000 * self._median(), "warm longest": self._longest_since(began)}
                time.sleep(1.5)
                asked = time.time()
                self._ask(3)
                found |= self._until_three("scale", job, asked, asked)
                victim = max(self.folder.glob("*.steps"), key=lambda path: path.stat().st_mtime_ns)
                time.sleep(2)
                killed = time.time()
                os.kill(int(victim.stem), signal.SIGKILL)
                wait(lambda: self._training(2, 2, killed), "the others", job, self.log)
                since = max(self._first(path, 2, killed) for path in self._others(victim))
                found |= self._until_three("kill", job, killed, since)
                return found
            finally:
                self._stop(job)
                print(f"  {self._warm_words()}", flush=True)

    def _others(self, victim: Path) -> list[Path]:
        return [path for path in self.folder.glob("*.steps") if path != victim]

    def _warm_words(self) -> str:
        record = json.loads((self.folder / "home" / "jobs" / "pause" / "record.json").read_text())
        return str(record["warm_starts"])

    def _median(self) -> float:
        gaps = [gap for path in self.folder.glob("*.steps") for _, gap in Worker.read(path).gaps[-STEPS:]]
        return statistics.median(gaps)

    def _longest_since(self, since: float) -> float:
        workers = [Worker.read(path) for path in self.folder.glob("*.steps")]
        return longest(workers, self._median(), since, time.time())

    def _first(self, path: Path, size: int, since: float) -> float:
        return next((end for end, at in Worker.read(path).steps if end > since and at == size), 0.0)

    def _until_three(self, name: str, job: Any, asked: float, since: float) -> dict[str, float]:
        newest = {path: max(Worker.read(path).steps, default=(0.0, 0)) for path in self.folder.glob("*.steps")}
        survivors = [path for path, (end, _) in newest.items() if end > asked - 1]
        before = statistics.median(gap for path in survivors for end, gap in Worker.read(path).gaps if end < asked)
        wait(lambda: self._training(3, 3, asked), "three workers", job, self.log)
        firsts = {path: self._first(path, 3, since) for path in self.folder.glob("*.steps")}
        done = max(firsts.values())
        stayed = [Worker.read(path) for path in survivors if firsts[path]]
        pause = longest(stayed, before, since, min(firsts[path] for path in survivors if firsts[path]))
        boot = longest(stayed, before, since, min(firsts[path] for path in survivors if firsts[path]) - 0.002)
        return {f"{name} start s": done - asked, f"{name} longest": boot, f"{name} with switch": pause}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--rings", nargs="+", default=["torch", "horovod"], help="of PyTorch's jobs")
    parser.add_argument("--starts", nargs="+", default=["warm", "cold"], choices=["warm", "cold"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(namespace=Options())
    for framework, start in itertools.product(options.frameworks, options.starts):
        for ring in options.rings if framework == "torch" else ["horovod"]:
            options.ring = ring
            rounds = []
            for _ in range(options.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    rounds.append(Newcomers("edl", framework, Path(folder), (2, 3), options).measure_all(start))
            found = {name: round(statistics.median(one[name] for one in rounds), 2) for name in rounds[0]}
            told = {"framework": framework, "ring": options.ring, "start": start, **found}
            print(json.dumps(told) if options.json else " ".join(f"{k}={v}" for k, v in told.items()), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
