"""edl by the names of `horovod.keras`: `import edl.keras as hvd`. All is that of `edl.tensorflow.keras`."""

from __future__ import annotations

from functools import partial
from typing import Any

import edl.tensorflow  # noqa: F401 - makes the modules that are looked up here
from edl.tensorflow import keras_callbacks, keras_names
from edl.trainer.module_aliases import alias


def __getattr__(name: str) -> Any:
    """Names of Horovod's, and of edl's."""
    return keras_names.lookup(name)


alias(f"{__name__}.callbacks", partial(getattr, keras_callbacks))
alias(f"{__name__}.elastic", keras_names.lookup_elastic)
