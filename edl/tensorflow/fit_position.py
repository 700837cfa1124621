"""The standing of Keras's `fit`: which call of it, which epoch, and what its callbacks have counted.

Owns: that, as a value that travels beside the model, to newcomers and into checkpoints. Does not own: how it travels
(`edl.trainer.script_position`), nor `fit` itself (`edl.tensorflow.keras_fit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from types import FrameType
from typing import Any, Final

import keras

from edl.errors import UsageError
from edl.trainer.data.shards import ShardGenerator

COUNTS: dict[type, tuple[str, ...]] = {  # what callbacks of Keras keep from epoch to epoch
    keras.callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
    keras.callbacks.History: ("epoch", "history"),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """The parts of a call of `fit` that Keras does not show."""

    batches: Any  # its iterator over epochs; None: it is in none
    callbacks: Sequence[Any]
    initial_epoch: int


NO_FIT: Final = Fit(None, (), 0)


def fit_of(frame: FrameType | None) -> Fit:
    """Return the call of `fit` that has called this function."""
    while frame is not None:
        batches = frame.f_locals.get("epoch_iterator")
        if hasattr(batches, "_num_batches"):
            callbacks = getattr(frame.f_locals.get("callbacks"), "callbacks", ())
            return Fit(batches, callbacks, frame.f_locals.get("initial_epoch", 0))
        frame = frame.f_back
    return NO_FIT


def is_stream(shards: ShardGenerator[Any], epochs: int) -> bool:
    """Tell whether all passes that the generator was asked for are one epoch of `fit`. Raises UsageError."""
    if shards.epochs is None or shards.epochs == epochs:
        return False
    if epochs == 1:
        return True
    raise UsageError(
        f"model.fit(epochs={epochs}) over elastic_shard_generator(epochs={shards.epochs}): each pass over the data is "
        "an epoch of fit; leave epochs= away in elastic_shard_generator()"
    )


@dataclass(frozen=True, slots=True)
class FitStanding:
    """The standing of `fit` at the begin of an epoch."""

    number: int  # of the call of `fit`, from 1
    epoch: int  # as Keras counts
    base: int  # the job's pass over its data that is Keras's epoch 0
    callbacks: dict[str, Any] = field(default_factory=dict)
    counted: bytes = b""  # by the metrics of all workers in this epoch, once its last step is made
    counted_with: int = 0  # that step

    def told(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def heard(cls, told: dict[str, Any]) -> FitStanding | None:
        """Return the standing that was told, or None where nothing was."""
        return cls(**told) if told else None


def begin_of(number: int, initial_epoch: int, passes_done: int, heard: FitStanding | None) -> FitStanding | None:
    """Return where a worker's call of `fit` begins, by where the job stands. None: the job is
    through with this call.
    """
    if heard is None or heard.number < number:
        return FitStanding(number, initial_epoch, passes_done - initial_epoch)
    return heard if heard.number == number else None


def counts_of(callbacks: Iterable[Any]) -> dict[str, Any]:
    return {name: _counts(callback) for name, callback in _counting(callbacks)}


def count_on(callbacks: Iterable[Any], counts: dict[str, Any]) -> None:
    """Let the callbacks go on from `counts`. Those that another worker does not have stay as they are."""
    for name, callback in _counting(callbacks):
        if name not in counts:
            continue
        if _has_state(callback):
            callback.load_state_dict(counts[name])
        else:
            for attribute, value in counts[name].items():
                setattr(callback, attribute, _own(value))


def _counts(callback: Any) -> dict[str, Any]:
    if _has_state(callback):
        state: dict[str, Any] = callback.state_dict()
        return state
    names = next(names for kind, names in COUNTS.items() if isinstance(callback, kind))
    return {name: _own(getattr(callback, name)) for name in names if hasattr(callback, name)}


def _counting(callbacks: Iterable[Any]) -> list[tuple[str, Any]]:
    counting = [one for one in callbacks if _has_state(one) or isinstance(one, tuple(COUNTS))]
    return [(f"{number}.{type(one).__name__}", one) for number, one in enumerate(counting)]


def _has_state(callback: Any) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")


def _own(value: Any) -> Any:
    """Copy the lists in `value`: History's grow in place."""
    if isinstance(value, list):
        return [_own(one) for one in value]
    return {name: _own(one) for name, one in value.items()} if isinstance(value, dict) else value
