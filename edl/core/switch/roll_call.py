"""Find out whether the members of a next ring reach each other, before any leaves the present one for it (I14).

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
    """The roll calls of one leader. Its times and the workers it leaves out are its own: another leader waits anew."""

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
        return self._working.record.roll_call is not None or bool(self._again_at) or self._preparing.is_due()

    def prepared(self, roster: tuple[str, ...]) -> int:
        """The generation of the ring that `roster`, which was called, has prepared; 0: it forms it in line."""
        roll_call = self._working.record.roll_call
        return roll_call.generation if roll_call is not None and roll_call.roster == roster else 0

    def stands(self, roster: tuple[str, ...]) -> bool:
        """Tell whether all of `roster` have found each other and prepared their ring; call them if they were not."""
        roll_call = self._working.record.roll_call
        if roll_call is None or roll_call.roster != roster:
            return self._call(roster)
        if roll_call.generation:
            return self._preparing.stands(roll_call)
        return self._have_met(roll_call) and not self._prepare(roll_call)

    def drop(self) -> None:
        """Drop the call, as no generation follows, or another one. A ring that is prepared is let go of at once."""
        roll_call = self._working.record.roll_call
        if roll_call is not None:
            self._working.change(roll_call=None, pressing=roll_call.generation > 0)

    def _call(self, roster: tuple[str, ...]) -> bool:
        """True: no other is to be met, and nothing to be prepared, as is known once that one worker was seen."""
        self._again_at = {worker: at for worker, at in self._again_at.items() if at > self._working.now}
        alone = len(roster) == 1 and self._working.seen.get(roster[0]) is not None
        if alone and not self._preparing.can(roster):
            return True
        number = self._working.record.roll_calls + 1
        self._working.change(roll_call=RollCall(number, roster), roll_calls=number)
        self._since = (number, self._working.now)
        return False

    def _prepare(self, roll_call: RollCall) -> bool:
        """False: they form their ring in line."""
        if not self._preparing.can(roll_call.roster):
            return False
        generation = self._working.record.planned + 1  # no other ring ever had it (I10)
        roll_call = msgspec.structs.replace(roll_call, generation=generation)
        self._working.change(roll_call=roll_call, planned=generation)
        return True

    def _have_met(self, roll_call: RollCall) -> bool:
        working = self._working
        met = all(working.seen.met(worker) == (roll_call.number,) for worker in roll_call.roster)
        if met and self._since[0] == roll_call.number:
            self.took_s, self._since = working.now - self._since[1], (0, 0.0)
        if not met and working.now >= self._bound(roll_call):
            self._leave_out(roll_call)
        return met

    def _bound(self, roll_call: RollCall) -> float:
        if self._since[0] != roll_call.number:
            self._since = (roll_call.number, self._working.now)
        return self._since[1] + self._lead_times.roll_call_s

    def _leave_out(self, roll_call: RollCall) -> None:
        """Members that say nothing, or are named by others; of these only newcomers, as the others have a ring."""
        working, missed = self._working, self._missed(roll_call)
        out = [worker for worker in missed if worker not in working.record.roster]
        self._again_at |= dict.fromkeys(out, working.now + self._lead_times.lease_s)
        self._since = (roll_call.number, working.now)
        if not self._told.issuperset(missed):
            self._told = {*missed, *(worker for worker in self._told if worker in working.members)}
            reason = f"the daemons of the others did not reach {', '.join(missed)}"
            working.tell(SwitchPutOff(next_generation=working.record.planned + 1, after_step=None, reason=reason))

    def _missed(self, roll_call: RollCall) -> list[str]:
        met = [self._working.seen.met(worker) for worker in roll_call.roster]
        named = {rank for number, *ranks in met if number == roll_call.number for rank in ranks}
        silent = {rank for rank, (number, *_) in enumerate(met) if number != roll_call.number}
        return [worker for rank, worker in enumerate(roll_call.roster) if rank in named | silent]
