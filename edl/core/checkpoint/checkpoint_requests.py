"""Requests for a checkpoint: what each is answered, from the record alone, so that each leader says the same (I9).

A request is taken once, however often it comes, as the record keeps its id. It asks for what the job has from then on:
a saving that is under way serves it as long as no worker has come to its step. If that comes to nothing, the next one
does, up to `TRIES` of them; then the request has failed. A request that is open when the job ends is refused from then
on, as the job is over: a job does not train on for it.

A script asks by a step: that the job be saved after this one or a later one. All its workers ask, and each says so
again to each leader; what is asked for already, or durable, is not asked for again.

Owns: what is on record of requests. Does not own: when a saving is begun (`edl.core.checkpoint.checkpoints`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from edl.core.job.leader_inputs import Refuse, TellOfSaving
from edl.protocol.checkpoint_record import Saved, SaveRequest, Saving
from edl.protocol.record import Record

KEPT: Final = 100  # remembered; each is asked again for as long as a checkpoint takes
TRIES: Final = 3

Requests = tuple[SaveRequest, ...]


def known(record: Record, request: str) -> SaveRequest | None:
    """Return a request that was taken before and has an outcome."""
    return next((one for one in record.save_requests if one.request == request), None)


def answer(taken: SaveRequest) -> TellOfSaving | Refuse:
    if taken.failure:
        return Refuse(f"no checkpoint came about in {TRIES} tries, the last one for this: {taken.failure}")
    return TellOfSaving(taken.step, taken.path)


def taken(record: Record, request: str, newest_step: int) -> Requests:
    saving = record.saving
    serves = saving is not None and saving.after_step > newest_step
    first = record.saves if serves else record.saves + 1
    return (*record.save_requests, SaveRequest(request, first))[-KEPT:]


def covers(record: Record, step: int) -> bool:
    """Tell whether a requested or durable saving is of this step or a later one: then a script need not request
    another.

    A saving that is begun from now on is announced for a step that no worker has made.
    """
    if step <= record.save_wanted or (record.saved is not None and record.saved.step >= step):
        return True
    saving = record.saving
    of_later = saving is None or saving.after_step >= step
    return any(_is_pending(one) and (of_later or one.first > record.saves) for one in record.save_requests)


def pending(record: Record) -> bool:
    """Tell whether a request waits for a saving to begin."""
    return any(_is_pending(one) for one in record.save_requests)


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
    preemption, saved = record.preemption, record.saved
    return preemption is not None and saved is not None and saved.number > preemption.saves


def _is_pending(one: SaveRequest) -> bool:
    return not one.path and not one.failure
