"""Lightning's state besides the model, as it travels to newcomers and into checkpoints.

Owns: the content of the state, its form, and putting it back into the living trainer; Lightning's counters (the batch,
the epoch, the updates) and their values before the present step. Does not own: when they travel
(`edl.trainer.registered_state`), nor the fate of a mini-batch (`edl.lightning.loops`).

A void mini-batch must not have counted. So the counters are remembered as a step begins, which costs some microseconds;
in the middle of a step the remembered values travel.

Callbacks' states are not compared between workers: some measure time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer import call

from edl.torch.loop_steps import LoopState, StepEnd, as_plain, from_plain

LAST = "is_last_batch"
STEPPED = "_batches_that_stepped"


class Counters:
    """The counters of one `Trainer.fit`."""

    def __init__(self, fit_loop: Any) -> None:
        epochs = fit_loop.epoch_loop
        # The objects in which Lightning counts while it trains; all are instances of its dataclasses, and live as long
        # as the loops.
        self._holders = [
            *_leaves(fit_loop.epoch_progress),
            *_leaves(epochs.batch_progress),
            *_leaves(epochs.scheduler_progress),
            *_leaves(epochs.automatic_optimization.optim_progress),
            *_leaves(epochs.manual_optimization.optim_step_progress),
            *_leaves(epochs.val_loop.batch_progress),
        ]
        # compared by identity: other counters may be equal
        of_batches = (epochs.batch_progress.total, epochs.batch_progress.current)
        self._batches = [place for place, one in enumerate(self._holders) if any(one is two for two in of_batches)]
        self._epochs = epochs
        self._begun: list[Any] | None = None

    def begin(self) -> None:
        """Begin a step: until `end` the present counters are the job's."""
        self._begun = self._now()

    def begin_part(self) -> None:
        """Count the batches of a virtual worker's part as those of any other one: from the beginning of the step."""
        assert self._begun is not None  # a step has begun
        for place in self._batches:
            vars(self._holders[place]).update(self._begun[place])

    def end(self, *, counted: bool, batches: int = 1) -> None:
        """End the step. A step that does not count leaves no trace; one that counts adds `batches` batches."""
        # A worker whose share of the step was short has trained fewer batches, and all workers must validate at the
        # same ones.
        begun, self._begun = self._begun, None
        if begun is None:
            return
        if not counted:
            self.put(begun)
            return
        for place in self._batches:
            before: dict[str, int] = begun[place]
            vars(self._holders[place]).update({name: number + batches for name, number in before.items()})

    def read(self) -> list[Any]:
        """Return the counters as of the newest step that counts."""
        return self._now() if self._begun is None else self._begun

    def put(self, values: list[Any]) -> None:
        """Set the counters to those of another worker, or of an earlier life."""
        *numbers, stepped, last = values
        for holder, found in zip(self._holders, numbers, strict=True):
            vars(holder).update(found)
        setattr(self._epochs, STEPPED, stepped)
        setattr(self._epochs.batch_progress, LAST, last)
        if self._begun is not None:
            self._begun = values

    @property
    def batches(self) -> int:
        """Count the batches of the present epoch."""
        return int(self._epochs.batch_progress.current.ready)

    def _now(self) -> list[Any]:
        last = getattr(self._epochs.batch_progress, LAST)
        return [*(dict(vars(holder)) for holder in self._holders), getattr(self._epochs, STEPPED), last]


def _leaves(progress: Any) -> Iterator[Any]:
    """Yield the parts of a progress that hold numbers alone."""
    inner = [value for value in vars(progress).values() if hasattr(value, "__dict__")]
    if not inner:
        yield progress
    for value in inner:
        yield from _leaves(value)


# Attributes of a ModelCheckpoint that its own state leaves out: they decide whether it saves after the step at which a
# newcomer comes.
SAVES = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")


class LightningState(LoopState):
    """The state of one `Trainer.fit`."""

    def __init__(self, trainer: Any, counters: Counters, ending: Callable[[], StepEnd]) -> None:
        """`ending`: how the step under way will end, unless it counts."""
        self._trainer = trainer
        self._counters = counters
        self._ending = ending
        self.limit: float = math.inf  # batches of an epoch, if the script limits them

    def take(self, found: Mapping[str, Any]) -> None:
        trainer = self._trainer
        self._counters.put(list(found["counters"]))
        self.ended, self.open_pass, self.limit = StepEnd(found["ended"]), found["open_pass"], found["limit"]
        trainer.should_stop, trainer.val_check_batch = found["should_stop"], found["val_check_batch"]
        for config, state in zip(trainer.lr_scheduler_configs, found["schedulers"], strict=True):
            config.scheduler.load_state_dict(state)
        if found["precision"]:
            trainer.precision_plugin.load_state_dict(found["precision"])
        if found["datamodule"] and trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(found["datamodule"])
        self._take_callbacks(found["callbacks"])
        for callback, state in zip(self._checkpoints(), found["saves"], strict=True):
            vars(callback).update(state)

    def read(self) -> dict[str, Any]:
        trainer, datamodule = self._trainer, self._trainer.datamodule
        return {
            "counters": self._counters.read(),
            "ended": str(self._ending()),
            "open_pass": self.open_pass,
            "limit": self.limit,
            "should_stop": trainer.should_stop,
            "val_check_batch": trainer.val_check_batch,
            "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            "precision": trainer.precision_plugin.state_dict(),
            "datamodule": {} if datamodule is None else as_plain(datamodule.state_dict()),
            "callbacks": as_plain(call._call_callbacks_state_dict(trainer)),
            "saves": [{name: getattr(one, name) for name in SAVES} for one in self._checkpoints()],
        }

    def _checkpoints(self) -> list[Any]:
        return [one for one in self._trainer.callbacks if isinstance(one, ModelCheckpoint)]

    def _take_callbacks(self, states: Mapping[str, Any]) -> None:
        for callback in self._trainer.callbacks:
            if hasattr(
                callback, "already_saved"
            ):  # LightningCLI's callback: the first worker has its configuration on disk
                callback.already_saved = True  # else a newcomer asks the other workers about it as `test` begins
            state = states.get(callback.state_key)
            if state is None:
                continue
            if isinstance(callback, ModelCheckpoint):
                # a newcomer has chosen another name, as a free one
                callback.dirpath = state.get("dirpath", callback.dirpath)
            callback.load_state_dict(from_plain(state))
