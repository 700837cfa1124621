"""Simulated jobs that leave their hosts: what starts workers elsewhere, and what must hold of each migration.

Owns: the host on which workers are started, asking for migrations, and their invariants. Does not own: any decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, Final

from edl.core.job.leader_inputs import Tell
from edl.core.resize import host_migration
from edl.core.resize.scale_requests import GOING
from edl.facts import SizeAsked
from edl.protocol.leader_messages import AskMigrate
from edl.protocol.record import OVER, Record, Room, WorkerState

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

LOOK_S: Final = 0.07  # from one look of what starts workers to the next
ASIDE: Final = "aside"
OVER_S: Final = 4.0  # boot times, after which a migration is over if nothing else happens


class Migrations:
    def __init__(self, job: SimJob, boot_s: float, *, spread: bool) -> None:
        self.home = "host0"
        self._spread = spread
        self._job = job
        self._boot_s = boot_s
        self._numbers = count(1)
        self._left_by: dict[str, str] = {}  # each request: the host
        self._dismissed: set[str] = set()  # by requests for a size, in the record that is written

    # --------------------------------------------------------------------------------------------------- what is asked

    def begin(self, *, slots: int, starts: bool, within_s: float = 0.0) -> None:
        """Type `edl migrate`. `starts`: an `edl run` waits on the other host."""
        if self._job.durable.state in OVER:
            return
        number = next(self._numbers)
        asked = AskMigrate(f"m{number}", self.home, (Room(f"host{number}", slots),), within_s)
        self._job.note(
            f"the job is to go from {self.home} to host{number}:{slots}{'' if starts else ', where none starts'}"
        )
        self._job.disturb()
        self._left_by[asked.request] = asked.host
        self._ask(asked)
        self._is_to_be_over(asked.request, self._job.calm_at)
        if starts:
            self._start(asked)

    def host_of(self, number: int) -> str:
        return ASIDE if self._spread and number % 2 else self.home

    def _ask(self, asked: AskMigrate) -> None:
        """Ask again and again until the migration is over."""
        if self._job.durable.state in OVER or self._has_ended(asked.request):
            return
        said: list[bool] = []
        self._job.call(asked, said.append)
        self._job.after(self._boot_s / 2, self._ask_again, asked, said)

    def _ask_again(self, asked: AskMigrate, said: list[bool]) -> None:
        if said != [False]:
            self._ask(asked)

    def _start(self, asked: AskMigrate) -> None:
        """Start newcomers on the migration's host, as `edl run` does."""
        record = self._job.durable
        if record.state in OVER or self._has_ended(asked.request):
            return
        if record.migration is not None and record.migration.request == asked.request:
            host = asked.to[0].host
            missing = sum(room.slots for room in host_migration.awaited(record) if room.host == host)
            for _ in range(missing - self._job.launcher.on_their_way(host)):
                self._job.launcher.start(host)
        self._job.after(LOOK_S, self._start, asked)

    def _has_ended(self, request: str) -> bool:
        return any(one.request == request for one in self._job.durable.migrated)

    # ------------------------------------------------------------------------------------------------ what must hold

    def told(self, commands: Iterable[Tell]) -> None:
        asked = [one.fact for one in commands if isinstance(one.fact, SizeAsked)]
        self._dismissed = {worker for fact in asked for worker in fact.leavers}

    def durable(self, before: Record, record: Record) -> None:
        if before.migration is not None and record.migration is None and record.migrated == before.migrated:
            self._job.checks.violated("migrations", "one is over, and those who ask for it are not told")
        for one in record.migrated:
            if one not in before.migrated and not one.failure:
                self._is_left(self._left_by[one.request], record)
        if record.plan is not None and record.plan is not before.plan and record.migration is not None:
            self._keeps_its_size(before, record)

    def _is_left(self, host: str, record: Record) -> None:
        left = [one.identity.id for one in record.members if host_migration.is_at(one.identity, host)]
        if left:
            self._job.checks.violated("migrations", f"{host} counts as left, and {left} are there")
        hosts = [one.identity.host for one in record.members if one.state not in GOING]
        self.home = next((one for one in hosts if one != ASIDE), self.home)
        self._job.disturb()

    def _keeps_its_size(self, before: Record, record: Record) -> None:
        """Check that no more workers train than are asked for, beside those that came uncalled to another host, as into
        any job; and that none leaves before another can come. A lost worker may be missing.
        """
        plan = record.plan
        assert plan is not None
        were = {one.identity.id: one.state for one in before.members}
        leavers = [one.identity.id for one in record.members if self._is_told(one.identity.id, one.state, were)]
        told = [worker for worker in leavers if worker not in self._dismissed]  # a size may be asked for, and another
        if before.plan is not None or plan.after_step is None:
            return
        here = [
            one for one in record.members if host_migration.is_at(one.identity, self.home) and one.identity.id in told
        ]
        moving = record.migration
        assert moving is not None
        others = [one for one in record.members if not host_migration.is_at(one.identity, moving.host)]
        present = [one for one in others if one.state not in GOING]
        old = [one for one in present if one.identity.id in record.roster and one.identity.id not in moving.newcomers]
        could = len(old) + sum(room.slots for room in moving.to)  # a larger size may have been asked for since
        outside = {*record.roster, *moving.newcomers}
        coming = sum(one.identity.id not in outside for one in present)
        if here and len(plan.roster) < min(record.target - coming, len(record.roster), could):
            self._job.checks.violated("migrations", f"{told} leave a job of {record.target}, and {plan.roster} go on")
        states = {one.identity.id: one.state for one in record.members}
        staying = [worker for worker in plan.roster if states.get(worker) is not WorkerState.LEAVING]
        if len(staying) > max(record.target, len(record.roster), 2) + coming:
            self._job.checks.violated("migrations", f"{plan.roster} are more than {record.target}")

    def _is_told(self, worker: str, state: WorkerState, were: dict[str, WorkerState]) -> bool:
        """Tell whether the leader told the worker to leave: a worker may leave by itself, whatever is under way."""
        by_itself = self._job.workers[worker].leaving
        return state is WorkerState.LEAVING and were.get(worker) not in (WorkerState.LEAVING, None) and not by_itself

    def _is_to_be_over(self, request: str, calm_at: float) -> None:
        self._job.after(OVER_S * self._boot_s, self._is_over, request, calm_at, self._job.term)

    def _is_over(self, request: str, calm_at: float, term: int) -> None:
        record = self._job.durable
        if calm_at != self._job.calm_at or record.state in OVER or self._job.hangs():
            return
        if term != self._job.term:  # another leader begins all times anew
            self._is_to_be_over(request, calm_at)
            return
        if record.migration is not None and record.migration.request == request:
            self._job.checks.violated("I12", f"the migration from {record.migration.host} is under way for so long")
