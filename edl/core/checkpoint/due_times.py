"""Decide when a job is to be saved: by its settings, on request, at its end; and after a failure, later and later.

Owns: what is due at a moment. Does not own: whether it can be begun then (`edl.core.checkpoint.checkpoints`), nor the
interval that a job chooses by itself (`edl.core.checkpoint.interval`).

By time, one saving follows the other as the settings say, from begin to begin. What the leader before saw is not known
to another one, but how many steps were made since the newest durable one is, and how long a step takes: so leaders that
follow each other quickly do not put off saving for ever.
"""

from __future__ import annotations

from typing import Final

from edl.core.checkpoint import checkpoint_requests
from edl.core.checkpoint.interval import interval_of
from edl.core.data.sample_ledger import Ledger
from edl.core.job.lead_times import FEWEST_STEPS, LeadTimes
from edl.protocol.checkpoint_record import Why
from edl.protocol.record import Record

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
        since = step - (record.saved.step if record.saved is not None else 0)
        if self._begun_at is None and step_time_s > 0:
            self._begun_at = now - since * step_time_s
        if policy.last and comes and is_last(record, ledger, step, step_time_s, now - at, self._lead_times):
            return Why.LAST
        if now < self._again_at:
            return None
        if record.preemption is not None or checkpoint_requests.pending(record):
            return Why.ASKED if record.preemption is None else _to_go(record)
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
    return None if checkpoint_requests.is_saved(record) else Why.PREEMPT


def is_last(
    record: Record, ledger: Ledger | None, step: int, step_time_s: float, age_s: float, lead_times: LeadTimes
) -> bool:
    """Tell whether the last step is known, and so near that no other saving is to come before it."""
    if ledger is None or not ledger.spec.has_end or not ledger.fully_leased:
        return False
    end = ledger.covered_step
    if record.saved is not None and record.saved.step >= end:
        return False
    left = end - step
    if step_time_s <= 0:
        return left <= FEWEST_STEPS
    return left * step_time_s - age_s <= LAST_WORDS * lead_times.notice_s
