"""Stages of a worker: the processes that hold the same tensors, in parts or as copies, are one stage.

Most models are one stage, over however many processes. Those of a pipeline hold different tensors, and their names may
be the same, as each process names what is in its part of the model.

Owns: which ranges of a tensor a process holds, which processes are a stage, and what the tensors of several stages are
called in one checkpoint. Does not own: what a process tells of its tensors (a framework's adapter), nor when processes
ask each other (`edl.trainer.limb_agreement`).

Meshes and `among=` say which processes belong together. A process that is alone in both is a copy of another one if
their parameters have the same names and forms, and the same first elements: stages that are built alike may have these,
too, so this is asked again as they train, and each copy for a checkpoint says which contents it found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, permutations
from typing import Final, NamedTuple

import msgspec

from edl.errors import CheckpointError

# A checkpoint has whole tensors, in slices of their bytes. A process that holds a block of a tensor holds some ranges
# of these bytes: one, if the tensor is divided by rows. So a checkpoint says nothing of how a model was sharded, and a
# model that is sharded otherwise, or not at all, reads the ranges that it needs.


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


class Holding(msgspec.Struct, frozen=True):
    """The tensors that one process of a worker holds."""

    form: str  # digest of their names and forms
    parameters: tuple[str, ...] = ()  # their names
    buffers: tuple[str, ...] = ()
    beside: tuple[int, ...] = ()  # processes that hold other parts of them, or copies: meshes and `among=` say so
    sample: str = ""  # digest of some of their elements
    averaged: tuple[int, ...] = ()  # processes that divide samples with this one (`among=`)
    placed: tuple[str, ...] = ()  # how each parameter is sharded; empty words for one that is whole
    pieces: tuple[str, ...] = ()  # which part of each parameter is here; empty words for one that is whole
    firsts: tuple[bytes, ...] = ()  # the first elements of what is here of each parameter


class WorkerStage(NamedTuple):
    number: int = 0
    of: int = 1  # so many of a worker
    processes: tuple[int, ...] = (0,)
    prefix: str = ""  # of the model's names: parameters of two stages have one name
    again: frozenset[str] = frozenset()  # buffers of this stage whose names an earlier stage has, too
    judged: bool = False  # it is one by what its tensors contain

    def model_name(self, name: str) -> str:
        """Return what a tensor of the model is called in a checkpoint."""
        return self.name(name) if name in self.again else f"{self.prefix}{name}"

    def name(self, name: str) -> str:
        """Return what any other tensor is called there."""
        return name if self.of == 1 else f"stage/{self.number}/{name}"


def whole(processes: int) -> WorkerStage:
    """Return the one stage of a worker of so many processes."""
    return WorkerStage(processes=tuple(range(processes)))


def stages_of(holdings: Sequence[Holding]) -> list[WorkerStage]:
    """Return the stages of a worker, in the order of their first processes. `holdings` are by process."""
    told = {frozenset((process, at)) for process, one in enumerate(holdings) for at in one.beside if at != process}
    alone = set(range(len(holdings))).difference(*told)
    copies = {
        frozenset(pair)
        for pair in combinations(sorted(alone), 2)
        if len({(holdings[process].form, holdings[process].sample) for process in pair}) == 1
    }
    groups = _groups(len(holdings), told | copies)
    firsts = [holdings[group[0]] for group in groups]
    prefixed = _is_parameter_shared(firsts)
    known: set[str] = set()
    found = []
    for number, (group, first) in enumerate(zip(groups, firsts, strict=True)):
        again = frozenset() if prefixed else frozenset(known.intersection(first.buffers))
        known.update(first.parameters, first.buffers)
        judged = len(group) > 1 and group[0] in alone
        found.append(WorkerStage(number, len(groups), group, f"{number}." if prefixed else "", again, judged))
    return found


def difference_within(holdings: Sequence[Holding], *, contents: bool) -> str:
    """Say how processes differ that a mesh or `among=` connects; empty if none would train wrongly. `contents`: compare
    those of parts that both hold, too.
    """
    named = [
        dict(zip(one.parameters, zip(one.placed, one.pieces, one.firsts, strict=True), strict=True)) for one in holdings
    ]
    for (a, mine), (b, other) in combinations(enumerate(holdings), 2):
        alone = [name for name in (*mine.parameters, *other.parameters) if not (name in named[a] and name in named[b])]
        if alone and (b in mine.averaged or a in other.averaged):
            return (
                f"processes {a} and {b} of this worker divide its samples (among=), but only one of them trains "
                f"{alone[0]}: build the same model on both, or leave among= away"
            )
        if b in mine.beside or a in other.beside:
            for name in filter(named[b].__contains__, mine.parameters):
                placed, piece, firsts = named[a][name]
                placed_there, piece_there, firsts_there = named[b][name]
                if placed != placed_there:
                    return (
                        f"{name} is {placed or 'whole'} on process {a} of this worker, and {placed_there or 'whole'} "
                        f"on process {b}: shard the model alike on all processes of a worker"
                    )
                if contents and piece == piece_there and firsts != firsts_there:
                    return (
                        f"{name} differs between processes {a} and {b} of this worker, which train it together: call "
                        "torch.manual_seed() with one number on both before the model is built"
                    )
    return ""


def stage_with(stages: Iterable[WorkerStage], process: int) -> WorkerStage:
    return next(stage for stage in stages if process in stage.processes)


def _groups(count: int, pairs: Iterable[frozenset[int]]) -> list[tuple[int, ...]]:
    """Return the groups in which all are connected by pairs, in the order of their first members."""
    of = list(range(count))
    for one, other in pairs:
        mine, theirs = of[one], of[other]
        of = [mine if group == theirs else group for group in of]
    return [tuple(at for at, group in enumerate(of) if group == one) for one in dict.fromkeys(of)]


def _is_parameter_shared(firsts: Sequence[Holding]) -> bool:
    """Tell whether two stages use one name, and one of them for a parameter."""
    return any(
        not {*one.parameters}.isdisjoint((*other.parameters, *other.buffers)) for one, other in permutations(firsts, 2)
    )
