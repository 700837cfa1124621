"""What a change of size costs the survivors of a library's training, beside the bare loop, in the same run.

    python -m benchmarks.library_pause [--libraries lightning trainer accelerate keras] [--changes 5] [--rounds 2]
                                       [--json]

In each round one job for each library, and one for the bare loop of its framework (of PyTorch for the first three, of
TensorFlow for Keras), train the same model in steps of the same length. Each grows from 2 to 3 workers and shrinks to 2
so many times (`edl scale`), with some dozens of steps in between. The jobs of a round come in another order in each.

A survivor's pause is the time from the begin of its last step at one size to that of its first at the other, less its
median step; of each change counts the survivor that lost most. `after` is what the ten steps that follow took beyond
the median, all together: what a library puts off is not saved. Printed: the medians over all changes, the longest with
its round and number, and the difference of the medians to the bare loop, of all rounds and of each. Exit code 1 where
a library's median pause is more than 50 ms above that of the bare loop.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.harness import Job, edl_run
from benchmarks.worker import Notes

# ------------------------------------------------------------------ a worker: a training of a library, or the bare loop


STEP_S = 0.02  # what a step takes at least: the rest of a step of a real model
SAMPLES, FEATURES, WIDTH, BATCH = 4_000_000, 64, 256, 8  # no epoch ends while it is measured


class Noted:
    """The begin of each step but those of a rehearsal; a step takes as long as one of a real model."""

    def __init__(self, folder: Path, edl: Any) -> None:
        self._notes, self._edl = Notes(folder), edl

    def step(self) -> None:
        if not self._edl.rehearsing():
            self._notes.note("step", size=self._edl.size(), generation=self._edl.generation())
        time.sleep(STEP_S)


class TorchTask:
    """Model, optimizer and data of all that stands on PyTorch."""

    def __init__(self, folder: Path) -> None:
        import torch

        import edl.torch as edl

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.edl, notes = edl, Noted(folder, edl)

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                inner, outer = torch.nn.Linear(FEATURES, WIDTH), torch.nn.Linear(WIDTH, 1)
                self.layers = torch.nn.Sequential(inner, torch.nn.ReLU(), outer)

            def forward(self, inputs: Any) -> dict[str, Any]:
                notes.step()
                return {"loss": self.layers(inputs).square().mean()}

        class Samples(torch.utils.data.Dataset[Any]):
            def __len__(self) -> int:
                return SAMPLES

            def __getitem__(self, number: int) -> dict[str, Any]:
                return {"inputs": torch.full((FEATURES,), float(number % 7))}

        self.model, self.samples = Net(), Samples()

    def optimizer(self) -> Any:
        import torch

        return torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)

    def loader(self) -> Any:
        """As a script has it that trains alone."""
        from torch.utils.data import DataLoader

        return DataLoader(self.samples, batch_size=BATCH, shuffle=True)


def train_torch(folder: Path) -> None:
    task = TorchTask(folder)
    task.edl.init()
    loader = task.edl.ElasticDataLoader(task.samples, batch_size=BATCH, shuffle=True)
    optimizer = task.edl.Optimizer(task.optimizer(), model=task.model)
    for batch in loader:
        optimizer.zero_grad()
        task.model(**batch)["loss"].backward()
        optimizer.step()
        task.edl.notify_batch_end()


def train_lightning(folder: Path) -> None:
    import lightning.pytorch as pl

    import edl.lightning  # noqa: F401 - the strategy, by its name

    task = TorchTask(folder)

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = task.model

        def training_step(self, batch: Any) -> Any:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return task.optimizer()

    shown = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(strategy="edl", accelerator="cpu", max_epochs=1, logger=False, **shown)
    trainer.fit(Module(), task.loader())


def train_trainer(folder: Path) -> None:
    from transformers import TrainingArguments

    from edl.transformers import EdlTrainer

    task = TorchTask(folder)
    shown = {"logging_strategy": "no", "disable_tqdm": True, "report_to": []}
    told = TrainingArguments(
        output_dir=str(folder / "saved"),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        save_strategy="no",
        use_cpu=True,
        **shown,
    )
    EdlTrainer(task.model, told, train_dataset=task.samples, optimizers=(task.optimizer(), None)).train()


def train_accelerate(folder: Path) -> None:
    from edl.accelerate import Accelerator

    task = TorchTask(folder)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(task.model, task.optimizer(), task.loader())
    for _ in loader.epochs(1):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()


class TensorFlowTask:
    """The same in TensorFlow."""

    def __init__(self, folder: Path) -> None:
        import keras
        import tensorflow as tf

        import edl.tensorflow as edl

        tf.config.threading.set_intra_op_parallelism_threads(1)
        keras.utils.set_random_seed(0)
        edl.init()
        self.edl, self.notes = edl, Noted(folder, edl)
        self.model = keras.Sequential(
            [keras.Input((FEATURES,)), keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(1)]
        )
        self.optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
        self.shards = edl.elastic_shard_generator(SAMPLES, epochs=1, shuffle=True)

        def sample(number: Any) -> tuple[Any, Any]:
            row = tf.repeat(tf.cast(number % 7, tf.float32)[:, None], FEATURES, axis=1)
            return row, tf.zeros((tf.shape(number)[0], 1))

        self.dataset = edl.elastic_dataset(self.shards, BATCH).map(sample)


def train_tensorflow(folder: Path) -> None:
    import tensorflow as tf

    task = TensorFlowTask(folder)
    optimizer = task.edl.Optimizer(task.optimizer, model=task.model)

    @tf.function
    def step(inputs: Any, targets: Any) -> None:
        variables = task.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(task.model(inputs, training=True) - targets))
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for inputs, targets in task.shards.in_step(task.dataset):
        task.notes.step()
        with task.edl.voidable():
            step(inputs, targets)
        task.edl.notify_batch_end()


def train_keras(folder: Path) -> None:
    import keras

    task = TensorFlowTask(folder)
    notes = task.notes

    class Noting(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
            notes.step()

    task.model.compile(optimizer=task.optimizer, loss="mse")
    task.model.fit(task.dataset, epochs=1, callbacks=[Noting(), task.edl.KerasCallback()], verbose=0)


TRAININGS: dict[str, Callable[[Path], None]] = {
    "torch": train_torch,
    "lightning": train_lightning,
    "trainer": train_trainer,
    "accelerate": train_accelerate,
    "tensorflow": train_tensorflow,
    "keras": train_keras,
}


# -------------------------------------------------------------------------------------------------------- what it notes


BARE: Final = {"lightning": "torch", "trainer": "torch", "accelerate": "torch", "keras": "tensorflow"}
NAMES: Final = {
    "torch": "the bare loop of PyTorch",
    "lightning": "Lightning",
    "trainer": "Hugging Face's Trainer",
    "accelerate": "Accelerate",
    "tensorflow": "the bare loop of TensorFlow",
    "keras": "Keras's fit",
}
SIZES: Final = ((2, 3), (3, 2))
ALLOWED_MS: Final = 50.0
STEPS: Final = 60  # between two changes, at least
AFTER: Final = 10
JOB: Final = "pauses"
PATIENCE_S: Final = 300.0


class Step(NamedTuple):
    """Of one worker."""

    began: float
    size: int
    generation: int


class Change(NamedTuple):
    """As the survivor saw it that lost most. In milliseconds."""

    before: int  # workers
    after: int
    pause: float
    later: float  # what the next steps took beyond the median, all together


class Place(NamedTuple):
    """Where a change is to be found."""

    turn: int  # the round
    number: int
    change: Change


def changes_of(workers: Iterable[Sequence[Step]]) -> list[Change]:
    """Of one job, in order."""
    found: dict[int, Change] = {}
    for steps in workers:
        runs = [list(run) for _, run in itertools.groupby(steps, key=lambda step: step.generation)]
        for number, (before, after) in enumerate(itertools.pairwise(runs)):
            if before[0].size == after[0].size:
                continue  # another worker in the place of one
            ending = before + after[:1] if number == 0 else before[1:] + after[:1]  # its first step was a change's
            change = _change(ending, after)
            known = found.get(after[0].generation)
            if known is None or change.pause > known.pause:
                found[after[0].generation] = change
    return [change for _, change in sorted(found.items())]


def _change(before: Sequence[Step], after: Sequence[Step]) -> Change:
    """`before` ends with the first step of `after`."""
    *usual, pause = _lengths_ms(before)
    later = _lengths_ms(after)
    median = statistics.median([*usual, *later])
    return Change(before[0].size, after[0].size, pause - median, sum(length - median for length in later[:AFTER]))


def _lengths_ms(steps: Sequence[Step]) -> list[float]:
    return [1000 * (two.began - one.began) for one, two in itertools.pairwise(steps)]


class Pauses(NamedTuple):
    """At one change of size, of all rounds of one way to train."""

    median: float
    later: float
    longest: Place
    of_rounds: tuple[float, ...]  # medians
    changes: int


def pauses(rounds: Sequence[Sequence[Change]], sizes: tuple[int, int]) -> Pauses:
    places = [
        Place(turn, number, change)
        for turn, changes in enumerate(rounds, 1)
        for number, change in enumerate((one for one in changes if (one.before, one.after) == sizes), 1)
    ]
    of_rounds = [[one.change.pause for one in places if one.turn == turn] for turn in range(1, len(rounds) + 1)]
    return Pauses(
        statistics.median(one.change.pause for one in places),
        statistics.median(one.change.later for one in places),
        max(places, key=lambda one: one.change.pause),
        tuple(statistics.median(found) for found in of_rounds),
        len(places),
    )


def shown(library: str, sizes: tuple[int, int], own: Pauses, bare: Pauses | None) -> str:
    longest = own.longest
    line = (
        f"{sizes[0]} -> {sizes[1]}  {NAMES[library]}: pause {own.median:.0f} ms (median of {own.changes}), "
        f"longest {longest.change.pause:.0f} ms (round {longest.turn}, change {longest.number}), "
        f"after {own.later:+.0f} ms"
    )
    if bare is not None:
        each = ", ".join(f"{one - other:+.0f}" for one, other in zip(own.of_rounds, bare.of_rounds, strict=True))
        line += f"; to the bare loop {own.median - bare.median:+.0f} ms (rounds {each})"
    return line


def is_within(own: Pauses, bare: Pauses) -> bool:
    return own.median - bare.median <= ALLOWED_MS


# ---------------------------------------------------------------------------------------------------------- the jobs


def begun(way: str, folder: Path) -> Job:
    work = [sys.executable, "-m", "benchmarks.library_pause", "--work", way, str(folder)]
    quiet = {"TF_NUM_INTRAOP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    return Job(folder, [*edl_run(2, JOB, "--max-np", "3"), *work], name=JOB, **quiet)


def wait_training(job: Job, size: int) -> None:
    """Until all of so many workers have made some steps in one ring."""

    def train() -> bool:
        last = [steps[-STEPS:] for steps in noted(job) if len(steps) >= STEPS]
        newest = max((steps[-1].generation for steps in last), default=0)
        return sum(steps[0].generation == newest and steps[0].size == size for steps in last) == size

    job.wait(train, f"{size} workers that train", PATIENCE_S)


def noted(job: Job) -> list[list[Step]]:
    return [
        [Step(note["at"], note["size"], note["generation"]) for note in steps] for steps in job.notes.steps().values()
    ]


def measured(way: str, times: int) -> list[Change]:
    with tempfile.TemporaryDirectory() as name:
        job = begun(way, Path(name))
        try:
            wait_training(job, 2)
            for _, (_, size) in itertools.product(range(times), SIZES):
                job.edl("scale", JOB, str(size), "--wait", "--timeout", str(PATIENCE_S))
                wait_training(job, size)
            return changes_of(noted(job))
        finally:
            if job.launcher.poll() is None:
                job.edl("stop", JOB)
            job.end()


def told(libraries: Sequence[str], found: dict[str, list[list[Change]]], say: Callable[[str], None]) -> bool:
    """Whether all keep to what is allowed."""
    good = True
    for sizes in SIZES:
        for bare in dict.fromkeys(BARE[library] for library in libraries):
            beside = pauses(found[bare], sizes)
            say(shown(bare, sizes, beside, None))
            for library in (one for one in libraries if BARE[one] == bare):
                own = pauses(found[library], sizes)
                say(shown(library, sizes, own, beside))
                good = good and is_within(own, beside)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", nargs="+", choices=BARE, default=list(BARE))
    parser.add_argument("--changes", type=int, default=5, help="of each kind, in one job")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one line for each job, too")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)  # of one of its own workers: what, in which folder
    options = parser.parse_args()
    if options.work:
        TRAININGS[options.work[0]](Path(options.work[1]))
        return 0
    for name in ("changes", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: give at least 1")
    ways = list(dict.fromkeys(way for library in options.libraries for way in (BARE[library], library)))
    found: dict[str, list[list[Change]]] = {way: [] for way in ways}
    for number in range(options.rounds):
        for way in ways[:: -1 if number % 2 else 1]:
            found[way].append(measured(way, options.changes))
            _progress(way, number + 1, found[way][-1], options)
    return 0 if told(options.libraries, found, lambda line: print(line, flush=True)) else 1


def _progress(way: str, number: int, changes: list[Change], options: argparse.Namespace) -> None:
    print(f"round {number} of {options.rounds}: {NAMES[way]}", file=sys.stderr, flush=True)
    if options.json:
        line: dict[str, Any] = {"way": way, "round": number, "changes": [change._asdict() for change in changes]}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
