"""One worker of a benchmark's job: it trains a small model and notes each step, under edl or under a peer.

    FOLDER            where it writes PID.jsonl, and looks for what the benchmark sets: `stop` and `broadcast` (after
                      that step of the job), `epochs` (how many are enough)
    --mode            `edl`; `horovod`, its elastic mode; `plain`, Horovod without it; `torchrun`: DistributedData-
                      Parallel over gloo, and a checkpoint to which all go back; `pair`: each step on plain Horovod is
                      followed by one under edl, in the same ring, of one model
    --model           `square`: two layers, and ballast (--state-mb), which is moved to newcomers and costs a step
                      nothing; `layers`: five, as `pair` compares them; `digits`: the UCI digits are learnt

Each note is a line of JSON that is written whole; its `kind` says what it is, `at` when it was, by the clock that all
processes of a machine share.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edl.proof.step_figures import StepNotes, until

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits" / "digits.csv.gz"
LAYER_BYTES = 1 << 22  # of ballast
BROADCASTS = 5
WARM_UP = 20  # steps of each kind that do not count
STREAM_SHARDS = 64
BLOCK = 40  # steps of each kind that `pair`'s benchmark looks at together
EVERY = 100  # steps from one comparison of the workers' states to the next: the default of --check-weights
DEVICE, APART = "EDL_BENCHMARK_DEVICE", "EDL_BENCHMARK_APART"  # handed down to workers
Arrays = tuple[np.ndarray, np.ndarray | None]


# -------------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Model:
    widths: tuple[int, ...]
    rate: float
    samples: int  # that a generator gives out
    batch: int
    data: Callable[[], Arrays]  # inputs, and labels if a step looks at its samples
    epochs: int = 0  # 0: asked for one after the other
    compares: bool = False  # after a ring's first step the digest of the weights is noted


def ones() -> Arrays:
    return np.ones((8, 64), np.float32), None


def made_up() -> Arrays:
    source = np.random.default_rng(0)
    return source.normal(size=(4096, 256)).astype(np.float32), source.integers(0, 10, 4096)


def digits() -> tuple[np.ndarray, np.ndarray]:
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    return table[:, :64] / 16, table[:, 64].astype(np.int64)


MODELS = {
    "square": Model((64, 256, 1), 0.001, 100_000, 8, ones, epochs=1000),
    "layers": Model((256, 512, 512, 512, 512, 10), 0.01, 4096, 64, made_up, epochs=10**6),
    "digits": Model((64, 64, 10), 0.05, 1797, 16, digits, compares=True),
}


def choose_device() -> None:
    """NCCL takes no GPU twice. With APART workers count as those of other hosts, so that some can share one."""
    if os.environ.get(APART):
        os.environ["NCCL_HOSTID"] = f"host-{os.getpid()}"
    if os.environ.get(DEVICE) != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def torch_device(local_rank: int) -> Any:
    """Where the model of this worker is to lie."""
    import torch

    if os.environ.get(DEVICE) != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class TorchTask:
    """A model with its optimizer and its data, equal each time."""

    def __init__(self, name: str, local_rank: int = 0, state_bytes: int = 0) -> None:
        import torch

        model = MODELS[name]
        device = torch_device(local_rank)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        inner = [
            layer
            for before, after in zip(model.widths[:-2], model.widths[1:-1], strict=True)
            for layer in (torch.nn.Linear(before, after), torch.nn.ReLU())
        ]
        self.model = torch.nn.Sequential(*inner, torch.nn.Linear(model.widths[-2], model.widths[-1]))
        layers = [torch.zeros(min(LAYER_BYTES, state_bytes - at) // 4) for at in range(0, state_bytes, LAYER_BYTES)]
        ballast = (torch.nn.Parameter(layer, requires_grad=False) for layer in layers)
        self.model[0].ballast = torch.nn.ParameterList(ballast)
        self.module: Any = self.model.to(device)  # what a step calls
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=model.rate, momentum=0.9)
        inputs, labels = model.data()
        self._inputs = torch.from_numpy(inputs).to(device)
        self._labels = None if labels is None else torch.from_numpy(labels).to(device)

    def use_edl(self, edl: Any) -> None:
        self.optimizer = edl.Optimizer(self.optimizer, model=self.model)

    def use_horovod(self, prefix: str = "") -> None:
        import horovod.torch as hvd

        named = [(f"{prefix}{name}", parameter) for name, parameter in self.model.named_parameters()]
        self.optimizer = hvd.DistributedOptimizer(self.optimizer, named_parameters=named)

    def elastic_state(self) -> Any:
        import horovod.torch as hvd

        return hvd.elastic.TorchState(model=self.model, optimizer=self.optimizer, batch=0)

    def train(self, ids: Any) -> None:
        self.optimizer.zero_grad()
        self._loss_of(ids).backward()
        self.optimizer.step()

    def _loss_of(self, ids: Any) -> Any:
        import torch

        if self._labels is None:
            return self.module(self._inputs).square().mean()
        return torch.nn.functional.cross_entropy(self.module(self._inputs[ids]), self._labels[ids])

    def weights(self) -> list[np.ndarray]:
        slots = [slot["momentum_buffer"] for slot in self.optimizer.state.values()]
        return [tensor.detach().cpu().numpy() for tensor in (*self.model.parameters(), *slots)]

    def loss(self) -> float:
        import torch

        with torch.no_grad():
            return float(self._loss_of(slice(None)))

    def broadcast(self, count: int) -> None:
        import torch

        hvd: Any = importlib.import_module("edl.torch")  # of the ring that it has
        ballast = torch.zeros(count // 4, device=self._inputs.device)
        hvd.broadcast_(ballast, 0, name="ballast")
        if ballast.is_cuda:
            torch.cuda.synchronize()


class AsKeras2:
    """What Horovod's state for Keras asks of a model (attributes) and of an optimizer (`variables()`)."""

    built = True

    def __init__(self, variables: list[Any]) -> None:
        self.variables = Called(variable.value for variable in variables)


class Called(list[Any]):
    def __call__(self) -> list[Any]:
        return self


class TensorFlowTask:
    """The same. A step is a `tf.function`, of which edl makes a void mini-batch when the ring breaks, or eager."""

    def __init__(self, name: str, _local_rank: int = 0, state_bytes: int = 0, *, eager: bool = False) -> None:
        import keras
        import tensorflow as tf

        class Ballast(keras.layers.Layer):  # type: ignore[misc]
            """The optimizer has as much for it again."""

            def build(self, _: Any) -> None:
                half = state_bytes // 2
                for at in range(0, half, LAYER_BYTES):
                    self.add_weight(shape=(min(LAYER_BYTES, half - at) // 4,), name=f"ballast_{at}")

            def call(self, inputs: Any) -> Any:
                return inputs

        model = MODELS[name]
        tf.config.threading.set_intra_op_parallelism_threads(1)
        keras.utils.set_random_seed(0)
        inner = [keras.layers.Dense(width, "relu") for width in model.widths[1:-1]]
        layers = [Ballast(), *inner, keras.layers.Dense(model.widths[-1])]
        self.model = keras.Sequential([keras.Input((model.widths[0],)), *layers])
        self.trained = [variable for layer in layers[1:] for variable in layer.trainable_variables]
        self._inputs, self._labels = (None if array is None else tf.constant(array) for array in model.data())
        self._rate, self._eager = model.rate, eager
        self._voidable: Any = None
        self.optimizer: Any = keras.optimizers.SGD(model.rate, momentum=0.9)
        if state_bytes or name == "layers":  # else with the first update, as in most scripts
            self.optimizer.build(self.model.trainable_variables)
        self._reduced: Callable[[Any], Any] = lambda tape: tape
        self._step = self._traced()

    def twin(self) -> TensorFlowTask:
        """Another optimizer for the same weights, that keeps its momentum where this one does."""
        import keras

        other = object.__new__(TensorFlowTask)
        other.__dict__.update(self.__dict__)
        other.optimizer = keras.optimizers.SGD(self._rate, momentum=0.9)
        other.optimizer.build(self.model.trainable_variables)
        other.optimizer.momentums = self.optimizer.momentums
        other._step = other._traced()
        return other

    def _traced(self) -> Any:
        import tensorflow as tf

        signature = [tf.TensorSpec([None], tf.int64)]
        return self._forward_and_back if self._eager else tf.function(self._forward_and_back, input_signature=signature)

    def use_edl(self, edl: Any, *, voidable: bool = True) -> None:
        self.optimizer = edl.Optimizer(self.optimizer, model=self.model)
        self._voidable = edl.voidable if voidable and not self._eager else None

    def use_horovod(self, _prefix: str = "") -> None:
        import horovod.tensorflow as hvd

        self._reduced = hvd.DistributedGradientTape
        self.optimizer.build(self.model.trainable_variables)  # its state is asked for before

    def elastic_state(self) -> Any:
        import horovod.tensorflow as hvd

        model, optimizer = AsKeras2(self.model.variables), AsKeras2(self.optimizer.variables)
        return hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)

    def train(self, ids: Any) -> None:
        import tensorflow as tf

        if self._voidable is None:
            self._step(tf.constant(ids))
            return
        with self._voidable():
            self._step(tf.constant(ids))

    def _forward_and_back(self, ids: Any) -> None:
        import tensorflow as tf

        sources = [variable.value for variable in self.trained]  # Horovod's tape knows TensorFlow's variables only
        with self._reduced(tf.GradientTape()) as tape:
            loss = self._loss_of(ids)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, sources), self.trained, strict=True))

    def _loss_of(self, ids: Any) -> Any:
        import tensorflow as tf

        if self._labels is None:
            return tf.reduce_mean(tf.square(self.model(self._inputs, training=True)))
        logits = self.model(tf.gather(self._inputs, ids), training=True)
        labels = tf.gather(self._labels, ids)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    def weights(self) -> list[np.ndarray]:
        return [np.asarray(variable) for variable in (*self.model.variables, *self.optimizer.variables)]

    def loss(self) -> float:
        assert self._labels is not None
        return float(self._loss_of(np.arange(len(self._labels))))

    def broadcast(self, count: int) -> None:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.broadcast(tf.zeros(count // 4), 0, name="ballast").numpy()


def task_of(options: argparse.Namespace, local_rank: int) -> Any:
    if options.framework == "torch":
        return TorchTask(options.model, local_rank, options.state_mb * 1_000_000)
    return TensorFlowTask(options.model, local_rank, options.state_mb * 1_000_000, eager=options.eager)


def stream_of(edl: Any, samples: int) -> Any:
    """The numbers of all samples as a stream, shuffled as a stream of documents is."""
    stream = edl.ElasticStream(lambda shard: range(shard, samples, STREAM_SHARDS), shards=STREAM_SHARDS)
    return stream.shuffle(256, seed=0)


# --------------------------------------------------------------------------------------------------------------- notes


class Notes(StepNotes):
    """The notes of a benchmark's worker: what edl's own parts take, too."""

    def time_calls(self, owner: type, method: str, kind: str) -> None:
        """Note when calls of that method begin and end."""
        call = getattr(owner, method)

        def noted(*arguments: Any, **keywords: Any) -> Any:
            began = time.monotonic()
            try:
                return call(*arguments, **keywords)
            finally:
                self.note(kind, began=began, size=_size_of(*arguments[1:]))

        setattr(owner, method, noted)

    def time_parts(self) -> None:
        """Note when this worker comes to its next ring, and sits there; what led to it, and how long it was formed."""
        from edl.trainer.ring_builder import RingBuilder, RingSwitch
        from edl.trainer.worker_shell import WorkerShell

        self.time_calls(RingSwitch, "enter", "enter")
        self.time_calls(WorkerShell, "end_uncommitted_batch", "broken")
        self.time_calls(WorkerShell, "_agree", "state")
        self.time_calls(WorkerShell, "_copy", "state")  # the last of these calls is when all have the state
        self.time_calls(RingBuilder, "_form", "prepare")


def _size_of(first: Any = None, *_: Any) -> int | None:
    """Of the ring that a command or a place is about."""
    place = getattr(getattr(first, "assignment", None), "place", first)
    size = getattr(place, "size", None)
    return size if isinstance(size, int) else None


# --------------------------------------------------------------------------------------------------------------- modes


def under_edl(options: argparse.Namespace, notes: Notes) -> None:
    edl: Any = importlib.import_module(f"edl.{options.framework}")
    notes.time_parts()
    edl.init()
    model, task = MODELS[options.model], task_of(options, edl.local_rank())
    task.use_edl(edl, **({"voidable": False} if options.framework == "tensorflow" and not options.voidable else {}))
    epochs = options.epochs or model.epochs or None
    source: Any = stream_of(edl, model.samples) if options.stream else model.samples
    shards = edl.elastic_shard_generator(source, epochs=epochs, shuffle=model.data is not ones and not options.stream)
    generation, ring_began, first_in_ring, wanted, made = edl.generation(), time.monotonic(), True, epochs or 2**31, 0
    while shards.epochs_done < wanted:
        for ids in shards.batches(options.batch or model.batch):
            if edl.generation() != generation:
                generation, ring_began = edl.generation(), time.monotonic()
            rank, size = edl.rank(), edl.size()
            if options.step_ms:
                time.sleep(options.step_ms / 1000)
            task.train(ids)
            rehearsing, step = edl.rehearsing(), edl.step()
            if options.report:
                edl.report(loss=1.0 / step)
            committed = edl.notify_batch_end()
            made += committed
            if committed:  # `size` is from now on; the step was trained in `ring`
                place = {"generation": edl.generation(), "size": edl.size()}
                notes.note("step", step=step, **place, ring=[rank, size, ring_began], cpu=time.process_time())
            elif not rehearsing:
                notes.note("void")
            enters = edl.generation() != generation
            if model.compares and first_in_ring and not enters:  # a newcomer's state may come beside that step
                notes.state("switch", edl, task)
            first_in_ring = enters
            time_broadcasts(edl.step(), task, options, notes)
            if edl.step() > until(options.folder, "stop") or (committed and made == options.steps):
                wanted = 0
                break
        if edl.rank() == 0:
            notes.note("epoch", step=edl.step() - 1, samples=model.samples * shards.epochs_done)
        wanted = min(wanted, until(options.folder, "epochs"))
    if model.compares:
        notes.state("end", edl, task, loss=task.loss())


def time_broadcasts(step: int, task: Any, options: argparse.Namespace, notes: Notes) -> None:
    """After the step for which the benchmark asks."""
    for _ in range(BROADCASTS if step == until(options.folder, "broadcast") else 0):
        began = time.perf_counter()
        task.broadcast(options.state_mb * 1_000_000)
        notes.note("broadcast", seconds=time.perf_counter() - began)


def horovods(framework: str) -> Any:
    return importlib.import_module(f"horovod.{framework}")


def under_elastic_horovod(options: argparse.Namespace, notes: Notes) -> None:
    hvd = horovods(options.framework)
    hvd.init()
    task = task_of(options, hvd.local_rank())
    task.use_horovod()

    @hvd.elastic.run  # type: ignore[untyped-decorator, unused-ignore]
    def loop(state: Any) -> None:
        ring_began = time.monotonic()
        while not (options.folder / "stop").exists():
            time.sleep(options.step_ms / 1000)
            task.train(np.arange(MODELS[options.model].batch))
            state.batch += 1
            notes.note("step", step=state.batch, size=hvd.size(), ring=[hvd.rank(), hvd.size(), ring_began])
            if state.batch % options.commit_every == 0:
                state.commit()

    loop(task.elastic_state())
    os._exit(0)  # the measurement is over: an orderly end would wait for the driver


def under_plain_horovod(options: argparse.Namespace, notes: Notes) -> None:
    hvd = horovods(options.framework)
    hvd.init()
    model, task = MODELS[options.model], task_of(options, hvd.local_rank())
    task.use_horovod()
    batches = plain_batches(model.samples, options.batch or model.batch, hvd.rank(), hvd.size())
    for step, ids in zip(range(1, options.steps + 1), batches, strict=False):
        task.train(ids)
        notes.note("step", step=step, size=hvd.size(), cpu=time.process_time())


def under_torchrun(options: argparse.Namespace, notes: Notes) -> None:
    import torch

    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    task = task_of(options, rank)
    step, checkpoint = 0, options.folder / "checkpoint"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        task.model.load_state_dict(saved["model"])
        task.optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    task.module = torch.nn.parallel.DistributedDataParallel(task.model)
    ring_began = time.monotonic()
    while True:
        time.sleep(options.step_ms / 1000)
        task.train(np.arange(MODELS[options.model].batch))
        step += 1
        notes.note("step", step=step, size=size, ring=[rank, size, ring_began])
        if step % options.commit_every == 0 and rank == 0:
            working = options.folder / "checkpoint.new"
            state = {"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict(), "step": step}
            torch.save(state, working)
            working.rename(checkpoint)


def plain_batches(samples: int, batch: int, rank: int, size: int) -> Iterator[np.ndarray]:
    """What a Horovod user's sampler gives: a shuffled share of this rank, epoch after epoch."""
    epoch = 0
    while True:
        order = np.random.default_rng(epoch).permutation(samples)[rank::size]
        yield from (order[at : at + batch] for at in range(0, len(order) - batch + 1, batch))
        epoch += 1


# ---------------------------------------------------------------------------------------------------------------- pair


class Timed:
    """Steps of one kind, and what they took."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    def __call__(self) -> None:
        cpu, at = time.process_time(), time.perf_counter()
        self._step()
        self.wall_s.append(time.perf_counter() - at)
        self.cpu_s.append(time.process_time() - cpu)


def two_of_torch(edl: Any, options: argparse.Namespace) -> tuple[TorchTask, TorchTask, Callable[[], None]]:
    """And what makes both of one model, once each has made a step: where a model lies in memory makes a difference of
    its own, of a percent or two.
    """
    plain, ours = TorchTask(options.model), TorchTask(options.model)
    plain.use_horovod("plain.")
    if options.control:
        ours.use_horovod("control.")
    else:
        ours.use_edl(edl)

    def share() -> None:
        one, other = plain.optimizer, ours.optimizer
        for mine, theirs in zip(one.param_groups[0]["params"], other.param_groups[0]["params"], strict=True):
            theirs.data = mine.data
            other.state[theirs].update(one.state[mine])

    return plain, ours, share


def two_of_tensorflow(
    edl: Any, options: argparse.Namespace
) -> tuple[TensorFlowTask, TensorFlowTask, Callable[[], None]]:
    """They share from the beginning."""
    plain = TensorFlowTask(options.model)
    ours = plain.twin()
    plain.use_horovod()
    trace_without_elastic(plain)
    if options.control:
        ours.use_horovod()
        trace_without_elastic(ours)
    else:
        ours.use_edl(edl, voidable=False)
    return plain, ours, lambda: None


def trace_without_elastic(task: TensorFlowTask) -> None:
    """As in a job without edl: Horovod's operations look up the ring's size while they are traced, which is cheaper."""
    os.environ["HOROVOD_ELASTIC"] = "0"
    task.train(np.arange(1))
    os.environ["HOROVOD_ELASTIC"] = "1"


def nothing(samples: int | None = None) -> bool:  # noqa: ARG001 - as notify_batch_end() has it
    """What any call costs where the caches are cold from a step."""
    return True


def in_pairs(options: argparse.Namespace, notes: Notes) -> None:
    from benchmarks.harness import cpu_seconds, daemon_of

    edl: Any = importlib.import_module(f"edl.{options.framework}")
    edl.init()
    model, batch = MODELS[options.model], options.batch or MODELS[options.model].batch
    two: Any = {"torch": two_of_torch, "tensorflow": two_of_tensorflow}[options.framework]
    plain, ours, share = two(edl, options)
    theirs, others = (plain_batches(model.samples, batch, edl.rank(), edl.size()) for _ in range(2))
    shards = edl.elastic_shard_generator(model.samples, epochs=model.epochs, shuffle=True).batches(batch)
    calls, empty_calls, compared_s = list[float](), list[float](), list[float]()

    def step_of_ours() -> None:
        ours.train(next(shards))
        at = time.perf_counter()
        edl.notify_batch_end()
        calls.append(time.perf_counter() - at)
        if (edl.step() - 1) % EVERY == 0:
            compared_s.append(calls[-1])

    control = Timed(lambda: ours.train(next(others)))
    kinds = {
        "plain": Timed(lambda: plain.train(next(theirs))),
        "edl": control if options.control else Timed(step_of_ours),
    }
    daemon = daemon_of(os.getpid())
    daemon_s, began = cpu_seconds(daemon), time.perf_counter()
    for number in range(WARM_UP + options.steps):
        if number == WARM_UP // 2:
            share()
        for kind in list(kinds.values())[:: 1 if number % 2 else -1]:
            kind()
            at = time.perf_counter()
            nothing()
            empty_calls.append(time.perf_counter() - at)
    notes.note(
        "pair",
        **{f"{name}_s": kind.wall_s[WARM_UP:] for name, kind in kinds.items()},
        **{f"{name}_cpu_s": kind.cpu_s[WARM_UP:] for name, kind in kinds.items()},
        notify_s=calls[WARM_UP:],
        compared_s=compared_s,
        empty_call_s=empty_calls[2 * WARM_UP :],
        daemon_cpu=(cpu_seconds(daemon) - daemon_s) / (time.perf_counter() - began),
    )


MODES = {
    "edl": under_edl,
    "horovod": under_elastic_horovod,
    "plain": under_plain_horovod,
    "torchrun": under_torchrun,
    "pair": in_pairs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", choices=MODES, default="edl")
    parser.add_argument("--framework", choices=["torch", "tensorflow"], default="torch")
    parser.add_argument("--model", choices=MODELS, default="square")
    parser.add_argument("--state-mb", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=20.0, help="what a step sleeps: the rest of a real model's")
    parser.add_argument("--steps", type=int, default=0, help="after which this worker ends; 0: not by their number")
    parser.add_argument("--batch", type=int, default=0, help="0: the model's own")
    parser.add_argument("--epochs", type=int, default=0, help="asked for at once; 0: the model's own way")
    parser.add_argument("--commit-every", type=int, default=10, help="steps, of peers, as in Horovod's own examples")
    parser.add_argument("--eager", action="store_true", help="TensorFlow's steps: Horovod's elastic mode needs it")
    parser.add_argument("--voidable", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--control", action="store_true", help="plain Horovod in the place of edl, for `pair`")
    parser.add_argument("--stream", action="store_true", help="under edl, the same numbers as an ElasticStream's items")
    parser.add_argument("--report", action="store_true", help="a loss with each step")
    options = parser.parse_args()
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    choose_device()
    MODES[options.mode](options, Notes(options.folder))


if __name__ == "__main__":
    main()
