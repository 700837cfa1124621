"""Horovod's own elastic scripts on edl, with the line changed that imports Horovod, and no other of PyTorch's.

    python -m tests.soaks.horovod_scripts HOROVOD [--scripts NAME...] [--ways growth exception kill]

HOROVOD: a clone of Horovod's repository (https://github.com/horovod/horovod, v0.28.1); what is on PyPI lacks these
scripts. Those of its integration tests count epochs, batches and rounds of workers; the synthetic benchmarks measure
images per second. In those of TensorFlow a line or two more are for Keras 3, which has no `lr`, and sees that the
arguments of a loss have other shapes. Each runs under `edl run -np 2 --max-np 3` to its end, once for each way:

    growth      a third worker is asked for (`edl scale`), and comes
    exception   a worker raises one in the middle of a mini-batch: by the integration scripts' own `--exit-schedule`
    kill        the same by `kill -9`

The integration scripts go by the rank that Horovod's launcher gave a worker (HOROVOD_RANK): one of the two is given 1
here. After an exception or a kill `edl run` starts another worker. A run is good if the job ends with 0, the workers
that were asked for, or the one in the place of the lost, trained, and rank 0 has logged each epoch once, with all its
batches and commits. Exit code 1 otherwise. torchvision, where it is not installed, is replaced by a small net.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from tests.soaks.script_job import END_S, NotSeenError, ScriptJob, difference

IMPORT: Final = re.compile(r"^import horovod\.(torch|tensorflow) as hvd$", re.MULTILINE)
EPOCHS, BATCHES, LOST_IN = 30, 10, 8
# One of the workers that are started first gets the rank that its script goes by.
RANKED: Final = 'if mkdir "$0" 2>/dev/null; then export HOROVOD_RANK=1; fi; exec "$@"'
SMALL_NET: Final = """
from torch import nn


def resnet50():
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 1000)
    )
"""


class Script(NamedTuple):
    """One of Horovod's."""

    name: str
    places: tuple[str, ...]  # where its repository has it, by release
    arguments: tuple[str, ...]
    ways: tuple[str, ...]
    keras_3: tuple[tuple[str, str], ...] = ()  # what Keras 3 calls otherwise, or looks at more closely

    @property
    def counts(self) -> bool:
        """It logs its epochs, and ends a worker when it is told to."""
        return "exception" in self.ways


BOTH: Final = ("growth", "kill")
COUNTING: Final = ("--epochs", str(EPOCHS), "--batches-per-epoch", str(BATCHES), "--epoch-wait", "1")
MEASURING: Final = ("--no-cuda", "--num-batches-per-iter", "10")
SCRIPTS: Final = (
    Script(
        "elastic_torch_main.py",
        ("test/integration/data",),
        (*COUNTING, "--discovery-wait", "0"),
        ("growth", "exception", "kill"),
    ),
    Script(
        "elastic_tensorflow2_main.py",
        ("test/integration/data",),
        (*COUNTING, "--discovery-wait", "0"),
        ("growth", "exception", "kill"),
        (("optimizer.lr.assign(", "optimizer.learning_rate.assign("),),
    ),
    Script(
        "pytorch_synthetic_benchmark_elastic.py",
        ("examples/elastic/pytorch", "examples/elastic"),
        (*MEASURING, "--batch-size", "16", "--num-iters", "400"),
        BOTH,
    ),
    Script(
        "tensorflow2_synthetic_benchmark_elastic.py",
        ("examples/elastic/tensorflow2", "examples/elastic"),
        (*MEASURING, "--batch-size", "1", "--num-iters", "60", "--model", "MobileNet"),
        BOTH,
        (
            ("tf.losses.categorical_crossentropy", "tf.losses.sparse_categorical_crossentropy"),
            (
                "tf.keras.backend.set_value(model.optimizer.lr, lr * hvd.size())",
                "opt.learning_rate.assign(lr * hvd.size())",
            ),
        ),
    ),
)


def changed(text: str, keras_3: Sequence[tuple[str, str]] = ()) -> str:
    """With the names of edl, and with what Keras 3 wants. Raises ValueError where not one line imports Horovod's."""
    moved, count = IMPORT.subn(r"import edl.\1 as hvd", text)
    if count != 1:
        raise ValueError(f"{count} lines are `import horovod.… as hvd`, where there should be one")
    for old, new in keras_3:
        moved = moved.replace(old, new)
    return moved


class Logged(NamedTuple):
    """By rank 0, at the end of an epoch of an integration script."""

    epoch: int
    batch: int
    commits: int
    size: int
    rendezvous: int


def complaints(
    logged: Sequence[Logged], sizes: Sequence[int], epochs: int = EPOCHS, batches: int = BATCHES
) -> list[str]:
    """What is wrong with a log; `sizes`: numbers of workers that there must have been, in this order."""
    found = []
    if [one.epoch for one in logged] != list(range(epochs)):
        found.append(f"epochs {[one.epoch for one in logged]}")
    if any(one.batch != batches for one in logged):
        found.append(f"batches {[one.batch for one in logged]}")
    if any(one.commits != (one.epoch + 1) * batches + one.epoch for one in logged):
        found.append(f"commits {[one.commits for one in logged]}")
    had = iter(one.size for one in logged)
    if not all(size in had for size in sizes):
        found.append(f"sizes {[one.size for one in logged]}, not {' -> '.join(map(str, sizes))}")
    rounds = [one.rendezvous for one in logged]
    if rounds != sorted(rounds) or len(set(rounds)) < len(sizes):
        found.append(f"the training function was not called anew: {rounds}")
    return found


# ---------------------------------------------------------------------------------------------------------- the jobs


class Trial:
    """One script, in one way, in a folder of its own."""

    def __init__(self, script: Script, text: str, way: str, folder: Path) -> None:
        self.script, self.way, self.folder, self._log = script, way, folder, folder / "log"
        (folder / script.name).write_text(text)
        if find_spec("torchvision") is None:
            (folder / "torchvision").mkdir()
            (folder / "torchvision" / "models.py").write_text(SMALL_NET)
        self.job = ScriptJob(folder, folder)

    def run(self) -> list[str]:
        """What is wrong with it."""
        with self.job.running(*self._command()) as job:
            try:
                self.job.wait_past(BATCHES, "it trains", job)
                if self.way == "growth":
                    self.job.scale(3)
                elif not self.script.counts:
                    os.kill(self.job.status()["workers"][-1]["pid"], signal.SIGKILL)
                code = job.wait(END_S)
                return [*([] if code == 0 else [f"exit code {code}"]), *self._complaints()]
            except (NotSeenError, subprocess.TimeoutExpired) as error:
                return [str(error)]

    def _command(self) -> list[str]:
        """Of a worker."""
        arguments = list(self.script.arguments)
        if self.script.counts:
            arguments += ["--logfile", str(self._log)]
        if self.script.counts and self.way != "growth":
            schedule = json.dumps({str((LOST_IN, 5)): [1]})
            arguments += ["--exit-schedule", schedule, "--exit-mode", self.way]
        ranked = ["sh", "-c", RANKED, str(self.folder / "ranked")]
        return [*ranked, sys.executable, str(self.folder / self.script.name), *arguments]

    def _complaints(self) -> list[str]:
        scaled = [(event["from"], event["to"]) for event in self.job.events() if event["kind"] == "scaled"]
        wanted = [(2, 3)] if self.way == "growth" else [(2, 1), (1, 2)]
        found = [] if [one for one in scaled if one in wanted] == wanted else [f"sizes {scaled}, not {wanted}"]
        if not self.script.counts:
            said = re.findall(r"Total img/sec on (\d) CPU", self.job.output.read_text())
            return [*found, *([] if said == [str(wanted[-1][1])] else [f"its last line tells of {said} workers"])]
        fields = Logged._fields
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        logged = [Logged(**{name: line[name] for name in fields}) for line in lines]
        return [*found, *complaints(logged, [2, 3] if self.way == "growth" else [2, 1, 2])]


def sources(clone: Path, script: Script) -> str:
    for place in script.places:
        path = clone / place / script.name
        if path.is_file():
            return path.read_text()
    raise SystemExit(
        f"{clone} has no {script.places[0]}/{script.name}: give the folder of a clone of Horovod's repository "
        "(what is on PyPI lacks these scripts)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, metavar="HOROVOD")
    parser.add_argument("--scripts", nargs="+", choices=[script.name for script in SCRIPTS])
    parser.add_argument("--ways", nargs="+", choices=["growth", "exception", "kill"])
    options = parser.parse_args()
    good = True
    for script in SCRIPTS:
        if options.scripts and script.name not in options.scripts:
            continue
        before = sources(options.clone, script)
        after = changed(before, script.keras_3)
        print("\n".join([f"{script.name}:", *difference(before, after)]), flush=True)
        for way in (way for way in script.ways if not options.ways or way in options.ways):
            with tempfile.TemporaryDirectory() as folder:
                trial = Trial(script, after, way, Path(folder))
                wrong = trial.run()
                print(f"  {way}: {'; '.join(wrong) or 'good'}", flush=True)
                if wrong:
                    print(trial.job.output.read_text()[-3000:], file=sys.stderr, flush=True)
            good = good and not wrong
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
