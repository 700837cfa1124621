"""The strategy: one device per worker, gradients averaged by edl, and as many workers as the job has at the moment.

Owns: the interface that Lightning asks of its strategy, and writing its checkpoints by the rules of edl's own. Does not
own: their content, nor reading and removing them, which are Lightning's; the training loop (`edl.lightning.loops`),
collectives (`edl.torch.loop_collectives`), the data (`edl.torch.loader_conversion`).

There is no process group of torch's, and no sampler is put in: edl deals out the samples. Size and rank are asked anew
each time.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.callbacks.timer import Interval
from lightning.pytorch.core.optimizer import _MockOptimizer
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies.strategy import Strategy
from lightning.pytorch.trainer.states import TrainerFn

import edl.torch as elastic
from edl.checkpoints.local_folders import put
from edl.errors import UsageError
from edl.lightning.lightning_validation import share_out
from edl.lightning.loops import LightningSteps, make_elastic
from edl.torch.loader_conversion import StepParts, converted
from edl.torch.loop_collectives import Ask, LoopCollectives
from edl.torch.torch_process import framework
from edl.torch.torch_process import trainer as seat

_BEFORE = "it makes trainings of its own first: let it look in a script without edl, and write down what it finds"
_REFUSED: Mapping[type[Callback], str] = {  # with the remedy
    GradientAccumulationScheduler: "how many batches make a step is the same in a whole job: say "
    "Trainer(accumulate_grad_batches=...)",
    StochasticWeightAveraging: "it changes the schedule and the loop of a worker, and a newcomer would have others; "
    "WeightAveraging averages weights, and goes with it",
    LearningRateFinder: _BEFORE,
    BatchSizeFinder: _BEFORE,
}


def check_fit(trainer: Any, *, virtual: bool = False) -> None:
    """Raise UsageError for settings of a fit that do not go with strategy='edl', or with virtual workers."""
    if virtual and not trainer.lightning_module.automatic_optimization:
        raise UsageError(
            "automatic_optimization=False: a module that makes updates by itself cannot take the parts of virtual "
            "workers: let Lightning make them, or start the job without --virtual-workers"
        )
    if trainer.ckpt_path is not None:
        raise UsageError(
            "Trainer.fit(ckpt_path=...): a job goes on at the exact sample by `edl run --checkpoint`; for weights "
            "alone, LightningModule.load_from_checkpoint()"
        )
    refused = {
        "overfit_batches": (trainer.overfit_batches > 0, "train on a torch.utils.data.Subset"),
        "reload_dataloaders_every_n_epochs": (
            trainer.reload_dataloaders_every_n_epochs > 0,
            "a job trains on one source: leave it away",
        ),
        "val_check_interval": (
            trainer._val_check_time_interval is not None,
            "by the clock, workers validate at different batches: give a number of batches",
        ),
    }
    for name, (given, remedy) in refused.items():
        if given:
            raise UsageError(f"Trainer({name}=...) does not go with strategy='edl': {remedy}")
    for kind, remedy in _REFUSED.items():
        if any(isinstance(one, kind) for one in trainer.callbacks):
            raise UsageError(f"{kind.__name__} does not go with strategy='edl': {remedy}")
    if (virtual or trainer.accumulate_grad_batches > 1) and (timed := _asks_the_clock(trainer.callbacks)):
        given = "virtual workers" if virtual else f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches})"
        raise UsageError(
            f"{given} and {timed} do not go together "
            "with strategy='edl': workers tell each other the time at each batch, and may have different numbers "
            "of them in a step; leave one away"
        )


def batches_between_validations(trainer: Any) -> float:
    """Return the batches between two validations, in whole steps; infinity for the end of each epoch. A whole 1 is each
    batch.
    """
    if isinstance(trainer.val_check_interval, float) and trainer.val_check_interval == 1.0:
        return math.inf
    parts_of_step: int = trainer.accumulate_grad_batches
    given: float = trainer.val_check_batch
    return given if math.isinf(given) else math.ceil(given / parts_of_step) * parts_of_step


def epoch_limit(trainer: Any) -> float:
    """Return the batches of an epoch, if the script limits them; else infinity."""
    limits = trainer.fit_loop._combined_loader.limits
    if trainer.limit_train_batches == 1.0 or not limits:
        return math.inf
    found: float = limits[0]
    return found


def _asks_the_clock(callbacks: list[Any]) -> str:
    """Name the callback that looks at the clock at each batch, in the script's words; else ""."""
    for one in callbacks:
        if isinstance(one, ModelCheckpoint) and one._train_time_interval is not None:
            return "ModelCheckpoint(train_time_interval=...)"
        if isinstance(one, Timer) and one._duration is not None and one._interval == Interval.step:
            return "max_time, or Timer(interval='step'),"
    return ""


class EdlCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Lightning's checkpoint files, written whole and flushed before a file gets its name."""

    # `ModelCheckpoint` removes the best checkpoint so far after this: after a power cut the new file must be whole.
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write the file; Lightning calls this on the first worker alone. Raises CheckpointError if it cannot be
        written.
        """
        if storage_options is not None or not _is_local_file_protocol(path):
            super().save_checkpoint(checkpoint, path, storage_options)  # an object is whole or absent by itself
            return
        content = io.BytesIO()
        torch.save(checkpoint, content)
        put(Path(get_filesystem(path)._strip_protocol(str(path))), content.getvalue())


SETTING_UP = frozenset({"pre_setup", "post_setup", "run-stage", "_CheckpointConnector.resume_end"})
LOADERS = "_dataloader()"


class EdlStrategy(Strategy):  # type: ignore[misc]
    """Train elastically: `Trainer(strategy="edl")`, or `Trainer(strategy=EdlStrategy(...))` with keywords of
    `edl.init`.
    """

    strategy_name = "edl"
    _checkpoint_io: CheckpointIO | None
    _trains: EdlStrategy | None = None  # of the class: the strategy whose trainer has begun the job's training

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
        share_evaluation: bool = True,
        **joining: Any,
    ) -> None:
        """Join the job, unless the script has called `edl.init()` before. `joining`: keywords of `edl.init`.
        `share_evaluation=False`: each worker validates and tests on all of the data.
        """
        super().__init__(accelerator, checkpoint_io, precision_plugin)
        if not seat.began:
            elastic.init(**joining)
        elif joining:
            raise UsageError(f"EdlStrategy({', '.join(joining)}=...): edl.init() was called before; say it there")
        seat.seating.check_alone("EdlStrategy")
        self.cluster_environment = LightningEnvironment()  # else Slurm's environment might requeue the job by itself
        self._devices: list[Any] = []
        self._parts: StepParts | None = None
        self._elastic: LightningSteps | None = None
        self._words = LoopCollectives(framework, seat, self._between)
        self._fits = True  # the trainer fits, or is about to
        self._share_evaluation = share_evaluation
        self._in_training_step = False
        self._sigterm: Any = None
        self._take_rank()
        seat.on_resize(lambda _old, _new: self._take_rank())

    # -------------------------------------------------------------------------------------------- who and where

    @property
    def world_size(self) -> int:
        """Return the number of workers at the moment."""
        return seat.size()

    @property
    def global_rank(self) -> int:
        """Return this worker's rank at the moment."""
        return seat.rank()

    @property
    def local_rank(self) -> int:
        """Return the rank among the workers of the same host."""
        return seat.local_rank()

    @property
    def node_rank(self) -> int:
        """Return 0: data is prepared by the first worker of each host."""
        return 0

    @property
    def is_global_zero(self) -> bool:
        """Tell whether this worker writes files and logs. A newcomer that rehearses does not, whatever its rank in its
        own ring.
        """
        return seat.rank() == 0 and not seat.rehearsing()

    @property
    def is_distributed(self) -> bool:
        """Return False: no sampler is to be put in."""
        return False

    @property
    def parallel_devices(self) -> list[Any]:
        """The devices of this host, from Lightning's `devices`."""
        return self._devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[Any]) -> None:
        self._devices = list(devices)

    @property
    def root_device(self) -> torch.device:
        """Return this worker's device."""
        if not self._devices:
            return torch.device("cpu")
        return torch.device(self._devices[seat.local_rank() % len(self._devices)])

    @property
    def _layer_sync(self) -> None:
        return None

    @_layer_sync.setter
    def _layer_sync(self, sync: object) -> None:
        if sync is not None:
            raise UsageError("Trainer(sync_batchnorm=True) does not go with strategy='edl': leave it away")

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """Return the script's own, or edl's: alone, or inside a script's one that only wraps another."""
        if self._checkpoint_io is None:
            self._checkpoint_io = EdlCheckpointIO()
        elif isinstance(self._checkpoint_io, _WrappingCheckpointIO):
            self._checkpoint_io.checkpoint_io = EdlCheckpointIO()  # it keeps the first one that it is given
        return self._checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    def _take_rank(self) -> None:
        rank_zero_only.rank = 0 if self.is_global_zero else max(1, seat.rank())

    # ------------------------------------------------------------------------------------------------ collectives

    def _between(self) -> Ask | None:
        """Return how to ask all workers, if the script is between two mini-batches; else None."""
        # A fit that has not trained yet is not: a newcomer sets it up while the others train.
        if self._elastic is not None:
            return self._elastic.ask if self._elastic.between else None
        return None if self._fits else seat.evaluate_shared

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:  # noqa: ARG002 - there is one
        """Return the mean, or the sum, of all workers' tensors."""
        self._check_asks()
        return self._words.reduced(tensor, reduce_op)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 - Lightning's name
        """Tell whether all workers, or any of them, decide so."""
        self._check_asks()
        return self._words.decision(decision, of_all=all)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:  # noqa: ARG002
        """Return all workers' tensors, by rank, in a first dimension of their own."""
        self._check_asks()
        return self._words.gathered(tensor)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the value of worker `src`: plain values, and no object of a class of its own (docs/security.md)."""
        return self._words.told(obj, src)

    def _check_asks(self) -> None:
        """Raise UsageError in a step of the script's that not all workers make equally often."""
        if seat.virtual and self._in_training_step:
            raise UsageError(
                "training_step() asks the other workers, as by self.log(..., sync_dist=True) or self.all_gather(), and "
                "workers have different numbers of virtual workers: leave that away, or start the job without "
                "--virtual-workers"
            )

    def barrier(self, name: str | None = None) -> None:
        """Wait until all workers are here."""
        if name == "run-stage":
            self._give_sigterm_back()
        # Workers do not wait while a trainer sets up: a newcomer does that while the others train.
        if name is None or not (name in SETTING_UP or name.endswith(LOADERS)):
            self._words.meet()

    # ------------------------------------------------------------------------------------------------- setting up

    def model_to_device(self) -> None:
        """Move the model to this worker's device."""
        self.model.to(self.root_device)

    def setup(self, trainer: Any) -> None:
        """Prepare a fit, a validation or a test."""
        self._sigterm = signal.getsignal(signal.SIGTERM)
        self._fits = trainer.state.fn == TrainerFn.FITTING
        if self._fits:
            if EdlStrategy._trains is not None:  # a second fit would find the data trained, and do nothing
                raise UsageError("Trainer.fit(): a job of edl has one fit; start another job for the next one")
            check_fit(trainer, virtual=bool(seat.virtual))
        if self._share_evaluation:
            share_out(trainer, self._words, self._between)
        super().setup(trainer)

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the script's optimizers average gradients."""
        super().setup_optimizers(trainer)
        found: list[Any] = list(self._optimizers)
        if not found or any(isinstance(one, _MockOptimizer) for one in found):
            raise UsageError("configure_optimizers() gives no optimizer of torch.optim: edl averages gradients in one")
        for optimizer in found:
            elastic.Optimizer(optimizer, model=self.lightning_module)
        self.optimizers = found  # set anew, as Lightning imitates their class, which has changed

    def process_dataloader(self, dataloader: object) -> object:
        """Convert a training loader to this worker's samples; all others stay as they are."""
        trainer = self.lightning_module.trainer
        if not trainer.training or trainer.sanity_checking:
            return dataloader
        if self._parts is not None:
            raise UsageError("edl trains on one DataLoader: give Trainer.fit() one, of one dataset")
        seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
        self._parts = converted(dataloader, trainer.accumulate_grad_batches, seed, takes_parts=True)
        return self._parts

    def on_train_start(self) -> None:
        """Make the loops elastic, once all is set up and before a batch is fetched."""
        trainer, parts = self.lightning_module.trainer, self._parts
        if parts is None:
            raise UsageError("Trainer.fit(): edl trains on a torch.utils.data.DataLoader")
        fit = trainer.fit_loop
        limit = epoch_limit(trainer)
        if math.isfinite(limit) and limit % trainer.accumulate_grad_batches:
            raise UsageError(
                f"Trainer(limit_train_batches={trainer.limit_train_batches}): its {limit:.0f} batches of an epoch must "
                f"be a multiple of accumulate_grad_batches={trainer.accumulate_grad_batches}"
            )
        fit._combined_loader.limits = None  # limits are counted by the job's counters, on a newcomer too
        fit.max_batches = math.inf  # the number of batches of an epoch changes with the number of workers
        trainer.val_check_batch = batches_between_validations(trainer)
        EdlStrategy._trains = self
        self._elastic = LightningSteps(trainer, seat, parts, limit)
        make_elastic(self._elastic)
        self._elastic.registered = seat.register(loop=self._elastic.traveller, **_modules_of(trainer.callbacks))
        self._give_sigterm_back()

    def _give_sigterm_back(self) -> None:
        """Restore the handler of SIGTERM that Lightning has replaced."""
        # Lightning's handler would end training at the next batch, before edl's switch.
        if self._sigterm is not None:
            # raised outside the main thread, where Lightning has set no handler either
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGTERM, self._sigterm)

    # --------------------------------------------------------------------------------------------------- training

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the script's step. A worker that leaves a batch out takes part with gradients of zero."""
        # Lightning refuses a step that returns None where there are several workers, as the others would wait for it.
        self._in_training_step = True
        try:
            found = super().training_step(*args, **kwargs)
        finally:
            self._in_training_step = False
        if found is None and self.lightning_module.automatic_optimization:
            return torch.zeros((), device=self.root_device, requires_grad=True)
        return found

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute the gradients of one batch, averaged over the workers once they are those of the whole step."""
        parts, trainer = self._parts, self.lightning_module.trainer
        if parts is not None and seat.virtual:
            part = closure_loss * (parts.share * trainer.accumulate_grad_batches)
            found: torch.Tensor = super().backward(part, optimizer, *args, **kwargs)
            parts.note_backward()
            return found
        if parts is None or trainer.accumulate_grad_batches == 1:
            return super().backward(closure_loss, optimizer, *args, **kwargs)  # type: ignore[no-any-return]
        # Lightning has divided the loss by that number
        loss = closure_loss * (parts.share * trainer.accumulate_grad_batches)
        with contextlib.nullcontext() if parts.last else framework.adding_up():
            return super().backward(loss, optimizer, *args, **kwargs)  # type: ignore[no-any-return]

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Make one update. Only an optimizer that looks at the loss needs that of all workers here.

        Gradients are averaged before the script looks at them or clips them, also where this worker leaves a batch out,
        and backward has not done it.
        """
        looks_at_loss = not type(optimizer).__module__.startswith("torch.optim")  # or may
        if isinstance(optimizer, torch.optim.LBFGS) or (looks_at_loss and not seat.virtual):
            return super().optimizer_step(optimizer, closure, model, **kwargs)

        def averaged() -> list[Any]:
            loss = closure()
            optimizer.synchronize()
            return [loss]  # never None, for which fp16's plugin would leave the update out on this worker alone

        found = super().optimizer_step(optimizer, averaged, model, **kwargs)
        return found[0] if isinstance(found, list) else found

    def on_validation_start(self) -> None:
        """Give all workers the same statistics of batch norm, which diverge while they train: metrics must be the same
        on all.
        """
        # A shared evaluation does that itself, in each ring in which it is made.
        if not getattr(self.lightning_module.trainer._evaluation_loop, "shared", False):
            self._words.share_buffers(self.lightning_module)

    def on_test_start(self) -> None:
        """Do the same as before a validation."""
        self.on_validation_start()


def _modules_of(callbacks: list[Any]) -> dict[str, torch.nn.Module]:
    """Return the modules that callbacks hold besides their state, such as a moving average of the model."""
    return {
        f"lightning_callback_{number}{name}": value
        for number, callback in enumerate(callbacks)
        for name, value in vars(callback).items()
        if isinstance(value, torch.nn.Module)
    }
