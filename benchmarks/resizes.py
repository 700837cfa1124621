"""Random changes of size, one after the other, while a job trains: nothing may hang, differ, get lost or be repeated.

    python -m benchmarks.resizes [--torch 50] [--tensorflow 20] [--most 5] [--seed 0] [--ring horovod] [--step-ms 20]
                                 [--no-fixed] [--device cpu|cuda] [--apart] [--json]

So many times the job is asked for another size between 1 and `--most` (`edl scale --wait`), while its workers learn
the UCI digits. After each switch all workers must have the same weights and momentum, to the bit; at the end each
sample must have been trained once an epoch, and the loss must lie within what jobs of fixed size (1 and `--most`
workers, as many epochs) come to, and somewhat beyond. Exit code 1 if not.

    lost    what survivors lost at all switches, of all workers' time: a survivor's time between the ends of the last
            step before a switch and of the first one after it, less two median steps of the ring that it left
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import DIGITS, PATIENCE_S, DigitsJob, compared, fixed_loss, near
from benchmarks.worker import APART, DEVICE

BEFORE = 20  # steps that a median is of


def losses(notes: list[dict[str, Any]]) -> list[float]:
    """Seconds that one worker lost at each switch that it lived through, by its notes of steps."""
    found, steady = list[float](), list[float]()
    for before, first, second in zip(notes, notes[1:], notes[2:], strict=False):
        if first["generation"] == before["generation"]:
            steady.append(first["at"] - before["at"])
            continue
        if steady:
            found.append(second["at"] - before["at"] - 2 * statistics.median(steady[-BEFORE:]))
        steady.clear()
    return found


def resized(framework: str, times: int, most: int, seed: int, ring: str, step_s: float) -> dict[str, Any]:
    source = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        job = DigitsJob(framework, Path(name), 2, step_s, flags=("--ring", ring))
        job.wait_training()
        size, sizes = 2, [2]
        for number in range(times):
            size = source.choice([other for other in range(1, most + 1) if other != size])
            job.edl("scale", job.name, str(size), "--wait", "--timeout", str(PATIENCE_S))
            sizes.append(size)
            print(f"{framework}: {number + 1} of {times} changes, now {size} workers", file=sys.stderr, flush=True)
        epochs = job.finish()
        notes, events, data = job.notes.all(), job.events(), harness.audited(job.folder / "audit")
        steps = [noted for noted in job.notes.steps().values() if noted]
    lost = [one for noted in steps for one in losses(noted)]
    trained_s = sum(noted[-1]["at"] - noted[0]["at"] for noted in steps)
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
        "lost_s": sum(lost),
        "trained_s": trained_s,
        "lost_share": sum(lost) / trained_s,
        "lost_ms": statistics.median(lost) * 1e3,
        "longest_lost_ms": max(lost) * 1e3,
        "epochs": epochs,
        **compared(notes),
        "lost": epochs * DIGITS - data["trained"],  # also of an epoch that never began
        "repeated": data["repeated"],
        "wrong": data["wrong"],
        "loss": statistics.mean(note["loss"] for note in notes if note["kind"] == "end"),
    }


def is_sound(result: dict[str, Any]) -> bool:
    sane = not result["fixed_losses"] or near(result["loss"], result["fixed_losses"])
    return sane and not (result["different"] or result["lost"] or result["repeated"] or result["wrong"])


def main() -> int:
    parser = harness.arguments(__doc__)
    parser.add_argument("--torch", type=int, default=50)
    parser.add_argument("--tensorflow", type=int, default=20)
    parser.add_argument("--most", type=int, default=5, help="workers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ring", choices=["horovod", "torch"], default="horovod", help="PyTorch's")
    parser.add_argument("--step-ms", type=float, default=20, help="that a step sleeps")
    parser.add_argument("--no-fixed", action="store_true", help="no jobs of fixed size to compare the loss with")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of PyTorch's models")
    parser.add_argument("--apart", action="store_true", help="workers share a GPU as if each were of another host")
    options = parser.parse_args()
    os.environ.update({DEVICE: options.device, APART: "1" if options.apart else ""})
    sound = True
    for framework, times in (("torch", options.torch), ("tensorflow", options.tensorflow)):
        if not times:
            continue
        ring = options.ring if framework == "torch" else "horovod"
        result = resized(framework, times, options.most, options.seed, ring, options.step_ms / 1e3)
        sizes = () if options.no_fixed else (1, options.most)
        result["fixed_losses"] = [fixed_loss(framework, workers, result["epochs"]) for workers in sizes]
        sound = sound and is_sound(result)
        if options.json:
            print(json.dumps(result), flush=True)
            continue
        print(
            f"{framework}: {times} changes of size between 1 and {options.most}, {result['switches']} switches "
            f"({result['forced']} forced), {result['void']} void mini-batches; pause {result['pause_ms']:.0f} ms "
            f"(median), {result['longest_pause_ms']:.0f} ms (longest)\n"
            f"  survivors lost {result['lost_s']:.1f} s of {result['trained_s']:.0f} s, {result['lost_share']:.2%}; "
            f"at one switch {result['lost_ms']:.0f} ms (median), {result['longest_lost_ms']:.0f} ms (longest)\n"
            f"  weights compared {result['compared']} times, different {result['different']}; "
            f"{result['epochs']} epochs, {result['lost']} samples lost, {result['repeated']} repeated\n"
            f"  loss {result['loss']:.4f}; of fixed size: {', '.join(f'{one:.4f}' for one in result['fixed_losses'])}",
            flush=True,
        )
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
