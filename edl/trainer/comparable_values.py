"""List the registered values that must be equal on all workers (I15).

Owns: that choice. Does not own: fingerprints of it (the adapters), nor the values (`edl.trainer.registered_state`).

Modules, models, tensors, variables and all objects with a `state_dict()` are compared: training goes on by these.
Numbers, text and arrays of numpy that a script registers by themselves are the worker's own: each worker may count its
samples in one. They stay so when the script puts a tensor in their place, as some workers do before others: a best
loss, say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edl.trainer.packing import has_state
from edl.trainer.value_tree import CannotTravel, Tensors

Leaf = tuple[str, Any]


def compared(
    value: Any, path: str, sorts: Sequence[Tensors], *, within: bool = False, own: Collection[str] = ()
) -> Iterator[Leaf]:
    """Yield tensors and plain values, under names that are the same on all workers.

    `within` a state, all values count; those at one of the `own` paths never do.
    """
    if path in own:
        return
    try:
        tensors = _tensors(value, path, sorts)
    except CannotTravel:  # said where it was registered, and again where it is to travel
        return
    if tensors is not None:
        yield from (leaf for leaf in tensors if within or type(leaf[1]) is not np.ndarray)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from compared(item, f"{path}[{key!r}]", sorts, within=within, own=own)
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from compared(item, f"{path}[{place}]", sorts, within=within, own=own)
    elif has_state(value):
        yield from compared(value.state_dict(), f"{path}.state_dict()", sorts, within=True)
    elif within:
        yield path, value


def own_paths(value: Any, path: str, sorts: Sequence[Tensors]) -> Iterator[str]:
    """Name the places of plain values outside of any state: these stay the worker's own, whatever is assigned there."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from own_paths(item, f"{path}[{key!r}]", sorts)
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from own_paths(item, f"{path}[{place}]", sorts)
    elif not has_state(value):
        tensors = _tensors(value, path, sorts)
        if tensors is None or (tensors and all(type(leaf) is np.ndarray for _, leaf in tensors)):
            yield path


def _tensors(value: Any, path: str, sorts: Sequence[Tensors]) -> list[Leaf] | None:
    """Return tensors without statistics, which are each worker's own in a ring. None: it has no contents of its own."""
    for sort in sorts:
        parts = sort.parts(value)
        if parts is not None:
            shared = (part for part in parts if not part.is_statistic and not part.is_own)
            return [(f"{path}.{part.name}", part.tensor) for part in shared]
        if sort.form(value) is not None:
            return [(path, value)]
    return None
