"""Keras optimizers of the script that `edl.Optimizer` was not given: nothing averages the gradients of what they train.

Owns: which a model has, which make updates in this process, and what they train. Does not own: wrapping them
(`edl.tensorflow.keras_optimizer`), nor comparing what they train with the other workers'
(`edl.tensorflow.tf_framework`).

All ways into a Keras 3 optimizer lead through `apply` of the class that all inherit from, eagerly or as a function is
traced. An optimizer that has made several updates trains something that stays; one that is made anew for each batch,
for an inner loop say, belongs to that batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import keras

from edl.tensorflow.keras_optimizer import GradientsFirst, is_keras
from edl.tensorflow.tf_tensors import named
from edl.trainer.framework_port import WRAP_IT

SEVERAL = 2


class KerasUnwrapped:
    """The Keras optimizers of one process that `edl.Optimizer` was not given."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self._local: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def any_seen(self) -> bool:
        """Tell whether the script trains something by itself."""
        return bool(self._seen)

    def watch(self) -> None:
        """Note each optimizer that makes an update in this process from now on."""
        base = next(kind for kind in keras.optimizers.Optimizer.__mro__ if "apply" in vars(kind))
        apply = base.apply

        def noted(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            if not isinstance(optimizer, GradientsFirst):
                self._seen[optimizer] = None
            return apply(optimizer, *arguments, **keywords)

        base.apply = noted

    def leave_alone(self, optimizer: Any) -> None:
        """Note that what these train is each worker's own, as the script says."""
        self._local.add(optimizer)

    def is_local(self, optimizer: Any) -> bool:
        return optimizer in self._local

    def trained(self, optimizers: Iterable[Any]) -> Iterator[tuple[Any, str]]:
        """Return what such optimizers train, each with a word that is the same on all workers. Not what `optimizers`
        train that are wrapped: one of them may be around another, as where a loss is scaled.
        """
        averaged = {id(one) for optimizer in optimizers if is_keras(optimizer) for one in of(optimizer)}
        for optimizer in list(self._seen):
            if optimizer in self._local or not optimizer.built or int(optimizer.iterations.numpy()) < SEVERAL:
                continue
            for number, variable in enumerate(of(optimizer)):
                if id(variable) not in averaged:
                    yield variable, f"variable {number} of {type(optimizer).__name__}"


def of(optimizer: Any) -> list[Any]:
    """List what `optimizer` trains. Where a loss is scaled, Keras keeps that in the optimizer inside."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [*optimizer._trainable_variables, *([] if inner is None else inner._trainable_variables)]


def word_for(variable: Any, word: str) -> str:
    """Name a variable, and say why it may differ from that of other workers."""
    return f"{named(variable)[0]}, {word}, which {WRAP_IT}"


def optimizers_of(model: Any) -> list[Any]:
    """Return the Keras optimizers that a model holds by whatever name: itself, in lists and dicts, in models and layers
    inside of it. They come in the order of its attributes, which is the same on all workers.
    """
    found: dict[int, Any] = {}
    _find(model, found, set())
    return list(found.values())


def _find(part: Any, found: dict[int, Any], seen: set[int]) -> None:
    if id(part) in seen:
        return
    seen.add(id(part))
    if is_keras(part):
        found[id(part)] = part
        return
    for inner in _parts(part):
        _find(inner, found, seen)


def _parts(part: Any) -> Collection[Any]:
    if isinstance(part, keras.layers.Layer):  # a model is one, too
        return [value for name, value in vars(part).items() if not name.startswith("__")]
    if isinstance(part, dict):
        return list(part.values())
    return part if isinstance(part, (list, tuple)) else ()
