"""The steps of Hugging Face's Trainer, and its state that travels.

Owns: fetching the batches of a step, and the Trainer's state as it travels. Does not own: making the step
(`edl.transformers.hf_trainer`), nor where it ends (`edl.torch.loop_steps`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from transformers.trainer_callback import ExportableState

from edl.torch.loader_conversion import StepParts
from edl.torch.loop_state import as_plain, from_plain
from edl.torch.loop_steps import LoopState, LoopSteps, StepEnd, StepSeat
from edl.transformers.hf_plan import UpdatePlan

OWN = frozenset({"is_local_process_zero", "is_world_process_zero", "stateful_callbacks", "train_batch_size"})

Parts = list[tuple[Any, int]]


class TrainerTravels(LoopState):
    """The state of the Trainer besides the model."""

    def __init__(self, trainer: Any, plan: UpdatePlan, ending: Callable[[], StepEnd]) -> None:
        self.plan = plan
        self.epoch = 0  # the Trainer's number of the present epoch
        self.epochs_done = 0
        self._trainer = trainer
        self._ending = ending

    def read(self) -> dict[str, Any]:
        """Return the complete state."""
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
        """Load the state that another worker, or an earlier life, has sent."""
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
        self._iterator: Iterator[Parts] = iter(())
        self._coming: Parts | None = None

    def begin_epoch(self) -> None:
        """Begin an epoch of the Trainer."""
        self._coming, self.travels.open_pass = None, None
        self._iterator = iter(self._loader)

    def next(self) -> Parts | None:
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

    def _fetched(self) -> Parts | None:
        self.note_fetched()
        anew, self.begun_anew = self.begun_anew, False
        found = next(self._iterator, None)
        if found is None and anew:  # the others are an epoch ahead of a worker that missed its end
            self._iterator = iter(self._loader)
            found = next(self._iterator, None)
        return found
