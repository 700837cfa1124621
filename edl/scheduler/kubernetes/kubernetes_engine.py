"""Workers as Pods of Kubernetes: one Pod for each, with a warden in it that outlives the agent.

The agents run where the cluster was started, in a Pod or on any machine, and ask Kubernetes for all that they do. All
of them and the Pods see the same folders. A worker is gone when Kubernetes says that its Pod is: that its containers
have ended, or that there is none of the name any more.

Owns: the loop that sees Pods, asks for them, and tells of ends. Does not own: what is to be asked (`reconciling`), the
words (`reconciling`), the calls (`kubernetes_api`), nor what is started when.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from edl.cluster.queue.agent_machine import WorkerFound
from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.queue_entries import WorkerWish
from edl.errors import EdlError
from edl.launch.job_processes import MARK
from edl.scheduler.cluster_home import KubernetesGiven
from edl.scheduler.kubernetes.kubernetes_api import (
    KubernetesApi,
    KubernetesError,
    KubernetesRefused,
    PodEvent,
    WatchExpired,
    ask_once,
)
from edl.scheduler.kubernetes.reconciling import (
    AGENT_LABEL,
    KILL_GRACE_S,
    EndPod,
    ForgoPod,
    MakePod,
    PodIsGone,
    PodSeen,
    PodStep,
    PodWanted,
    WatchPace,
    agent_mark,
    evidence_of,
    looked,
    multiplied,
    node_of,
    pod_for,
    pod_of,
    reconcile,
)
from edl.scheduler.worker_engine import Ended, Start
from edl.scheduler.worker_folders import WorkerFolders, devices_of, evidence, mark_of, path_here, was_terminated

logger = logging.getLogger("edl")

AGAIN_S = 1.0
LOOK_S = 1.0
NODE_S = 3.0
LINGER_S = 15.0  # for daemons of edl, which outlive their trainers a little
GIVEN_THERE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
# Of the agent's machine, and not the Pod's: libraries take themselves for where these say.
NOT_TAKEN = ("CUDA_VISIBLE_DEVICES", "HOSTNAME")


class KubernetesEngine:
    """Engine of one node whose workers are Pods."""

    def __init__(
        self, node: str, given: KubernetesGiven, folders: WorkerFolders, ended: Ended, cluster: str = ""
    ) -> None:
        """`cluster`: what tells two clusters apart whose folders have the same paths. Raises ConfigError."""
        self._name, self._template, self._folders, self._ended = node, given.template, folders, ended
        self._api = KubernetesApi(given)
        self._mark = agent_mark(cluster, str(folders.workers))
        self._node, self._node_asked = node_of({}), 0.0
        self._wanted: dict[str, PodWanted] = {}  # workers that are not gone, as far as is known
        self._starts: dict[str, dict[str, Any]] = {}  # Pods that are yet to be made
        self._seen: dict[str, PodSeen] = {}
        self._heard: set[str] = set()
        self._wake = asyncio.Event()
        self._dumb = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def takes_workers(self) -> bool:
        return self._node.gives

    async def find(self) -> list[WorkerFound]:
        version = await self._first_look()
        kept = self._folders.kept()
        self._heard = {worker for worker in self._seen if self._folders.is_forgotten(worker)}
        found = [self._found(folder) for folder in kept]
        self._tasks = [asyncio.create_task(self._follow(version)), asyncio.create_task(self._carry_on())]
        return found

    async def start(self, start: Start) -> int | None:
        """Claim the worker's id; the worker's Pod is made a moment later."""
        worker = start.order.id
        environ = {name: value for name, value in start.environ.items() if name not in NOT_TAKEN}
        start = msgspec.structs.replace(start, environ=environ)
        told = {"taken_here": GIVEN_THERE, "wait_alone": LINGER_S}
        folder = await asyncio.to_thread(self._folders.claim, start, **told)
        if folder is None:
            return None
        ours = {MARK: mark_of(folder), "PATH": path_here()}
        command = self._folders.warden(start)
        template = multiplied(self._template, len(start.order.devices))
        self._starts[worker] = pod_for(template, self._name, self._mark, worker, command, ours)
        self._wanted[worker] = PodWanted()
        self._wake.set()
        return 0

    async def bar(self, worker: str) -> WorkerFound:
        """Withdraw the worker, then look for its Pod: a withdrawn worker begins in no Pod that is made later, and a
        worker that has begun has a Pod.
        """
        folder = await asyncio.to_thread(self._folders.bar, worker)
        await self._look()
        return self._found(folder)

    def end(self, worker: str, *, kill: bool) -> None:
        """Ask the worker to leave, or kill it. A worker that has not begun never does."""
        one = self._wanted.get(worker)
        if one is None:
            return
        kill = self._folders.withdraw(worker) or kill
        wish = WorkerWish.DIE if kill or one.wish is WorkerWish.DIE else WorkerWish.LEAVE
        asked = None if kill else one.grace_s  # who is to be killed is asked for again, as often as that is said
        self._wanted[worker] = msgspec.structs.replace(one, wish=wish, grace_s=asked)
        self._wake.set()

    def forget(self, worker: str) -> None:
        self._folders.forget(worker)
        self._heard.add(worker)
        self._wake.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._api.close()

    # --------------------------------------------------------------------------------------------------------- seeing

    async def _first_look(self) -> str:
        while True:
            try:
                await self._look_at_node()
                return await self._look()
            except EdlError as error:
                self._tell_dumb(error)
                await asyncio.sleep(AGAIN_S)

    async def _look(self) -> str:
        """List all Pods; return the version from which on they can be watched."""
        before = set(self._seen)  # one that is made meanwhile may be missing in the list
        told, version = await self._api.pods(f"{AGENT_LABEL}={self._mark}")
        pods = [pod for pod in map(pod_of, told) if pod is not None]
        for pod in pods:
            self._see(pod)
        for worker in before - {pod.worker for pod in pods}:
            del self._seen[worker]
        self._dumb = False
        return version

    def _see(self, pod: PodSeen) -> None:
        before = self._seen.get(pod.worker)
        if pod.taken and (before is None or before.taken != pod.taken):
            logger.info("%s: %s", pod.worker, pod.taken)
        self._seen[pod.worker] = pod
        if pod.worker in self._wanted:
            self._wanted[pod.worker] = looked(self._wanted[pod.worker], pod, asyncio.get_running_loop().time())

    async def _follow(self, version: str) -> None:
        """Follow the Pods by watches from a version on; after a watch that expired, list them anew."""
        clock, pace = asyncio.get_running_loop().time, WatchPace()
        while True:
            began = clock()
            try:
                if not version:
                    version = await self._look()
                    self._wake.set()
                version = await self._watch(version)
            except EdlError as error:
                self._tell_dumb(error)
                await asyncio.sleep(AGAIN_S)
            else:
                await asyncio.sleep(pace.pause_s(clock() - began))

    async def _watch(self, version: str) -> str:
        """Hear events until the watch ends. Return the version of the next watch; empty: the version has expired."""
        try:
            async with contextlib.aclosing(self._api.watch(f"{AGENT_LABEL}={self._mark}", version)) as events:
                async for event in events:
                    version = event.version or version
                    self._hear(event)
        except WatchExpired:
            return ""
        return version

    def _hear(self, event: PodEvent) -> None:
        pod = None if event.pod is None else pod_of(event.pod)
        if pod is None:
            return
        self._see(pod)
        if event.gone:
            del self._seen[pod.worker]
        self._wake.set()

    async def _look_at_node(self) -> None:
        told = await self._api.node(self._name)
        node = node_of(told or {})
        if node.gives != self._node.gives:
            logger.info("node %s %s, says Kubernetes", self._name, "takes Pods" if node.gives else "takes no Pods")
        self._node = node

    # --------------------------------------------------------------------------------------------------------- acting

    async def _carry_on(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            if clock() - self._node_asked >= NODE_S:
                self._node_asked = clock()
                with self._heeded():
                    await self._look_at_node()
            for step in reconcile(self._wanted, self._seen, self._heard, clock()):
                with self._heeded():
                    await self._do(step)
            self._heard &= set(self._seen)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            self._wake.clear()

    @contextlib.contextmanager
    def _heeded(self) -> Iterator[None]:
        """Log an error of a folder or of Kubernetes, and go on: the step that failed is tried again."""
        try:
            yield
        except (OSError, EdlError) as error:  # of folders, which may lie on another machine
            self._tell_dumb(error)

    async def _do(self, step: PodStep) -> None:
        match step:
            case MakePod(worker):
                await self._make(worker)
            case EndPod(worker, pod, grace_s):
                self._change(worker, not_before=asyncio.get_running_loop().time() + AGAIN_S)
                await self._api.end(pod.name, pod.uid, grace_s)
                self._change(worker, not_before=0.0, grace_s=grace_s)
            case ForgoPod(worker, reason):
                if self._folders.withdraw(worker):
                    self._change(worker, refused=reason)
            case PodIsGone(worker):
                self._tell_end(worker)

    async def _make(self, worker: str) -> None:
        if worker not in self._starts:  # of an agent before this one, who has made it
            return
        try:
            told = await self._api.make(self._starts[worker])
        except KubernetesRefused as refused:
            self._folders.withdraw(worker)
            self._change(worker, refused=str(refused))
            self._wake.set()
        except KubernetesError:
            self._change(worker, not_before=asyncio.get_running_loop().time() + AGAIN_S)
            raise
        else:
            pod = pod_of(told)
            if pod is None or pod.worker != worker:
                self._change(worker, refused=f"there is a Pod {self._starts[worker]['metadata']['name']} already")
            elif (one := self._wanted.get(worker)) is not None and not one.made:  # a watch may have told more by now
                self._see(pod)
            self._wake.set()

    def _change(self, worker: str, **news: Any) -> None:
        if worker in self._wanted:
            self._wanted[worker] = msgspec.structs.replace(self._wanted[worker], **news)

    def _tell_end(self, worker: str) -> None:
        known = self._evidence(worker, self._wanted[worker])  # first: where this fails, it is told the next time
        del self._wanted[worker]
        self._starts.pop(worker, None)
        self._ended(worker, known)

    # --------------------------------------------------------------------------------------------------------- finding

    def _found(self, folder: Path) -> WorkerFound:
        """A worker without a Pod was claimed by an agent that died before it made the Pod: the worker never begins."""
        worker, devices = folder.name, devices_of(folder)
        pod = self._seen.get(worker)
        one = looked(PodWanted(), pod, asyncio.get_running_loop().time())
        if pod is not None and not pod.over:
            self._wanted[worker] = one
            return WorkerFound(worker, devices, 0, None)
        return WorkerFound(worker, devices, 0, self._evidence(worker, one))

    def _evidence(self, worker: str, one: PodWanted) -> EndEvidence:
        folder = self._folders[worker]
        return evidence_of(
            one,
            evidence(folder),
            never=self._folders.withdraw(worker) or bool(one.refused),
            terminated=was_terminated(folder),
            node_lost=not self._node.ready,
        )

    def _tell_dumb(self, error: OSError | EdlError) -> None:
        if not self._dumb:
            logger.warning("Kubernetes or a folder does not answer: %s; trying again", error)
        self._dumb = True


def left_of(given: KubernetesGiven, cluster: str, folders: Iterable[Path]) -> dict[Path, Callable[[], None]]:
    """Return the workers whose Pods are there and not over, each with the call that kills it. Raises EdlError."""
    found: dict[Path, Callable[[], None]] = {}
    marks = {agent_mark(cluster, str(folder.parent)) for folder in folders}

    async def listed(api: KubernetesApi) -> dict[str, dict[str, PodSeen]]:
        """Return the Pods of each mark, by worker."""
        told = {mark: (await api.pods(f"{AGENT_LABEL}={mark}"))[0] for mark in marks}
        return {mark: {pod.worker: pod for pod in map(pod_of, pods) if pod is not None} for mark, pods in told.items()}

    seen = ask_once(given, listed) if marks else {}
    for folder in folders:
        pod = seen[agent_mark(cluster, str(folder.parent))].get(folder.name)
        if pod is not None and not pod.over:
            found[folder] = functools.partial(_kill, given, pod)
    return found


def _kill(given: KubernetesGiven, pod: PodSeen) -> None:
    """Raises ConfigError, KubernetesError."""
    ask_once(given, lambda api: api.end(pod.name, pod.uid, KILL_GRACE_S))
