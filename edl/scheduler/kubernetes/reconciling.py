"""Decide what to ask of Kubernetes, from what is wanted of each worker and what is seen of its Pod. Pure.

It looks at how things stand, and not at what has changed: whatever was missed, the next look makes up for it.

Owns: these decisions, the Pod that a worker becomes, and the words of the API for Pods and nodes. Does not own:
carrying decisions out (`kubernetes_engine`), nor how the API is asked (`kubernetes_api`).
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.queue_entries import WorkerWish

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


AGENT_LABEL: Final = "edl/agent"
WORKER_NOTE: Final = "edl/worker"
TERMINAL: Final = frozenset(("Succeeded", "Failed"))
# A container that cannot begin, though its Pod has a node. Kubernetes itself tries again for ever.
STUCK: Final = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
     "CreateContainerConfigError", "CreateContainerError", "RunContainerError")
)  # fmt: skip
DISRUPTED: Final[Mapping[str, str]] = {  # reasons of the condition DisruptionTarget
    "PreemptionByScheduler": "Kubernetes has preempted it",
    "DeletionByTaintManager": "Kubernetes has driven it from its node",
    "EvictionByEvictionAPI": "it was evicted in Kubernetes",
    "DeletionByPodGC": "Kubernetes has lost its node",
    "TerminationByKubelet": "its node has evicted it, or was shut down",
}
TAKEN: Final[Mapping[str, str]] = {  # reasons of a Pod
    "Evicted": "its node has evicted it",
    "NodeLost": "Kubernetes has lost its node",
    "Preempting": "its node has preempted it",
    "Preempted": "its node has preempted it",
    "Shutdown": "its node was shut down",
    "NodeShutdown": "its node was shut down",
    "Terminated": "its node was shut down",
    "DeadlineExceeded": "its time limit in Kubernetes was reached",
}
NO_SCHEDULE: Final = frozenset(("NoSchedule", "NoExecute"))
CPUS: Final = re.compile(r"([0-9]+)(m?)")


class PodSeen(msgspec.Struct, frozen=True):
    name: str
    uid: str
    worker: str
    over: bool = False  # none of its processes is left
    deleting: bool = False  # its end was asked for
    taken: str = ""  # why Kubernetes takes it away
    starved: bool = False
    stuck: str = ""  # why it cannot begin
    words: str = ""  # what is said of it


class KubernetesNode(msgspec.Struct, frozen=True):
    name: str
    ready: bool
    closed: bool  # to new Pods
    taints: tuple[tuple[str, str, str], ...]  # key, value, effect
    has: Mapping[str, str]  # what Pods may have, as Kubernetes writes it

    @property
    def gives(self) -> bool:
        return self.ready and not self.closed

    def slots(self, resource: str) -> int:
        """Return the node's count of devices of this resource; of cores, where the resource is empty."""
        matched = CPUS.fullmatch(self.has.get(resource or "cpu", "0"))
        if matched is None:
            return 0
        return int(matched[1]) // 1000 if matched[2] else int(matched[1])

    def lets_in(self, tolerations: Sequence[Mapping[str, Any]]) -> bool:
        """Tell whether a Pod with these tolerations may begin on the node."""
        return self.gives and all(
            any(_tolerates(one, taint) for one in tolerations) for taint in self.taints if taint[2] in NO_SCHEDULE
        )


def _tolerates(toleration: Mapping[str, Any], taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    if toleration.get("effect") not in {None, "", effect}:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in {None, "", key}
    return toleration.get("key") == key and (toleration.get("value") or "") == value


def pod_of(told: Mapping[str, Any]) -> PodSeen | None:
    """Return the worker's Pod; None: the Pod is no worker's."""
    meta, status = told.get("metadata") or {}, told.get("status") or {}
    worker = (meta.get("annotations") or {}).get(WORKER_NOTE)
    if not worker:
        return None
    states = [one.get("state") or {} for one in status.get("containerStatuses") or ()]
    deleting = meta.get("deletionTimestamp") is not None
    waiting: Mapping[str, Any] = next((one["waiting"] for one in states if one.get("waiting")), {})
    # A Pod is Failed as soon as its node is given up; its containers may run on.
    over = status.get("phase") in TERMINAL and not any("running" in one for one in states)
    return PodSeen(
        name=meta.get("name", ""),
        uid=meta.get("uid", ""),
        worker=worker,
        over=over,
        deleting=deleting,
        taken=_taken(status),
        starved=any((one.get("terminated") or {}).get("reason") == "OOMKilled" for one in states),
        stuck=_said(waiting) if waiting.get("reason") in STUCK else "",
        words=_said(status),
    )


def _taken(status: Mapping[str, Any]) -> str:
    for one in status.get("conditions") or ():
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            return DISRUPTED.get(one.get("reason", ""), f"Kubernetes takes it away: {_said(one)}")
    return TAKEN.get(status.get("reason", ""), "")


def _said(of: Mapping[str, Any]) -> str:
    return ": ".join(of[key] for key in ("reason", "message") if of.get(key))[:200]


def node_of(told: Mapping[str, Any]) -> KubernetesNode:
    spec, status = told.get("spec") or {}, told.get("status") or {}
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    taints = [(one.get("key", ""), one.get("value") or "", one.get("effect", "")) for one in spec.get("taints") or ()]
    return KubernetesNode(
        name=(told.get("metadata") or {}).get("name", ""),
        ready=conditions.get("Ready") == "True",
        closed=bool(spec.get("unschedulable")),
        taints=tuple(taints),
        has=status.get("allocatable") or {},
    )


# ------------------------------------------------------------------------------------------------------ what is asked


def agent_mark(cluster: str, folder: str) -> str:
    """Return the label of all Pods of one node's agent. `folder`: of its workers; another cluster may have the same
    one.
    """
    return hashlib.sha256(f"{cluster} {folder}".encode()).hexdigest()[:16]


def pod_name(mark: str, worker: str) -> str:
    """Return a Pod's name that no other worker's has. It holds the worker's id, as far as names of Pods may have its
    letters.
    """
    plain = re.sub(r"[^a-z0-9-]+", "-", worker.lower()).strip("-")[:60]
    return f"edl-{plain}-{hashlib.sha256(f'{mark} {worker}'.encode()).hexdigest()[:10]}"


def multiplied(template: Mapping[str, Any], each: int) -> dict[str, Any]:
    """Return the template with `each` times what it asks for its first container, as a worker of several processes
    holds as many slots.
    """
    pod = copy.deepcopy(dict(template))
    if each > 1:
        resources = pod["spec"]["containers"][0].get("resources", {})
        for asked in (resources.get("limits", {}), resources.get("requests", {})):
            asked.update({name: times(quantity, each) for name, quantity in asked.items()})
    return pod


def times(quantity: str | float, each: int) -> str | int | float:
    """Multiply a quantity of Kubernetes', such as 2, "500m", "1.5Gi" or "1e3"."""
    if not isinstance(quantity, str):
        return quantity * each
    number = re.match(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", quantity)
    if number is None:
        return quantity  # Kubernetes refuses it with its own words
    return f"{Decimal(number[0]) * each}{quantity[number.end() :]}"


def pod_for(
    template: Mapping[str, Any], node: str, mark: str, worker: str, command: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the template's Pod, with this worker in its first container, on that node and no other."""
    pod = copy.deepcopy(dict(template))
    meta = pod.setdefault("metadata", {})
    meta["name"] = pod_name(mark, worker)
    meta.setdefault("labels", {})[AGENT_LABEL] = mark
    meta.setdefault("annotations", {})[WORKER_NOTE] = worker
    spec = pod["spec"]
    spec["restartPolicy"] = "Never"  # a worker begins once
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = spec.setdefault("affinity", {})
    affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    container = spec["containers"][0]
    container["command"] = list(command)
    container.pop("args", None)
    others = [one for one in container.get("env", ()) if one.get("name") not in environ]
    container["env"] = others + [{"name": name, "value": value} for name, value in sorted(environ.items())]
    return pod
