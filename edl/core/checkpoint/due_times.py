"""Decide when a job is to be saved: by its settings, on request, at its end; and after a failure, later and later.

Owns: what is due at a moment, the interval that a job chooses by itself, and what requests are answered. Does not own:
whether a saving can be begun then (`edl.core.checkpoint.checkpoints`).

By time, one saving follows the other as the settings say, from begin to begin. What the leader before saw is not known
to another one, but how many steps were made since the newest durable one is, and how long a step takes: so leaders that
follow each other quickly do not put off saving for ever.

Where the job is to choose the time from one checkpoint to the next: much is lost to faults if checkpoints are rare, as
what was trained since the newest one is trained again; and much to checkpoints, if they are many. Both together are
least at Young's interval (1974): the square root of 2 M C, where C is what training loses to one checkpoint, and M the
mean time from one fault to the next.

C is what was seen of the last few: by how much their steps came later than those when nothing is saved
(`edl.core.checkpoint.step_speed`), but no less than for how long trainers stood. Its middle value counts, so that one
evaluation that fell together with a checkpoint does not. M is the time trained over the faults: workers lost in this
life, and the lives before. Time trained is that of the steps which count, of all lives, so that each leader says the
same; and as if a fault had been seen at the end of one hour more, so that M has a value from the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgspec

from edl.core.data.sample_ledger import Ledger
from edl.core.job.lead_times import FEWEST_STEPS, LeadTimes
from edl.core.job.leader_inputs import Refuse, TellOfSaving
from edl.protocol.checkpoint_record import Auto, Cost, Saved, SaveRequest, Saving, Why
from edl.protocol.record import Record

# Each request is answered from the record alone, so that each leader says the same (I9).
#
# A request is taken once, however often it comes, as the record keeps its id. It asks for what the job has from then
# on: a saving that is under way serves it as long as no worker has come to its step. If that comes to nothing, the next
# one does, up to `TRIES` of them; then the request has failed. A request that is open when the job ends is refused from
# then on, as the job is over: a job does not train on for it.
#
# A script asks by a step: that the job be saved after this one or a later one. All its workers ask, and each says so
# again to each leader; what is asked for already, or durable, is not asked for again.


REQUESTS_KEPT: Final = 100  # remembered; each is asked again for as long as a checkpoint takes
TRIES: Final = 3

Requests = tuple[SaveRequest, ...]


def known(record: Record, request: str) -> SaveRequest | None:
    return next((one for one in record.checkpoints.save_requests if one.request == request), None)


def answer(taken: SaveRequest) -> TellOfSaving | Refuse:
    if taken.failure:
        return Refuse(f"no checkpoint came about in {TRIES} tries, the last one for this: {taken.failure}")
    return TellOfSaving(taken.step, taken.path)


def taken(record: Record, request: str, newest_step: int) -> Requests:
    saving = record.checkpoints.saving
    serves = saving is not None and saving.after_step > newest_step
    first = record.checkpoints.saves if serves else record.checkpoints.saves + 1
    return (*record.checkpoints.save_requests, SaveRequest(request, first))[-REQUESTS_KEPT:]


def covers(record: Record, step: int) -> bool:
    """Tell whether a requested or durable saving is of this step or a later one: then a script need not request
    another.

    A saving that is begun from now on is announced for a step that no worker has made.
    """
    if step <= record.checkpoints.save_wanted or (
        record.checkpoints.saved is not None and record.checkpoints.saved.step >= step
    ):
        return True
    saving = record.checkpoints.saving
    of_later = saving is None or saving.after_step >= step
    return any(
        _is_pending(one) and (of_later or one.first > record.checkpoints.saves)
        for one in record.checkpoints.save_requests
    )


def pending(record: Record) -> bool:
    """Tell whether a request waits for a saving to begin."""
    return any(_is_pending(one) for one in record.checkpoints.save_requests)


def served(requests: Requests, saved: Saved) -> Requests:
    return tuple(
        msgspec.structs.replace(one, step=saved.step, path=saved.path)
        if _is_pending(one) and one.first <= saved.number
        else one
        for one in requests
    )


def disappointed(requests: Requests, saving: Saving, reason: str) -> Requests:
    """Return the requests after `saving` failed: a request fails once enough savings did."""
    return tuple(
        msgspec.structs.replace(one, failure=reason)
        if _is_pending(one) and saving.number - one.first + 1 >= TRIES
        else one
        for one in requests
    )


def is_saved(record: Record) -> bool:
    """Tell whether a checkpoint is durable that was begun after the job was preempted."""
    preemption, saved = record.checkpoints.preemption, record.checkpoints.saved
    return preemption is not None and saved is not None and saved.number > preemption.saves


def _is_pending(one: SaveRequest) -> bool:
    return not one.path and not one.failure


COSTS_KEPT: Final = 5  # costs, of the newest checkpoints
MOST_S: Final = 3600.0  # however rare faults are
LONGEST_S: Final = 6 * 3600.0  # however much a checkpoint costs: a job that is to be saved is
WRITING: Final = 2.0  # no more than half of the time something is being written


@dataclass(frozen=True, slots=True)
class Interval:
    seconds: float
    why: str  # in words


def interval_of(record: Record, step: int, step_time_s: float) -> Interval | None:
    """Return the interval of a job at `step` of this life; None: the job does not choose by itself."""
    policy = record.job_policy.checkpointing
    if policy.auto is None:
        return None
    base = 0 if record.checkpoints.resumed is None else record.checkpoints.resumed.step
    fault_s = mean_fault_s(policy.auto, (base + step) * step_time_s, record.losses + policy.life - 1)
    return chosen(policy.auto, record.checkpoints.save_costs, fault_s)


def mean_fault_s(auto: Auto, trained_s: float, faults: int) -> float:
    return (max(0.0, trained_s) + auto.fault_s) / (faults + 1)


def chosen(auto: Auto, costs: Sequence[Cost], fault_s: float) -> Interval:
    if not costs:
        return Interval(auto.least_s, "until it is known what one costs")
    cost_s = cost(costs)
    young_s = math.sqrt(2 * fault_s * cost_s)
    bounds = (
        (auto.least_s, "the shortest that is chosen"),
        (WRITING * took(costs), "as it takes half of that until one is durable"),
        (min(young_s, MOST_S), "the longest that is chosen" if young_s > MOST_S else "as often as faults ask for"),
        (cost_s / auto.overhead, f"as more would cost over {100 * auto.overhead:g}% of the time"),
    )
    seconds, why = max(bounds, key=lambda bound: bound[0])
    if seconds > LONGEST_S:
        seconds, why = LONGEST_S, f"the longest in any case, though it costs over {100 * auto.overhead:g}% of the time"
    return Interval(seconds, f"{why}: one costs {_told(cost_s)}, and one fault came in {_told(fault_s)}")


def cost(costs: Sequence[Cost]) -> float:
    """Return the training time lost to one checkpoint, in seconds."""
    return max(0.0, median(one.stall_s for one in costs), median(_lost(one) for one in costs))


def took(costs: Sequence[Cost]) -> float:
    """Return the time until a checkpoint is durable, in seconds."""
    return median([one.took_s for one in costs if one.took_s is not None] or [0.0])


def _lost(one: Cost) -> float:
    return one.stall_s if one.lost_s is None else one.lost_s


def _told(seconds: float) -> str:
    return (
        f"{1000 * seconds:.0f} ms"
        if seconds < 1
        else f"{seconds:.0f} s"
        if seconds < 300
        else f"{seconds / 60:.0f} min"
    )


DOUBLINGS: Final = 6  # of the distance between two tries in vain
LAST_WORDS: Final = 10  # the last saving is announced so many times earlier than a word takes


class Timetable:
    def __init__(self, lead_times: LeadTimes) -> None:
        self._lead_times = lead_times
        self._begun_at: float | None = None  # when the newest durable one was begun, or should have been
        self._failed = 0  # in a row
        self._again_at = 0.0

    def due(
        self,
        record: Record,
        ledger: Ledger | None,
        newest: tuple[int, float],
        step_time_s: float,
        now: float,
        *,
        comes: bool = True,
    ) -> Why | None:
        """Return why a saving is due now, or None. `newest`: the newest step, and when it was seen.

        `comes`: the members make steps. Where they may make none, as the job is preempted, they never reach the last
        one.
        """
        policy, (step, at) = record.job_policy.checkpointing, newest
        if not policy.folder or not record.generation:
            return None
        since = step - (record.checkpoints.saved.step if record.checkpoints.saved is not None else 0)
        if self._begun_at is None and step_time_s > 0:
            self._begun_at = now - since * step_time_s
        if policy.last and comes and is_last(record, ledger, step, step_time_s, now - at, self._lead_times):
            return Why.LAST
        if now < self._again_at:
            return None
        if record.checkpoints.preemption is not None or pending(record):
            return Why.ASKED if record.checkpoints.preemption is None else _to_go(record)
        if policy.every_steps and since >= policy.every_steps:
            return Why.STEPS
        interval = interval_of(record, step, step_time_s)
        every_s = policy.every_s if interval is None else interval.seconds
        return Why.TIME if self._is_time(every_s, since, now) else None

    def _is_time(self, every_s: float, since: int, now: float) -> bool:
        return every_s > 0 and since > 0 and self._begun_at is not None and now - self._begun_at >= every_s

    def note_durable(self, begun_at: float) -> None:
        self._begun_at, self._failed, self._again_at = begun_at, 0, 0.0

    def note_failed(self, now: float, *, hurries: bool = False) -> None:
        """Put the next saving off, longer after each failure, within bounds (I12). `hurries`: the job is preempted,
        which has bounds of its own.
        """
        self._again_at = now + self._lead_times.torn_s * 2 ** (0 if hurries else min(self._failed, DOUBLINGS))
        self._failed += 1


def _to_go(record: Record) -> Why | None:
    return None if is_saved(record) else Why.PREEMPT


def is_last(
    record: Record, ledger: Ledger | None, step: int, step_time_s: float, age_s: float, lead_times: LeadTimes
) -> bool:
    """Tell whether the last step is known, and so near that no other saving is to come before it."""
    if ledger is None or not ledger.spec.has_end or not ledger.fully_leased:
        return False
    end = ledger.covered_step
    if record.checkpoints.saved is not None and record.checkpoints.saved.step >= end:
        return False
    left = end - step
    if step_time_s <= 0:
        return left <= FEWEST_STEPS
    return left * step_time_s - age_s <= LAST_WORDS * lead_times.notice_s
