"""Recounts of horovodrun's driver: when to have one, when it is over, and what it has decided.

The driver answers nobody before all of its slots have asked; so all ask, or none. It takes whoever has failed since
its last recount for a reason to give up the host, and ends the job when no other host is left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from edl.core.changes import DriverChanges
from edl.core.scaling import GOING
from edl.core.sightings import Sightings
from edl.protocol.driver import Word
from edl.protocol.job import Member, Record, WorkerState

ANSWERS_S = 5.0  # within which all tell of what the driver has answered them at once
ENDING_S = 3.0  # that the process of a worker takes to end, after it has left the job
EMPTY_S = 30.0  # after which nobody may come any more to a slot that the driver has counted
MOST_EMPTY_S = 3600.0  # twice as long after each count that has not filled it, up to this


@dataclass(frozen=True, slots=True)
class Begin:
    """Let all slots ask."""

    heeded: dict[str, float]  # the notices that it follows


@dataclass(frozen=True, slots=True)
class Counted:
    """The driver counts `size` workers; the slots of `freed` are not among them."""

    size: int
    freed: tuple[str, ...]
    target: int  # what was asked for, as long as the driver has not come to it; else what it has
    given_up: tuple[str, ...]  # hosts where a slot had failed, without which it goes on
    lost_slots: tuple[str, ...]  # those that it need not have heard of yet


@dataclass(frozen=True, slots=True)
class Dismiss:
    """These came into slots that the driver had just freed."""

    workers: tuple[str, ...]


class Recounts:
    """What one leader has seen of when things happened."""

    def __init__(self) -> None:
        self._answered_at: float | None = None
        self._empty_since: tuple[int, float] | None = None  # after so many recounts
        self._empty_s = EMPTY_S

    def follows(self, record: Record, seen: Sightings, left_at: float, now: float) -> Begin | Counted | Dismiss | None:
        """What to do now. `left_at`: when somebody ceased to be a member last."""
        if not has_answers(record, seen):
            self._answered_at = None
        elif self._answered_at is None:
            self._answered_at = now
        overdue = self._answered_at is not None and now - self._answered_at >= ANSWERS_S
        leaving = any(member.state is WorkerState.LEAVING for member in record.members)
        settled = not leaving and now - left_at >= ENDING_S
        return follows(record, seen, overdue=overdue, settled=settled, deserted=self._deserted(record, seen, now))

    def _deserted(self, record: Record, seen: Sightings, now: float) -> bool:
        if record.recounted < record.recounts:
            return False
        if not has_empty_slots(record, seen):
            self._empty_since, self._empty_s = None, EMPTY_S
            return False
        if self._empty_since is None:
            self._empty_since = (record.recounts, now)
        elif self._empty_since[0] != record.recounts:  # its worker has crashed too often, perhaps: it stays empty
            self._empty_since = (record.recounts, now)
            self._empty_s = min(2 * self._empty_s, MOST_EMPTY_S)
        return now - self._empty_since[1] >= self._empty_s


def follows(
    record: Record, seen: Sightings, *, overdue: bool, settled: bool, deserted: bool
) -> Begin | Counted | Dismiss | None:
    """What to do now. `overdue`: the driver has answered some long ago. `settled`: whoever has left has ended by now.
    `deserted`: a slot has been empty for long.

    For the driver knows its processes by their slots only: the end of one whose slot it has given anew would count as
    that of the new one. And it does nothing about one that did not start before all others ask.
    """
    words = {member.identity.id: _word(member, seen) for member in record.members}
    counting = record.recounted < record.recounts
    late = tuple(
        member.identity.id
        for member in record.members
        if _is_freed(words[member.identity.id], record.recounts if counting else 0) and member.state not in GOING
    )
    if late:
        return Dismiss(late)
    if counting:
        return _counted(record, words, overdue=overdue)
    if any(member.state is WorkerState.DONE for member in record.members) or is_cornered(record):
        return None  # the job is about to end, or would be ended by this
    if not settled or not (record.lost_slots or deserted or _are_news(record, words)):
        return None
    return Begin({m.identity.driver_slot: w.noticed for m in record.members if (w := words[m.identity.id]).noticed})


def is_cornered(record: Record) -> bool:
    """On each host of the job a slot has failed: the driver would find none to go on with."""
    hosts = {host_of(member.identity.driver_slot) for member in record.members}
    return bool(hosts) and hosts <= {host_of(slot) for slot in record.lost_slots}


def has_empty_slots(record: Record, seen: Sightings) -> bool:
    """The driver has counted more than there are, and would find a host to go on with if they all have failed."""
    words = [(host_of(member.identity.driver_slot), _word(member, seen)) for member in record.members]
    counts = [(host, word) for host, word in words if word.answered == record.recounts and word.size]
    if record.recounted < record.recounts or not counts:
        return False
    here = Counter(host for host, word in words if not word.freed)
    full = {host for host, word in counts if here[host] >= word.slots}
    failed = {host_of(slot) for slot in record.lost_slots}
    return here.total() < max(word.size for _, word in counts) and bool(full - failed)


def known_to_live(record: Record, slot: str) -> DriverChanges:
    """What becomes of the record when somebody comes from there."""
    return {
        "lost_slots": tuple(lost for lost in record.lost_slots if lost != slot),
        "told_lost": tuple(lost for lost in record.told_lost if lost != slot),
        "given_up": tuple(host for host in record.given_up if host != host_of(slot)),
    }


def told(record: Record) -> str:
    """For people."""
    if not record.driven:
        return ""
    words = [f"its driver has counted {record.recounted} times"]
    if record.recounted < record.recounts:
        words.append("it counts just now")
    if record.given_up:
        hosts = ", ".join(record.given_up)
        words.append(f"it has given up {hosts}, where a worker failed (--blacklist-cooldown-range says for how long)")
    if is_cornered(record):
        words.append("it would end the job at its next count, as a worker failed on each host: so none is begun")
    return "; ".join(words)


def asks_from(record: Record, seen: Sightings) -> int:
    """The first recount of whoever comes now. The driver waits for it if it has not answered anybody yet."""
    answered = any(_word(member, seen).answered >= record.recounts for member in record.members)
    under_way = record.recounted < record.recounts and not answered
    return record.recounts if under_way else record.recounts + 1


def has_answers(record: Record, seen: Sightings) -> bool:
    """To the recount that is under way. All who ask are answered at once, but do not say so at once."""
    words = (_word(member, seen) for member in record.members)
    return record.recounted < record.recounts and any(word.answered >= record.recounts for word in words)


def _counted(record: Record, words: dict[str, Word], *, overdue: bool) -> Counted | None:
    asked = {
        member.identity.id: word
        for member in record.members
        if member.asks_from <= record.recounts and not _is_freed(word := words[member.identity.id], record.recounts)
    }
    counted = {worker: word for worker, word in asked.items() if word.answered >= record.recounts}
    if not counted and (asked or not record.members):  # if all came later, it has counted
        return None
    if len(counted) < len(asked) and not (overdue or _is_pressing(record, words)):
        return None
    size = max((word.size for word in counted.values()), default=0)
    return Counted(
        size=size,
        freed=tuple(worker for worker, word in counted.items() if word.freed),
        target=record.target if record.wished or not size else size,
        given_up=_given_up(record),
        lost_slots=tuple(slot for slot in record.lost_slots if slot not in record.told_lost),
    )


def _is_freed(word: Word, recounts: int) -> bool:
    """By an answer before that of so many recounts; it asks no more. 0: by any."""
    return word.freed and (not recounts or word.answered < recounts)


def _is_pressing(record: Record, words: dict[str, Word]) -> bool:
    """Another recount is due. Who has no answer yet may have come too late for this one, and gets that of the next."""
    return _are_news(record, words) or not set(record.lost_slots) <= set(record.told_lost)


def _are_news(record: Record, words: dict[str, Word]) -> bool:
    """The hosts have changed after the newest recount was begun."""
    slots = {member.identity.id: member.identity.driver_slot for member in record.members}
    return any(word.noticed > record.heeded.get(slots[worker], 0.0) for worker, word in words.items())


def _given_up(record: Record) -> tuple[str, ...]:
    here = {host_of(member.identity.driver_slot) for member in record.members}
    failed = [*record.given_up, *(host_of(slot) for slot in record.told_lost)]
    return tuple(host for host in dict.fromkeys(failed) if host not in here)


def _word(member: Member, seen: Sightings) -> Word:
    observation = seen.observation(member.identity.id)
    return (observation.driver if observation else None) or Word()


def host_of(slot: str) -> str:
    return slot.rpartition(":")[0]
