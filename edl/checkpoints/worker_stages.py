"""Stages of a worker: the processes that hold the same tensors, in parts or as copies, are one stage.

Most models are one stage, over however many processes. Those of a pipeline hold different tensors, and their names may
be the same, as each process names what is in its part of the model.

Owns: which processes are a stage, and what the tensors of several stages are called in one checkpoint. Does not own:
what a process tells of its tensors (a framework's adapter), nor when processes ask each other
(`edl.trainer.stage_exchange`).

Meshes and `among=` say which processes belong together. A process that is alone in both is a copy of another one if
their parameters have the same names and forms, and the same first elements: stages that are built alike may have these,
too, so this is asked again as they train, and each copy for a checkpoint says which contents it found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

import msgspec


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
    """The stage that a process belongs to."""

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
    """Return the stage that a process belongs to."""
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
