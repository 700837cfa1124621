"""Whether the members of a next ring can find each other, before any leaves the present one for it (I14).

A planned switch has two phases. First its members are *called*: the daemon of each asks those of the others that it
will ask for their addresses in the switch, and says which have answered. Training goes on beside that. Once all have
answered all, the plan is made, and its step announced (`edl.core.switch.switching`). Newcomers that stay away, or that
others do not reach, are left out for a while; for a member that trains, a switch waits.

Owns: the roll on record, and which members are left out. Does not own: whether a generation is needed, and of whom
(`edl.core.switch.planning`), nor how daemons ask (`edl.daemon.mustering`).
"""

from __future__ import annotations

from edl.core.job.lead_times import LeadTimes
from edl.core.job.working_state import WorkingState
from edl.facts import SwitchPutOff
from edl.protocol.job import Muster


class Mustering:
    """Of one leader. Its times and the workers it leaves out are its own: another one begins to wait anew."""

    def __init__(self, working: WorkingState, lead_times: LeadTimes) -> None:
        self._working = working
        self._lead_times = lead_times
        self._since = (0, 0.0)  # the newest roll that this leader knows of, and since when
        self._again_at: dict[str, float] = {}  # newcomers that are left out until then
        self._told: set[str] = set()  # of the members: those of which there is an event

    @property
    def left_out(self) -> frozenset[str]:
        """Newcomers that could not be found of late."""
        return frozenset(worker for worker, at in self._again_at.items() if self._working.now < at)

    def is_due(self) -> bool:
        """Time alone may decide something."""
        return self._working.record.muster is not None or bool(self._again_at)

    def stands(self, roster: tuple[str, ...]) -> bool:
        """All of `roster` have found each other. If they were not called yet, they are."""
        working, muster = self._working, self._working.record.muster
        if len(roster) == 1:
            return True
        if muster is None or muster.roster != roster:
            self._call(roster)
            return False
        away = [worker for worker in roster if working.seen.met(worker) != (muster.number,)]
        if away and working.now >= self._bound(muster):
            self._leave_out(muster)
        return not away

    def drop(self) -> None:
        """No generation follows, or another than was meant."""
        if self._working.record.muster is not None:
            self._working.change(muster=None, pressing=False)

    def _call(self, roster: tuple[str, ...]) -> None:
        number = self._working.record.musters + 1
        self._working.change(muster=Muster(number, roster), musters=number)
        self._again_at = {worker: at for worker, at in self._again_at.items() if at > self._working.now}

    def _bound(self, muster: Muster) -> float:
        if self._since[0] != muster.number:
            self._since = (muster.number, self._working.now)
        return self._since[1] + self._lead_times.muster_s

    def _leave_out(self, muster: Muster) -> None:
        """Members that say nothing, or are named by others; of these only newcomers, as the others have a ring."""
        working, missed = self._working, self._missed(muster)
        out = [worker for worker in missed if worker not in working.record.roster]
        self._again_at |= dict.fromkeys(out, working.now + self._lead_times.lease_s)
        self._since = (muster.number, working.now)
        if not self._told.issuperset(missed):
            self._told = {*missed, *(worker for worker in self._told if worker in working.members)}
            reason = f"the daemons of the others did not reach {', '.join(missed)}"
            working.tell(SwitchPutOff(next_generation=working.record.planned + 1, after_step=None, reason=reason))

    def _missed(self, muster: Muster) -> list[str]:
        met = [self._working.seen.met(worker) for worker in muster.roster]
        named = {rank for number, *ranks in met if number == muster.number for rank in ranks}
        silent = {rank for rank, (number, *_) in enumerate(met) if number != muster.number}
        return [worker for rank, worker in enumerate(muster.roster) if rank in named | silent]
