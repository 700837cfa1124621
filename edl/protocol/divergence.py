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


class Divergence(msgspec.Struct, frozen=True):
    """As all members of the ring have found it, each by itself, from the same digests."""

    generation: int
    step: int  # committed by all of them when they compared
    equal_step: int  # after which they were equal when this ring compared last; 0: it never did
    first: str  # what differs first: a tensor, a hyper-parameter, something registered
    differing: int  # how many differ
    compared: int  # of so many
    workers: tuple[str, ...]  # those that differ from `root`
    root: str  # the worker whose state counts as the right one
    majority: bool  # more than half of all are like `root`
    newcomers: bool = False  # only such as have just come do: they are given the state again, whatever the policy
    persists: bool = False  # taking over the state of `root` has not helped
