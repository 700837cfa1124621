"""Prepare the next ring beside the one that trains, before any member leaves that one (I14).

It follows on the roll call, below. Once all have met, a number is kept for their ring, and each forms its part of it
while the present one trains on. Once all have said that it stands, its step is announced: from there on no member waits
for a ring to form. A ring that never stands stops no member. Where a newcomer may be at fault, or a member that trains
has met an error that is no broken ring, the newcomers are left out for a while, and called again one by one; where none
is, the ring is formed in line at last, as it is where a member can form no ring beside another, or says that it cannot
any more.

Owns: when a ring counts as prepared, when as failed, and who is left out for it; from which reports of members that
come to a planned ring nothing follows; the roll on record. Does not own: who is needed in which ring
(`edl.core.switch.next_generation`), nor how a ring is formed (`edl.collectives.ring_port`), nor what follows from the
other reports (`edl.core.job.leader_machine`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from edl.core.job.deadlines import Deadlines
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_state import WorkingState
from edl.core.job.observations import says_more
from edl.core.switch.faulty_members import FaultyMembers
from edl.core.switch.ring_blame import Evidence, accused
from edl.facts import SwitchPutOff
from edl.protocol.leader_messages import Observation, Phase
from edl.protocol.record import RollCall


class EnteredMembers:
    """Members whose reports one leader awaits. Others are seen with the next input that matters, or later.

    A ring breaks and the next one forms by two reports of each member: that its mini-batch is void, and that it sits.
    What follows from them follows from the first and the last ones. To look at all members after each would cost n
    times n.
    """

    def __init__(self, working: WorkingState) -> None:
        self._working = working
        self._generation = 0  # of the plan when it was last looked at all members
        self._awaited: set[str] = set()  # of its roster
        self._begun = False  # a member has come, so that the others are awaited
        self._unheard: set[str] = set()  # survivors of the ring before that have not said that it failed them

    def look(self) -> None:
        """Note the awaited members, after all conditions of the members together were followed."""
        plan, seen = self._working.record.plan, self._working.seen
        self._generation = plan.generation if plan else 0
        roster = plan.roster if plan else ()
        self._awaited = {worker for worker in roster if not seen.sits(worker, self._generation)}
        self._begun = len(self._awaited) < len(roster)
        before = self._working.record.generation
        self._unheard = {one for one in roster if one in self._working.members and seen.trains(one, before)}

    def matters(self, worker: str, heard: Observation, last: Observation) -> bool:
        """Return False if all that the report says is that `worker` has come to the planned ring, where others are
        awaited yet, or that the ring before has failed it, too, which the plan follows, and others have yet to say so.
        """
        record = self._working.record
        plan = record.plan
        if plan is None or plan.generation != self._generation or says_more(heard, last):
            return True
        if heard.phase is Phase.BROKEN:
            before = last.phase is Phase.TRAINING and heard.generation == last.generation == record.generation
            self._unheard.discard(worker)
            return plan.after_step is not None or not before or not self._unheard
        if heard.phase is not Phase.TRAINING or heard.generation != plan.generation or worker not in self._awaited:
            return True
        self._awaited.discard(worker)
        return not self._begun or not self._awaited


TRIES: Final = 2  # in vain, and no newcomer is to blame: then it is formed in line


class RingForming:
    """Preparation of a ring under one leader, whose times and left-out workers the next leader does not take over."""

    def __init__(
        self, working: WorkingState, fitness: FaultyMembers, lead_times: LeadTimes, deadlines: Deadlines
    ) -> None:
        self._working = working
        self._fitness = fitness
        self._lead_times = lead_times
        self._deadlines = deadlines
        self._since = (0, 0.0)  # the newest ring that this leader knows to be prepared, and since when
        self._failed_at: float | None = None  # when the first of its members was seen to have failed
        self._in_vain = (0, 0)  # beside the ring of this generation: rings in a row that no newcomer was to blame for
        self._in_line: tuple[str, ...] = ()  # the members of a ring that is formed so at last
        self._again_at: dict[str, float] = {}  # newcomers that were to blame, and when they may be called again
        self._told: set[str] = set()  # of the members: those of which there is an event

    @property
    def left_out(self) -> frozenset[str]:
        """Return newcomers with which no ring could be prepared of late; of these one is called again at a time."""
        working = self._working
        due = [worker for worker, at in self._again_at.items() if working.now >= at and worker in working.members]
        return frozenset(self._again_at.keys() - due[:1])

    def is_due(self) -> bool:
        return bool(self._again_at)

    def can(self, roster: tuple[str, ...]) -> bool:
        """Tell whether all of `roster` prepare rings, and preparing this one is not known to fail."""
        return roster != self._in_line and all(map(self._working.seen.prepares, roster))

    def stands(self, roll_call: RollCall) -> bool:
        """Tell whether the ring of `roll_call` stands everywhere. If it failed or is late, its members are called
        anew.
        """
        said = {worker: self._working.seen.prepared(worker, roll_call.generation) for worker in roll_call.roster}
        heard = {worker: failure for worker, failure in said.items() if failure is not None}
        failed = {worker: failure for worker, failure in heard.items() if failure}
        silent = [worker for worker in roll_call.roster if worker not in heard]
        if not silent and not failed:
            self._note_success(roll_call)
            return True
        if self._is_over(roll_call, failed, silent):
            self._give_up(roll_call, failed, silent)
        return False

    def _note_success(self, roll_call: RollCall) -> None:
        """Clear the failures of the workers of a roll call: causes outside them may be over, too."""
        self._in_vain, self._in_line = (0, 0), ()
        for worker in roll_call.roster:
            self._again_at.pop(worker, None)
            self._told.discard(worker)

    def _is_over(self, roll_call: RollCall, failed: dict[str, str], silent: list[str]) -> bool:
        """Tell whether preparation has ended: all members have reported; or enough have to know whose fault it is, and
        none turns out to be gone; or time is up.

        A newcomer that reports nothing for so long is not waited for any more (`edl.core.job.deadlines`).
        """
        now = self._working.now
        if self._since[0] != roll_call.generation:
            self._since, self._failed_at = (roll_call.generation, now), None
        if failed:
            self._failed_at = now if self._failed_at is None else self._failed_at
            evidence = self._evidence(roll_call, failed)
            if now >= self._failed_at + self._lead_times.torn_s and (_accused(evidence) or evidence.faults):
                return True
        return not silent or now >= self._since[1] + self._deadlines.seat_s

    def _give_up(self, roll_call: RollCall, failed: dict[str, str], silent: list[str]) -> None:
        """Give the ring of `roll_call` up, which training never knew of. No other ring ever has its number."""
        working = self._working
        evidence = self._evidence(roll_call, failed)
        out = _to_blame(evidence) if all(map(working.seen.prepares, roll_call.roster)) else []
        self._again_at = {one: at for one, at in self._again_at.items() if one in working.members and one not in out}
        self._again_at |= dict.fromkeys(out, working.now + self._lead_times.lease_s)
        beside, times = self._in_vain
        times = 0 if out else times + 1 if beside == working.record.generation else 1
        if times >= TRIES:
            self._in_line, times = roll_call.roster, 0
        self._in_vain = (working.record.generation, times)
        self._tell(roll_call, {one: failed[one] for one in (*out, *failed) if one in failed}, silent)
        working.change(roll_call=None)
        # One that trains and is silent may be why; and what one that trains raises need not be the newcomers' fault.
        known = (not silent or _accused(evidence)) and not evidence.faults
        self._fitness.hear_of(evidence, out if known else ())

    def _evidence(self, roll_call: RollCall, failed: dict[str, str]) -> Evidence:
        record, members = self._working.record, self._working.members
        return Evidence(
            generation=roll_call.generation,
            roster=roll_call.roster,
            base=record.roster,
            said={worker: (reason.splitlines() or [""])[0] for worker, reason in failed.items()},
            came=frozenset(roll_call.roster),
            addresses={worker: members[worker].identity.address for worker in roll_call.roster if worker in members},
            minimum=record.limits.minimum,
        )

    def _tell(self, roll_call: RollCall, failed: dict[str, str], silent: list[str]) -> None:
        missed = {*failed, *silent}
        if self._told.issuperset(missed):
            return
        self._told = {*missed, *(worker for worker in self._told if worker in self._working.members)}
        worker, reason = next(iter(failed.items()), (", ".join(silent), "nothing, for too long"))
        reason = f"its ring does not come to stand beside the one that trains: {worker} says {reason}"
        self._working.tell(SwitchPutOff(next_generation=roll_call.generation, after_step=None, reason=reason))


def _accused(evidence: Evidence) -> dict[str, str]:
    return accused(evidence, evidence.base)


def _to_blame(evidence: Evidence) -> list[str]:
    """Return the newcomers that the words point at; if these point at none, all of them.

    Where they point at a member of the ring that trains, none is: others would fail with that one, too.
    """
    pointed = _accused(evidence) or evidence.newcomers
    return [worker for worker in evidence.newcomers if worker in pointed]


# A planned switch has four phases: called, met, prepared, announced. First its members are *called*: the daemon of each
# asks those of the others with whom it will trade addresses in the switch, and says which have answered. Training goes
# on beside that. Once all have answered all, their ring is *prepared* (`RingForming`), the plan is
# made, and its step announced (`edl.core.switch.generation_switch`). Newcomers that stay away, or that others do not
# reach, are left out for a while; for a member that trains, a switch waits.


class RollCalling:
    """The times, and the workers left out, are this leader's own: another leader waits anew."""

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
        """Return newcomers that could not be found of late, or with which no ring could be prepared.

        A newcomer that has come into a ring meanwhile, as that before it broke, is not left out any more.
        """
        unmet = {worker for worker, at in self._again_at.items() if self._working.now < at}
        return (self._preparing.left_out | unmet) - set(self._working.record.roster)

    def is_due(self) -> bool:
        """Tell whether time alone may decide something."""
        return self._working.record.roll_call is not None or bool(self._again_at) or self._preparing.is_due()

    def prepared(self, roster: tuple[str, ...]) -> int:
        """Return the generation of the ring that `roster`, which was called, has prepared; 0: it forms it in line."""
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
        """Return True if none is to be met, and nothing to be prepared, as is known once the one worker was seen."""
        self._again_at = {worker: at for worker, at in self._again_at.items() if at > self._working.now}
        alone = len(roster) == 1 and self._working.seen.get(roster[0]) is not None
        if alone and not self._preparing.can(roster):
            return True
        number = self._working.record.roll_calls + 1
        self._working.change(roll_call=RollCall(number, roster), roll_calls=number)
        self._since = (number, self._working.now)
        return False

    def _prepare(self, roll_call: RollCall) -> bool:
        """Return False if the members form their ring in line."""
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
        """Leave out newcomers that say nothing, or are named by others; members that train stay: they have a ring."""
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
