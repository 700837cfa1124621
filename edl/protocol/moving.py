"""A job on its way from one host to others, as its leader keeps it."""

from __future__ import annotations

import msgspec


class Room(msgspec.Struct, frozen=True):
    """So many newcomers come there for those who leave."""

    host: str
    slots: int

    def __str__(self) -> str:
        return f"{self.host}:{self.slots}"


class Migration(msgspec.Struct, frozen=True):
    """All workers of `host` are to leave it, once as many others can enter in their place."""

    number: int  # of the migrations of a job, from 1
    request: str  # the id under which it was asked for
    host: str  # its name, or its address
    to: tuple[Room, ...]
    within_s: float  # for the newcomers to be there
    newcomers: tuple[str, ...] = ()  # that have come for it


class Migrated(msgspec.Struct, frozen=True):
    """A migration that is over. `failure`: why it came to nothing; empty when no worker is left on its host."""

    request: str
    failure: str = ""


class MigrationStatus(msgspec.Struct, frozen=True):
    """The migration that is under way, as `edl status` shows it."""

    number: int
    host: str
    to: tuple[Room, ...]
    awaited: tuple[Room, ...]  # newcomers that have not come yet, by host
    newcomers: tuple[str, ...]  # those that have
