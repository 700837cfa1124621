"""edl for PyTorch: `import edl.torch as edl`.

The names here and in `edl.tensorflow` are the same, with the same meaning and the same signatures. A script uses one of
the two; a process has one seat in one job.

A script of Horovod's writes `import edl.torch as hvd`: `hvd.elastic` is there, and so are Horovod's collectives.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

import edl
from edl import errors
from edl.policy.learning import Knee, Warmup
from edl.sources.streams.elastic_stream import ElasticStream
from edl.torch import elastic as elastic
from edl.torch import torch_horovod_names, torch_loading
from edl.torch.loader import ElasticDataLoader, Records
from edl.torch.optimizer import Elastic
from edl.torch.torch_process import framework as _framework
from edl.torch.torch_process import trainer as _trainer
from edl.torch.torch_reducer import Manner
from edl.trainer.exit_paths import Leaving
from edl.trainer.learning_rates import RateTuner
from edl.trainer.module_aliases import alias

if TYPE_CHECKING:
    from edl.torch.loader_conversion import ElasticBatches

AnyModel = TypeVar("AnyModel", bound=torch.nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)

init = _trainer.init
shutdown = _trainer.shutdown
rank = _trainer.rank
size = _trainer.size
local_rank = _trainer.local_rank
step = _trainer.step
epoch = _trainer.epoch
generation = _trainer.generation
group_rank = _trainer.group_rank
group_size = _trainer.group_size
part_weight = _trainer.data.part_weight
own_samples = _trainer.data.own_samples
rehearsing = _trainer.rehearsing
notify_batch_end = _trainer.notify_batch_end
checkpoint = _trainer.checkpoint
resumed = _trainer.resumed
on_resize = _trainer.on_resize
register = _trainer.register
report = _trainer.report
scale_rate = _trainer.rates.scale_rate
measure_noise = _trainer.rates.measure_noise
gradient_noise = _trainer.rates.gradient_noise
schedule_rate = _trainer.rates.schedule_rate
microbatches = bites = _trainer.data.microbatches  # bites: the name of before
elastic_shard_generator = _trainer.data.elastic_shard_generator
evaluate = _trainer.data.evaluate
gather_for_metrics = _trainer.data.gather_for_metrics


class _Wrapped(type):
    """Count wrapped optimizers of any class as instances of `Optimizer`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Elastic)


class Optimizer(Elastic, torch.optim.Optimizer, metaclass=_Wrapped):
    """Make `optimizer` average gradients over all workers, weighted by their samples, while backward computes them.

    Returns the same object, still an instance of its class: schedulers, scalers and `state_dict()` work as before. It
    is an instance of `edl.Optimizer`, too.

    Args:
        optimizer: any `torch.optim.Optimizer`.
        model: the module that it trains. Its buffers (batch-norm statistics, ...) then reach newcomers too.
        named_parameters: names for the parameters, where there is no model to take them from. They must be the same on
            all workers; without them the position in the optimizer serves.
        unused: the gradient of a parameter that no worker has used in a step. "none": it has none, as in one process
            and with `DistributedDataParallel`, so the optimizer leaves it alone. "zeros": as with Horovod, so weight
            decay and momentum go on.

    `backward()` returns with the averaged gradients: clip them, look at their norms, unscale them as in any script.
    Inside `with optimizer.no_sync():` it only adds up gradients, to accumulate. When a peer is lost in the middle of a
    step, `step()` leaves the parameters alone and `notify_batch_end()` returns False. It does the same in a step in
    which no worker has samples.

    >>> layer = torch.nn.Linear(4, 2)
    >>> wrapped = edl.Optimizer(torch.optim.SGD(layer.parameters(), lr=0.1), model=layer)
    >>> isinstance(wrapped, torch.optim.SGD)
    True
    """

    def __new__(  # type: ignore[misc] # what it returns keeps its own class
        cls,
        optimizer: AnyOptimizer,
        model: torch.nn.Module | None = None,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        *,
        unused: Literal["none", "zeros"] = "none",
    ) -> AnyOptimizer:
        if unused not in {"none", "zeros"}:
            raise errors.UsageError(f'edl.Optimizer(unused={unused!r}): it is "none" or "zeros"')
        if not _trainer.seating.imports_only:
            _framework.wrap(_trainer, optimizer, model, named_parameters, Manner(zeros=unused == "zeros"))
        return optimizer


def local(optimizer: torch.optim.Optimizer | torch.nn.Module | torch.Tensor) -> None:
    """Say that what `optimizer` trains is each worker's own: nothing of it is averaged, compared, or sent to newcomers.

    Without that, an optimizer that `Optimizer` was not given ends the job once workers differ in what it trains. Where
    the script trains by hand, without any optimizer, give the module or the tensor.

    >>> head = torch.nn.Linear(4, 1)
    >>> edl.local(torch.optim.SGD(head.parameters(), lr=0.1))
    """
    _framework.leave_alone(optimizer)


def ElasticDataset(source: Any, format: str | None = None) -> Records:  # noqa: N802, A002 - as one expects them
    """Files as a dataset with `__getitem__` and `__len__`, for `edl.ElasticDataLoader`: its worker processes read them.

    `source` and `format` are those of `edl.elastic_shard_generator`; so are the records.

    >>> with open("lines.txt", "w") as file:
    ...     print("one", "two", sep=chr(10), file=file)
    >>> dataset = edl.ElasticDataset("lines.txt")
    >>> len(dataset), dataset[1]
    (2, 'two')
    """
    return Records(_trainer.data.opening(source, format))


def prepare(
    model: AnyModel, optimizer: AnyOptimizer, loader: Any, *, seed: int = 0, broadcast_buffers: bool = True
) -> tuple[AnyModel, AnyOptimizer, ElasticBatches]:
    """Do all that a script of `DistributedDataParallel` needs: join the job, unless `init()` was called before; average
    gradients; and make the loader one over this worker's samples. Give it the model that is not wrapped.

    Args:
        model: what is trained; it is returned as it is.
        optimizer: becomes that of `Optimizer(optimizer, model=model)`.
        loader: a `torch.utils.data.DataLoader` as for one process, without a sampler. In the loop over what is
            returned for it, asking for the next mini-batch is the end of the one before, and `notify_batch_end()` is
            not called. Around that loop, `for epoch in loader.epochs(10):` is right on all workers.
        seed: of the shuffling, where the loader has no generator of its own; the same on all workers.
        broadcast_buffers: before the first forward pass of each mini-batch in training, the model's buffers (batch
            norm's statistics, ...) become those of rank 0, as with `DistributedDataParallel`. False: each worker keeps
            its own.

    >>> layer = torch.nn.Linear(4, 2)
    >>> loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(6, 4)), batch_size=3)
    >>> layer, sgd, loader = edl.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1), loader)
    >>> for (rows,) in loader:
    ...     sgd.zero_grad()
    ...     layer(rows).square().mean().backward()
    ...     sgd.step()
    >>> edl.step() - 1
    2
    """
    from edl.torch.buffers import SharedBuffers
    from edl.torch.loader_conversion import ElasticBatches, converted

    parts: tuple[object, object] = (model, optimizer)
    if not isinstance(parts[0], torch.nn.Module) or not isinstance(parts[1], torch.optim.Optimizer):
        raise errors.UsageError(
            f"prepare(model, optimizer, loader) got a {type(model).__name__} and a {type(optimizer).__name__}: give a "
            "torch.nn.Module and an optimizer of its parameters, in this order"
        )
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise errors.UsageError(
            "prepare(): the model is wrapped in DistributedDataParallel, which would average its gradients again: "
            "leave that away, with dist.init_process_group()"
        )
    if not _trainer.began:
        init()
    _trainer.seating.check_alone("edl.prepare()")
    batches = ElasticBatches(converted(loader, 1, seed), lambda batch: batch)
    if broadcast_buffers:
        SharedBuffers(_trainer, _framework.ring).attach(model)
    return model, Optimizer(optimizer, model=model), batches


def load_checkpoint(path: str | os.PathLike[str], model: torch.nn.Module) -> None:
    """Put the weights and buffers of a checkpoint into `model`, outside of any job: to evaluate it, say.

    Args:
        path: a checkpoint, the folder or URL of a job's, or one with those of a single job. Of several the newest that
            is whole counts. A folder that `torch.distributed.checkpoint.save` has written serves as well.
        model: built as the job's was. Its tensors keep their devices and dtypes.

    Raises `errors.UsageError` where the model has other names or shapes, `errors.CheckpointError` where there is
    nothing whole to load; the model is as it was then.

    >>> try:
    ...     edl.load_checkpoint("checkpoints", torch.nn.Linear(4, 2))
    ... except edl.errors.EdlError as error:
    ...     print(error)
    there is no checkpoint in checkpoints: name the folder that --checkpoint named
    """
    torch_loading.load(path, model)


if TYPE_CHECKING:
    from edl.launch.function_run import run as run
    from edl.torch.horovod_types import *  # noqa: F403 - the names that `__getattr__` finds
else:

    def __getattr__(name: str) -> Any:
        """Look up Horovod's own names, `hvd.allreduce` and so on, and `edl.run`."""
        return edl.run if name == "run" else torch_horovod_names.lookup(__name__, name)  # what workers need not import


for _module in torch_horovod_names.MODULES:
    alias(f"{__name__}.{_module}", partial(torch_horovod_names.lookup, __name__))
alias(f"{__name__}.elastic.state", partial(getattr, elastic))
alias(f"{__name__}.elastic.sampler", partial(getattr, elastic))


__all__ = [
    "ElasticDataLoader",
    "ElasticDataset",
    "ElasticStream",
    "Knee",
    "Leaving",
    "Optimizer",
    "RateTuner",
    "Warmup",
    "bites",
    "checkpoint",
    "elastic_shard_generator",
    "epoch",
    "errors",
    "evaluate",
    "gather_for_metrics",
    "generation",
    "gradient_noise",
    "group_rank",
    "group_size",
    "init",
    "load_checkpoint",
    "local",
    "local_rank",
    "measure_noise",
    "microbatches",
    "notify_batch_end",
    "on_resize",
    "own_samples",
    "part_weight",
    "prepare",
    "rank",
    "register",
    "rehearsing",
    "report",
    "resumed",
    "run",
    "scale_rate",
    "schedule_rate",
    "shutdown",
    "size",
    "step",
]
