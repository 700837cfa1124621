"""The events of a job, as `edl events` shows them: one flat record per event.

Owns: the kinds and the form of an event. Does not own: where events are kept (the leader writes them to the coordinator
in the same transaction as the change that they report, so that events and state never disagree).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec


class Kind(StrEnum):
    """The kinds of event. Outside scripts match on these values: they may grow, never change meaning."""

    JOB_STARTED = "job_started"
    LEADER_ELECTED = "leader_elected"
    LEADER_RESIGNED = "leader_resigned"
    SCALE_ASKED = "scale_asked"
    BATCH_ASKED = "batch_asked"
    RECOUNT = "recount"
    RECOUNTED = "recounted"
    WORKER_JOINING = "worker_joining"
    WORKER_WARMING = "worker_warming"
    WORKER_READY = "worker_ready"
    SWITCH_SCHEDULED = "switch_scheduled"
    SWITCH_PUT_OFF = "switch_put_off"
    SCALED = "scaled"
    TOO_FEW_WORKERS = "too_few_workers"
    WORKER_LEFT = "worker_left"
    WORKER_LOST = "worker_lost"
    WORKER_UNFIT = "worker_unfit"
    BATCH_VOIDED = "batch_voided"
    DIVERGED = "diverged"
    CORRUPTED = "corrupted"
    RECUT = "recut"
    EPOCH_ENDED = "epoch_ended"
    DECISION = "decision"
    CHECKPOINT_BEGUN = "checkpoint_begun"
    CHECKPOINT_DURABLE = "checkpoint_durable"
    CHECKPOINT_FAILED = "checkpoint_failed"
    PREEMPT_ASKED = "preempt_asked"
    JOB_PREEMPTED = "job_preempted"
    MIGRATING = "migrating"
    MIGRATED = "migrated"
    MIGRATION_FAILED = "migration_failed"
    LIFE_BEGUN = "life_begun"
    JOB_FAILED = "job_failed"
    JOB_FINISHED = "job_finished"


PLACE = ("ts", "job", "kind", "term", "generation", "step")  # what every event has


class Event(msgspec.Struct, frozen=True):
    """An event of a job, and where the job was at that moment.

    >>> with Job("mnist") as job:
    ...     first = job.events()[0]
    >>> first.kind, first.job
    (<Kind.LEADER_ELECTED: 'leader_elected'>, 'mnist')
    """

    ts: float
    job: str
    kind: Kind
    term: int
    generation: int
    step: int
    details: dict[str, Any] = {}

    def flat(self) -> dict[str, Any]:
        """Return the form of `edl events --json`: the details beside the fixed names."""
        return {**{name: getattr(self, name) for name in PLACE}, "kind": self.kind.value, **self.details}

    def to_json(self) -> str:
        return json.dumps(self.flat(), separators=(",", ":"))


def from_flat(flat: dict[str, Any]) -> Event:
    place = {name: flat[name] for name in PLACE}
    return msgspec.convert({**place, "details": details_of(flat)}, Event)


def details_of(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that belong to the kind of a flat event."""
    return {name: value for name, value in flat.items() if name not in PLACE}


def encode(*told: Event) -> bytes:
    """Return bytes for the coordinator, a line for each event."""
    return b"\n".join(map(msgspec.json.encode, told))


def decode(raw: bytes) -> list[Event]:
    return [msgspec.json.decode(line, type=Event) for line in raw.splitlines()]
