"""Describe the tensors that this process holds, for the others of its worker.

Owns: which these are and with which processes they are shared, as meshes and `among=` say, and some of what they
contain. Does not own: what follows from that (`edl.checkpoints.worker_stages`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
import torch
from torch.nn.parameter import is_lazy

from edl.checkpoints.worker_stages import Holding
from edl.torch.sharded import local_of, mesh_of, piece_of, placement_of
from edl.torch.torch_snapshot import bytes_of
from edl.torch.torch_state import as_bytes
from edl.torch.torch_tensors import whole_form
from edl.trainer.data.among import Among

SAMPLED = 8  # elements of each tensor


class NamedHolder(Protocol):
    """Whatever knows of models and optimizers."""

    def tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Parameters and buffers, named."""

    def buffers(self) -> set[int]:
        """Return which of the tensors are buffers, by `id`."""

    def wrapped(self) -> int:
        """Count the models and optimizers."""

    def among(self) -> Among:
        """Return the processes of this worker that divide its samples."""


class TorchHeldTensors:
    """`edl.trainer.limb_agreement.HeldTensors`."""

    def __init__(self, holder: NamedHolder) -> None:
        self._holder = holder

    def stamp(self) -> tuple[int, frozenset[int]]:
        return self._holder.wrapped(), self._holder.among().members

    def holding(self) -> Holding:
        buffers, firsts, among = self._holder.buffers(), self._firsts(), self._holder.among().members
        named = [(name, tensor) for name, tensor in self._holder.tensors() if not is_lazy(tensor)]
        parameters = [(name, tensor) for name, tensor in named if id(tensor) not in buffers]
        meshes = (mesh_of(tensor) for _, tensor in named)
        return Holding(
            _digest(msgspec.msgpack.encode([(name, whole_form(tensor)) for name, tensor in named])),
            tuple(name for name, _ in parameters),
            tuple(name for name, tensor in named if id(tensor) in buffers),
            tuple(sorted(among.union(*meshes))),
            _digest(*firsts.values()),
            averaged=tuple(sorted(among)),
            placed=tuple(placement_of(tensor) for _, tensor in parameters),
            pieces=tuple(piece_of(tensor) for _, tensor in parameters),
            firsts=tuple(firsts[name] for name, _ in parameters),
        )

    def sample(self) -> str:
        return _digest(*self._firsts().values())

    def _firsts(self) -> dict[str, bytes]:
        """Return the first elements that this process has of each parameter, which come from each device at once."""
        buffers, by_device = self._holder.buffers(), dict[torch.device, dict[str, torch.Tensor]]()
        found = {}
        with torch.no_grad():
            for name, tensor in self._holder.tensors():
                if id(tensor) not in buffers and not is_lazy(tensor):
                    local = local_of(tensor)
                    piece = as_bytes(local.reshape(-1)[:SAMPLED].contiguous())
                    by_device.setdefault(local.device, {})[name] = piece
            for pieces in by_device.values():
                raw, at = bytes(bytes_of(torch.cat(list(pieces.values())))), 0
                for name, piece in pieces.items():
                    found[name] = raw[at : at + len(piece)]
                    at += len(piece)
        return found


def _digest(*contents: Any) -> str:
    found = hashlib.blake2b(digest_size=8)
    for one in contents:
        found.update(one)
    return found.hexdigest()
