"""The target size of a job as hosts with slots, for a launcher that asks each second, as horovodrun does.

Owns: spreading a size over hosts, and finding it cheaply: from what `edl run` keeps on this machine, else from the
record in the coordinator, else from the last look, so that a fault never looks like a smaller job. Does not own: who
starts or ends workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from edl.config import Settings
from edl.coordination.coordinator_settings import Coordinator
from edl.errors import EdlError
from edl.host.credentials import coordinator_of
from edl.host.job_discovery import completed
from edl.launch.job_records import Folder, LaunchRecord, keep
from edl.protocol import node_paths
from edl.protocol.record import Room, decode_record

PATIENCE_S = 3.0  # horovodrun's driver waits meanwhile
SESSION_S = 10.0


class Host(msgspec.Struct, frozen=True):
    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


class Wanted(msgspec.Struct, frozen=True):
    """The size that a job wants. `doubt`: why only the last known size could be given."""

    size: int
    doubt: str = ""


class LastLook(msgspec.Struct, frozen=True):
    """State that one look leaves for the next."""

    coordinator: str  # it holds for the job there
    size: int | None = None  # None: never known
    said: str = ""  # the last warning, which is not repeated each second


class _Target(msgspec.Struct, frozen=True):
    # The part of a status that is read.
    target: int


# --------------------------------------------------------------------------------------------------------- spreading


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Parse HOST:SLOTS, separated by commas. Raises ValueError with what is wrong."""
    hosts = tuple(_host(part) for part in text.split(","))
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"names {name} twice: add up its slots")
    return hosts


def _host(text: str) -> Host:
    name, _, slots = text.strip().rpartition(":")
    if not name or set(name) & set(": \t/[]"):  # horovodrun splits its lines at the only colon
        raise ValueError("must be HOST:SLOTS, more of them after commas, such as node1:4,node2:4")
    if not slots.isdecimal() or not 0 < int(slots) < 10**6:
        raise ValueError(f"{text.strip()}: the slots of a host must be a whole number of at least 1")
    return Host(name, int(slots))


def parse_rooms(text: str) -> tuple[Room, ...]:
    """Parse HOST:SLOTS, separated by commas, as places for workers to move to."""
    return tuple(Room(host.name, host.slots) for host in parse_hosts(text))


def spread(size: int, hosts: Sequence[Host]) -> Iterator[Host]:
    """Place `size` workers, or as many as there are slots: each host is filled before the next one is used."""
    for host in hosts:
        here = min(size, host.slots)
        if here == 0:
            return
        yield Host(host.name, here)
        size -= here


# ------------------------------------------------------------------------------------------------------- finding out


def wanted(settings: Settings, *, again: bool = False) -> Wanted:
    """Return the target size of the job of `settings`, else its last known one; of a job yet to come, its first size.

    `again`: a job that is over may begin anew under its name, with the size in `settings`. Raises ConfigError when the
    settings cannot be right.
    """
    folder = Folder(settings.job_home)
    record = folder.read()
    if record is not None and settings.coordinator not in {None, record.coordinator}:
        record = None  # of another job of that name
    if record is not None and again and not record.alive:
        return Wanted(settings.np)
    if record is not None and (record.alive or record.own_coordinator):
        size = _kept_by_launcher(folder)
        if size is not None:
            return Wanted(size)
    begins = settings.np if record is None else record.np
    coordinator = None if record is not None and _is_gone(record) else coordinator_of(completed(settings))
    return Wanted(begins) if coordinator is None else _asked(coordinator, folder, begins)


def remembered(folder: Folder, coordinator: str) -> LastLook:
    try:
        kept = msgspec.json.decode(folder.wanted.read_bytes(), type=LastLook)
    except (OSError, msgspec.MsgspecError):
        return LastLook(coordinator)
    return kept if kept.coordinator == coordinator else LastLook(coordinator)


def remember(settings: Settings, before: LastLook, now: LastLook) -> None:
    # If nothing can be written, the next look does without.
    if now != before and (now.coordinator or now.said or before.said):
        with contextlib.suppress(EdlError, OSError):
            keep(settings.home, Folder(settings.job_home).wanted, msgspec.json.encode(now))


def _is_gone(record: LaunchRecord) -> bool:
    """Tell whether the coordinator was the launcher's own and has ended with it."""
    return record.own_coordinator and not (record.alive and record.coordinator)


def _kept_by_launcher(folder: Folder) -> int | None:
    # `edl run` writes its status within a second.
    try:
        return msgspec.json.decode(folder.status.read_bytes(), type=_Target).target
    except (OSError, msgspec.MsgspecError):
        return None


def _asked(coordinator: Coordinator, folder: Folder, begins: int) -> Wanted:
    try:
        size = asyncio.run(_recorded(coordinator, folder.path.name))
    except (EdlError, TimeoutError, msgspec.MsgspecError, zlib.error) as error:
        last = remembered(folder, coordinator.hosts).size
        why = str(error) or f"no answer from {coordinator.hosts} within {PATIENCE_S:g} s"
        return Wanted(begins if last is None else last, why)
    return Wanted(begins if size is None else size)


async def _recorded(coordinator: Coordinator, job: str) -> int | None:
    """Return the size in the job's record, which is written before a request is answered; None without such a job."""
    from edl.coordination.store import connect  # half of what a look costs, where it is needed at all

    async with asyncio.timeout(PATIENCE_S):
        store = await connect(coordinator, SESSION_S, connect_timeout_s=PATIENCE_S / 2)
        try:
            node = await store.read(node_paths.record(job))
        finally:
            await store.close()
    return None if node is None else decode_record(node.value).target
