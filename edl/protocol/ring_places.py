"""The nouns of the ring: the place of each worker in each generation."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

AUTO: Final = "auto"


class RingKind(StrEnum):
    """The library that the rings of a job are made of: the same on all its workers."""

    UNSAID = ""
    HOROVOD = "horovod"
    TORCH = "torch"


def ring_kind(said: str, *, horovod_alone: bool, has_horovod: bool) -> RingKind:
    """Return the ring of a worker whose `--ring` is `said`. `horovod_alone`: its framework, or its launcher, allows no
    other. `has_horovod`: Horovod is installed for the worker's framework.
    """
    if said != AUTO:
        return RingKind(said)
    return RingKind.HOROVOD if horovod_alone or has_horovod else RingKind.TORCH


class Place(msgspec.Struct, frozen=True):
    """The place of one worker in the ring of one generation. Generation 0 is the solo ring: size 1, no rendezvous."""

    generation: int
    rank: int
    size: int
    worker: str  # this worker's id: its host name towards Horovod, so that (host, local rank) is unique in a flat ring
    rendezvous: str = ""  # where its trainer finds the others: at its own daemon (`edl.collectives.rendezvous`)
    interface: str = "lo"  # network interface that the ring's own connections use
    local_rank: int = 0  # unique among the workers of the same host: devices are chosen by it
    local_size: int = 1
    cross_rank: int = 0  # index of this host among those that have this local rank too
    cross_size: int = 1
    address: str = "127.0.0.1"  # of this worker's host, on that interface
    key: bytes = b""  # of this ring: its members authenticate each other by it; derived from the job's secret


class Peer(msgspec.Struct, frozen=True):
    """A member of a ring, with whose daemon this worker's daemon exchanges addresses."""

    rank: int
    address: str  # of its daemon


def solo(worker: str, local_rank: int = 0) -> Place:
    """Return the ring of one, in which a newcomer boots and rehearses."""
    return Place(generation=0, rank=0, size=1, worker=worker, local_rank=local_rank)
