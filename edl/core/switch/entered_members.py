"""Track which members have yet to come to a planned ring, so that a report in a thousand is looked at alone.

A ring breaks and the next one forms by two reports of each member: that its mini-batch is void, and that it sits. What
follows from them follows from the first and the last ones. To look at all members after each would cost n times n.

Owns: from which of these reports nothing follows. Does not own: what follows from the others
(`edl.core.job.leader_machine`).
"""

from __future__ import annotations

from edl.core.job.leader_state import WorkingState
from edl.core.job.observations import says_more
from edl.protocol.leader_messages import Observation, Phase


class Arrivals:
    """Members whose reports one leader awaits. Others are seen with the next input that matters, or later."""

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
        """False: all that it says is that `worker` has come to the planned ring, where others are awaited yet, or that
        the ring before has failed it, too, which the plan follows, and others have yet to say so.
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
