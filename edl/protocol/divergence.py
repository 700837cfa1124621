"""That workers of one ring were found to differ in what must be equal (I15)."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class OnDivergence(StrEnum):
    """What becomes of a job whose workers differ."""

    FAIL = "fail"
    HEAL = "heal"  # the majority's state becomes that of all


class Checking(msgspec.Struct, frozen=True):
    """When the workers of a job compare their states, and what follows from a difference: the same for all of them."""

    every: int = 100  # steps; 0: after each switch only
    on_divergence: OnDivergence = OnDivergence.FAIL


class Fingerprint(msgspec.Struct, frozen=True, array_like=True):
    """One thing that must be equal: its name, for people, and the digest of its form and contents."""

    name: str
    digest: int
    value: str = ""  # for people, of what is a single number, a truth value or short text; empty: it is not


class EndState(msgspec.Struct, frozen=True, array_like=True):
    """Workers whose scripts have ended in one state: the number of steps, and a sketch of what must be equal."""

    workers: tuple[str, ...]
    state: tuple[Fingerprint, ...]


class SameValue(msgspec.Struct, frozen=True, array_like=True):
    """Workers that have the same of what differs first, where that is a plain value."""

    value: str
    workers: tuple[str, ...]


class Divergence(msgspec.Struct, frozen=True):
    """A divergence is what all members of the ring have found, each by itself, from the same digests; or the leader,
    from what workers have told of themselves at the end of their scripts.
    """

    generation: int
    step: int  # committed by all of them when they compared
    equal_step: int  # after which they were equal when this ring compared last; 0: it never did
    first: str  # what differs first: a tensor, a hyper-parameter, something registered
    differing: int  # how many differ
    compared: int  # of so many
    workers: tuple[str, ...]  # those that differ from `root`
    root: str  # the worker whose state counts as the right one
    majority: bool  # more than half of all are like `root`
    newcomers: bool = False  # only such as have come to a job that trains: the others' state counts
    persists: bool = False  # taking over the state of `root` has not helped
    held: tuple[SameValue, ...] = ()  # of what differs first; empty: it is no plain value
    joined: tuple[int, ...] = ()  # after which step each of `workers` got its state; 0: it was there from the beginning
    at_end: bool = False  # of their scripts
