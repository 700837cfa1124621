"""Horovod's elastic names for PyTorch: `import edl.torch as hvd`, then `hvd.elastic.run`, `TorchState`, and so on.

docs/migrating.md says what they mean here. Owns: what such a script names. Does not own: when the training function is
left and called anew (`edl.trainer.elastic_run`), nor the samples (`edl.trainer.data.shards`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sized
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from edl.errors import UsageError
from edl.torch import torch_horovod_names
from edl.torch.loader import Runs, batches_of_epoch
from edl.torch.torch_process import framework, trainer
from edl.trainer.data.shards import ShardGenerator
from edl.trainer.elastic_run import Run, RunPart, State
from edl.trainer.packing import has_state

P = ParamSpec("P")
R = TypeVar("R")
AnyState = TypeVar("AnyState", bound=State)

init = trainer.init
shutdown = trainer.shutdown
_run = Run(trainer, framework, framework.updates)


def run(func: Callable[Concatenate[AnyState, P], R]) -> Callable[Concatenate[AnyState, P], R]:
    """Decorate the function that trains; its first argument is the state.

    It is called once the workers are there, and called anew, from the present state, on all of them whenever workers
    have come, left or died: at the end of a mini-batch, or where a collective in it has failed. A newcomer's first
    mini-batch is its rehearsal, after which its function is called anew, too.
    """
    return _watched(_run(func))


def run_fn(
    func: Callable[Concatenate[AnyState, P], R],
    reset: Callable[[], object],  # noqa: ARG001 - Horovod's signature: what forms its ring anew, and edl does that
) -> Callable[Concatenate[AnyState, P], R]:
    """Do what `run` does, by the name of what Horovod's `run` is made of."""
    return run(func)


def _watched(train: Callable[Concatenate[AnyState, P], R]) -> Callable[Concatenate[AnyState, P], R]:
    """Refuse, while `train` runs, that a DistributedSampler gives samples to train on. It goes by the size at its
    making: after a change some samples come twice and others never, and a newcomer's is of a ring of one.
    """

    @functools.wraps(train)
    def running(state: AnyState, /, *args: P.args, **kwargs: P.kwargs) -> R:
        theirs = DistributedSampler.__iter__

        def refused(sampler: DistributedSampler[Any]) -> Iterator[Any]:
            if torch.is_grad_enabled():
                raise UsageError(
                    "hvd.elastic.run: a DistributedSampler knows only the size of its making, and would give samples "
                    "twice: to train, take hvd.elastic.ElasticSampler(dataset) with hvd.elastic.DataLoader; to "
                    "evaluate, iterate under `with torch.no_grad():`"
                )
            return theirs(sampler)

        DistributedSampler.__iter__ = refused  # type: ignore[method-assign]
        try:
            return train(state, *args, **kwargs)
        finally:
            DistributedSampler.__iter__ = theirs  # type: ignore[method-assign]

    return running


class TorchState(State):
    """The state that travels to newcomers: models and optimizers, samplers, and plain values as attributes
    (`state.epoch`).

    An `ElasticSampler` that was made before the state travels with it, too, whether the state is given it or not.

    Args:
        model: a module; its parameters and buffers.
        optimizer: what `hvd.DistributedOptimizer` or `edl.Optimizer` returned. A plain one travels too, but averages
            nothing.
        kwargs: more modules and optimizers; samplers, schedulers, a GradScaler and what else has a `state_dict()`; and
            values: whatever `edl.register` takes.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        values: dict[str, Any] = {}
        parts: dict[str, RunPart] = {}
        self._models: dict[str, torch.nn.Module] = {}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        for name, value in {"model": model, "optimizer": optimizer, **kwargs}.items():
            if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
                framework.track(value)
                self.__dict__[name] = value
                known: dict[str, Any] = self._models if isinstance(value, torch.nn.Module) else self._optimizers
                known[name] = value
            elif has_state(value):
                parts[name] = value
                if isinstance(value, ElasticSampler):
                    parts[f"{name}.place"] = value._place
            elif name in {"model", "optimizer"}:
                if value is not None:
                    raise UsageError(f"TorchState({name}=...) is a {type(value).__name__}: give what torch calls so")
                self.__dict__[name] = None
            else:
                values[name] = value
        for number, sampler in enumerate(_samplers_of_no_state, 1):
            if all(part is not sampler for part in parts.values()):
                parts |= {f"sampler {number}": sampler, f"sampler {number}.place": sampler._place}
        _samplers_of_no_state.clear()
        super().__init__(_run, values, parts)

    def _of_first(self, values: dict[str, Any]) -> dict[str, Any]:
        for _, model in sorted(self._models.items()):
            torch_horovod_names.lookup(__name__, "broadcast_parameters")(model.state_dict(), root_rank=0)
        for _, optimizer in sorted(self._optimizers.items()):
            torch_horovod_names.broadcast_optimizer_state(optimizer, root_rank=0)
        found: dict[str, Any] = torch_horovod_names.value_of_first(values, "state.sync()")
        return found


class _PassPlace:
    """The job's pass over the data that a sampler is at; a script that resumes counts epochs from elsewhere."""

    def __init__(self) -> None:
        self.number = 0
        self.begun = False
        self.over = False  # it has come to its end, and nothing was rolled back since

    def go_on(self) -> None:
        self.number += 1
        self.begun = self.over = False

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number, "begun": int(self.begun), "over": int(self.over)}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.number = state_dict["number"]
        self.begun, self.over = bool(state_dict["begun"]), bool(state_dict["over"])


class ElasticSampler(data.Sampler[int]):
    """Samples of this worker, for a `DataLoader` of this module.

    While gradients are recorded it gives the samples of training, each exactly once in an epoch, as workers come, go
    or die. Under `torch.no_grad()`, to evaluate, it gives each rank an equal share, as Horovod's does: where the number
    of samples does not divide, some come twice.

    Args:
        dataset: anything with `len()`.
        shuffle: each epoch in another order.
        seed: of the shuffling, the same on all workers.
    """

    _that_trains: ElasticSampler | None = None

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0  # as the script has recorded it in this epoch, of all workers
        self._place = _PassPlace()
        self._shards: ShardGenerator[Any] | None = None
        _samplers_of_no_state.append(self)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is another epoch. Call it at the end of each, or before each."""
        if epoch != self.epoch and self._place.begun:
            self._place.go_on()
        self.epoch = epoch
        self.processed_num = 0

    def record_batch(self, batch_idx: int, batch_size: int) -> None:  # noqa: ARG002 - Horovod's signature
        """Counts in `processed_num`, and nothing else: edl knows what is trained."""
        self.processed_num += batch_size * trainer.size()

    def state_dict(self) -> dict[str, int]:
        """Return the sampler's epoch; which of its samples are trained is edl's to know, and travels by itself."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Load the outcome of `state_dict()`, or of Horovod's; an epoch begins anew, whatever `processed_indices` it
        was left with.
        """
        self.epoch = state_dict["epoch"]

    def __len__(self) -> int:
        """Samples of this worker in a whole epoch, at the present size."""
        return math.ceil(len(self.dataset) / trainer.size())

    def __iter__(self) -> Iterator[int]:
        if torch.is_grad_enabled():
            raise UsageError(
                "ElasticSampler: a plain DataLoader would ask for samples that are not leased yet; to train, use "
                "hvd.elastic.DataLoader(dataset, batch_size, sampler=sampler); to evaluate, `with torch.no_grad():`"
            )
        return iter(self._share().tolist())

    def _runs(self, batch_size: int) -> Iterator[Iterator[Any]]:
        if ElasticSampler._that_trains is None:
            if self in _samplers_of_no_state:
                raise UsageError(
                    "ElasticSampler: no state has it, so a newcomer would not know which epoch it is at: make it "
                    "before the TorchState, or give it to that (sampler=sampler)"
                )
            ElasticSampler._that_trains = self
        if ElasticSampler._that_trains is not self:
            raise UsageError(
                "ElasticSampler: a second one is iterated with gradients recorded, and a job trains on one source; "
                "to evaluate, iterate under `with torch.no_grad():`"
            )
        if self._shards is None:
            self._shards = trainer.data.elastic_shard_generator(len(self.dataset), shuffle=self.shuffle, seed=self.seed)
        place = self._place
        if place.over:  # iterated again without set_epoch()
            place.go_on()
        place.begun = True
        yield from self._shards.runs(batch_size, place.number)
        place.over = True

    def _newest_step(self) -> int:
        return 0 if self._shards is None else self._shards.newest_step

    def _share(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return this worker's samples for an evaluation."""
        total, size = len(self.dataset), trainer.size()
        order = np.random.default_rng(self.seed + self.epoch).permutation(total) if self.shuffle else np.arange(total)
        return np.resize(order, len(self) * size)[trainer.rank() :: size]


_samplers_of_no_state: list[ElasticSampler] = []  # what a newcomer would not be told of: the next state takes them


class DataLoader(data.DataLoader[Any]):
    """torch's DataLoader; with an `ElasticSampler` it gives one mini-batch a step, while workers come and go.

    Asking it for the next mini-batch is the end of the one before, unless a `state.commit()` was. Without an
    `ElasticSampler` it is torch's in all.
    """

    def __init__(
        self,
        dataset: data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        **loading: Any,
    ) -> None:
        self._trains_on = sampler if isinstance(sampler, ElasticSampler) else None
        if self._trains_on is None:
            super().__init__(dataset, batch_size, shuffle, sampler, **loading)
            return
        if shuffle or loading.get("drop_last") or not batch_size:
            raise UsageError(
                "hvd.elastic.DataLoader(sampler=ElasticSampler(...)): leave shuffle and drop_last away, which are the "
                "sampler's matter, and give a batch_size"
            )
        self._runs, self._loads_steps_of = Runs(framework.loading, trainer, loading.get("generator")), batch_size
        if loading.get("num_workers"):
            loading = {"persistent_workers": True, **loading}
        super().__init__(dataset, batch_sampler=self._runs, **{**loading, "generator": self._runs.generator})

    def __len__(self) -> int:
        """Mini-batches of this worker in a whole epoch, at the present size."""
        if self._trains_on is None:
            return super().__len__()
        return batches_of_epoch(self._trains_on.dataset, self._loads_steps_of)

    def __iter__(self) -> Any:
        if self._trains_on is None:
            return super().__iter__()
        return self._training(self._trains_on) if torch.is_grad_enabled() else self._evaluating(self._trains_on)

    def _training(self, sampler: ElasticSampler) -> Iterator[Any]:
        _run.end_batch_if_updated("iterating a DataLoader to train")  # of an iteration that was left midway
        for run in sampler._runs(self._loads_steps_of):
            self._runs.begin(run, sampler._newest_step)
            for batch in super().__iter__():
                step = trainer.step()
                yield batch
                _run.end_batch(step)

    def _evaluating(self, sampler: ElasticSampler) -> Iterator[Any]:
        share = sampler._share()
        parts = np.split(share, range(self._loads_steps_of, len(share), self._loads_steps_of))
        numbers = itertools.count(-1, -1)  # these are of no step
        self._runs.begin(iter(parts), lambda: next(numbers))
        yield from super().__iter__()


__all__ = ["DataLoader", "ElasticSampler", "TorchState", "init", "run", "run_fn", "shutdown"]
