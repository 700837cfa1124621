"""Workers as actors of Ray: one for each, with a warden in it that outlives the agent.

All slots of a node are reserved by a placement group of Ray's, in one bundle, as long as the cluster runs: a worker
that is ordered never waits for another user of Ray's. The agent of each node runs where the cluster was started.
Ray tells which nodes it has lost: what ran there is gone, and the node takes no workers until Ray has it again. Agent
and nodes see the same folders.

Owns: how workers become actors, and what their ends mean. Does not own: calls of Ray's (`ray_cluster`), nor what is
started when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from edl.cluster.queue.agent_machine import WorkerFound
from edl.cluster.queue.end_causes import EndEvidence
from edl.errors import EdlError
from edl.launch.job_processes import MARK
from edl.scheduler import worker_folders
from edl.scheduler.cluster_home import put
from edl.scheduler.ray_cluster import RayCluster, RayError, RayNode, group_name
from edl.scheduler.worker_engine import Ended, Start
from edl.scheduler.worker_folders import WorkerFolders, devices_of, evidence, mark_of, path_here

logger = logging.getLogger("edl")
T = TypeVar("T")

LOOK_S = 0.2  # at folders
ASK_S = 1.0  # Ray
AGAIN_S = 1.0
LINGER_S = 15.0  # for daemons of edl, which outlive their trainers a little
GIVEN_THERE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
RAN_ON = "ray-node"  # a file: the id of the node that the worker was given to
LOST = "Ray has lost its node"


def known(nodes: Sequence[RayNode], name: str, before: RayNode | None) -> RayNode | None:
    """Return the node of this name; of several, while one comes back before Ray has lost it, the one of before."""
    named = [node for node in nodes if node.name == name]
    return before if before in named else named[0] if named else None


def left_of(folders: Iterable[Path], address: str) -> dict[Path, Callable[[], None]]:
    """Return the workers whose actors are not gone, each with the call that kills it. Raises EdlError."""
    found: dict[Path, Callable[[], None]] = {}
    of_node: dict[Path, list[Path]] = {}
    for folder in folders:
        of_node.setdefault(folder.parent, []).append(folder)
    for workers, some in of_node.items():
        ray = RayCluster(group_name(workers), address)
        ray.connect()
        there = ray.workers()
        found |= {folder: _killing(ray, folder) for folder in some if folder.name in there}
    return found


def _killing(ray: RayCluster, folder: Path) -> Callable[[], None]:
    def kill() -> None:
        begun = not WorkerFolders(folder.parent.parent, folder).withdraw(folder.name)
        ray.kill(folder.name, begun=begun)

    return kill


def give_back(nodes: Iterable[Path], address: str) -> None:
    """Give back the slots of these nodes (their folders) in which no worker is. Raises EdlError."""
    for node in nodes:
        ray = RayCluster(group_name(node / "workers"), address)
        ray.connect()
        ray.give_back()


class RayEngine:
    """Engine of one node whose workers are actors of Ray."""

    def __init__(self, node: str, slots: int, folders: WorkerFolders, ended: Ended, address: str) -> None:
        self._name, self._slots, self._folders, self._ended = node, slots, folders, ended
        self._ray = RayCluster(group_name(folders.workers), address)
        self._node: RayNode | None = None
        self._held = False  # its slots
        self._living: set[str] = set()
        self._asked = 0.0
        self._connected = self._lost = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")

    @property
    def takes_workers(self) -> bool:
        return self._node is not None and self._held

    async def find(self) -> list[WorkerFound]:
        while True:
            try:
                await self._connect()
                there = await self._call(self._ray.workers)
                nodes = await self._look_at_node()
                found = [self._found(folder.name, there, nodes) for folder in self._folders.kept()]
            except RayError as error:
                self._lose(error)
                await asyncio.sleep(AGAIN_S)
            else:
                self._begin(self._watch())
                return found

    async def start(self, start: Start) -> int | None:
        worker, node, each = start.order.id, self._node, len(start.order.devices)
        if node is None or not self._held:
            raise RayError(f"Ray has no node {self._name} with {self._slots} slots for this cluster just now")
        handed_on = GIVEN_THERE if node.gpus else ()
        folder = await asyncio.to_thread(self._folders.claim, start, taken_here=handed_on, wait_alone=LINGER_S)
        if folder is None:
            return None
        holder = (self._folders.warden(start), {MARK: mark_of(folder), "PATH": path_here()}, handed_on)
        try:
            put(folder / RAN_ON, node.id.encode())
            pid = await self._call(lambda: self._ray.start(worker, node, self._slots, each, holder))
        except (OSError, EdlError):
            if self._folders.withdraw(worker):
                self._begin(self._end(worker, kill=True, withdrawn=True))
                raise
            pid = 0  # it runs all the same
        self._living.add(worker)
        return pid

    async def bar(self, worker: str) -> WorkerFound:
        folder = await asyncio.to_thread(self._folders.bar, worker)
        await self._connect()
        return self._found(folder.name, await self._call(self._ray.workers), await self._look_at_node())

    def end(self, worker: str, *, kill: bool) -> None:
        self._begin(self._end(worker, kill=kill))

    def forget(self, worker: str) -> None:
        self._folders.forget(worker)

    async def close(self) -> None:
        """The slots stay reserved for the agent to come; the end of the cluster gives them back."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    # -------------------------------------------------------------------------------------------------------- inside

    async def _call(self, what: Callable[[], T]) -> T:
        """Run a call to Ray on this engine's thread, after the calls before it; each call blocks that thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, what)

    def _begin(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        if not self._connected:
            await self._call(lambda: self._ray.connect(anew=self._lost))
            self._connected, self._lost = True, False

    def _lose(self, error: OSError | EdlError) -> None:
        """Note that the connection is lost: the next call connects anew."""
        if not self._lost:
            logger.warning("Ray or a folder does not answer: %s; trying again", error)
        self._connected, self._lost, self._held, self._node = False, True, False, None

    async def _look_at_node(self) -> set[str]:
        """Reserve the node's slots where it is there; return the ids of all nodes that Ray has."""
        nodes = await self._call(self._ray.nodes)
        node = known(nodes, self._name, self._node)
        if node != self._node:
            logger.info("node %s is %s, says Ray", self._name, "there" if node else "lost")
        held = node is not None and await self._call(lambda: self._ray.hold(node, self._slots))
        if held != self._held:
            logger.info("%d slots of node %s are %s", self._slots, self._name, "reserved" if held else "not reserved")
        self._node, self._held = node, held
        return {one.id for one in nodes}

    def _found(self, worker: str, there: set[str], nodes: set[str]) -> WorkerFound:
        """A worker without an actor was claimed by an agent that died before it made the actor: the worker never
        begins.
        """
        devices = devices_of(self._folders[worker])
        if worker not in there:
            seen = self._evidence(worker, nodes)
            if not worker_folders.left(self._folders[worker]):  # else they end first
                return WorkerFound(worker, devices, 0, seen)
        self._living.add(worker)
        return WorkerFound(worker, devices, 0, None)

    async def _end(self, worker: str, *, kill: bool, withdrawn: bool = False) -> None:
        """Ask a worker to leave, or kill it. A worker that has not begun never does: its actor is killed, and has
        started nothing.
        """
        try:
            begun = not withdrawn and not self._folders.withdraw(worker)
            if kill or not begun:
                await self._call(lambda: self._ray.kill(worker, begun=begun))
            else:
                await self._call(lambda: self._ray.ask(worker))
        except (OSError, EdlError) as error:
            logger.warning("%s is not told to end: %s", worker, error)

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                out = any((self._folders[worker] / "exit.json").exists() for worker in self._living)
                if clock() - self._asked >= (LOOK_S if out else ASK_S):
                    self._asked = clock()
                    await self._ask()
            except (OSError, EdlError) as error:  # of folders, too: ends are told when they are back
                self._lose(error)
            await asyncio.sleep(LOOK_S)

    async def _ask(self) -> None:
        """Ask Ray for workers first, then for nodes: a node is lost before its actors are."""
        await self._connect()
        waiting = set(self._living)
        there = await self._call(self._ray.workers)
        nodes = await self._look_at_node()
        for worker in sorted(waiting - there):
            await self._gone(worker, nodes)

    async def _gone(self, worker: str, nodes: set[str]) -> None:
        """Tell that a worker has ended. Processes left on this machine, where Ray has killed the actor, are killed
        first.
        """
        folder = self._folders[worker]
        if await asyncio.to_thread(worker_folders.left, folder):
            await asyncio.to_thread(worker_folders.kill, folder)
            return
        seen = self._evidence(worker, nodes)  # first: where this fails, it is told the next time
        self._living.discard(worker)
        self._ray.drop(worker)
        self._ended(worker, seen)

    def _evidence(self, worker: str, nodes: set[str]) -> EndEvidence:
        folder, never, ran_on = self._folders[worker], self._folders.withdraw(worker), ""
        with contextlib.suppress(FileNotFoundError):
            ran_on = (folder / RAN_ON).read_text()
        found = evidence(folder)
        if found == EndEvidence() and ran_on and ran_on not in nodes:
            return EndEvidence(taken=LOST)
        if never:
            return EndEvidence(refused=self._ray.why(worker) or "Ray could not start it", unserved=True)
        return found
