"""edl by the names of `horovod.keras`: `import edl.keras as hvd`. All is that of `edl.tensorflow.keras`."""

# ruff: noqa: F403, PLC0414 - names for type checkers, which `__getattr__` finds

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import edl.tensorflow  # noqa: F401 - makes the modules that are looked up here
from edl.tensorflow import keras_callbacks, keras_names
from edl.trainer.module_aliases import alias

if TYPE_CHECKING:
    from edl.tensorflow import *
    from edl.tensorflow.horovod_types import *
    from edl.tensorflow.keras_names import allgather as allgather  # type: ignore[assignment] # of numbers and arrays
    from edl.tensorflow.keras_names import allreduce as allreduce  # type: ignore[assignment]
    from edl.tensorflow.keras_names import broadcast as broadcast  # type: ignore[assignment]
    from edl.tensorflow.keras_names import load_model as load_model
    from edl.tensorflow.keras_names import reducescatter as reducescatter  # type: ignore[assignment]

    callbacks = keras_callbacks
else:

    def __getattr__(name: str) -> Any:
        """Return a name of Horovod's, or of edl's."""
        return keras_names.lookup(name)


alias(f"{__name__}.callbacks", partial(getattr, keras_callbacks))
alias(f"{__name__}.elastic", keras_names.lookup_elastic)
