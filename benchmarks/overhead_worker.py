"""One worker of benchmarks/overhead.py: steps on plain Horovod and under edl in turn, in the same ring.

Both variants have a model and an optimizer of their own, equal at the beginning.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES, FEATURES, CLASSES, WIDTH, LAYERS = 4096, 256, 10, 512, 4
WARM_UP = 20  # steps of each kind that are not counted
EVERY = 100  # steps from one comparison of the workers' states to the next: the default of --check-weights


def data() -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(0)
    inputs = source.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    return inputs, source.integers(0, CLASSES, SAMPLES)


def torch_steps(edl: Any) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """One step on plain Horovod, and one under edl."""
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    inputs, labels = (torch.from_numpy(array) for array in data())

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        sizes = [FEATURES, *[WIDTH] * LAYERS]
        layers = [layer for i in range(LAYERS) for layer in (torch.nn.Linear(sizes[i], sizes[i + 1]), torch.nn.ReLU())]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, CLASSES))
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def stepping(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
        def step(ids: Any) -> None:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
            optimizer.step()

        return step

    plain, plain_optimizer = build()
    ours, our_optimizer = build()
    named = [(f"plain.{name}", parameter) for name, parameter in plain.named_parameters()]
    wrapped = hvd.DistributedOptimizer(plain_optimizer, named_parameters=named)
    return stepping(plain, wrapped), stepping(ours, edl.Optimizer(our_optimizer, model=ours))


def tensorflow_steps(edl: Any) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """The same in TensorFlow: each step is a tf.function."""
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    inputs, labels = (tf.constant(array) for array in data())

    def build() -> tuple[Any, Any]:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(WIDTH, "relu") for _ in range(LAYERS)]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])
        return model, keras.optimizers.SGD(0.01, momentum=0.9)

    def stepping(model: Any, optimizer: Any, reduced: Callable[[Any], Any]) -> Callable[[Any], None]:
        variables = model.trainable_variables
        sources = [variable.value for variable in variables]  # Horovod's tape knows TensorFlow's variables only
        optimizer.build(variables)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def step(ids: Any) -> None:
            with reduced(tf.GradientTape()) as tape:
                logits = model(tf.gather(inputs, ids), training=True)
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.gather(labels, ids), logits=logits)
                )
            optimizer.apply_gradients(zip(tape.gradient(loss, sources), variables, strict=True))

        return lambda ids: step(tf.constant(ids))

    plain, plain_optimizer = build()
    ours, our_optimizer = build()
    return (
        traced_without_elastic(stepping(plain, plain_optimizer, hvd.DistributedGradientTape)),
        stepping(ours, edl.Optimizer(our_optimizer, model=ours), lambda tape: tape),
    )


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


def daemon_of_this_process() -> int:
    """Edl's daemon, by its command line: it names its trainer."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"edl.runtime.daemon" in words and str(os.getpid()).encode() in words:
                return int(entry.name)
    raise LookupError("no daemon of this process")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=["torch", "tensorflow"])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.framework == "torch":
        import edl.torch as edl
    else:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        import edl.tensorflow as edl
    edl.init()
    plain_step, our_step = {"torch": torch_steps, "tensorflow": tensorflow_steps}[options.framework](edl)
    daemon = daemon_of_this_process()
    theirs = plain_batches(options.batch, edl.rank(), edl.size())
    ours = edl.elastic_shard_generator(SAMPLES, epochs=10**6, shuffle=True).batches(options.batch)
    plain_s, edl_s, calls, empty_calls = [], [], [], []
    plain_cpu_s, edl_cpu_s, compared_s = [], [], []
    daemon_s = cpu_seconds(daemon)
    began = time.perf_counter()
    for _ in range(WARM_UP + options.steps):
        cpu_0, at_0 = time.process_time(), time.perf_counter()
        plain_step(next(theirs))
        at_1, cpu_1 = time.perf_counter(), time.process_time()
        before = time.perf_counter()
        nothing()
        empty_calls.append(time.perf_counter() - before)
        cpu_2, at_2 = time.process_time(), time.perf_counter()
        our_step(next(ours))
        at_3 = time.perf_counter()
        edl.notify_batch_end()
        at_4, cpu_4 = time.perf_counter(), time.process_time()
        plain_s.append(at_1 - at_0)
        plain_cpu_s.append(cpu_1 - cpu_0)
        edl_cpu_s.append(cpu_4 - cpu_2)
        edl_s.append(at_4 - at_2)
        calls.append(at_4 - at_3)
        if (edl.step() - 1) % EVERY == 0:
            compared_s.append(at_4 - at_3)
    result = {
        "framework": options.framework,
        "rank": edl.rank(),
        "plain_s": plain_s[WARM_UP:],
        "edl_s": edl_s[WARM_UP:],
        "plain_cpu_s": plain_cpu_s[WARM_UP:],
        "edl_cpu_s": edl_cpu_s[WARM_UP:],
        "notify_s": calls[WARM_UP:],
        "compared_s": compared_s,
        "empty_call_s": empty_calls[WARM_UP:],
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
