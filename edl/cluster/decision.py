"""A policy's decision: the workers and the batch of each job, with a reason for each change."""

from __future__ import annotations

from typing import Protocol

import msgspec

from edl.cluster.views import ClusterView


class Allotment(msgspec.Struct, frozen=True):
    """The workers and the batch of one job from now on."""

    workers: int
    batch: int = 0  # of all workers together; 0: the job's own
    reason: str = ""  # of the change, in words for the job's owner


class ClusterDecision(msgspec.Struct, frozen=True):
    """Jobs that are not in `allotments` get no worker. `notes` come back with the next view of the jobs."""

    allotments: dict[str, Allotment]
    notes: dict[str, dict[str, float]] = {}
    look_again: float | None = None  # decide anew at that time, even if nothing has happened by then


class ClusterPolicy(Protocol):
    """Decide anew from each view. A policy has parameters, and no memory but the notes."""

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision: ...
