"""Decide what to ask of Kubernetes, from what is wanted of each worker and what is seen of its Pod. Pure.

It looks at how things stand, and not at what has changed: whatever was missed, the next look makes up for it.

Owns: these decisions. Does not own: carrying them out (`engine`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.queue_entries import WorkerWish
from edl.scheduler.kubernetes.pods import PodSeen

LEAVE_GRACE_S: Final = 3600  # the scheduler of edl has a bound of its own, and then wants it killed
KILL_GRACE_S: Final = 1  # never 0: Kubernetes would then forget the Pod before its processes are gone
STUCK_S: Final = 120.0  # for an image to be pulled after all
SHORT_WATCH_S: Final = 1.0  # a watch that ends sooner was not held
MOST_PAUSE_S: Final = 8.0  # between two watches


class WatchPace:
    """Pause before Pods are listed and watched again: none after a single watch that ended early, and a longer one each
    time where watches are cut, or expire, one after the other.
    """

    def __init__(self) -> None:
        self._short = 0  # watches that ended early, one after the other

    def pause_s(self, lasted_s: float) -> float:
        self._short = self._short + 1 if lasted_s < SHORT_WATCH_S else 0
        if self._short < 2:
            return 0.0
        return min(MOST_PAUSE_S, SHORT_WATCH_S * 2.0 ** min(self._short - 2, 10))


class PodWanted(msgspec.Struct, frozen=True):
    """A worker that is not gone, as far as is known."""

    wish: WorkerWish = WorkerWish.RUN
    made: bool = False  # its Pod was made
    last: PodSeen | None = None  # as it was seen last
    grace_s: int | None = None  # with which its end was asked for
    stuck_since: float | None = None
    refused: str = ""  # why it cannot be had
    not_before: float = -math.inf  # nothing is asked: the last call failed


class MakePod(msgspec.Struct, frozen=True):
    worker: str


class EndPod(msgspec.Struct, frozen=True):
    worker: str
    pod: PodSeen
    grace_s: int


class ForgoPod(msgspec.Struct, frozen=True):
    """The worker's Pod cannot begin: a worker that has not begun by now never does."""

    worker: str
    reason: str


class PodIsGone(msgspec.Struct, frozen=True):
    """The worker's processes are gone, and none comes."""

    worker: str


PodStep = MakePod | EndPod | ForgoPod | PodIsGone


def looked(wanted: PodWanted, pod: PodSeen | None, now: float) -> PodWanted:
    """Return the worker with what is seen of its Pod now."""
    if pod is None:
        return wanted
    since = wanted.stuck_since if wanted.stuck_since is not None else now
    return msgspec.structs.replace(wanted, made=True, last=pod, stuck_since=since if pod.stuck else None)


def reconcile(
    wanted: Mapping[str, PodWanted], seen: Mapping[str, PodSeen], heard: Collection[str], now: float
) -> list[PodStep]:
    """`seen`: all Pods of the agent, by worker. `heard`: workers whose end was heard of."""
    steps: list[PodStep] = []
    for worker, one in wanted.items():
        step = _step(worker, one, seen.get(worker), now)
        steps += [] if step is None else [step]
    for worker, pod in seen.items():
        if worker in heard and worker not in wanted and not pod.deleting:
            steps.append(EndPod(worker, pod, KILL_GRACE_S))
    return steps


def _step(worker: str, one: PodWanted, pod: PodSeen | None, now: float) -> PodStep | None:
    if pod.over if pod is not None else (one.made or one.refused or one.wish is not WorkerWish.RUN):
        return PodIsGone(worker)
    if now < one.not_before:
        return None
    if pod is None:
        return MakePod(worker)
    grace_s = _grace(one)
    if grace_s is not None and (one.grace_s is None or grace_s < one.grace_s):
        return EndPod(worker, pod, grace_s)
    if grace_s is None and one.stuck_since is not None and now - one.stuck_since >= STUCK_S:
        return ForgoPod(worker, pod.stuck)
    return None


def _grace(one: PodWanted) -> int | None:
    """Return the seconds that the Pod has to end; None: it is to stay."""
    if one.wish is WorkerWish.DIE or one.refused:
        return KILL_GRACE_S
    return LEAVE_GRACE_S if one.wish is WorkerWish.LEAVE else None


def evidence_of(one: PodWanted, left: EndEvidence, *, never: bool, terminated: bool, node_lost: bool) -> EndEvidence:
    """Return why a worker is gone. `left`: evidence by its warden. `never`: the worker has not begun. `terminated`: the
    worker was asked to leave, by the scheduler or from outside.
    """
    last = one.last
    taken = last.taken if last else ""
    if not taken and one.grace_s is None and ((last and last.deleting) or terminated):
        taken = "it was deleted in Kubernetes"
    if not taken and node_lost and left.code is None:
        taken = "Kubernetes has lost its node"
    if never and not taken:
        said = one.refused or (last.words if last else "")
        return EndEvidence(refused=said or "Kubernetes could not start it", unserved=True)
    starved = left.starved or bool(last and last.starved)
    killed = -9 if left.code is None and last is not None and last.starved else left.code
    return msgspec.structs.replace(left, taken=taken, starved=starved, code=killed)
