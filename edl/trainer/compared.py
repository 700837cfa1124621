"""What of registered values must be equal on all workers at all times, taken apart (I15).

Owns: that choice. Does not own: fingerprints of it (the adapters), nor the values (`edl.trainer.extras`).

Modules, models, tensors and variables, and whatever has a `state_dict()`: training goes on by these. Numbers, text and
arrays of numpy that a script registers by themselves are its own: each worker may count its samples in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edl.trainer.packing import has_state
from edl.trainer.tree import CannotTravel, Tensors

Leaf = tuple[str, Any]


def compared(value: Any, path: str, sorts: Sequence[Tensors], *, within: bool = False) -> Iterator[Leaf]:
    """Its tensors and plain values, under names that are the same on all workers. `within` a state, all count."""
    try:
        tensors = _tensors(value, path, sorts)
    except CannotTravel:  # said where it was registered, and again where it is to travel
        return
    if tensors is not None:
        yield from (leaf for leaf in tensors if within or type(leaf[1]) is not np.ndarray)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from compared(item, f"{path}[{key!r}]", sorts, within=within)
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from compared(item, f"{path}[{place}]", sorts, within=within)
    elif has_state(value):
        yield from compared(value.state_dict(), f"{path}.state_dict()", sorts, within=True)
    elif within:
        yield path, value


def _tensors(value: Any, path: str, sorts: Sequence[Tensors]) -> list[Leaf] | None:
    """Without statistics, which are each worker's own while a ring stands. None: it has no contents of its own."""
    for sort in sorts:
        parts = sort.parts(value)
        if parts is not None:
            shared = (part for part in parts if not part.is_statistic and not part.is_own)
            return [(f"{path}.{part.name}", part.tensor) for part in shared]
        if sort.form(value) is not None:
            return [(path, value)]
    return None
