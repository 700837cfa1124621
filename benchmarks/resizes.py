"""Random changes of size, one after the other, while a job trains: nothing may hang, differ, get lost or be repeated.

    python -m benchmarks.resizes [--torch 50] [--tensorflow 20] [--most 5] [--seed 0] [--json]

So many times the job is asked for another size between 1 and `--most` (`edl scale --wait`), while its workers learn
the UCI digits. After each switch all workers must have the same weights and momentum, to the bit; at the end each
sample must have been trained once an epoch, and the loss must lie within what jobs of fixed size (1 and `--most`
workers, as many epochs) come to, and somewhat beyond. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from edl.core.audit import account
from edl.runtime.audit import read

SAMPLES = 1797
LEEWAY = 0.25  # of the losses of jobs of fixed size
PATIENCE_S = 120


class Job:
    """One job in a folder of its own."""

    def __init__(self, framework: str, folder: Path, workers: int, step_s: float) -> None:
        self.folder = folder
        self.environ = {
            **os.environ,
            "EDL_HOME": str(folder / "home"),
            "EDL_AUDIT": str(folder / "audit"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._edl = str(Path(sys.executable).with_name("edl"))
        worker = [sys.executable, "-m", "benchmarks.resizes_worker", framework, str(folder), "--step-time", str(step_s)]
        with (folder / "output.log").open("wb") as log:
            command = [self._edl, "run", "-np", str(workers), "--job", "resizes", *worker]
            self._launcher = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def edl(self, *arguments: str) -> str:
        command = [self._edl, *arguments]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}: {done.stderr}\n{self._log()}")
        return done.stdout

    def wait_training(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not any('"committed"' in path.read_text() for path in self.folder.glob("audit/*.jsonl")):
            if self._launcher.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the job does not train:\n{self._log()}")
            time.sleep(0.1)

    def end(self, epochs: int | None = None) -> int:
        """After so many epochs, or the next few; returns how many there were."""
        if epochs is None:
            epochs = int(json.loads(self.edl("status", "resizes", "--json"))["epoch"]) + 3
        draft = self.folder / "epochs.new"
        draft.write_text(str(epochs))
        draft.rename(self.folder / "epochs")
        if self._launcher.wait(PATIENCE_S * 5):
            raise SystemExit(f"the job failed:\n{self._log()}")
        return epochs

    def notes(self) -> list[dict[str, Any]]:
        lines = [line for path in self.folder.glob("*.jsonl") for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines]

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.edl("events", "resizes", "--json").splitlines()]

    def _log(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-3000:]


def resized(framework: str, times: int, most: int, seed: int) -> dict[str, Any]:
    source = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        job = Job(framework, Path(name), 2, 0.02)
        job.wait_training()
        size, sizes = 2, [2]
        for number in range(times):
            size = source.choice([other for other in range(1, most + 1) if other != size])
            job.edl("scale", "resizes", str(size), "--wait", "--timeout", str(PATIENCE_S))
            sizes.append(size)
            print(f"{framework}: {number + 1} of {times} changes, now {size} workers", file=sys.stderr, flush=True)
        epochs = job.end()
        notes, events, data = job.notes(), job.events(), account(read(job.folder / "audit"))
    scaled = [event for event in events if event["kind"] == "scaled"]
    pauses = [event["pause_ms"] for event in scaled if event["pause_ms"] is not None]
    return {
        "framework": framework,
        "sizes": sizes,
        "switches": len(scaled),
        "forced": sum(event["forced"] for event in scaled),
        "void": sum(event["kind"] == "batch_voided" for event in events),
        "pause_ms": statistics.median(pauses),
        "longest_pause_ms": max(pauses),
        "epochs": epochs,
        **compared(notes),
        "lost": epochs * SAMPLES - sum(epoch.trained for epoch in data.epochs),  # also of an epoch that never began
        "repeated": sum(epoch.repeated for epoch in data.epochs),
        "wrong": data.wrong,
        "loss": statistics.mean(note["loss"] for note in notes if note["kind"] == "end"),
    }


def compared(notes: list[dict[str, Any]]) -> dict[str, int]:
    """The weights after each switch."""
    digests = defaultdict(set)
    for note in notes:
        if note["kind"] in ("switch", "end"):
            digests[note["kind"], note["generation"]].add(note["digest"])
    return {"compared": len(digests), "different": sum(len(found) > 1 for found in digests.values())}


def fixed_loss(framework: str, workers: int, epochs: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        job = Job(framework, Path(name), workers, 0.0)
        job.end(epochs)
        return statistics.mean(note["loss"] for note in job.notes() if note["kind"] == "end")


def is_sound(result: dict[str, Any]) -> bool:
    low, high = sorted(result["fixed_losses"])
    near = low * (1 - LEEWAY) <= result["loss"] <= high * (1 + LEEWAY)
    return near and not (result["different"] or result["lost"] or result["repeated"] or result["wrong"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", type=int, default=50)
    parser.add_argument("--tensorflow", type=int, default=20)
    parser.add_argument("--most", type=int, default=5, help="workers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sound = True
    for framework, times in (("torch", options.torch), ("tensorflow", options.tensorflow)):
        if not times:
            continue
        result = resized(framework, times, options.most, options.seed)
        result["fixed_losses"] = [fixed_loss(framework, workers, result["epochs"]) for workers in (1, options.most)]
        sound = sound and is_sound(result)
        if options.json:
            print(json.dumps(result), flush=True)
            continue
        print(
            f"{framework}: {times} changes of size between 1 and {options.most}, {result['switches']} switches "
            f"({result['forced']} forced), {result['void']} void mini-batches; pause {result['pause_ms']:.0f} ms "
            f"(median), {result['longest_pause_ms']:.0f} ms (longest)\n"
            f"  weights compared {result['compared']} times, different {result['different']}; "
            f"{result['epochs']} epochs, {result['lost']} samples lost, {result['repeated']} repeated\n"
            f"  loss {result['loss']:.4f}; of fixed size: 1 worker {result['fixed_losses'][0]:.4f}, "
            f"{options.most} workers {result['fixed_losses'][1]:.4f}",
            flush=True,
        )
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
