"""What saving a job costs its training: edl's checkpoints beside `torch.save` and PyTorch's `async_save`, in one run.

    python -m benchmarks.checkpoint [--mb 10 100 500] [--rounds 6] [--every 5] [--ways save async]
        [--device-ms MS] [--folder DIR] [--json]

A job of two torch workers for each size of state (parameters and their momentum). In it windows of --every seconds
follow each other, in the same processes: edl's checkpoint is begun with one; a window without any; rank 0 saves all by
`torch.save` in its loop, with fsync; one without; both call `torch.distributed.checkpoint.async_save` (a gloo group of
its own, fsync of its files); one without, and so on. Such a row is a round. A window is as long as it takes until all
is durable, if that is longer. The round in which edl's first checkpoint falls is not counted. Then the job is started
again, and each way's newest checkpoint is read, from the page cache.

    slow-down   by how much longer the steps of a window took than those of the windows without, of the same round; the
                median of the rounds, with the least and the greatest. `none` is the windows without against each other:
                what this way of measuring makes of nothing
    processor   what trainers and daemons took of it in a window beyond what as many steps without took (median), which
                other work on the machine blurs less
    stall       the longest step of a window, less the median step without; median and longest of the rounds
    durable     until it was durable, from the step after which it was begun
    written     megabytes by each worker
    restore     from when the reader begins until the state is in the model, of the slower worker. edl compares the
                checksums of all files once more, in `edl run`, before any worker starts: not in it

Goal: edl slows down training by 1 % at most, at 100 MB, every 5 s; exit code 1 beyond. On a machine whose cores are
all busy with training, what daemons do (to read the copy, its checksum, to write it) takes its time from the trainers.
With --device-ms a step is a wait of so many milliseconds, as where a device computes it and cores are free: then what
is seen is what edl takes from training itself. The state is a frozen base and a small head that is trained.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

JOB = "saved"
NONE = "none"
OTHERS = ("save", "async")
WINDOWS = {"save": "torch.save", "async": "async_save"}
RESTORED = "restored.json"
GOAL, GOAL_MB = 0.01, 100
PATIENCE_S = 1800.0


def measure(mb: int, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        run("train", folder, mb, options)
        run("restore", folder, mb, options)
        found = json.loads((folder / "trained.json").read_text())
        restored = [json.loads((folder / f"{RESTORED}.{rank}").read_text()) for rank in (0, 1)]
    return summary(mb, found, restored)


def run(part: str, folder: Path, mb: int, options: argparse.Namespace) -> None:
    worker = [sys.executable, "-m", "benchmarks.checkpoint_worker", part, str(folder), "--mb", str(mb)]
    worker += ["--every", str(options.every), "--rounds", str(options.rounds), "--ways", *options.ways]
    worker += [] if options.device_ms is None else ["--device-ms", str(options.device_ms)]
    # From one checkpoint of edl's to the next all other windows fit in, with half of one to spare for each.
    round_s = options.every * (2 + 2 * len(options.ways)) * 1.25 if part == "train" else 3600
    command = [
        *(str(Path(sys.executable).with_name("edl")), "run", "-np", "2", "--job", JOB),
        *("--checkpoint", str(folder / "edl"), "--checkpoint-every", f"{round_s:.1f}s", "--keep", "2"),
        *("--resume", "auto" if part == "train" else "must", *worker),
    ]
    environ = {**os.environ, "EDL_HOME": str(folder / f"home-{part}"), "CUDA_VISIBLE_DEVICES": ""}
    job = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if job.returncode:
        raise SystemExit(f"the job failed:\n{job.stdout[-3000:]}{job.stderr[-3000:]}")


def summary(mb: int, found: dict[str, Any], restored: list[dict[str, float]]) -> dict[str, Any]:
    """Windows that edl's next checkpoint has cut off are not counted."""
    rounds: list[list[dict[str, Any]]] = []
    for window in found["windows"]:
        if window["kind"] == "edl":
            rounds.append([])
        if rounds and not window["cut"]:
            rounds[-1].append(window)
    ways: dict[str, dict[str, Any]] = {}
    for kind in (NONE, "edl", *WINDOWS.values()):
        looked = [looked_at(kind, windows) for windows in rounds]
        seen = [one for one in looked if one is not None]
        if seen:
            ways[kind] = {
                "slow_down": [one["slow_down"] for one in seen],
                "cpu_s": [one["cpu_s"] for one in seen],
                "stall_ms": [one["stall_ms"] for one in seen],
                "durable_s": statistics.median(one["durable_s"] for one in seen),
                "bytes": found["bytes"].get(kind, []),
                "restore_s": max((rank[kind] for rank in restored if kind in rank), default=None),
            }
    plain = [step for windows in rounds for one in windows if one["kind"] == NONE for step in one["steps_s"]]
    return {"mb": mb, "step_ms": 1000 * statistics.median(plain), "rounds": len(rounds), "ways": ways}


def looked_at(kind: str, windows: list[dict[str, Any]]) -> dict[str, float] | None:
    """One window of a round, against the ones without; of those the first against the others."""
    without = [one["steps_s"] for one in windows if one["kind"] == NONE]
    mine = without[:1] if kind == NONE else [one["steps_s"] for one in windows if one["kind"] == kind]
    others = without[1:] if kind == NONE else without
    if not mine or not others:
        return None
    steps = [step for window in others for step in window]
    durable = [one["durable_s"] for one in windows if one["kind"] == kind]
    cpu = sum(one["cpu_s"] for one in windows if one["kind"] == NONE) / sum(map(len, without))
    of_mine = next(one["cpu_s"] for one in windows if one["kind"] == kind)
    return {
        "slow_down": statistics.fmean(mine[0]) / statistics.fmean(steps) - 1,
        "cpu_s": of_mine - cpu * len(mine[0]),
        "stall_ms": 1000 * (max(mine[0]) - statistics.median(steps)),
        "durable_s": durable[0],
    }


def shown(result: dict[str, Any]) -> str:
    lines = [f"{result['mb']} MB, {result['rounds']} rounds, steps of {result['step_ms']:.0f} ms"]
    for kind, way in result["ways"].items():
        slow, stalls = way["slow_down"], way["stall_ms"]
        line = f"  {kind:<10}  slow-down {statistics.median(slow):+.2%} ({min(slow):+.2%} to {max(slow):+.2%})"
        line += f"  processor time {statistics.median(way['cpu_s']):+.2f} s"
        line += f"  stall {statistics.median(stalls):.0f} ms, longest {max(stalls):.0f}"
        if kind != NONE:
            line += f"  durable {way['durable_s']:.2f} s"
            line += f"  written {' and '.join(f'{size / 1e6:.1f}' for size in way['bytes'])} MB"
            line += f"  restore {1000 * way['restore_s']:.0f} ms"
        lines.append(line)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", nargs="+", type=int, default=[10, 100, 500], help="of state, each in a job of its own")
    parser.add_argument("--rounds", type=int, default=6, help="checkpoints of each way that are counted")
    parser.add_argument("--every", type=float, default=5.0, help="seconds from one checkpoint to the next")
    parser.add_argument("--ways", nargs="*", choices=OTHERS, default=list(OTHERS), help="beside edl's")
    parser.add_argument("--device-ms", type=float, help="steps wait so long instead of computing")
    parser.add_argument("--folder", type=Path, help="on the disk that is to be written to")
    parser.add_argument("--json", action="store_true", help="one JSON object per size")
    options = parser.parse_args()
    done = True
    for mb in options.mb:
        result = measure(mb, options)
        if mb == GOAL_MB:
            done = done and statistics.median(result["ways"]["edl"]["slow_down"]) <= GOAL
        print(json.dumps(result) if options.json else shown(result), flush=True)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
