"""The model of a checkpoint goes into one that is here, outside of any job.

Owns: whether the two fit, and the copying. Does not own: reading (`edl.checkpoints`), nor what a job that goes on takes
from a checkpoint.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from edl.checkpoints.checkpoint_paths import look
from edl.checkpoints.checkpoint_reader import Checkpoint, chosen
from edl.checkpoints.manifest import StoredTensor
from edl.errors import UsageError
from edl.torch.torch_state import as_bytes

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


logger = logging.getLogger("edl")

SHOWN = 3  # names in a message


def load(path: str | os.PathLike[str], model: torch.nn.Module) -> None:
    """Raises UsageError, CheckpointError; the model is as it was then, unless the place fails in the middle."""
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"load_checkpoint(): model must be a torch.nn.Module, not a {type(model).__name__}")
    if is_distributed(path):
        load_distributed(path, model)
        return
    found, passed_over = chosen(look(os.fspath(path)))
    for one in passed_over:
        logger.warning("%s; the one before it is loaded", one.reason)
    stored = {tensor.name: tensor for tensor in found.manifest.tensors if tensor.belongs == "model"}
    mine = dict((*model.named_parameters(), *model.named_buffers()))
    _check(found, stored, mine)
    with closing(found), torch.no_grad():
        for name, tensor in mine.items():
            if tensor.numel():
                tensor.copy_(_read(found, stored[name]))


def _check(found: Checkpoint, stored: Mapping[str, StoredTensor], mine: Mapping[str, torch.Tensor]) -> None:
    if found.manifest.framework != "torch":
        raise UsageError(f"load_checkpoint(): {found.path} was written by {found.manifest.framework}, not by PyTorch")
    missing, unknown = [name for name in stored if name not in mine], [name for name in mine if name not in stored]
    if missing or unknown:
        told = [f"{what} {_some(names)}" for what, names in (("has", missing), ("has not", unknown)) if names]
        raise UsageError(
            f"load_checkpoint(): {found.path} is of another model: it {' and '.join(told)}; build the model that the "
            "job trained"
        )
    for name, tensor in mine.items():
        if is_lazy(tensor):
            raise UsageError(f"load_checkpoint(): {name} of the model has no shape yet: run a batch through it first")
        if tuple(tensor.shape) != stored[name].shape:
            raise UsageError(
                f"load_checkpoint(): {name} of the model is {list(tensor.shape)}, that of {found.path} is "
                f"{list(stored[name].shape)}; build the model that the job trained"
            )
        _dtype(found, stored[name])


def _read(found: Checkpoint, stored: StoredTensor) -> torch.Tensor:
    tensor = torch.empty(stored.shape, dtype=_dtype(found, stored))
    raw: Any = as_bytes(tensor).numpy()
    found.read(stored.name, memoryview(raw))
    return tensor


def _dtype(found: Checkpoint, stored: StoredTensor) -> torch.dtype:
    dtype = getattr(torch, stored.dtype, None)
    if not isinstance(dtype, torch.dtype) or dtype.itemsize * torch.Size(stored.shape).numel() != stored.bytes:
        raise UsageError(
            f"load_checkpoint(): PyTorch here has no {stored.dtype}, which {stored.name} of {found.path} is"
        )
    return dtype


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
