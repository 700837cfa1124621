"""Decide which workers leave a host, which come in their place, how a migration ends, and what its request is answered.

The newcomers wait, ready, until as many are as the job needs to have its size without the host; those that it lacks
before, as a worker was lost, enter at once. Then one plan has them in the ring, and all of the host out of it. Where
the whole ring is on that host, half of it goes along into one more ring, of the same size, as the model comes from
members; these leave with the next one.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

import msgspec

from edl import facts
from edl.core.job.leader_inputs import Refuse, TellOfMigration
from edl.core.job.leader_state import WorkingState
from edl.core.resize import scale_requests
from edl.core.resize.scale_requests import BOOTING, GOING, is_driven, staying
from edl.core.resize.target_size import TargetSize
from edl.protocol.leader_messages import AskMigrate
from edl.protocol.record import OVER, Identity, Member, Migrated, Migration, MigrationStatus, Record, Room, WorkerState

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
    """Each reason to wait ends by itself."""
    if is_driven(record):
        return None
    if not record.generation:
        return Refuse("the job is starting", retry=True)
    if record.migration is not None:
        return Refuse(f"its workers are leaving {record.migration.host} just now: ask again when they have")
    if record.sizing.replacing is not None:
        return Refuse(f"another worker comes in the place of {record.sizing.replacing.worker} just now", retry=True)
    if record.checkpoints.preemption is not None or any(one.state is WorkerState.DONE for one in record.members):
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


KEPT: Final = 20  # requests remembered, with what has come of them


class MigrationAnswers:
    """`boot_s` is how long newcomers are waited for, unless the request says otherwise."""

    def __init__(self, working: WorkingState, sizing: TargetSize, boot_s: float) -> None:
        self._working = working
        self._sizing = sizing
        self._boot_s = boot_s
        self._since: float | None = None  # not kept: a new leader begins to wait anew
        self._ready_since: float | None = (
            None  # all newcomers; from then on the others have as long to be out of the ring
        )

    def ask(self, asked: AskMigrate) -> None:
        """Take a request once, however often it comes."""
        working, record = self._working, self._working.record
        over = next((one for one in record.migrated if one.request == asked.request), None)
        if over is not None:
            working.commands.append(Refuse(over.failure) if over.failure else TellOfMigration(done=True))
        elif record.state in OVER:
            working.commands.append(Refuse(working.over()))
        elif record.migration is not None and record.migration.request == asked.request:
            working.commands.append(TellOfMigration(done=False))
        else:
            begun = answer(asked, record)
            if isinstance(begun, Migration):
                self._begin(begun)
            else:
                working.commands.append(begun)

    def welcome(self, newcomer: Identity) -> bool:
        """Tell whether a worker that has just come does so for one that leaves the host."""
        moving, record = self._working.record.migration, self._working.record
        others = tuple(member for member in record.members if member.identity.id != newcomer.id)
        if moving is None or not has_room_for(msgspec.structs.replace(record, members=others), newcomer):
            return False
        self._working.change(migration=msgspec.structs.replace(moving, newcomers=(*moving.newcomers, newcomer.id)))
        return True

    def is_due(self) -> bool:
        moving = self._working.record.migration
        if moving is None or self._since is None:
            return False
        if self._ready_since is not None:
            return self._working.now >= self._ready_since + max(self._boot_s, self._bound(moving))
        return self._working.now >= self._since + self._bound(moving)

    def follow(self) -> None:
        working, moving = self._working, self._working.record.migration
        if moving is None:
            self._since = self._ready_since = None
            return
        self._since = working.now if self._since is None else self._since
        if not all_ready(working.record):
            self._ready_since = None
        elif self._ready_since is None:
            self._ready_since = working.now
        here = tuple(one.identity.id for one in arrived(working.record))
        if here != moving.newcomers:  # some are gone: others may come for them
            working.change(migration=msgspec.structs.replace(moving, newcomers=here))
        if is_complete(working.record):
            working.tell(facts.JobMoved(host=moving.host, newcomers=here))
            self._end("", "more came than are asked for by now")
        elif self.is_due():
            reason = self._why_not(moving)
            working.tell(facts.MovingFailed(host=moving.host, reason=reason))
            self._end(reason, f"{moving.host} is not left, after all")

    def _begin(self, begun: Migration) -> None:
        working = self._working
        working.change(migration=begun, migrations=begun.number)
        to = tuple(map(str, begun.to))
        working.tell(facts.JobMoving(host=begun.host, to=to, workers=tuple(leavers(working.record))))
        working.durations.asked_at = working.now
        working.commands.append(TellOfMigration(done=False))

    def _end(self, failure: str, why: str) -> None:
        """`why` is the reason for which surplus workers leave."""
        working, moving = self._working, self._working.record.migration
        assert moving is not None
        ended = (*working.record.migrated, Migrated(moving.request, failure))
        working.change(migration=None, migrated=ended[-KEPT:])
        self._sizing.dismiss(scale_requests.surplus(working.record, working.record.target), why)

    def _why_not(self, moving: Migration) -> str:
        record, bound_s = self._working.record, self._bound(moving)
        wanted, here = needed(record), arrived(record)
        hosts = ", ".join(room.host for room in moving.to)
        stays = f"those on {moving.host} stay"
        if len(here) < wanted:
            came = f"{len(here)} of {wanted} workers have come to {hosts} within {bound_s:g} s"
            return f"{came}, {stays}: `edl run` has to start them there (-np 0 waits for that)"
        if not all_ready(record):
            ready = sum(one.state not in scale_requests.BOOTING for one in here)
            return f"{ready} of {wanted} workers on {hosts} were ready within {bound_s:g} s, {stays}"
        return f"the workers on {moving.host} were not out of the ring within {max(self._boot_s, bound_s):g} s"

    def _bound(self, moving: Migration) -> float:
        return moving.within_s or self._boot_s
