"""What every path through a framework has in common: its options, and how it tells of its model at each switch."""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--way", required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-time", type=float, default=0.05)
parser.add_argument("--epochs", type=int, help="known from the beginning")
parser.add_argument("--until", type=Path, required=True, help="a file that will hold the number of epochs")


def epochs_wanted(options: argparse.Namespace) -> int:
    if options.epochs is not None:
        return options.epochs
    return int(options.until.read_text()) if options.until.exists() else 2**31


def pause(options: argparse.Namespace) -> None:
    """A step at leisure; no step while the test that ends the job decides after how many epochs."""
    while options.until.with_suffix(".hold").exists():
        time.sleep(0.01)
    time.sleep(0.0 if options.until.exists() else options.step_time)


def digest(arrays: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def tell_of_switches(edl: Any, folder: Path, state: Callable[[], Iterable[Any]]) -> None:
    """After each switch, the digest of all that makes up the model and its optimizer."""

    def tell(_old: int, _new: int) -> None:
        line = {"generation": edl.generation(), "state": digest(state())}
        with (folder / f"switches-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    edl.on_resize(tell)


class Slowing:
    """A schedule of the learning rate over far more epochs than are trained."""

    EPOCHS = 1000
    progress = 0.0

    def at(self, progress: float) -> float:
        self.progress = progress
        return 1.0 - progress / 2

    def expect_each_sample_counted_once(self, coming: int, samples: int, epochs: int) -> None:
        """After so many epochs; the middle of the step that does not come any more would be the last progress."""
        counted = self.progress * samples * self.EPOCHS - coming / 2
        assert round(counted, 3) == samples * epochs, (counted, samples, epochs)


def finish(folder: Path, result: dict[str, Any]) -> None:
    (folder / f"result-{os.getpid()}.json").write_text(json.dumps(result))
