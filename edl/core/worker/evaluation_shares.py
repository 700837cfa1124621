"""Divide an evaluation among the members of a ring: which of them computes what, and when all of it is there.

Owns: these rules, as functions of what the members say. Does not own: computing, and asking the ring
(`edl.trainer.shared_evaluation`).

An evaluation consists of units, such as batches of a validation set. It is made between two mini-batches, after the
same step on all workers, and may outlive its ring: each member of the next one says what it has, and only what none
has is computed again. A member may have gone on to the next mini-batch with the result when another one, which has none
yet, finds the ring broken; then they meet in the next ring, and the one hands the result to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec


class AssemblyWord(msgspec.Struct, frozen=True, array_like=True):
    finished: int  # evaluations after this step whose results it has
    evaluates: bool  # it is in the next one; else it has gone on, or has not come there yet
    done: tuple[int, ...] = ()  # units of that one which it has computed
    found: bytes = b""  # what came of them


@dataclass(frozen=True, slots=True)
class HandOver:
    """A member lacks results that rank `root` has."""

    root: int


@dataclass(frozen=True, slots=True)
class AssembleAgain:
    """A member has not come to this evaluation yet."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute these units, which are this member's now; then all assemble again."""

    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """Results of all members, by rank: all units are computed."""

    found: tuple[bytes, ...]


Outcome = HandOver | AssembleAgain | Compute | Finished


def outcome(words: Sequence[AssemblyWord], rank: int, units: int) -> Outcome:
    """Return the next act after the messages of all members, by rank: the same act for all."""
    most = max(word.finished for word in words)
    if any(word.finished < most for word in words):
        return HandOver(next(root for root, word in enumerate(words) if word.finished == most))
    if not all(word.evaluates for word in words):
        return AssembleAgain()
    done = {unit for word in words for unit in word.done}
    missing = [unit for unit in range(units) if unit not in done]
    if not missing:
        return Finished(tuple(word.found for word in words))
    return Compute(share(missing, len(words), rank))


def share(units: Sequence[int], size: int, rank: int) -> tuple[int, ...]:
    """Return one member's units: every `size`-th, as the first ones may be all that hold anything."""
    return tuple(units[rank::size])
