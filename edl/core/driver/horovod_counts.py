"""Counts of workers by horovodrun's driver: when to have one, when it is over, and what it has decided.

Owns: what the record has of the driver (`DriverCount`), which nothing else changes. Does not own: what is done about
it (`edl.core.driver.horovod_driver`).

The driver answers no slot before all of them have asked; so all ask, or none. It takes a worker that has failed since
its last recount for a reason to give up the host, and ends the job when no other host is left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from msgspec.structs import replace

from edl.core.job.observations import Observations
from edl.core.resize.scale_requests import GOING
from edl.protocol.leader_messages import Word
from edl.protocol.record import DriverCount, Identity, Member, Record, WorkerState

ANSWERS_S = 5.0  # within which all tell of what the driver has answered them at once
ENDING_S = 3.0  # that the process of a worker takes to end, after it has left the job
EMPTY_S = 30.0  # after which no worker may come any more to a slot that the driver has counted
MOST_EMPTY_S = 3600.0  # twice as long after each count that has not filled it, up to this


@dataclass(frozen=True, slots=True)
class Begin:
    """Let all slots ask."""

    driver: DriverCount  # from then on


@dataclass(frozen=True, slots=True)
class Counted:
    """Keep the count of `size` workers; the slots of `freed` are not among them."""

    driver: DriverCount  # from then on
    size: int
    freed: tuple[str, ...]
    target: int  # what was asked for, as long as the driver has not come to it; else what it has


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Dismiss workers that came into slots which the driver had just freed."""

    workers: tuple[str, ...]


class CountTimes:
    def __init__(self) -> None:
        self._answered_at: float | None = None
        self._empty_since: tuple[int, float] | None = None  # after so many recounts
        self._empty_s = EMPTY_S

    def follows(
        self, record: Record, seen: Observations, left_at: float, now: float
    ) -> Begin | Counted | Dismiss | None:
        if not has_answers(record, seen):
            self._answered_at = None
        elif self._answered_at is None:
            self._answered_at = now
        overdue = self._answered_at is not None and now - self._answered_at >= ANSWERS_S
        leaving = any(member.state is WorkerState.LEAVING for member in record.members)
        settled = not leaving and now - left_at >= ENDING_S
        return follows(record, seen, overdue=overdue, settled=settled, deserted=self._deserted(record, seen, now))

    def _deserted(self, record: Record, seen: Observations, now: float) -> bool:
        driver = record.sizing.driver
        if driver is None or driver.counting:
            return False
        if not has_empty_slots(record, seen):
            self._empty_since, self._empty_s = None, EMPTY_S
            return False
        if self._empty_since is None:
            self._empty_since = (driver.begun, now)
        elif self._empty_since[0] != driver.begun:  # its worker has crashed too often, perhaps: it stays empty
            self._empty_since = (driver.begun, now)
            self._empty_s = min(2 * self._empty_s, MOST_EMPTY_S)
        return now - self._empty_since[1] >= self._empty_s


def follows(
    record: Record, seen: Observations, *, overdue: bool, settled: bool, deserted: bool
) -> Begin | Counted | Dismiss | None:
    """Return the next act of the recount. `overdue`: the driver answered some workers long ago. `settled`: the
    processes of all leavers have ended by now. `deserted`: a slot has been empty for long.

    The driver knows its processes by their slots only: the end of a process whose slot was reassigned would count as
    that of the new one. And the driver does nothing about a process that did not start before all others ask.
    """
    driver = record.sizing.driver
    if driver is None:
        return None
    words = {member.identity.id: _word(member, seen) for member in record.members}
    late = tuple(
        member.identity.id
        for member in record.members
        if _is_freed(words[member.identity.id], driver.begun if driver.counting else 0) and member.state not in GOING
    )
    if late:
        return Dismiss(late)
    if driver.counting:
        return _counted(record, driver, words, overdue=overdue)
    if any(member.state is WorkerState.DONE for member in record.members) or is_cornered(record):
        return None  # the job is about to end, or would be ended by this
    if not settled or not (driver.lost_slots or deserted or _are_news(record, driver, words)):
        return None
    heeded = {m.identity.driver_slot: w.noticed for m in record.members if (w := words[m.identity.id]).noticed}
    return Begin(replace(driver, begun=driver.begun + 1, told_lost=driver.lost_slots, heeded=heeded))


def is_cornered(record: Record) -> bool:
    """Tell whether a slot has failed on each host of the job: the driver would find no host to go on with."""
    hosts = {host_of(member.identity.driver_slot) for member in record.members}
    lost = record.sizing.driver.lost_slots if record.sizing.driver is not None else ()
    return bool(hosts) and hosts <= {host_of(slot) for slot in lost}


def has_empty_slots(record: Record, seen: Observations) -> bool:
    """Tell whether the driver has counted absent workers, and would find a host if these have all failed."""
    driver = record.sizing.driver
    if driver is None or driver.counting:
        return False
    words = [(host_of(member.identity.driver_slot), _word(member, seen)) for member in record.members]
    counts = [(host, word) for host, word in words if word.answered == driver.begun and word.size]
    if not counts:
        return False
    here = Counter(host for host, word in words if not word.freed)
    full = {host for host, word in counts if here[host] >= word.slots}
    failed = {host_of(slot) for slot in driver.lost_slots}
    return here.total() < max(word.size for _, word in counts) and bool(full - failed)


def found(first: Identity) -> DriverCount | None:
    return DriverCount() if first.driver_slot else None


def joined(record: Record, seen: Observations, newcomer: Identity) -> DriverCount | None:
    """A worker comes from a slot, so the slot lives, and its host does."""
    driver, slot = record.sizing.driver, newcomer.driver_slot
    if driver is None:
        return None
    here = {member.identity.id for member in record.members}
    asks_from = {worker: number for worker, number in driver.asks_from.items() if worker in here}
    return replace(
        driver,
        asks_from={**asks_from, newcomer.id: _asks_from(record, driver, seen)},
        lost_slots=tuple(lost for lost in driver.lost_slots if lost != slot),
        told_lost=tuple(lost for lost in driver.told_lost if lost != slot),
        given_up=tuple(host for host in driver.given_up if host != host_of(slot)),
    )


def lost(driver: DriverCount | None, member: Identity) -> DriverCount | None:
    """Return the count after `member` was lost: its slot may have failed in the driver's eyes."""
    slot = member.driver_slot
    if driver is None or not slot or slot in driver.lost_slots:
        return driver
    return replace(driver, lost_slots=(*driver.lost_slots, slot))


def wished(driver: DriverCount | None) -> DriverCount | None:
    """Note that a size was asked for, which the driver may come to or not."""
    return None if driver is None else replace(driver, wished=True)


def asked_of(driver: DriverCount | None, worker: str) -> int:
    """Return the newest count that the worker's slot takes part in; 0: none yet."""
    if driver is None or driver.begun < driver.asks_from.get(worker, driver.begun + 1):
        return 0
    return driver.begun


def told(record: Record) -> str:
    driver = record.sizing.driver
    if driver is None:
        return ""
    words = [f"its driver has counted {driver.answered} times"]
    if driver.counting:
        words.append("it counts just now")
    if driver.given_up:
        hosts = ", ".join(driver.given_up)
        words.append(f"it has given up {hosts}, where a worker failed (--blacklist-cooldown-range says for how long)")
    if is_cornered(record):
        words.append("it would end the job at its next count, as a worker failed on each host: so none is begun")
    return "; ".join(words)


def _asks_from(record: Record, driver: DriverCount, seen: Observations) -> int:
    """Return the first recount of a worker that comes now. The driver waits for it if it has answered no slot yet."""
    answered = any(_word(member, seen).answered >= driver.begun for member in record.members)
    return driver.begun if driver.counting and not answered else driver.begun + 1


def has_answers(record: Record, seen: Observations) -> bool:
    """Tell whether the driver has answered the recount under way. Workers are answered at once, and report it later."""
    driver = record.sizing.driver
    if driver is None or not driver.counting:
        return False
    return any(_word(member, seen).answered >= driver.begun for member in record.members)


def _counted(record: Record, driver: DriverCount, words: dict[str, Word], *, overdue: bool) -> Counted | None:
    asked = {
        worker: word for worker, word in words.items() if asked_of(driver, worker) and not _is_freed(word, driver.begun)
    }
    counted = {worker: word for worker, word in asked.items() if word.answered >= driver.begun}
    if not counted and (asked or not record.members):  # if all came later, it has counted
        return None
    if len(counted) < len(asked) and not (overdue or _is_pressing(record, driver, words)):
        return None
    size = max((word.size for word in counted.values()), default=0)
    target = record.target if driver.wished or not size else size
    after = replace(
        driver,
        answered=driver.begun,
        wished=driver.wished and size != target,
        given_up=_given_up(record, driver),
        lost_slots=tuple(slot for slot in driver.lost_slots if slot not in driver.told_lost),
    )
    return Counted(after, size, tuple(worker for worker, word in counted.items() if word.freed), target)


def _is_freed(word: Word, recounts: int) -> bool:
    """Tell whether an answer before that of recount number `recounts` freed the worker; 0: any answer."""
    return word.freed and (not recounts or word.answered < recounts)


def _is_pressing(record: Record, driver: DriverCount, words: dict[str, Word]) -> bool:
    """Tell whether another recount is due. A worker without an answer may have missed this one."""
    return _are_news(record, driver, words) or not set(driver.lost_slots) <= set(driver.told_lost)


def _are_news(record: Record, driver: DriverCount, words: dict[str, Word]) -> bool:
    """Tell whether the hosts have changed after the newest recount was begun."""
    slots = {member.identity.id: member.identity.driver_slot for member in record.members}
    return any(word.noticed > driver.heeded.get(slots[worker], 0.0) for worker, word in words.items())


def _given_up(record: Record, driver: DriverCount) -> tuple[str, ...]:
    here = {host_of(member.identity.driver_slot) for member in record.members}
    failed = [*driver.given_up, *(host_of(slot) for slot in driver.told_lost)]
    return tuple(host for host in dict.fromkeys(failed) if host not in here)


def _word(member: Member, seen: Observations) -> Word:
    observation = seen.observation(member.identity.id)
    return (observation.driver if observation else None) or Word()


def host_of(slot: str) -> str:
    return slot.rpartition(":")[0]
