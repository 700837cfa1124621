"""The part of a checkpoint that a trainer hands to its daemon, and the files that the daemon makes durable from it.

Owns: the form of both, and which worker writes which bytes. Does not own: copying (`edl.trainer.snapshot_writer`), when
a daemon writes (`edl.daemon.part_store`), nor the manifest (`edl.checkpoints.publishing`).

Replicas are equal, so each worker writes its share of the state that updates change. State that forward passes and
scripts change (statistics, hyper-parameters, registered values) is taken from rank 0 alone, as after a broken ring.

The state is cut, equal on all workers, into as many parts as there are workers, of nearly the same size. All tensors
stand in one row, those with the longest elements first, and the row is cut at equal distances. A cut is moved back to a
multiple of `ALIGNED` in its tensor: small tensors stay whole, and no part is more than `ALIGNED` bytes larger or
smaller than it should be.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from edl.checkpoints.checkpoint_paths import placed
from edl.checkpoints.checkpoint_writer import write_own, write_part
from edl.checkpoints.manifest import Slice, StoredTensor
from edl.protocol.checkpoint_record import FileInfo, PartInfo, Save

ALIGNED = 4096


def shares(tensors: Sequence[StoredTensor], parts: int) -> tuple[tuple[Slice, ...], ...]:
    """Return the slices of each part, in order. The result depends on the tensors alone, so all workers cut alike."""
    row = sorted((tensor for tensor in tensors if tensor.bytes), key=lambda tensor: -tensor.element_bytes)
    begins = list(itertools.accumulate((tensor.bytes for tensor in row), initial=0))
    wanted = [begins[-1] * number // parts for number in range(parts)]
    found: list[list[Slice]] = [[] for _ in range(parts)]
    number = 0  # number of the part that takes the next bytes
    for tensor, begin in zip(row, begins, strict=False):
        at = 0
        while at < tensor.bytes:
            while number + 1 < parts and _cut(wanted[number + 1], begin, tensor.bytes) <= at:
                number += 1
            end = _cut(wanted[number + 1], begin, tensor.bytes) if number + 1 < parts else tensor.bytes
            found[number].append(Slice(tensor.name, at, end - at))
            at = end
    return tuple(map(tuple, found))


def _cut(wanted: int, begin: int, size: int) -> int:
    """Return the offset at which a tensor of `size` bytes, which begins at `begin` in the row, is cut for a cut of the
    row at `wanted`.
    """
    if wanted >= begin + size:
        return size
    return max(0, wanted - begin) // ALIGNED * ALIGNED


class StateHead(msgspec.Struct, frozen=True):
    """The description of the whole state, without its bytes."""

    framework: str
    state: bytes  # the framework adapter's description of model and optimizers
    registered: bytes  # the tree of registered values
    tensors: tuple[StoredTensor, ...]
    parts: tuple[tuple[Slice, ...], ...]  # which bytes each worker writes
    versions: dict[str, str] = {}  # versions of Python and the libraries that rank 0 computes with


class Own(msgspec.Struct, frozen=True):
    """The content of one worker's own file: state that no other worker has."""

    random: dict[str, bytes]  # states of random generators, by the generator's name
    head: StateHead | None = None  # only in the file of rank 0


class PartCopy(msgspec.Struct, frozen=True):
    """The description of a part whose bytes, those of `slices` one behind the other, lie beside it."""

    save: Save
    tensors: tuple[StoredTensor, ...]  # tensors of which this part has bytes
    slices: tuple[Slice, ...]
    own: bytes  # an `Own`


def cut(early: Sequence[StoredTensor], late: Sequence[StoredTensor], parts: int) -> tuple[tuple[Slice, ...], ...]:
    """Return the slices of each part. The result depends on the tensors alone, so all workers cut alike."""
    first, *others = shares(late, parts)
    of_rank_0 = tuple(Slice(tensor.name, 0, tensor.bytes) for tensor in early if tensor.bytes)
    return ((*of_rank_0, *first), *others)


def store(copied: PartCopy, contents: memoryview, stall_ms: float) -> PartInfo:
    """Write the part and the worker's own file; both are durable on return. Raises CheckpointError."""
    save = copied.save
    folder, name = placed(save.path)
    tensors = {tensor.name: tensor for tensor in copied.tensors}
    part = write_part(folder, folder.title(name, save.part, save.parts), copied.slices, tensors, [contents])
    own = write_own(folder, name, save.part, copied.own)
    return PartInfo(tuple(FileInfo(one.file, one.bytes, one.checksum) for one in (part, own)), stall_ms)
