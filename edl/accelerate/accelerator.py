"""Accelerate's Accelerator, for a job whose workers come and go.

Owns: the objects that `prepare()` makes elastic, adding gradients up, which worker writes, and which logs a line with
which rank in it. Does not own: where steps end (`edl.torch.loader_conversion`).

Accelerate's own state stays that of one process: there is no process group. Loaders of data other than the training
data are shared out in rounds (`edl.accelerate.shared_loader`), while the script is between two passes over the training
data.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.logging import MultiProcessAdapter
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import recursively_apply, send_to_device

import edl.torch as elastic
from edl.accelerate.shared_loader import EvaluationRound, SharedLoader, joined, lengths, padded, told_by_all
from edl.torch.loader_conversion import ElasticBatches, converted
from edl.torch.loop_collectives import LoopCollectives
from edl.torch.shared_batches import shared_batches
from edl.torch.torch_process import framework
from edl.torch.torch_process import trainer as seat


def log_by_rank(is_main: Callable[[], bool], rank: Callable[[], int]) -> None:
    """Let loggers of this process (`accelerate.logging.get_logger`) use the job's ranks. Both functions are called at
    each line.

    To Accelerate each worker is alone, so it would let all of them log, and call each of them `[RANK 0]`. Scripts make
    their loggers at the top, before there is an Accelerator: so the class is changed, and existing loggers follow.
    """

    def should_log(main_process_only: bool) -> bool:
        return is_main() or not main_process_only

    def process(
        adapter: logging.LoggerAdapter[Any], message: Any, given: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        message, given = logging.LoggerAdapter.process(adapter, message, given)
        given.setdefault("stacklevel", 2)  # the place in the script, as Accelerate has it
        return f"[RANK {rank()}] {message}", given

    MultiProcessAdapter._should_log = staticmethod(should_log)
    MultiProcessAdapter.process = process


class ElasticScheduler(AcceleratedScheduler):  # type: ignore[misc]
    """A schedule that moves n steps at a step of n workers, as with Accelerate; n may change. Virtual workers count."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        if seat.virtual and self.step_with_optimizer and not self.gradient_state.sync_gradients:
            return  # after how many of them a worker does not update is its own matter
        size = seat.virtual or seat.size()
        moves = size if self.gradient_state.sync_gradients and not self.split_batches else 1
        for _ in range(moves if self.step_with_optimizer else 1):
            super().step(*args, **kwargs)


class EdlAccelerator(Accelerator):  # type: ignore[misc]
    """The elastic `accelerate.Accelerator`. The first DataLoader that it prepares is the one to train on."""

    def __init__(self, *args: Any, data_seed: int = 0, **kwargs: Any) -> None:
        """Join the job, unless the script has called `edl.init()` before.

        `data_seed`: seed of the shuffling, if the DataLoader has no generator of its own; the same on all workers.
        """
        if not seat.began:
            elastic.init()
        seat.seating.check_alone("Accelerator")
        super().__init__(*args, **kwargs)
        self._words = LoopCollectives(framework, seat, lambda: seat.evaluate_shared if self._stands() else None)
        log_by_rank(lambda: self.is_main_process, seat.rank)
        self._data_seed = data_seed
        self._batches: ElasticBatches | None = None
        self._evaluated: list[SharedLoader] = []
        self._registered = 0
        self._scales = False
        self._saves = False
        self._trackers_due: Callable[[], None] | None = None

    # --------------------------------------------------------------------------------------------------- preparing

    def prepare_data_loader(self, data_loader: Any, device_placement: Any = None, **more: Any) -> Any:
        """Prepare a loader: the first one is trained on; all others are evaluated."""
        if isinstance(data_loader, (ElasticBatches, SharedLoader)):
            return data_loader
        place = self.device_placement if device_placement is None else device_placement
        if self._batches is not None:
            whole = super().prepare_data_loader(data_loader, device_placement, **more)
            if (batches := shared_batches(data_loader)) is None:
                return whole
            shared = SharedLoader(whole, batches, self._to_device if place else lambda batch: batch, self._in_step)
            self._evaluated.append(shared)
            self._dataloaders[-1] = shared  # in the place of `whole`
            return shared
        parts = converted(data_loader, self.gradient_accumulation_steps, self._data_seed, takes_parts=True)
        self._batches = ElasticBatches(parts, self._to_device if place else lambda batch: batch)
        self._dataloaders.append(self._batches)
        return self._batches

    def prepare_model(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Prepare a model; it travels to newcomers."""
        framework.track(model)
        return super().prepare_model(model, *args, **kwargs)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: Any = None) -> Any:
        """Make an optimizer average gradients over the workers."""
        return super().prepare_optimizer(elastic.Optimizer(optimizer), device_placement)

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Prepare a schedule; it travels to newcomers."""
        prepared = super().prepare_scheduler(scheduler)
        prepared.__class__ = ElasticScheduler
        self._register(prepared.scheduler)
        return prepared

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare as Accelerate does, with the training made elastic."""
        for one in args:
            if isinstance(one, torch.nn.Module):
                framework.track(one)  # its optimizer may stand before it
        prepared = super().prepare(*args, **kwargs)
        if self.scaler is not None and not self._scales:
            self._scales = True
            self._register(self.scaler)
        return prepared

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Register objects that travel to newcomers, and into the job's checkpoints, too."""
        super().register_for_checkpointing(*objects)
        for one in objects:
            self._register(one)

    def _register(self, value: Any) -> None:
        self._registered += 1
        seat.register(**{f"accelerate_{self._registered}": value})

    def _to_device(self, batch: Any) -> Any:
        return send_to_device(batch, self.device, non_blocking=self.non_blocking)

    # ---------------------------------------------------------------------------------------------------- training

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Compute gradients; those of a step are averaged with its last batch."""
        steps = self.gradient_accumulation_steps
        if self._batches is None or (steps == 1 and not seat.virtual):
            super().backward(loss, **kwargs)
            return
        parts = self._batches.parts
        if seat.virtual:
            super().backward(loss * (parts.share * steps), **kwargs)
            parts.note_backward()
            self.gradient_state._set_sync_gradients(parts.last)
            return
        with contextlib.nullcontext() if parts.last else framework.adding_up():
            super().backward(loss * (parts.share * steps), **kwargs)  # which Accelerate divides by `steps`

    def _do_sync(self) -> None:
        if self._batches is None:
            super()._do_sync()
        else:
            self.gradient_state._set_sync_gradients(self._batches.parts.last)

    # -------------------------------------------------------------------------------------------------- evaluating

    def _in_step(self) -> bool:
        """Tell whether the script is in the middle of a mini-batch, where workers may not all do the same."""
        return self._batches is not None and self._batches.in_step

    @property
    def _round(self) -> EvaluationRound | None:
        return next((one.round for one in self._evaluated if one.round is not None), None)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:  # noqa: ARG002 - either way
        """Join the values of all workers, each sample once, in a loop over a prepared loader between two passes of
        training. Elsewhere return `input_data`.
        """
        now = self._round
        return input_data if now is None else joined(input_data, now.gathered(now.cut(input_data)))

    def gather(self, tensor: Any) -> Any:
        """Do the same as `gather_for_metrics` in such a loop; else join each worker's values between two passes, by
        rank.
        """
        if self._round is not None:
            return self.gather_for_metrics(tensor)
        return recursively_apply(lambda one: joined(one, told_by_all(one)), tensor) if self._between() else tensor

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the sum or the mean of all workers' values between two passes of training; elsewhere `tensor`
        itself.
        """
        if not self._between() or reduction == "none":
            return super().reduce(tensor, reduction, scale)
        return recursively_apply(lambda one: _reduced(one, told_by_all(one), reduction) * scale, tensor)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Pad to the longest tensor of this round, in a loop over a prepared loader; elsewhere return `tensor`."""
        now = self._round
        if now is None:
            return tensor
        sizes = [*now.told(lengths(tensor, dim)).values()]
        return padded(tensor, dim, sizes, pad_index, first=pad_first)

    def _stands(self) -> bool:
        """Tell whether the script is between two passes, where all workers, newcomers too, do the same."""
        return self._batches is not None and self._batches.between

    def _between(self) -> bool:
        """Tell whether the script is between two passes, and in no round of an evaluation."""
        return self._stands() and self._round is None

    # -------------------------------------------------------------------------------------------------- who writes

    @property
    def is_main_process(self) -> bool:
        """Tell whether this is the job's main process; a newcomer that rehearses is not."""
        return seat.rank() == 0 and not seat.rehearsing()

    @property
    def is_local_main_process(self) -> bool:
        """Tell the same for each host: the first worker of a host may have left."""
        return self.is_main_process

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the main process alone."""
        if self.is_main_process:
            print(*args, **kwargs)  # noqa: T201 - the method's purpose

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function to do nothing on other processes; the main process is determined at each call."""
        return _only_where(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate as `on_main_process` does."""
        return self.on_main_process(function)

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function to run on the worker with the last rank alone."""
        return _only_where(lambda: seat.rank() == seat.size() - 1 and not seat.rehearsing(), function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """Decorate a function to run on the worker with this rank alone."""
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return _only_where(lambda: seat.rank() == (process_index or 0) and not seat.rehearsing(), function)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Decorate a function to run on the worker with this local rank of each host alone."""
        if function is None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        wanted = local_process_index or 0
        return _only_where(lambda: seat.local_rank() == wanted and not seat.rehearsing(), function)

    def init_trackers(self, *args: Any, **kwargs: Any) -> None:
        """Begin trackers on the main process. A worker that takes its place begins trackers of its own as it logs."""
        self._trackers_due = functools.partial(super().init_trackers, *args, **kwargs)
        self._begin_trackers()

    def get_tracker(self, *args: Any, **kwargs: Any) -> Any:
        """Return a tracker; a blank one if this is not the main process."""
        self._begin_trackers()
        return super().get_tracker(*args, **kwargs)

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Log on the main process alone."""
        self._begin_trackers()
        if self.is_main_process:
            super().log(*args, **kwargs)

    def _begin_trackers(self) -> None:
        if self._trackers_due is not None and self.is_main_process:
            due, self._trackers_due = self._trackers_due, None
            due()

    def wait_for_everyone(self) -> None:
        """Wait for all workers, which must call this at the same place."""
        if self._saves:
            return
        self._words.meet()

    def save_state(self, *args: Any, **kwargs: Any) -> Any:
        """Save on the main process alone. A whole job resumes by `edl run --checkpoint`, at the exact sample."""
        # No other worker waits for it: a script that counts batches by itself counts other ones on a newcomer.
        if not self.is_main_process:
            return None
        naming = self.project_configuration
        if naming.automatic_checkpoint_naming:  # another worker, or an earlier life, may have saved before
            naming.iteration = max(naming.iteration, _next_number(Path(self.project_dir) / "checkpoints"))
        self._saves = True
        try:
            return super().save_state(*args, **kwargs)
        finally:
            self._saves = False

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save on the main process alone."""
        if self.is_main_process:
            super().save_model(*args, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save on the main process alone."""
        if self.is_main_process:
            super().save(*args, **kwargs)


def _only_where(holds: Callable[[], bool], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if holds() else None

    return called


def _reduced(like: torch.Tensor, parts: list[torch.Tensor], reduction: str) -> torch.Tensor:
    whole = torch.stack(parts).sum(0, dtype=like.dtype)
    return (whole / len(parts) if reduction == "mean" else whole).to(like.device)


def _next_number(folder: Path) -> int:
    """Return the next number of the checkpoints that Accelerate has numbered."""
    names = (one.name.removeprefix("checkpoint_") for one in folder.glob("checkpoint_*"))
    return max((int(name) + 1 for name in names if name.isdigit()), default=0)
