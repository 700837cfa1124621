"""A job leaves a host while it trains: the request on record, what it is answered, and how it ends.

Owns: that, and which newcomers count as having come for it. Does not own: who that takes and how many
(`edl.core.resize.host_migration`), nor the ring that has them in and the others out
(`edl.core.switch.next_generation`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from edl import facts
from edl.core.job.leader_inputs import Refuse, TellOfMigration
from edl.core.job.leader_state import WorkingState
from edl.core.resize import host_migration, scale_requests
from edl.core.resize.target_size import TargetSize
from edl.protocol.leader_messages import AskMigrate
from edl.protocol.migration_record import Migrated, Migration
from edl.protocol.record import OVER, Identity

KEPT: Final = 20  # requests remembered, with what has come of them


class MigrationAnswers:
    """Carry out migrations of one job, during one term.

    `boot_s`: how long newcomers are waited for, unless the request says otherwise.
    """

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
            begun = host_migration.answer(asked, record)
            if isinstance(begun, Migration):
                self._begin(begun)
            else:
                working.commands.append(begun)

    def welcome(self, newcomer: Identity) -> bool:
        """Tell whether a worker that has just come does so for one that leaves the host."""
        moving, record = self._working.record.migration, self._working.record
        others = tuple(member for member in record.members if member.identity.id != newcomer.id)
        if moving is None or not host_migration.has_room_for(msgspec.structs.replace(record, members=others), newcomer):
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
        if not host_migration.all_ready(working.record):
            self._ready_since = None
        elif self._ready_since is None:
            self._ready_since = working.now
        here = tuple(one.identity.id for one in host_migration.arrived(working.record))
        if here != moving.newcomers:  # some are gone: others may come for them
            working.change(migration=msgspec.structs.replace(moving, newcomers=here))
        if host_migration.is_complete(working.record):
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
        working.tell(facts.JobMoving(host=begun.host, to=to, workers=tuple(host_migration.leavers(working.record))))
        working.durations.asked_at = working.now
        working.commands.append(TellOfMigration(done=False))

    def _end(self, failure: str, why: str) -> None:
        """End the migration. `why`: the reason for which surplus workers leave."""
        working, moving = self._working, self._working.record.migration
        assert moving is not None
        ended = (*working.record.migrated, Migrated(moving.request, failure))
        working.change(migration=None, migrated=ended[-KEPT:])
        self._sizing.dismiss(scale_requests.surplus(working.record, working.record.target), why)

    def _why_not(self, moving: Migration) -> str:
        record, bound_s = self._working.record, self._bound(moving)
        needed, here = host_migration.needed(record), host_migration.arrived(record)
        hosts = ", ".join(room.host for room in moving.to)
        stays = f"those on {moving.host} stay"
        if len(here) < needed:
            came = f"{len(here)} of {needed} workers have come to {hosts} within {bound_s:g} s"
            return f"{came}, {stays}: `edl run` has to start them there (-np 0 waits for that)"
        if not host_migration.all_ready(record):
            ready = sum(one.state not in scale_requests.BOOTING for one in here)
            return f"{ready} of {needed} workers on {hosts} were ready within {bound_s:g} s, {stays}"
        return f"the workers on {moving.host} were not out of the ring within {max(self._boot_s, bound_s):g} s"

    def _bound(self, moving: Migration) -> float:
        return moving.within_s or self._boot_s
