"""What edl's optimizers cost beside Horovod's own, in CPU time, whatever else the machine is doing.

    python -m benchmarks.adapter_overhead torch|tensorflow

`benchmarks/overhead.py` measures whole steps of two workers, and needs a quiet machine to see a few tenths of a per
cent. This one leaves out what both sides share, and makes the model so small that the rest shows. torch: Horovod's
calls are replaced by ones that do nothing, in a pretended ring of two; taken is the CPU time of the training thread.
TensorFlow: all of a step, in a ring of two workers, and the CPU time of the process. Variants take turns; printed is
the median per step.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from edl.protocol.ring import Place, solo
from edl.testing.gathering import Gathering

ROUNDS, STEPS, LAYERS, WIDTH = 60, 10, 30, 64


class NoTrainer:
    """The port of the trainer, with nothing behind it."""

    voided = False
    weightless = False
    committed = 0

    def keep_in_step(self) -> None:
        """There is no pipeline."""

    def before_reduce(self) -> None:
        """Nothing to weigh."""

    def before_update(self) -> None:
        """No state is under way."""

    def await_state(self) -> None:
        """None comes."""

    def step(self) -> int:
        return 1

    def waited(self, nanoseconds: int) -> None:
        """It is not asked."""

    def void(self, error: BaseException) -> None:
        raise error

    def void_beside(self, error: BaseException) -> None:
        raise error

    def rank(self) -> int:
        return 0


def torch_steps() -> tuple[dict[str, Callable[[], None]], Callable[[], float]]:
    import horovod.torch as hvd
    import torch
    from horovod.torch import optimizer as theirs

    from edl.torch.framework import TorchFramework

    torch.set_num_threads(1)
    framework = TorchFramework()
    framework.ring.enter(solo("w0"), 10.0)
    framework.ring.size = 2
    handed: dict[str, Any] = {}

    def start(tensor: Any, name: str, **_: Any) -> str:
        handed[name] = tensor
        return name

    for module in (theirs, hvd):
        module.allreduce_async_ = start
        module.synchronize = handed.pop

    def stepping(wrap: Callable[[Any, Any], Any]) -> Callable[[], None]:
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=1e-6), model)
        inputs = torch.ones(1, WIDTH)

        def step() -> None:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()

        return step

    def elastic(optimizer: Any, model: Any) -> Any:
        framework.wrap(NoTrainer(), optimizer, model, None)
        return optimizer

    return {
        "no reduction": stepping(lambda optimizer, _: optimizer),
        "Horovod": stepping(lambda optimizer, model: hvd.DistributedOptimizer(optimizer, model.named_parameters())),
        "edl": stepping(elastic),
    }, time.thread_time


def tensorflow_steps(place: Place) -> tuple[dict[str, Callable[[], None]], Callable[[], float]]:
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    from edl.tensorflow.framework import TensorFlowFramework

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    framework = TensorFlowFramework()
    framework.ring.enter(place, 60.0)
    framework.set_weight(0.5)

    def stepping(reduced: Callable[[Any], Any], wrap: Callable[[Any, Any], Any], elastic: str) -> Callable[[], None]:
        model = keras.Sequential([keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH) for _ in range(LAYERS))])
        optimizer = wrap(keras.optimizers.SGD(1e-6), model)
        variables = [variable.value for variable in model.trainable_variables]
        optimizer.build(model.trainable_variables)

        @tf.function(autograph=False)
        def step(inputs: Any) -> None:
            with reduced(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(model(inputs))
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        inputs = tf.ones((1, WIDTH))
        os.environ["HOROVOD_ELASTIC"] = elastic  # Horovod looks at it while it is traced
        step(inputs)
        return lambda: step(inputs)

    def ours(optimizer: Any, model: Any) -> Any:
        framework.wrap(NoTrainer(), optimizer, model)
        return optimizer

    return {
        "no reduction": stepping(lambda tape: tape, lambda optimizer, _: optimizer, "1"),
        "Horovod": stepping(hvd.DistributedGradientTape, lambda optimizer, _: optimizer, "0"),
        "Horovod, HOROVOD_ELASTIC=1": stepping(hvd.DistributedGradientTape, lambda optimizer, _: optimizer, "1"),
        "edl": stepping(lambda tape: tape, ours, "1"),
    }, time.process_time


def measure(steps: dict[str, Callable[[], None]], clock: Callable[[], float]) -> None:
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            began = clock()
            for _ in range(STEPS):
                step()
            taken[name].append((clock() - began) / STEPS)
    for name, times in taken.items():
        print(f"{name:<28} {1e6 * statistics.median(times):9.0f} us of CPU per step of {2 * LAYERS} gradients")


async def two_workers() -> None:
    gathering = Gathering(["w0", "w1"])
    command = [sys.executable, "-m", "benchmarks.adapter_overhead", "tensorflow"]
    places = [msgspec.json.encode(place).decode() for place in await gathering.open()]
    workers = [await asyncio.create_subprocess_exec(*command, place) for place in places]
    await asyncio.gather(*(worker.wait() for worker in workers))
    await gathering.stop()


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    if sys.argv[1] == "torch":
        measure(*torch_steps())
    elif len(sys.argv) == 2:
        asyncio.run(two_workers())
    else:
        measure(*tensorflow_steps(msgspec.json.decode(sys.argv[2], type=Place)))


if __name__ == "__main__":
    main()
