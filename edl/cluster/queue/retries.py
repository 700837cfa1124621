"""Decide whether a failed job is tried again: progress refills a budget, and the same fault is not tried a third time.

Owns: the rule. Does not own: what a failure is (`causes`).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from edl.cluster.queue.causes import Domain, EndCause
from edl.cluster.queue.entries import FailureKept, JobEntry

KEPT: Final = 10  # strikes kept of one job
HOPELESS: Final = "another try would end alike"


class RetryRules(msgspec.Struct, frozen=True):
    """Retry rules for all jobs of a cluster."""

    tries: int = 3  # failures without progress in between
    spare: int = 10  # the same for failures that the machines are to blame for
    progress: int = 10  # steps after which the budget is full again
    rest_s: float = 1.0  # rest after the first failure; twice as long after each further one
    longest_rest_s: float = 60.0


class Judged(msgspec.Struct, frozen=True):
    """The verdict about a failure."""

    again: bool
    words: str
    job: JobEntry  # the entry with the strike added


def judge(job: JobEntry, cause: EndCause, number: int, now: float, rules: RetryRules) -> Judged:
    """Judge a failure of worker `number` at the job's newest step."""
    step, last = job.step, job.strikes[-1] if job.strikes else None
    said = f"{cause.words}: {cause.root}" if cause.root else cause.words
    if last is not None and (last.life, last.step) == (job.life, step) and number <= last.made:
        words = f"tries left: {job.tries_left}" if cause.retry else HOPELESS
        return Judged(again=cause.retry, words=f"{said}; {words}", job=job)
    came_on = last is not None and step >= last.step + rules.progress
    budget = rules.spare if cause.domain is Domain.INFRASTRUCTURE else rules.tries
    since = [] if came_on else [one for one in job.strikes if one.step + rules.progress > step]
    left = budget - len(since) - 1
    same = [one for one in since if (one.code, one.root, one.step) == (cause.code, cause.root, step)]
    strikes = (
        *(since if came_on else job.strikes),
        FailureKept(cause.code, cause.root, step, now, job.life, job.made),
    )[-KEPT:]
    rest = min(rules.longest_rest_s, rules.rest_s * math.exp2(min(len(since), 16)))
    struck = msgspec.structs.replace(job, cause=cause, strikes=strikes, tries_left=max(0, left), rests_until=now + rest)
    if not cause.retry:
        return Judged(again=False, words=f"{said}; {HOPELESS}", job=struck)
    if same and cause.domain is not Domain.INFRASTRUCTURE:
        return Judged(again=False, words=f"{said}; for the same cause at step {step} again", job=struck)
    if left < 0:
        return Judged(again=False, words=f"{said}; {len(since) + 1} failures without progress", job=struck)
    return Judged(again=True, words=f"{said}; tries left: {left}", job=struck)
