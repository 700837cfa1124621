"""One worker of benchmarks/overhead.py: steps on plain Horovod and under edl in turn, in the same ring, of one model.

Where a model lies in memory makes a difference of its own, of a percent or two. So there is one: each variant has its
own optimizer and hooks, and both update the same weights and the same momentum.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES, FEATURES, CLASSES, WIDTH, LAYERS = 4096, 256, 10, 512, 4
WARM_UP = 20  # steps of each kind that are not counted
BLOCK = 40  # steps of each kind that are looked at together
EVERY = 100  # steps from one comparison of the workers' states to the next: the default of --check-weights


def data() -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(0)
    inputs = source.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    return inputs, source.integers(0, CLASSES, SAMPLES)


@dataclass(frozen=True)
class Steps:
    """One step on plain Horovod, one under edl, and what makes both of one model once each has made a step."""

    plain: Callable[[Any], None]
    edl: Callable[[Any], None]
    share: Callable[[], None]


def torch_steps(edl: Any, control: bool) -> Steps:
    (plain, plain_optimizer), (ours, our_optimizer) = torch_model(), torch_model()
    wrapped = torch_plainly("plain", plain, plain_optimizer)
    if control:
        optimizers = (wrapped, torch_plainly("control", ours, our_optimizer))
    else:
        optimizers = (wrapped, edl.Optimizer(our_optimizer, model=ours))

    def share() -> None:
        one, other = optimizers
        for mine, theirs in zip(one.param_groups[0]["params"], other.param_groups[0]["params"], strict=True):
            theirs.data = mine.data
            other.state[theirs].update(one.state[mine])

    return Steps(torch_step(plain, wrapped), torch_step(ours, optimizers[1]), share)


def torch_plainly(prefix: str, model: Any, optimizer: Any) -> Any:
    import horovod.torch as hvd

    named = [(f"{prefix}.{name}", parameter) for name, parameter in model.named_parameters()]
    return hvd.DistributedOptimizer(optimizer, named_parameters=named)


def torch_model() -> tuple[Any, Any]:
    """A model and its optimizer, equal each time."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = [FEATURES, *[WIDTH] * LAYERS]
    layers = [layer for i in range(LAYERS) for layer in (torch.nn.Linear(sizes[i], sizes[i + 1]), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, CLASSES))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def torch_step(model: Any, optimizer: Any) -> Callable[[Any], None]:
    """A step on the samples of these ids; `optimizer` is wrapped."""
    import torch

    inputs, labels = (torch.from_numpy(array) for array in data())

    def step(ids: Any) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        optimizer.step()

    return step


def tensorflow_steps(edl: Any, control: bool) -> Steps:
    """The same in TensorFlow: each step is a tf.function."""
    import horovod.tensorflow as hvd

    model, plain_optimizer = tensorflow_model()
    our_optimizer = with_momentum_of(plain_optimizer, model)
    plain = traced_without_elastic(tensorflow_step(model, plain_optimizer, hvd.DistributedGradientTape))
    if control:
        other = traced_without_elastic(tensorflow_step(model, our_optimizer, hvd.DistributedGradientTape))
    else:
        other = tensorflow_step(model, edl.Optimizer(our_optimizer, model=model), lambda tape: tape)
    return Steps(plain, other, lambda: None)  # they share from the beginning


def tensorflow_model() -> tuple[Any, Any]:
    """A model and its optimizer."""
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(WIDTH, "relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def with_momentum_of(optimizer: Any, model: Any) -> Any:
    """One more optimizer of `model`, that keeps its momentum where `optimizer` does."""
    other = type(optimizer)(0.01, momentum=0.9)
    other.build(model.trainable_variables)
    other.momentums = optimizer.momentums
    return other


def tensorflow_step(model: Any, optimizer: Any, reduced: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A step, in a tf.function, on the samples of these ids; `reduced` makes of a tape one that averages."""
    import tensorflow as tf

    inputs, labels = (tf.constant(array) for array in data())
    variables = model.trainable_variables
    sources = [variable.value for variable in variables]  # Horovod's tape knows TensorFlow's variables only

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids: Any) -> None:
        with reduced(tf.GradientTape()) as tape:
            logits = model(tf.gather(inputs, ids), training=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.gather(labels, ids), logits=logits)
            )
        optimizer.apply_gradients(zip(tape.gradient(loss, sources), variables, strict=True))

    return lambda ids: step(tf.constant(ids))


def traced_without_elastic(step: Callable[[Any], None]) -> Callable[[Any], None]:
    """As in a job without edl: Horovod's operations look up the ring's size while they are traced, which is cheaper."""
    os.environ["HOROVOD_ELASTIC"] = "0"
    step(np.arange(1))
    os.environ["HOROVOD_ELASTIC"] = "1"
    return step


def plain_batches(batch: int, rank: int, size: int) -> Iterator[np.ndarray]:
    """What a Horovod user's sampler gives: a shuffled share of this rank, epoch after epoch."""
    epoch = 0
    while True:
        order = np.random.default_rng(epoch).permutation(SAMPLES)[rank::size]
        yield from (order[at : at + batch] for at in range(0, len(order) - batch + 1, batch))
        epoch += 1


def daemon_of(trainer: int) -> int:
    """Edl's daemon, by its command line: it names its trainer."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"edl.daemon.daemon" in words and str(trainer).encode() in words:
                return int(entry.name)
    raise LookupError(f"no daemon of process {trainer}")


class Kind:
    """Steps of one kind, and what they took."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    def __call__(self) -> None:
        cpu, at = time.process_time(), time.perf_counter()
        self.step()
        self.wall_s.append(time.perf_counter() - at)
        self.cpu_s.append(time.process_time() - cpu)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=["torch", "tensorflow"])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    edl: Any = importlib.import_module(f"edl.{options.framework}")
    edl.init()
    build = {"torch": torch_steps, "tensorflow": tensorflow_steps}[options.framework]
    steps = build(edl, options.control)
    theirs = plain_batches(options.batch, edl.rank(), edl.size())
    ours = edl.elastic_shard_generator(SAMPLES, epochs=10**6, shuffle=True).batches(options.batch)
    calls, empty_calls, compared_s = [], [], []

    def step_of_ours() -> None:
        steps.edl(next(ours))
        at = time.perf_counter()
        edl.notify_batch_end()
        calls.append(time.perf_counter() - at)
        if (edl.step() - 1) % EVERY == 0:
            compared_s.append(calls[-1])

    def step_of_control() -> None:
        steps.edl(next(others))

    others = plain_batches(options.batch, edl.rank(), edl.size())
    kinds = {
        "plain": Kind(lambda: steps.plain(next(theirs))),
        "edl": Kind(step_of_control if options.control else step_of_ours),
    }
    daemon = daemon_of(os.getpid())
    daemon_s, began = cpu_seconds(daemon), time.perf_counter()
    for number in range(WARM_UP + options.steps):
        if number == WARM_UP // 2:
            steps.share()
        for kind in list(kinds.values())[:: 1 if number % 2 else -1]:
            kind()
            at = time.perf_counter()
            nothing()
            empty_calls.append(time.perf_counter() - at)
    result = {
        "framework": options.framework,
        "rank": edl.rank(),
        **{f"{name}_s": kind.wall_s[WARM_UP:] for name, kind in kinds.items()},
        **{f"{name}_cpu_s": kind.cpu_s[WARM_UP:] for name, kind in kinds.items()},
        "notify_s": calls[WARM_UP:],
        "compared_s": compared_s,
        "empty_call_s": empty_calls[2 * WARM_UP :],
        "daemon_cpu": (cpu_seconds(daemon) - daemon_s) / (time.perf_counter() - began),
    }
    options.out.with_suffix(f".{edl.rank()}").write_text(json.dumps(result))


def nothing(samples: int | None = None) -> bool:  # noqa: ARG001 - as notify_batch_end() has it
    """What any call costs where the caches are cold from a step."""
    return True


def cpu_seconds(pid: int) -> float:
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
