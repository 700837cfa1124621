"""`edl.tensorflow.GradientTape`: what it gives back is averaged over all workers already.

Owns: which of a tape's gradients are averaged. Does not own: averaging (`edl.tensorflow.tf_reducer`).
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from edl.tensorflow.tf_reducer import Reducer

# Of what a traced step calls. Else AutoGraph rewrites edl's own functions in each worker, which takes seconds, though
# none of them branches on a tensor.
as_it_stands = tf.autograph.experimental.do_not_convert


class AveragingTape(tf.GradientTape):  # type: ignore[misc]
    """A `tf.GradientTape` whose `gradient()` gives those of the global batch."""

    def __init__(self, reducer: Reducer, persistent: bool, watch_accessed_variables: bool) -> None:
        super().__init__(persistent, watch_accessed_variables)
        self._edl = reducer

    @as_it_stands  # type: ignore[untyped-decorator]
    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Return gradients as `tf.GradientTape.gradient` does; those of variables are averaged over all workers.

        In a mini-batch that is void, or in which no worker has samples, it gives what was found here: no wrapped
        optimizer applies it.
        """
        found = super().gradient(target, sources, *args, **kwargs)
        averaged = average(self._edl, found, sources)
        return found if averaged is None else averaged


def average(reducer: Reducer, found: Any, sources: Any) -> Any:
    """`found`, of the structure of `sources`, with the gradients of variables averaged; those of other tensors are the
    worker's own. None: there is no update in this mini-batch.
    """
    flat = tf.nest.flatten(sources)
    gradients = _flat(found, len(flat))
    places = [place for place, source in enumerate(flat) if isinstance(source, (tf.Variable, keras.Variable))]
    if not places:
        return found
    averaged = reducer.average_of_tape([gradients[place] for place in places], [flat[place] for place in places])
    if averaged is None:
        return None
    for place, gradient in zip(places, averaged, strict=True):
        gradients[place] = gradient
    return tf.nest.pack_sequence_as(sources, gradients)


def _flat(found: Any, number: int) -> list[Any]:
    """Sparse gradients are one each, and so is none at all."""
    gradients = tf.nest.flatten(found)
    assert len(gradients) == number
    return list(gradients)
