"""The variables of models and optimizers as a checkpoint has them, and back.

Owns: their bytes. Does not own: which variables make up the state (`edl.tensorflow.tf_framework`), when they are taken
(`edl.trainer.snapshot_writer`), nor files.

What is read of a variable of TensorFlow 2 stays what it was: an update that comes meanwhile goes into other memory.
Those of a session are all fetched at once.

A function of TensorFlow's does not say when it begins to update variables. So what is read beside a script is read once
more, a moment later: as long as the first values are kept, an update goes into other memory, and is seen by that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import tensorflow as tf

from edl.checkpoints.checkpoint_names import optimizer_tensor
from edl.errors import UsageError
from edl.tensorflow.tf_state import Described, Variables
from edl.trainer.framework_port import Fill, StatePiece

MOMENT_S: Final = 0.2


class TensorFlowSnapshot:
    """`edl.trainer.framework_port.Snapshot`."""

    early: Sequence[StatePiece] = ()

    def __init__(self, variables: Variables, of_models: int, *, beside: bool = False) -> None:
        """The first `of_models` of the variables are the models'."""
        self._variables = variables if beside else None
        self._read_at = time.monotonic()
        self._values = values = variables.values()
        described = variables.describe()
        self.description = msgspec.msgpack.encode(described)
        names = [one.name if at < of_models else optimizer_tensor(0, one.name) for at, one in enumerate(described)]
        first = {name: at for at, name in reversed(list(enumerate(names)))}
        unique = [name if first[name] == at else f"{name}#{at}" for at, name in enumerate(names)]
        self.late: Sequence[StatePiece] = [
            StatePiece((name, one.dtype, one.shape, value.nbytes), partial(bytes_in, value), at < of_models)
            for at, (name, one, value) in enumerate(zip(unique, described, values, strict=True))
        ]

    def whole(self) -> bool:
        if self._variables is None:
            return True
        time.sleep(max(0.0, self._read_at + MOMENT_S - time.monotonic()))  # an update that had begun goes on
        return all(map(_is_same, self._values, self._variables.values()))


def restore(variables: Variables, description: bytes, fill: Fill) -> None:
    """Carry out `Framework.restore`."""
    theirs, mine = msgspec.msgpack.decode(description, type=list[Described]), variables.describe()
    for here, there in zip(mine, theirs, strict=False):
        if (here.dtype, here.shape) != (there.dtype, there.shape):
            raise UsageError(
                f"the checkpoint is of another model: {here.name} ({here.dtype}{list(here.shape)}) here, {there.name} "
                f"({there.dtype}{list(there.shape)}) there; build the model that the job trained"
            )
    if len(mine) != len(theirs):
        raise UsageError(
            f"the checkpoint is of another model: {len(mine)} variables here, {len(theirs)} there; build the model and "
            "wrap the optimizers that the job trained"
        )
    values = []
    for number, one in enumerate(mine):
        value = np.empty(one.shape, tf.as_dtype(one.dtype).as_numpy_dtype)
        if value.nbytes:
            fill(number, bytes_in(value))
        values.append(value)
    variables.put(values)


def _is_same(before: np.ndarray[Any, Any], now: np.ndarray[Any, Any]) -> bool:
    return before.ctypes.data == now.ctypes.data or before.tobytes() == now.tobytes()


def bytes_in(value: np.ndarray[Any, Any]) -> memoryview:
    lying: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return memoryview(lying)
