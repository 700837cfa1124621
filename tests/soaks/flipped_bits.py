"""Single flipped bits on one of three workers: how many `--verify-compute` notices, and whom it expels.

    python -m tests.soaks.flipped_bits [--flips 24] [--kinds weight gradient moment] [--steps 10000] [--share 1%]
        [--ring torch] [--within 100] [--seed 0] [--json]

One job of three workers trains with eight virtual ones. Again and again a random bit of a random element is flipped on
one of them: of a weight, of a moment of AdamW, of a gradient between the sum and the update, or (`part`) of a gradient
before the sum, which is noticed only where that part is computed again in that step. Noticed means that event
`corrupted` names a worker within so many steps; right, that it is the worker of the flip. A replacement joins before
the next flip. What was not noticed by then is told apart by the newest comparison of states.

After that `--steps` steps without any flip: none may be named. Goals: at least 99 % noticed, always the right one, 0
named without a flip. Exit code 1 unless so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edl import client
from edl.errors import EdlError

SCRIPT = Path(__file__).parents[1] / "integration" / "jobs" / "flipped_bits.py"
PATIENCE_S = 300.0
PROVEN = 65  # steps after which a newcomer counts as one of the others
T = TypeVar("T")


class FlippingJob:
    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        (folder / "home").mkdir(mode=0o700)
        os.environ.update({"EDL_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})
        flags = ["-np", "3", "--job", "flips", "--virtual-workers", "8", "--verify-compute", options.share]
        flags += ["--ring", options.ring, "--max-restarts", "100000"]
        line = [sys.executable, "-m", "edl", "run", *flags, sys.executable, str(SCRIPT), "--out", str(folder)]
        self.log = (folder / "output.log").open("ab")
        self.launcher = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.seen = 0  # events

    def status(self) -> dict[str, Any] | None:
        try:
            with client.Job("flips") as job:
                found: dict[str, Any] = msgspec.to_builtins(job.status())
        except EdlError:
            return None
        return found if found["state"] == "running" and found["size"] == len(found["workers"]) == 3 else None

    def corrupted(self) -> list[dict[str, Any]]:
        """Return events of that kind that came since the last call."""
        try:
            with client.Job("flips") as job:
                events = [one.flat() for one in job.events()]
        except EdlError:
            return []
        found = [one for one in events if one["kind"] == "corrupted"]
        new, self.seen = found[self.seen :], len(found)
        return new

    def wait(self, look: Callable[[], T | None], what: str) -> T:
        deadline = time.monotonic() + PATIENCE_S
        while (found := look()) is None:
            if self.launcher.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"no {what}:\n{(self.folder / 'output.log').read_text(errors='replace')[-6000:]}")
            time.sleep(0.02)
        return found

    def at_step(self, step: int) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            status = self.status()
            return status if status is not None and status["step"] >= step else None

        return self.wait(there, f"step {step}")

    def stable(self) -> dict[str, Any]:
        """Wait for three workers of which none is a newcomer any more."""
        return self.at_step(self.at_step(1)["step"] + PROVEN)


def flipped(job: FlippingJob, number: int, kind: str, source: random.Random, options: argparse.Namespace) -> Any:
    status = job.stable()
    victim = source.choice(status["workers"])
    job.corrupted()
    wish = {"number": number, "pid": victim["pid"], "kind": kind, "seed": options.seed}
    (job.folder / "flip.new").write_text(json.dumps(wish))
    (job.folder / "flip.new").rename(job.folder / "flip.json")
    path = job.folder / f"flipped{number}.json"
    told = job.wait(lambda: json.loads(path.read_text()) if path.exists() else None, f"flip {number}")

    def outcome() -> list[dict[str, Any]] | None:
        found = job.corrupted()
        if found:
            return found
        status = job.status()
        return [] if status is not None and status["step"] > told["step"] + options.within + 20 else None

    events = job.wait(outcome, "end of the wait")
    after = min((one["after_step"] for one in events), default=0) - told["step"] + 1
    named = [one["worker"] for one in events]
    return {
        "kind": kind, **told, "victim": victim["id"], "named": named, "steps": after if events else None,
        "noticed": bool(events) and after <= options.within, "right": not events or named == [victim["id"]],
        "by": ["state" if one["virtual_worker"] is None else "part" for one in events],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=24)
    parser.add_argument("--kinds", nargs="+", default=["weight", "gradient", "moment"])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--share", default="1%")
    parser.add_argument("--ring", default="torch")
    parser.add_argument("--within", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    source, found = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as name:
        job = FlippingJob(Path(name), options)
        try:
            for number in range(options.flips):
                found.append(flipped(job, number, options.kinds[number % len(options.kinds)], source, options))
                if options.json or not (found[-1]["noticed"] and found[-1]["right"]):
                    print(json.dumps(found[-1]), flush=True)
            begun = job.stable()["step"]
            job.corrupted()
            for steps in range(0, options.steps, 500):
                job.at_step(begun + min(steps + 500, options.steps))
            false = len(job.corrupted())
        finally:
            job.launcher.terminate()
            job.launcher.wait(PATIENCE_S)
    noticed = sum(one["noticed"] for one in found)
    right = sum(one["right"] for one in found if one["noticed"])
    for kind in options.kinds:
        of_kind = [one for one in found if one["kind"] == kind]
        print(f"{kind}: {sum(one['noticed'] for one in of_kind)} of {len(of_kind)} noticed")
    print(f"{noticed} of {len(found)} noticed, {right} with the right worker; {false} named in {options.steps} steps")
    return 0 if noticed >= 0.99 * len(found) and right == noticed and not false else 1


if __name__ == "__main__":
    sys.exit(main())
