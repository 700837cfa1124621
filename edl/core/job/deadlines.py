"""Limit how long a leader waits for a worker: no hang may hold up the others, or a place (I12).

Owns: which worker is awaited for what, since when, until when, and whose daemon is probed. Does not own: that a worker
is lost (`edl.core.job.leader_machine`), nor workers whose daemon is gone (those have no session any more, and are lost
by that).

Eight things are awaited, each with a bound of its own:

- a newcomer's **boot**, in JOINING its imports up to the first batch, in WARMING that batch. The others train on
  meanwhile (I4), so this bound is generous: tracing and compiling may take minutes;
- a **seat**: in the first ring, and in the next one when a ring is broken, all are due at once; else all are, once one
  of them has applied the step after which to come, or one of the ring before has been seen there. (Newcomers go there
  at once, and may wait for long: that step may lie as far ahead as a pipeline has read.) Each may still be at the end
  of a step, and then a ring takes time to form: one that has neither come nor failed to after twice the longest step
  hangs; that time begins anew where it tells that the ring that it was in has failed, as it had waited there. Newcomers
  that get their state from rank 0 beside the first steps wait for that however long it takes: none of them is awaited
  before rank 0 is there. Likewise a newcomer that has said nothing of the **ring** it forms with others, beside the
  one that trains;
- the end of a **step**, where others have waited in vain for as long as the longest step may take, and have given their
  ring up by that. All have had that time: a member that does not find the same within moments hangs, unless it has made
  that step, which came to it alone. (A trainer tells at once that its ring has failed, wherever its script is in the
  mini-batch: `edl.protocol.leader_messages.Void`);
- likewise the **same collective**: where all members have waited for so long, and not for the same one, none would ever
  come to what the others wait for. Those are right who wait for the gradients of a step, else the most. Nothing more
  is to be found once the last one has told, and their next ring may stand in moments: the others are lost at once;
- the **last** step that a member has samples for. The others have ended it, so its all-reduce is behind all members;
  they wait for samples, or for the data's end, which come once all have ended it. No ring can fail meanwhile: a member
  that has not ended that step after twice the longest one hangs;
- where leases are cut anew in a ring that trains, how far each member has **read**. Another one waits for that at the
  mark (`edl.core.data.lease_recut`), in no all-reduce either: a member that has not told after as long hangs;
- where the samples are a stream's, what a member **finds** in its shards, once all steps that are leased are trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from edl.core.job.lead_times import report_period_s
from edl.core.job.observations import Observations
from edl.core.resize.scale_requests import BOOTING
from edl.protocol.data_nouns import ShardPart
from edl.protocol.leader_messages import GRADIENTS
from edl.protocol.record import OVER, Identity, Member, Plan, Record, WorkerState

BOOT_STEPS: Final = 10  # a boot may take as long as so many of the longest steps
SHORTEST_BOOT_S: Final = 300.0  # however short the steps are: imports of frameworks know nothing of them
LONGEST_MOMENTS_S: Final = 5.0
LONGEST_FINDING_S: Final = 1.0
END_OF_TIME: Final = float("inf")  # when nothing is due
FINDS: Final = "finds"
STEP: Final = "step"  # what a worker is awaited for
INSTEAD: Final = "instead of"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Bounds in seconds, derived from the user's step time-out."""

    boot_s: float = 600.0
    seat_s: float = 120.0
    step_s: float = 60.0
    moments_s: float = LONGEST_MOMENTS_S
    finding_s: float = LONGEST_FINDING_S  # after one member, all that are well find within it that their ring failed
    away_s: float = 5.0  # a leader that works takes an input each second, TimePassed if nothing else

    @classmethod
    def of(cls, step_timeout_s: float) -> Deadlines:
        return cls(
            boot_s=max(BOOT_STEPS * step_timeout_s, SHORTEST_BOOT_S),
            seat_s=2 * step_timeout_s,
            step_s=step_timeout_s,
            moments_s=min(LONGEST_MOMENTS_S, step_timeout_s / 4),
            finding_s=min(LONGEST_FINDING_S, step_timeout_s / 4),
        )

    def was_too_long(self, stall_s: float, workers: int) -> bool:
        """Tell whether a step without progress for `stall_s`, by reports, has used up its time."""
        return stall_s > 0 and stall_s >= max(self.step_s - 1.5 * report_period_s(workers), self.step_s / 2)


@dataclass(frozen=True, slots=True)
class Awaited:
    """`seen` is the newest ring that the worker was seen at, whether it has told that this ring has failed, and what it
    has found of a stream if it is awaited for that. A worker that goes on does not hang.
    """

    worker: str
    what: str
    seen: tuple[int, bool, tuple[ShardPart, ...]]
    bound_s: float
    until: float
    place: str = ""  # where its script stands, as far as is known

    @property
    def told(self) -> str:
        within = f"within {self.bound_s:g} s, two step time-outs"
        if self.what.startswith(INSTEAD):
            told = "for longer than --step-timeout its script was not where the others' scripts were"
            return f"{told}: it waited {self.what}, in step {self.place}"
        if self.what.startswith("ring"):
            return f"it has said nothing of the {self.what} that forms beside the one that trains {within}: it hangs"
        known = {
            STEP: "its step took longer than --step-timeout, and the others gave up waiting for it: it hangs in step "
            f"{self.place}",
            "last step": "it has not ended the last step that there are samples for "
            f"{within}, as the others have: it hangs",
            FINDS: f"it has found no more of its shards of the stream {within}, and the others wait: it hangs, or its "
            "storage does",
            "mark": f"it has not told how far it has read its samples {within}, and the others wait for that: it hangs",
            "seat": f"it has not come to its ring within {self.bound_s:g} s, two step time-outs: it hangs",
        }
        boots = f"it was {self.what} for {self.bound_s:g} s: it hangs, or its boot needs a longer --step-timeout"
        return known.get(self.what, boots)


class Waits:
    """Waits are not on record: a new leader begins to wait anew."""

    def __init__(self, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self.until = END_OF_TIME  # the first moment at which a worker is overdue
        self._now = 0.0
        self._waits: dict[str, Awaited] = {}

    def pass_time(self, now: float) -> None:
        """Call before each input. A leader that was away, say because nothing could be written, heard no worker, so it
        judges none by that time (I11): what came meanwhile is only about to be taken.
        """
        away_s, self._now = now - self._now, now
        if self._waits and away_s > self.deadlines.away_s:
            self._waits = {worker: replace(wait, until=wait.until + away_s) for worker, wait in self._waits.items()}
            self.until += away_s

    def look(  # noqa: PLR0913 - what there is to see
        self,
        record: Record,
        members: dict[str, Member],
        seen: Observations,
        now: float,
        *,
        last_step: int | None = None,
        saving: bool = False,
        reading: Iterable[str] = (),
    ) -> None:
        """Count a worker that is still awaited for the same thing as awaited all along.

        `last_step`: there are no samples beyond it as yet. `saving`: all may be at the end of their scripts, for which
        they have a time of their own. `reading`: members that have yet to find samples of a stream for the next step.
        """
        before, self._waits = self._waits, {}
        for worker, what, bound_s in self._awaited(record, members, seen, last_step, saving, reading):
            newest = max(seen.generation(worker), record.generation)
            found = seen.found(worker) if what == FINDS else ()
            wait, at = before.get(worker), (seen.generation(worker), seen.failed(worker, newest), found)
            if wait is None or (wait.what, wait.seen) != (what, at):
                wait = Awaited(worker, what, at, bound_s, now + bound_s)
            if what == STEP or what.startswith(INSTEAD):
                wait = replace(wait, place=seen.place(worker))
            self._waits[worker] = wait
        self.until = min((wait.until for wait in self._waits.values()), default=END_OF_TIME)

    def overdue(self, now: float) -> list[Awaited]:
        return [wait for wait in self._waits.values() if now >= wait.until] if now >= self.until else []

    def _awaited(
        self,
        record: Record,
        members: dict[str, Member],
        seen: Observations,
        last_step: int | None,
        saving: bool,
        reading: Iterable[str],
    ) -> Iterator[tuple[str, str, float]]:
        late = self._late(record, seen)
        if last_step is not None and (reading := tuple(reading)):  # the next step is none yet, as they have yet to find
            late = [one for one in late if seen.step(one) < last_step]
        for worker in late:
            yield worker, STEP, self.deadlines.finding_s
        for worker, what in self._astray(record, seen).items():
            yield worker, what, 0.0
        if record.begun:  # else all wait inside `init` for the first ring, however long that takes
            for member in members.values():
                if member.state in BOOTING:
                    yield member.identity.id, member.state.value, self.deadlines.boot_s
        for worker in _owing_word(record, members, seen):
            yield worker, f"ring {record.planned}", self.deadlines.seat_s
        if record.plan is None:
            held = dict.fromkeys(_untold(record, seen), "mark")
            held |= dict.fromkeys(_behind(record, seen, last_step), "last step")
            if last_step is not None and seen.newest_step(record.roster)[0] >= last_step:
                held |= dict.fromkeys(reading, FINDS)
        else:
            held = dict.fromkeys([] if saving else _absent(record.plan, record, members, seen), "seat")
        for worker, what in held.items():
            if worker not in late:
                yield worker, what, self.deadlines.seat_s

    def _late(self, record: Record, seen: Observations) -> list[str]:
        """Find members that are still in a step for which others have waited too long, and have not failed with them.

        One that has made that step held up no other: it may be between two collectives, for as long as it likes, and
        its state is the newest (I5). Nor has one that has made the step after which to switch: it is awaited in the
        next ring, and may wait there for those that began another step in this one.
        """
        generation, plan = record.generation, record.plan
        waited = self._waited(record, seen)
        if not waited:
            return []
        late = (one for one in record.roster if seen.trains(one, generation) and not seen.failed(one, generation))
        last = END_OF_TIME if plan is None or plan.after_step is None else plan.after_step
        return [one for one in late if seen.step(one) <= min(waited) and seen.step(one) < last]

    def _astray(self, record: Record, seen: Observations) -> dict[str, str]:
        """Find members that have waited for another collective than those who are right, where all have waited too
        long, and what for. A member that is ahead of those who are right is none: its state must not be lost (I5).
        """
        if not self._waited(record, seen) or not all(seen.failed(one, record.generation) for one in record.roster):
            return {}  # else all may have waited for the one that has not
        voids = {one: seen.void(one, record.generation) for one in record.roster}
        awaited = {one: void.awaited for one, void in voids.items() if void is not None and void.awaited}
        if len(set(awaited.values())) < 2:
            return {}
        ((most, _),) = Counter(awaited.values()).most_common(1)  # of as many, what the lowest rank waits for
        right = GRADIENTS if GRADIENTS in awaited.values() else most
        newest = max(seen.step(one) for one, what in awaited.items() if what == right)
        others = {one: what for one, what in awaited.items() if what != right and seen.step(one) <= newest}
        return {one: f"{INSTEAD} {right} for {what}" for one, what in others.items()}

    def _waited(self, record: Record, seen: Observations) -> list[int]:
        """Return the steps of those members that have waited in the ring for longer than a step may take."""
        if not seen.any_failed:  # almost always: the search for members that are gone takes in all of a thousand
            return []
        whole = {member.identity.id for member in record.members}.issuperset(record.roster)
        waits, size = seen.waits(record.generation, whole=whole), len(record.roster)
        return [step for step, waited_s in waits if self.deadlines.was_too_long(waited_s, size)]


def _owing_word(record: Record, members: dict[str, Member], seen: Observations) -> list[str]:
    """Return newcomers of which it is not known whether the prepared ring stands. The others train, beside that."""
    roll_call = record.roll_call
    if roll_call is None or not roll_call.generation:
        return []
    new = (worker for worker in roll_call.roster if worker not in record.roster and worker in members)
    return [worker for worker in new if seen.prepared(worker, roll_call.generation) is None]


def _absent(plan: Plan, record: Record, members: dict[str, Member], seen: Observations) -> list[str]:
    """Return members of the next ring that are not there, once they should be."""
    if _is_time(plan, record, members, seen):
        due = plan.generation
    else:
        due = max((seen.generation(worker) for worker in plan.roster if worker in record.roster), default=0)
    if due <= record.generation:
        return []
    ended = (None, WorkerState.DONE)
    absent = [one for one in plan.roster if seen.generation(one) < due and _state(members, one) not in ended]
    waits_for_state = plan.beside > 0 and plan.roster[0] in absent
    return [one for one in absent if one in record.roster] if waits_for_state else absent


def _behind(record: Record, seen: Observations, last_step: int | None) -> list[str]:
    """Return members still in the last step that there are samples for, where another member has ended it."""
    if last_step is None or seen.newest_step(record.roster)[0] < last_step:
        return []
    return [one for one in record.roster if seen.trains(one, record.generation) and seen.step(one) < last_step]


def _untold(record: Record, seen: Observations) -> list[str]:
    """Return members that have not told how far they have read, where another one waits for that at the mark."""
    under_way = record.sizing.rebatch
    if under_way is None or under_way.planned:
        return []
    told = {one: step for one in record.roster for number, step in (seen.marked(one),) if number == under_way.number}
    if not any(seen.step(one) >= step for one, step in told.items()):
        return []
    return [one for one in record.roster if one not in told and seen.trains(one, record.generation)]


def _state(members: dict[str, Member], worker: str) -> WorkerState | None:
    return members[worker].state if worker in members else None


def _is_time(plan: Plan, record: Record, members: dict[str, Member], seen: Observations) -> bool:
    """Tell whether the plan's members should be on their way: the previous ring has done its part, or never will."""
    if plan.after_step is None or not record.generation:
        return True
    if any(worker not in members or seen.breaks(worker, record.generation) for worker in record.roster):
        return True
    return seen.newest_step(plan.roster)[0] >= plan.after_step


# A member of a broken ring may be gone whole, trainer and daemon: its daemon's address is to be probed.
# A ring does not break by itself. Where a trainer has died alone, its daemon has said so. Else the member that has not
# told of the break is the one to ask for; and where its host says that no process listens at its daemon's address, it
# is gone, long before its session ends. One that computes on, or is slow to tell, has a daemon that listens.


MOST: Final = 16  # of a large ring, most members have just not told yet


def silent(record: Record, seen: Observations) -> tuple[Identity, ...]:
    """Return the members to probe: none if a known loss may explain the break, as a daemon may come back."""
    if not seen.broken or record.state in OVER:
        return ()
    members = {member.identity.id: member for member in record.members}
    broken = [worker for worker in seen.broken if worker in members]
    if not broken:
        return ()
    generation = max(seen.generation(worker) for worker in broken)
    roster = _roster(record, generation)
    if any(worker not in members for worker in roster):
        return ()
    quiet = [
        members[worker].identity
        for worker in roster
        if members[worker].state is not WorkerState.DONE and not seen.breaks(worker, generation)
    ]
    return tuple(quiet) if len(quiet) <= MOST else ()


def _roster(record: Record, generation: int) -> tuple[str, ...]:
    if record.generation == generation:
        return record.roster
    plans = [*record.superseded, *([record.plan] if record.plan is not None else [])]
    return next((plan.roster for plan in plans if plan.generation == generation), ())
