"""The steps of Hugging Face's Trainer, and its state that travels.

Owns: fetching the batches of a step, the Trainer's state as it travels, the position of the learning rate's schedule,
and which update is the last one. Does not own: making the step (`edl.transformers.hf_trainer`), where it ends
(`edl.torch.loop_steps`), nor the schedule itself.

A job that trains a given number of epochs makes fewer updates with more workers. Hugging Face counts the updates
beforehand, for the number of workers at the beginning. So an update with another number of workers moves the schedule
on by another amount: the schedule ends when the data does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from transformers.trainer_callback import ExportableState

from edl.torch.loader_conversion import StepParts
from edl.torch.loop_steps import LoopState, LoopSteps, StepEnd, StepSeat, as_plain, from_plain
from edl.trainer.virtual_steps import LoadedParts


class UpdatePlan(msgspec.Struct):
    """The plan of one training; it travels."""

    updates: int  # as counted for the number of workers at the beginning
    workers: int  # at the beginning
    epochs: float
    by_epochs: bool  # else by a number of updates that the script gives
    position: float = 0.0  # of the schedule, in `updates`

    def advance(self, workers: int) -> None:
        """Count one more update, made by `workers` workers."""
        self.position += workers / self.workers if self.by_epochs and workers != self.workers else 1

    def is_over(self, epoch: int, global_step: int, *, pass_over: bool) -> bool:
        """Tell whether the training is over after this update, in epoch number `epoch`."""
        if not self.by_epochs:
            return global_step >= self.updates
        if pass_over and epoch + 1 >= self.epochs:
            return True
        return self.epochs != int(self.epochs) and epoch + 1 > self.epochs and self.position >= self.updates

    def most_updates(self, global_step: int, *, over: bool) -> int:
        """Return the number that the Trainer's callbacks take for the last update."""
        if not self.by_epochs:
            return self.updates
        return global_step if over else max(self.updates, global_step + 1)


def move(schedule: Any, position: float) -> None:
    """Move a schedule of the Trainer's own, which is a function of the number of updates."""
    schedule.last_epoch = (int(position) if position == int(position) else position) - 1
    schedule.step()


OWN = frozenset({"is_local_process_zero", "is_world_process_zero", "stateful_callbacks", "train_batch_size"})

Parts = list[tuple[Any, int]]  # batches, each with how many samples it has


class TrainerTravels(LoopState):
    """The state of the Trainer besides the model."""

    def __init__(self, trainer: Any, plan: UpdatePlan, ending: Callable[[], StepEnd]) -> None:
        self.plan = plan
        self.epoch = 0  # the Trainer's number of the present epoch
        self.epochs_done = 0
        self._trainer = trainer
        self._ending = ending

    def read(self) -> dict[str, Any]:
        trainer = self._trainer
        state = {field.name: getattr(trainer.state, field.name) for field in dataclasses.fields(trainer.state)}
        schedule, scaler = trainer.lr_scheduler, getattr(trainer.accelerator, "scaler", None)
        return {
            "ended": str(self._ending()),
            "open_pass": self.open_pass,
            "epoch": self.epoch,
            "epochs_done": self.epochs_done,
            "plan": msgspec.to_builtins(self.plan),
            "state": as_plain({name: value for name, value in state.items() if name not in OWN}),
            "control": dict(vars(trainer.control)),
            "callbacks": [as_plain(one.state().get("attributes", {})) for one in self._exportable()],
            "schedule": {} if schedule is None else as_plain(schedule.state_dict()),
            "scaler": {} if scaler is None else scaler.state_dict(),
            "last_logged": trainer._globalstep_last_logged,
        }

    def take(self, found: Mapping[str, Any]) -> None:
        trainer = self._trainer
        self.ended, self.open_pass = StepEnd(found["ended"]), found["open_pass"]
        self.epoch, self.epochs_done = found["epoch"], found["epochs_done"]
        plan, self.plan = self.plan, msgspec.convert(found["plan"], UpdatePlan)
        for name, value in from_plain(found["state"]).items():
            setattr(trainer.state, name, value)
        vars(trainer.control).update(found["control"])
        for one, attributes in zip(self._exportable(), found["callbacks"], strict=True):
            for name, value in from_plain(attributes).items():
                setattr(one, name, value)
        if plan.updates != self.plan.updates:
            trainer.rebuild_schedule(self.plan.updates)
        if trainer.lr_scheduler is not None:
            trainer.lr_scheduler.load_state_dict(from_plain(found["schedule"]))
        if found["scaler"]:
            trainer.accelerator.scaler.load_state_dict(found["scaler"])
        trainer._globalstep_last_logged = found["last_logged"]

    def _exportable(self) -> list[Any]:
        found = self._trainer.callback_handler.callbacks
        return [one for one in found if isinstance(one, ExportableState)]


class TrainerSteps(LoopSteps):
    """The steps of one `Trainer.train()`."""

    def __init__(self, trainer: Any, seat: StepSeat, parts: StepParts, plan: UpdatePlan) -> None:
        self.travels = TrainerTravels(trainer, plan, self.ending)
        super().__init__(seat, self.travels)
        self._loader = parts.loader
        self._iterator: Iterator[Parts | LoadedParts] = iter(())
        self._coming: Parts | LoadedParts | None = None

    def begin_epoch(self) -> None:
        self._coming, self.travels.open_pass = None, None
        self._iterator = iter(self._loader)

    def next(self) -> Parts | LoadedParts | None:
        """Return the batches of the next step; None if the end of an epoch comes before it."""
        parts, self._coming = self._coming or self._fetched(), None
        if self.take_over() and (parts is None or self.is_beyond()):  # an earlier life was saved at the end of an epoch
            self.between = True
            return None
        if parts is None:
            return None
        self.begin_step()
        return parts

    def pass_is_over(self) -> bool:
        """Tell whether the pass ended with the step that has just ended."""
        # It is known only now: a worker that is lost leaves samples.
        self._coming = self._fetched()
        return self._coming is None or self.is_beyond()

    def _fetched(self) -> Parts | LoadedParts | None:
        self.note_fetched()
        anew, self.begun_anew = self.begun_anew, False
        found = next(self._iterator, None)
        if found is None and anew:  # the others are an epoch ahead of a worker that missed its end
            self._iterator = iter(self._loader)
            found = next(self._iterator, None)
        return found
