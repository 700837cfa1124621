"""The task that all jobs here train on: small, exact to repeat, and uneven on purpose."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

SAMPLES, BATCH, EPOCHS = 203, 16, 2
RATE, MOMENTUM = 0.05, 0.9

_random = np.random.default_rng(7)
INPUTS = _random.normal(size=(SAMPLES, 8)).astype(np.float32)
TARGETS = _random.normal(size=(SAMPLES, 1)).astype(np.float32)
FIRST = _random.normal(size=(8, 6)).astype(np.float32) / 3, np.zeros(6, np.float32)
SECOND = _random.normal(size=(6, 1)).astype(np.float32) / 3, np.zeros(1, np.float32)


def options() -> argparse.Namespace:
    """--out DIR for a worker; --replay DIR to train alone on the batches that the workers of DIR trained together."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--replay", type=Path)
    return parser.parse_args()


def save(folder: Path, rank: int, steps: list[list[int]], weights: list[np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"weights{rank}.npz", *weights)
    (folder / f"steps{rank}.json").write_text(json.dumps(steps))


def cut(samples: list[int]) -> list[list[int]]:
    """The batches that `.batch(BATCH)` makes of one pass."""
    return [samples[at : at + BATCH] for at in range(0, len(samples), BATCH)]


def global_batches(folder: Path) -> list[list[int]]:
    """What all workers of a job trained in each step."""
    shares = [json.loads(path.read_text()) for path in sorted(folder.glob("steps*.json"))]
    assert len({len(share) for share in shares}) == 1, "workers made different numbers of steps"
    return [[sample for part in parts for sample in part] for parts in zip(*shares, strict=True)]
