"""What a trainer hands to its daemon of a checkpoint, and what the daemon makes durable of it.

Owns: the form of both, and which worker writes what. Does not own: copying (`edl.trainer.copier`), when a daemon writes
(`edl.daemon.storing`), nor the manifest (`edl.checkpoints.publishing`).

Replicas are equal, so each worker writes its share of what an update makes. What forward passes and scripts change by
themselves (statistics, hyper-parameters, registered values) is all of rank 0, as after a ring that broke.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edl.checkpoints.manifest import Slice, StoredTensor
from edl.checkpoints.places import placed
from edl.checkpoints.shares import shares
from edl.checkpoints.writing import write_own, write_part
from edl.protocol.saving import FileInfo, PartInfo, Save


class StateHead(msgspec.Struct, frozen=True):
    """The whole state, without its bytes."""

    framework: str
    state: bytes  # the face's description of model and optimizers
    registered: bytes  # the tree of registered values
    tensors: tuple[StoredTensor, ...]
    parts: tuple[tuple[Slice, ...], ...]  # which bytes each worker writes
    versions: dict[str, str] = {}  # of Python and the libraries that it computes with


class Own(msgspec.Struct, frozen=True):
    """What a worker has for itself: the content of its own file."""

    random: dict[str, bytes]  # states of random numbers, by what draws them
    head: StateHead | None = None  # of rank 0


class PartCopy(msgspec.Struct, frozen=True):
    """Beside the bytes of a part, which are those of `slices`, one behind the other."""

    save: Save
    tensors: tuple[StoredTensor, ...]  # that are of this part
    slices: tuple[Slice, ...]
    own: bytes  # an `Own`


def cut(early: Sequence[StoredTensor], late: Sequence[StoredTensor], parts: int) -> tuple[tuple[Slice, ...], ...]:
    """For each part what lies in it. The same everywhere for the same tensors."""
    first, *others = shares(late, parts)
    of_rank_0 = tuple(Slice(tensor.name, 0, tensor.bytes) for tensor in early if tensor.bytes)
    return ((*of_rank_0, *first), *others)


def store(copied: PartCopy, contents: memoryview, stall_ms: float) -> PartInfo:
    """Durable when this returns. Raises CheckpointError."""
    save = copied.save
    folder, name = placed(save.path)
    tensors = {tensor.name: tensor for tensor in copied.tensors}
    part = write_part(folder, folder.title(name, save.part, save.parts), copied.slices, tensors, [contents])
    own = write_own(folder, name, save.part, copied.own)
    return PartInfo(tuple(FileInfo(one.file, one.bytes, one.checksum) for one in (part, own)), stall_ms)
