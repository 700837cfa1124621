"""The model of a `torch.distributed.checkpoint` folder goes into one that is here.

Owns: which entries of the folder are the model's, and whether they fit. Does not own: the folder's form, which PyTorch
reads. PyTorch unpickles the folder's `.metadata`: who may write there decides what runs here.
"""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edl.errors import UsageError

METADATA = ".metadata"


def is_distributed(path: str | os.PathLike[str]) -> bool:
    """Return whether the folder is one that `torch.distributed.checkpoint.save` has written."""
    return (Path(path) / METADATA).is_file()


def load_distributed(path: str | os.PathLike[str], model: torch.nn.Module) -> None:
    """Raises UsageError where the model has other names or shapes; the model is as it was then."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    mine = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}
    metadata: Any = FileSystemReader(path).read_metadata()
    stored = {name: one for name, one in metadata.state_dict_metadata.items() if hasattr(one, "size")}
    places = metadata.planner_data or {}
    names = names_of(path, {name: tuple(places.get(name, (name,))) for name in stored}, mine)
    read = {}
    for name, tensor in mine.items():
        there = stored[names[name]]
        if tensor.shape != there.size:
            raise UsageError(
                f"load_checkpoint(): {name} of the model is {list(tensor.shape)}, that of {path} is "
                f"{list(there.size)}; build the model that was saved"
            )
        read[names[name]] = torch.empty(tensor.shape, dtype=there.properties.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is intended here
        load(read, checkpoint_id=path, no_dist=True)
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(read[names[name]])


def names_of(path: object, places: Mapping[str, Sequence[object]], mine: Collection[str]) -> dict[str, str]:
    """Return the folder's name of each tensor of the model. `places` are the keys by which each stored tensor was found
    in the dict that was saved: the model is the dict in it with the model's very names. Raises UsageError.
    """
    dicts: dict[tuple[object, ...], dict[str, str]] = defaultdict(dict)
    for name, place in places.items():
        dicts[tuple(place[:-1])][str(place[-1])] = name
    fitting = [found for found in dicts.values() if found.keys() == set(mine)]
    if len(fitting) != 1:
        why = "several dicts" if fitting else "no dict"
        raise UsageError(
            f"load_checkpoint(): {path} has {why} with the names of this model; build the model that was saved"
        )
    return fitting[0]
