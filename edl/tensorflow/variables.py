"""Variables of TensorFlow, and those of Keras that stand for one of them.

Owns: which is behind which, and by what name. Does not own: what they hold (`edl.tensorflow.state`).
"""

from __future__ import annotations

from typing import Any


def behind(variable: Any) -> Any:
    """The variable of TensorFlow, where this is one of Keras."""
    return variable.value if hasattr(variable, "path") else variable


def named(variable: Any) -> tuple[str, Any]:
    """That one, with the name that is the same on all workers."""
    return getattr(variable, "path", variable.name), behind(variable)
