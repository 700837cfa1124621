"""The difference between workers of one ring in state that must be equal (I15)."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class OnDivergence(StrEnum):
    """The reaction of a job whose workers differ."""

    FAIL = "fail"
    HEAL = "heal"  # all workers take over the majority's state


class Checking(msgspec.Struct, frozen=True):
    """The interval of comparing the workers' states, and the reaction to a difference: the same on all workers."""

    every: int = 100  # steps; 0: after each switch only
    on_divergence: OnDivergence = OnDivergence.FAIL
    compute: float = 0.0  # the share of virtual workers' parts that another worker computes again


class Fingerprint(msgspec.Struct, frozen=True, array_like=True):
    """A value that must be equal: its name, for people, and the digest of its form and contents."""

    name: str
    digest: int
    value: str = ""  # for people, if it is a single number, a truth value or short text; else empty


class EndState(msgspec.Struct, frozen=True, array_like=True):
    """Workers whose scripts have ended in one state: the number of steps, and fingerprints of the values that must be
    equal.
    """

    workers: tuple[str, ...]
    state: tuple[Fingerprint, ...]
    joined: dict[str, int] = {}  # after which step each of them came that was a newcomer still


class SameValue(msgspec.Struct, frozen=True, array_like=True):
    """Workers with one value of the first difference, if that is a plain value."""

    value: str
    workers: tuple[str, ...]


class Divergence(msgspec.Struct, frozen=True):
    """A difference that all members of a ring have found, each by itself, from the same digests; or that the leader has
    found in the states that workers have reported at the end of their scripts.
    """

    generation: int
    step: int  # committed by all members when they compared
    equal_step: int  # after this step the members were equal when this ring compared last; 0: it never did
    first: str  # name of the first difference: a tensor, a hyper-parameter, a registered value
    differing: int  # number of values that differ
    compared: int  # number of values compared
    workers: tuple[str, ...]  # workers that differ from `root`
    root: str  # the worker whose state counts as the right one
    majority: bool  # more than half of all workers are equal to `root`
    newcomers: bool = False  # only newcomers to a job that trains differ: the others' state counts
    persists: bool = False  # taking over the state of `root` has not helped
    held: tuple[SameValue, ...] = ()  # by value of the first difference; empty: it is no plain value
    joined: tuple[int, ...] = ()  # after which step each of `workers` got its state; 0: it was there from the beginning
    at_end: bool = False  # found at the end of their scripts
    corrupt: bool = False  # a script that does the same everywhere came out otherwise: hardware erred, most likely
    virtual: int = -1  # whose part of `step`, which is void, came out otherwise; -1: states differ
