"""Whether the members of a next ring can find each other, before any leaves the present one for it (I14).

A planned switch has four phases: called, met, prepared, announced. First its members are *called*: the daemon of each
asks those of the others with whom it will trade addresses in the switch, and says which have answered. Training goes
on beside that. Once all have answered all, their ring is *prepared* (`edl.core.switch.ring_forming`), the plan is made,
and its step announced (`edl.core.switch.generation_switch`). Newcomers that stay away, or that others do not reach, are
left out for a while; for a member that trains, a switch waits.

Owns: the roll on record, and which members are left out. Does not own: whether a generation is needed, and of whom
(`edl.core.switch.next_generation`), nor how daemons ask (`edl.daemon.roll_caller`).
"""

from __future__ import annotations

import msgspec

from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_state import WorkingState
from edl.core.switch.ring_forming import RingForming
from edl.facts import SwitchPutOff
from edl.protocol.record import RollCall


class RollCalling:
    """Of one leader. Its times and the workers it leaves out are its own: another one begins to wait anew."""

    def __init__(self, working: WorkingState, lead_times: LeadTimes, preparing: RingForming) -> None:
        self._working = working
        self._lead_times = lead_times
        self._preparing = preparing
        self._since = (0, 0.0)  # the newest roll that this leader knows of, and since when
        self.took_s = 0.0  # from the newest call of its own until all had answered
        self._again_at: dict[str, float] = {}  # newcomers that are left out until then
        self._told: set[str] = set()  # of the members: those of which there is an event

    @property
    def left_out(self) -> frozenset[str]:
        """Newcomers that could not be found of late, or with which no ring could be prepared.

        One that has come into a ring meanwhile, as that before it broke, is none any more.
        """
        unmet = {worker for worker, at in self._again_at.items() if self._working.now < at}
        return (self._preparing.left_out | unmet) - set(self._working.record.roster)

    def is_due(self) -> bool:
        """Time alone may decide something."""
        return self._working.record.muster is not None or bool(self._again_at) or self._preparing.is_due()

    def prepared(self, roster: tuple[str, ...]) -> int:
        """The generation of the ring that `roster`, which was called, has prepared; 0: it forms it in line."""
        muster = self._working.record.muster
        return muster.generation if muster is not None and muster.roster == roster else 0

    def stands(self, roster: tuple[str, ...]) -> bool:
        """All of `roster` have found each other, and prepared their ring. If they were not called yet, they are."""
        muster = self._working.record.muster
        if muster is None or muster.roster != roster:
            return self._call(roster)
        if muster.generation:
            return self._preparing.stands(muster)
        return self._have_met(muster) and not self._prepare(muster)

    def drop(self) -> None:
        """No generation follows, or another than was meant. A ring that is prepared is let go of at once."""
        muster = self._working.record.muster
        if muster is not None:
            self._working.change(muster=None, pressing=muster.generation > 0)

    def _call(self, roster: tuple[str, ...]) -> bool:
        """True: no other is to be met, and nothing to be prepared, as is known once that one worker was seen."""
        self._again_at = {worker: at for worker, at in self._again_at.items() if at > self._working.now}
        alone = len(roster) == 1 and self._working.seen.get(roster[0]) is not None
        if alone and not self._preparing.can(roster):
            return True
        number = self._working.record.musters + 1
        self._working.change(muster=RollCall(number, roster), musters=number)
        self._since = (number, self._working.now)
        return False

    def _prepare(self, muster: RollCall) -> bool:
        """False: they form their ring in line."""
        if not self._preparing.can(muster.roster):
            return False
        generation = self._working.record.planned + 1  # no other ring ever had it (I10)
        muster = msgspec.structs.replace(muster, generation=generation)
        self._working.change(muster=muster, planned=generation)
        return True

    def _have_met(self, muster: RollCall) -> bool:
        working = self._working
        met = all(working.seen.met(worker) == (muster.number,) for worker in muster.roster)
        if met and self._since[0] == muster.number:
            self.took_s, self._since = working.now - self._since[1], (0, 0.0)
        if not met and working.now >= self._bound(muster):
            self._leave_out(muster)
        return met

    def _bound(self, muster: RollCall) -> float:
        if self._since[0] != muster.number:
            self._since = (muster.number, self._working.now)
        return self._since[1] + self._lead_times.muster_s

    def _leave_out(self, muster: RollCall) -> None:
        """Members that say nothing, or are named by others; of these only newcomers, as the others have a ring."""
        working, missed = self._working, self._missed(muster)
        out = [worker for worker in missed if worker not in working.record.roster]
        self._again_at |= dict.fromkeys(out, working.now + self._lead_times.lease_s)
        self._since = (muster.number, working.now)
        if not self._told.issuperset(missed):
            self._told = {*missed, *(worker for worker in self._told if worker in working.members)}
            reason = f"the daemons of the others did not reach {', '.join(missed)}"
            working.tell(SwitchPutOff(next_generation=working.record.planned + 1, after_step=None, reason=reason))

    def _missed(self, muster: RollCall) -> list[str]:
        met = [self._working.seen.met(worker) for worker in muster.roster]
        named = {rank for number, *ranks in met if number == muster.number for rank in ranks}
        silent = {rank for rank, (number, *_) in enumerate(met) if number != muster.number}
        return [worker for rank, worker in enumerate(muster.roster) if rank in named | silent]
