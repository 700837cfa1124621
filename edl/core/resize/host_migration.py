"""Decide which workers leave a host, and which come in their place: pure functions of the migration on record, and the
answer to a request.

The newcomers wait, ready, until as many are as the job needs to have its size without the host; those that it lacks
before, as a worker was lost, enter at once. Then one plan has them
in the ring, and all of the host out of it. Where the whole ring is on that host, half of it goes along into one more
ring, of the same size, as the model comes from members; these leave with the next one.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from edl.core.job.leader_inputs import Refuse
from edl.core.resize.scale_requests import BOOTING, GOING, is_driven, staying
from edl.protocol.leader_messages import AskMigrate
from edl.protocol.migration_record import Migration, MigrationStatus, Room
from edl.protocol.record import Identity, Member, Record, WorkerState

LOOPBACK = "127."


def is_at(identity: Identity, host: str) -> bool:
    """Tell whether `host` is its name, or its address, as a name may be that of several machines."""
    return host in (identity.host, identity.address)


def leavers(record: Record) -> list[str]:
    """Return members that are to leave the host, and were not told so yet."""
    migration = record.migration
    return [] if migration is None else [one.identity.id for one in _staying_at(record, migration.host)]


def arrived(record: Record) -> list[Member]:
    """Return newcomers that are there for workers that leave."""
    migration = record.migration
    if migration is None:
        return []
    return [one for one in record.members if one.identity.id in migration.newcomers and one.state not in GOING]


def needed(record: Record) -> int:
    """Return how many newcomers replace the host's workers. The size may have been changed since the request."""
    migration = record.migration
    if migration is None:
        return 0
    others = sum(not is_at(member.identity, migration.host) for member in staying(record))
    return max(0, min(_slots(migration.to), record.target - others))


def awaited(record: Record) -> tuple[Room, ...]:
    """Return where newcomers are still to be started."""
    migration = record.migration
    if migration is None:
        return ()
    here, found = arrived(record), []
    left = needed(record) - len(here)
    for room in migration.to:
        free = min(left, room.slots - sum(is_at(one.identity, room.host) for one in here))
        if free > 0:
            found.append(Room(room.host, free))
            left -= free
    return tuple(found)


def has_room_for(record: Record, newcomer: Identity) -> bool:
    """Tell whether a newcomer comes in place of a worker of the host."""
    return any(is_at(newcomer, room.host) for room in awaited(record))


def all_ready(record: Record) -> bool:
    return sum(one.state not in BOOTING for one in arrived(record)) >= needed(record)


def outgoing(record: Record, able: Container[str]) -> frozenset[str]:
    """Return members that the next ring does without, as enough newcomers are `able` to enter it; else none."""
    if record.migration is None:
        return frozenset()
    ready = sum(one.identity.id in able for one in arrived(record))
    return frozenset(leavers(record)) if ready >= needed(record) else frozenset()


def lost(record: Record) -> int:
    """Return how many workers the job lacks without others on their way: newcomers may enter at once for these."""
    entered = sum(one.identity.id in record.roster for one in arrived(record))
    return max(0, record.target - len(staying(record)) - entered)


def spare(record: Record, able: Container[str]) -> frozenset[str]:
    """Return newcomers beyond those that are needed, as fewer are than when they were started. Not those of a ring."""
    planned = record.plan.roster if record.plan is not None else ()
    here = [one.identity.id for one in arrived(record) if one.identity.id in able]
    order = sorted(here, key=lambda worker: worker not in record.roster)
    return frozenset(order[needed(record) :]).difference(record.roster, planned)


def held_back(record: Record) -> frozenset[str]:
    """Return newcomers that wait for the others: not those a ring counts on, nor where none is to leave."""
    migration = record.migration
    if migration is None or not leavers(record):
        return frozenset()
    planned = record.plan.roster if record.plan is not None else ()
    return frozenset(migration.newcomers).difference(record.roster, planned)


def came_in_vain(record: Record) -> frozenset[str]:
    """Return newcomers on the host that is left: they would leave before they are of use. Not those of a ring."""
    planned = record.plan.roster if record.plan is not None else ()
    return frozenset(leavers(record)).difference(record.roster, planned)


def is_complete(record: Record) -> bool:
    """Tell whether the host has no worker left, and the ring has all newcomers."""
    migration = record.migration
    if migration is None or record.plan is not None:
        return False
    left = any(is_at(one.identity, migration.host) for one in record.members)
    return not left and sum(one.identity.id in record.roster for one in arrived(record)) >= needed(record)


def reason(record: Record) -> str:
    return f"{record.migration.host} is left" if record.migration is not None else ""


def shown(record: Record) -> MigrationStatus | None:
    migration = record.migration
    if migration is None:
        return None
    here = tuple(one.identity.id for one in arrived(record))
    return MigrationStatus(migration.number, migration.host, migration.to, awaited(record), here)


# ----------------------------------------------------------------------------------------------------- the request


def answer(asked: AskMigrate, record: Record) -> Migration | Refuse:
    there = _staying_at(record, asked.host)
    if refusal := _not_now(record) or _never(asked.host, there, record):
        return refusal
    to = asked.to or _elsewhere(asked.host, len(there), record)
    refusal = _no_way(asked.host, to, there, record)
    return refusal or Migration(record.migrations + 1, asked.request, asked.host, to, asked.within_s)


def _not_now(record: Record) -> Refuse | None:
    """Return why a migration has to wait: each reason ends by itself."""
    if is_driven(record):
        return None
    if not record.generation:
        return Refuse("the job is starting", retry=True)
    if record.migration is not None:
        return Refuse(f"its workers are leaving {record.migration.host} just now: ask again when they have")
    if record.replacing is not None:
        return Refuse(f"another worker comes in the place of {record.replacing.worker} just now", retry=True)
    if record.preemption is not None or any(one.state is WorkerState.DONE for one in record.members):
        return Refuse("the job is about to end")
    return None


def _never(host: str, there: Sequence[Member], record: Record) -> Refuse | None:
    if is_driven(record):
        return Refuse(
            f"horovodrun's driver starts workers and frees their slots: let the discovery script print the new hosts "
            f"beside {host}, and without {host} once `edl status {record.job}` shows that workers train on them"
        )
    if not there:
        hosts = ", ".join(dict.fromkeys(one.identity.host for one in staying(record)))
        return Refuse(f"no worker of the job is on {host}: they are on {hosts}")
    if any(one.identity.address.startswith(LOOPBACK) for one in there):
        return Refuse(
            f"its coordinator lives and dies with `edl run` on {host}, and no other host reaches it: a job that is to "
            "leave its host needs one of its own, by `edl run --coordinator HOST:PORT`"
        )
    if record.limits.maximum == 1:
        return Refuse("with --max-np 1 there is no ring in which a worker could hand the model on: use --max-np 2")
    return None


def _no_way(host: str, to: tuple[Room, ...], there: Sequence[Member], record: Record) -> Refuse | None:
    if not to:
        return Refuse(f"all its workers are on {host}: say where they are to go by --to HOST:SLOTS")
    if any(is_at(one.identity, room.host) for room in to for one in there):
        return Refuse(f"{host} is to be left, so its workers cannot go there: name other hosts by --to HOST:SLOTS")
    if _slots(to) < len(there):
        rooms = ", ".join(map(str, to))
        return Refuse(
            f"{len(there)} workers are to leave {host}, and {rooms} has slots for {_slots(to)}: name more, or ask for "
            f"a smaller job first, by `edl scale {record.job} N`"
        )
    return None


def _elsewhere(host: str, workers: int, record: Record) -> tuple[Room, ...]:
    """Return the job's other hosts, with as many more on each, as evenly as it goes."""
    others = [one.identity for one in staying(record) if not is_at(one.identity, host)]
    hosts = dict.fromkeys((one.host, one.address) for one in others)
    names = [name for name, _ in hosts]
    called = [name if names.count(name) == 1 and name != host else address for name, address in hosts]
    shares = [workers // len(called) + (at < workers % len(called)) for at in range(len(called))]
    return tuple(Room(name, share) for name, share in zip(called, shares, strict=True) if share)


def _slots(rooms: Sequence[Room]) -> int:
    return sum(room.slots for room in rooms)


def _staying_at(record: Record, host: str) -> list[Member]:
    return [member for member in staying(record) if is_at(member.identity, host)]
