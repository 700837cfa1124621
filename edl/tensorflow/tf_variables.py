"""Variables of TensorFlow, and those of Keras that stand for one of them.

Owns: which is behind which, and by what name. Does not own: what they hold (`edl.tensorflow.tf_state`).
"""

from __future__ import annotations

from typing import Any

import keras


def behind(variable: Any) -> Any:
    """Return TensorFlow's variable behind a variable of Keras, or `variable` itself."""
    return variable.value if hasattr(variable, "path") else variable


def named(variable: Any) -> tuple[str, Any]:
    """Return the variable behind this one, with the name that is the same on all workers."""
    return getattr(variable, "path", variable.name), behind(variable)


def has_all(model: Any) -> bool:
    """Tell whether all variables of this model are there. A model of models is never built itself, where the script
    calls only its parts: as a GAN does.
    """
    if getattr(model, "built", True):
        return True
    layers = model._flatten_layers(include_self=False) if isinstance(model, keras.Model) else ()
    return bool(model.variables) and all(layer.built for layer in layers)
