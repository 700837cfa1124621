"""Three epochs while workers join, leave and are killed at random: is every sample trained exactly once?

    python -m tests.soaks.exactly_once [--sources index jsonl tfrecord parquet] [--frameworks torch tensorflow]
                                      [--samples 50000] [--changes 15] [--seed 0] [--json]

For each framework and source a job of 2 to 4 workers trains a small model, PyTorch through `edl.ElasticDataLoader` with
two worker processes, TensorFlow through a tf.data pipeline that reads three batches ahead. About once a second a worker
joins, leaves by SIGTERM, or is killed with -9, until there were so many changes; the last step of the last epoch is hit
by a kill, too. `edl data verify` then says what became of every sample. Exit code 1 unless all of it is clean.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from edl import client
from edl.errors import EdlError

EPOCHS, BATCH = 3, 16
FEWEST, MOST = 2, 4  # workers
PATIENCE_S = 600.0
SUFFIX = {"jsonl": ".jsonl", "tfrecord": ".tfrecord", "parquet": ".parquet"}


class Job:
    """One job, and what is done to it."""

    def __init__(self, framework: str, source: str, samples: int, changes: int, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            **os.environ,
            "EDL_HOME": str(folder / "home"),
            "EDL_AUDIT": str(folder / "audit"),
            "EDL_MAX_RESTARTS": "0",  # who comes is up to us
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "TF_NUM_INTRAOP_THREADS": "1",
        }
        self._edl = str(Path(sys.executable).with_name("edl"))
        pace_s = 5 * changes / (EPOCHS * samples / (BATCH * 3))  # so that there is time for all of it
        data = str(samples) if source == "index" else str(folder / f"samples{SUFFIX[source]}")
        died = str(folder / "died")
        self._worker = [sys.executable, "-m", "tests.soaks.exactly_once_worker", framework, data, died, str(pace_s)]
        self._log = (folder / "output.log").open("wb")
        self._launcher = self._start([self._edl, "run", "-np", "2", "--job", "once", *self._worker])
        self._joined: list[subprocess.Popen[bytes]] = []
        self._coming: subprocess.Popen[bytes] | None = None  # the last that joined
        self.done: Counter[str] = Counter()

    def _start(self, command: list[str], **environ: str) -> subprocess.Popen[bytes]:
        environ = {**self.environ, **environ}
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def status(self) -> dict[str, Any] | None:
        """None before the job has begun, and between two leaders."""
        try:
            with client.Job("once") as job:
                found: dict[str, Any] = msgspec.to_builtins(job.status())
        except EdlError:
            return None
        return found

    def change(self, source: random.Random) -> bool:
        """One change, if the job stands: False when it does not, or is over."""
        status = self.status()
        if status is None or status["state"] != "running" or len(status["workers"]) != status["size"]:
            return False
        here = {worker["pid"] for worker in status["workers"]}
        if self._coming is not None and self._coming.pid not in here and self._coming.poll() is None:
            return False  # it still imports
        few, many = status["size"] <= FEWEST, status["size"] >= MOST
        kind = "join" if few else source.choice(["leave", "kill"] if many else ["join", "leave", "kill"])
        if kind == "join":
            self._coming = self._start(self._worker, EDL_JOB="once")
            self._joined.append(self._coming)
        else:
            victim = source.choice(status["workers"])["pid"]
            os.kill(victim, signal.SIGTERM if kind == "leave" else signal.SIGKILL)
        self.done[kind] += 1
        return True

    @property
    def is_over(self) -> bool:
        return self._launcher.poll() is not None

    def end(self) -> int:
        """Its exit code. No process is left."""
        code = self._launcher.wait(PATIENCE_S)
        for process in self._joined:
            process.wait(60)
        self._log.close()
        return code

    def verify(self) -> dict[str, Any]:
        command = [self._edl, "data", "verify", str(self.folder / "audit"), "--json"]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)
        if done.returncode > 1:
            raise SystemExit(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def output(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-3000:]


def write(source: str, samples: int, path: Path) -> None:
    """Files whose records name the samples."""
    if source == "jsonl":
        path.write_text("".join(json.dumps({"sample": number}) + "\n" for number in range(samples)))
    elif source == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"sample": list(range(samples))}), path, row_group_size=max(1, samples // 20))
    elif source == "tfrecord":
        code = (
            "import sys, tensorflow as tf\n"
            "with tf.io.TFRecordWriter(sys.argv[1]) as file:\n"
            "    for number in range(int(sys.argv[2])): file.write(str(number).encode())"
        )
        subprocess.run([sys.executable, "-c", code, str(path), str(samples)], check=True, capture_output=True)


def measure(framework: str, source: str, samples: int, changes: int, seed: int) -> dict[str, Any]:
    """One job to its end."""
    chance = random.Random(f"{framework} {source} {seed}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["EDL_HOME"] = str(folder / "home")
        if source != "index":
            write(source, samples, folder / f"samples{SUFFIX[source]}")
        job = Job(framework, source, samples, changes, folder)
        began = time.monotonic()
        while not job.is_over and job.done.total() < changes and time.monotonic() - began < PATIENCE_S:
            job.change(chance)
            time.sleep(0.5 + chance.random())
        code = job.end()
        if code:
            print(job.output(), file=sys.stderr)
        found = job.verify()
        last = (folder / "died").exists()
    return {
        "framework": framework,
        "source": source,
        "exit": code,
        "changes": dict(job.done),
        "killed_in_the_last_step": last,
        "workers": found["workers"],
        "generations": found["generations"],
        "steps": found["steps"],
        "trained": [epoch["trained"] for epoch in found["epochs"]],
        "lost": sum(epoch["lost"] for epoch in found["epochs"]),
        "repeated": sum(epoch["repeated"] for epoch in found["epochs"]),
        "wrong": found["wrong"],
        "seconds": time.monotonic() - began,
    }


def is_clean(result: dict[str, Any], samples: int, changes: int) -> bool:
    enough = sum(result["changes"].values()) >= changes and result["killed_in_the_last_step"]
    exact = result["trained"] == [samples] * EPOCHS and not (result["lost"] or result["repeated"] or result["wrong"])
    return not result["exit"] and enough and exact


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="+", choices=["index", *SUFFIX], default=["index", *SUFFIX])
    parser.add_argument("--frameworks", nargs="+", choices=["torch", "tensorflow"], default=["torch", "tensorflow"])
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--changes", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    clean = True
    for framework in options.frameworks:
        for source in options.sources:
            result = measure(framework, source, options.samples, options.changes, options.seed)
            good = is_clean(result, options.samples, options.changes)
            clean = clean and good
            if options.json:
                print(json.dumps(result), flush=True)
                continue
            changes = ", ".join(f"{count} {kind}" for kind, count in sorted(result["changes"].items()))
            print(
                f"{framework:10} {source:8} {'clean' if good else 'NOT CLEAN':9} trained {result['trained']}, "
                f"{result['lost']} lost, {result['repeated']} repeated; {changes}, a kill in the last step: "
                f"{'yes' if result['killed_in_the_last_step'] else 'no'}; {result['generations']} generations, "
                f"{result['steps']} steps, {result['seconds']:.0f} s, exit {result['exit']}",
                flush=True,
            )
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
