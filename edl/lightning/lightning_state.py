"""Lightning's state besides the model, as it travels to newcomers and into checkpoints.

Owns: the content of the state, its form, and putting it back into the living trainer. Does not own: when it travels
(`edl.trainer.registered_state`), the counters (`edl.lightning.progress`).

Callbacks' states are not compared between workers: some measure time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer import call

from edl.lightning.progress import Counters
from edl.torch.loop_state import as_plain, from_plain
from edl.torch.loop_steps import LoopState, StepEnd

# Attributes of a ModelCheckpoint that its own state leaves out: they decide whether it saves after the step at which a
# newcomer comes.
SAVES = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")


class Traveller(LoopState):
    """The state of one `Trainer.fit`."""

    def __init__(self, trainer: Any, counters: Counters, ending: Callable[[], StepEnd]) -> None:
        """Keep the trainer. `ending`: how the step under way will end, unless it counts."""
        self._trainer = trainer
        self._counters = counters
        self._ending = ending
        self.limit: float = math.inf  # batches of an epoch, if the script limits them

    def take(self, found: Mapping[str, Any]) -> None:
        """Load the state that another worker, or an earlier life, has sent."""
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
        """Return the complete state."""
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
