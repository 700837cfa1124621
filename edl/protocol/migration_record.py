"""A job's migration from one host to others, as its leader keeps it."""

from __future__ import annotations

import msgspec


class Room(msgspec.Struct, frozen=True):
    """A number of newcomers that enter on a host in place of the leavers."""

    host: str
    slots: int

    def __str__(self) -> str:
        return f"{self.host}:{self.slots}"


class Migration(msgspec.Struct, frozen=True):
    """The migration of all workers of `host`, which leave once as many newcomers can enter in their place."""

    number: int  # counts the migrations of a job, from 1
    request: str  # id of the request
    host: str  # its name, or its address
    to: tuple[Room, ...]
    within_s: float  # time for the newcomers to be ready
    newcomers: tuple[str, ...] = ()  # newcomers that have come for it


class Migrated(msgspec.Struct, frozen=True):
    """A migration that is over. `failure`: why it failed; empty if no worker is left on its host."""

    request: str
    failure: str = ""


class MigrationStatus(msgspec.Struct, frozen=True):
    """The migration under way, as `edl status` shows it."""

    number: int
    host: str
    to: tuple[Room, ...]
    awaited: tuple[Room, ...]  # newcomers that have not come yet, by host
    newcomers: tuple[str, ...]  # newcomers that have come
