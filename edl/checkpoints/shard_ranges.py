"""Ranges of a whole tensor's elements that each process of a worker holds.

A checkpoint has whole tensors, in slices of their bytes. A process that holds a block of a tensor holds some ranges of
these bytes: one, if the tensor is divided by rows. So a checkpoint says nothing of how a model was sharded, and a model
that is sharded otherwise, or not at all, reads the ranges that it needs.

Owns: the ranges of a block, and their place in a process's own memory. Does not own: how a framework says that a tensor
is sharded (`edl.torch.sharded`), nor which worker writes which bytes (`edl.checkpoints.part_files`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from edl.errors import CheckpointError

MOST_RANGES: Final = 1 << 15  # of one tensor in one process


class ElementRun(NamedTuple):
    """A run of elements, or of bytes, of a tensor."""

    offset: int
    length: int


class Split(NamedTuple):
    """A dimension of a tensor that a dimension of the mesh divides."""

    dimension: int
    first_into: int = 1  # pieces that are each divided by themselves: another dimension of the mesh has one each


class Sharding(NamedTuple):
    """The layout of a tensor over a mesh of processes."""

    shape: tuple[int, ...]  # of the whole tensor
    mesh: tuple[int, ...]
    splits: tuple[Split | None, ...]  # by dimension of the mesh; None: each process along it has the same


@lru_cache(maxsize=4096)
def block(sharding: Sharding, coordinate: tuple[int, ...]) -> tuple[ElementRun, ...]:
    """Return the elements that the process at `coordinate` of the mesh holds, in the order in which they lie there.

    Raises CheckpointError where they lie in too many pieces.
    """
    held = [[ElementRun(0, length)] for length in sharding.shape]
    for split, size, at in zip(sharding.splits, sharding.mesh, coordinate, strict=True):
        if split is not None:
            pieces = _chunks(held[split.dimension], split.first_into)
            held[split.dimension] = [one for piece in pieces for one in _chunk(piece, size, at)]
    if any(not ranges for ranges in held):
        return ()
    inner = 1  # elements of a run of whole dimensions
    dimension = len(held)
    while dimension and held[dimension - 1] == [ElementRun(0, sharding.shape[dimension - 1])]:
        dimension -= 1
        inner *= sharding.shape[dimension]
    if not dimension:
        return (ElementRun(0, inner),)
    outer = [
        [index for one in ranges for index in range(one.offset, one.offset + one.length)]
        for ranges in held[: dimension - 1]
    ]
    if math.prod(map(len, outer)) * len(held[dimension - 1]) > MOST_RANGES:
        raise CheckpointError(
            f"a tensor of {list(sharding.shape)} is sharded into more than {MOST_RANGES} runs of elements: shard it "
            "along its first dimension"
        )
    return tuple(_runs(sharding.shape, outer, held[dimension - 1], inner))


def writes(sharding: Sharding, coordinate: tuple[int, ...]) -> bool:
    """Tell whether the process at `coordinate` writes its block: of equal ones, the first."""
    return all(split is not None or not at for split, at in zip(sharding.splits, coordinate, strict=True))


def within(ranges: Sequence[ElementRun], begin: int, end: int) -> Iterator[ElementRun]:
    """Yield the ranges of the tensor that lie from `begin` to before `end` in the memory of who holds `ranges`."""
    at = 0
    for one in ranges:
        first, last = max(begin - at, 0), min(end - at, one.length)
        if first < last:
            yield ElementRun(one.offset + first, last - first)
        at += one.length


def _runs(
    shape: Sequence[int], outer: Sequence[Sequence[int]], last: Sequence[ElementRun], inner: int
) -> Iterator[ElementRun]:
    length = shape[len(outer)]
    for indices in itertools.product(*outer):
        begin = 0
        for size, index in zip(shape, indices, strict=False):
            begin = begin * size + index
        for one in last:
            yield ElementRun((begin * length + one.offset) * inner, one.length * inner)


def _chunks(ranges: list[ElementRun], count: int) -> list[list[ElementRun]]:
    return [_chunk(ranges, count, number) for number in range(count)]


def _chunk(ranges: list[ElementRun], count: int, number: int) -> list[ElementRun]:
    """Return chunk `number` of `count`, as torch.chunk() divides: the last ones may be smaller, or empty."""
    total = sum(one.length for one in ranges)
    size = -(-total // count)
    return list(within(ranges, min(number * size, total), min((number + 1) * size, total)))
