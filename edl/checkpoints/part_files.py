"""The part of a checkpoint that a trainer hands to its daemon, and the files that the daemon makes durable from it.

Owns: the form of both, and which worker writes which bytes. Does not own: copying (`edl.trainer.snapshot_writer`), when
a daemon writes (`edl.daemon.part_store`), nor the manifest (`edl.checkpoints.publishing`).

Replicas are equal, so each worker writes its share of the state that updates change. State that forward passes and
scripts change (statistics, hyper-parameters, registered values) is taken from rank 0 alone, as after a broken ring.
Where a worker is several processes, each process writes a part: its share of what it holds of sharded tensors, and the
first process also of all others. Of several stages each is a state of its own, which its processes write so.

The state is cut, equal on all workers, into as many parts as there are workers, of nearly the same size. All tensors
stand in one row, those with the longest elements first, and the row is cut at equal distances. A cut is moved back to a
multiple of `ALIGNED` in its tensor: small tensors stay whole, and no part is more than `ALIGNED` bytes larger or
smaller than it should be.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from edl.checkpoints.checkpoint_paths import placed
from edl.checkpoints.checkpoint_writer import write_own, write_part
from edl.checkpoints.manifest import Slice, StageState, StoredTensor
from edl.checkpoints.worker_stages import ElementRun, within
from edl.errors import CheckpointError
from edl.protocol.checkpoint_record import FileInfo, Save

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
    processes: tuple[int, ...] = (0,)  # of a worker: those that hold this state


class JoinedState(NamedTuple):
    state: bytes
    registered: bytes
    tensors: tuple[StoredTensor, ...]
    parts: tuple[tuple[Slice, ...], ...]
    stages: tuple[StageState, ...]


def joined(heads: Sequence[StateHead], parts: int) -> JoinedState:
    """Join the states that rank 0's processes have described, for so many parts. Raises CheckpointError."""
    for head in heads:
        if len(head.parts) != parts:
            raise CheckpointError(
                f"rank 0 has cut the state for {len(head.parts)} processes, and {parts} have written it"
            )
    if len(heads) == 1:
        return JoinedState(heads[0].state, heads[0].registered, heads[0].tensors, heads[0].parts, ())
    return JoinedState(
        b"",
        b"",
        tuple(tensor for head in heads for tensor in head.tensors),
        tuple(tuple(piece for head in heads for piece in head.parts[number]) for number in range(parts)),
        tuple(StageState(head.processes, len(head.tensors), head.state, head.registered) for head in heads),
    )


class Own(msgspec.Struct, frozen=True):
    """The content of one worker's own file: state that no other worker has."""

    random: dict[str, bytes]  # states of random generators, by the generator's name
    head: StateHead | None = None  # only in the files of rank 0: of the first process of each stage
    layout: str = ""  # checksum of the tensors and parts that this process knows; empty: of the one process of a worker
    stage: int = 0  # number of the stage that this process belongs to


class PartCopy(msgspec.Struct, frozen=True):
    """The description of a part whose bytes, those of `slices` one behind the other, lie beside it."""

    save: Save
    tensors: tuple[StoredTensor, ...]  # tensors of which this part has bytes
    slices: tuple[Slice, ...]
    own: bytes  # an `Own`


Holdings = Mapping[str, Sequence[Sequence[ElementRun]]]  # of sharded tensors: the bytes that each process writes


class PartPlan(NamedTuple):
    """The slices that the processes write, in the order of their parts: worker by worker."""

    slices: tuple[tuple[Slice, ...], ...]  # of whole tensors
    here: tuple[tuple[Slice, ...], ...]  # the same bytes as they lie in the memory of the process


def cut(
    early: Sequence[StoredTensor],
    late: Sequence[StoredTensor],
    workers: int,
    processes: int = 1,
    holdings: Holdings | None = None,
    holders: Sequence[int] = (),
) -> PartPlan:
    """Return the slices of each part. The result depends on the tensors alone, so all workers cut alike.

    `holders`: the processes of each worker that hold these tensors, in order; by default all. Others write nothing.
    """
    holders = holders or range(processes)
    of_process = {
        process: _of_process(late, workers, process, holdings or {}, all_others=process == holders[0])
        for process in holders
    }
    nothing: _OfWorkers = [((), ())] * workers
    rows = [of_process.get(process, nothing)[worker] for worker in range(workers) for process in range(processes)]
    slices, here = ([row[which] for row in rows] for which in (0, 1))
    for process in holders:  # of the first worker
        [(first, lying)] = _of_process(early, 1, process, holdings or {}, all_others=process == holders[0])
        slices[process], here[process] = (*first, *slices[process]), (*lying, *here[process])
    return PartPlan(tuple(slices), tuple(here))


_OfWorkers = list[tuple[tuple[Slice, ...], tuple[Slice, ...]]]


def _of_process(
    late: Sequence[StoredTensor], workers: int, process: int, holdings: Holdings, *, all_others: bool
) -> _OfWorkers:
    """Return for each worker what this process of it writes: as slices of whole tensors, and as they lie here.

    `all_others`: it also writes the tensors that are not in `holdings`.
    """
    held = {name: by_process[process] for name, by_process in holdings.items()}
    mine = [
        msgspec.structs.replace(one, bytes=sum(run.length for run in held[one.name])) if one.name in held else one
        for one in late
        if one.name in held or all_others
    ]
    found = []
    for here in shares(mine, workers):
        slices = [
            Slice(piece.tensor, *run)
            for piece in here
            for run in within(held.get(piece.tensor, (ElementRun(0, piece.end),)), piece.offset, piece.end)
        ]
        found.append((tuple(slices), here))
    return found


def store(copied: PartCopy, contents: memoryview) -> tuple[FileInfo, ...]:
    """Write the part and the process's own file; both are durable on return. Raises CheckpointError."""
    save = copied.save
    folder, name = placed(save.path)
    tensors = {tensor.name: tensor for tensor in copied.tensors}
    part = write_part(folder, folder.title(name, save.part, save.parts), copied.slices, tensors, [contents])
    own = write_own(folder, name, save.part, copied.own)
    return tuple(FileInfo(one.file, one.bytes, one.checksum) for one in (part, own))
