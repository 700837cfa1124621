"""The agent of one node, as a process: hears its orders, has its engine carry them out, and tells what it knows.

Owns: the loop. Does not own: what follows from an order (`edl.cluster.queue.agent_machine`), nor processes
(`edl.scheduler.worker_engine`). It may die at any moment: its workers go on, and the next one finds them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from subprocess import SubprocessError

from edl.clock import SystemClock
from edl.cluster.queue.agent_machine import (
    AgentCommand,
    AgentInput,
    AgentLooked,
    AgentMachine,
    BarOne,
    EndOne,
    OrdersCame,
    StartOne,
    WorkerBegan,
    WorkerClaimed,
    WorkerGone,
)
from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.queue_entries import NodeReport, Submission, WorkerOrder
from edl.cluster.queue.queue_ownership import AgentHere, SeenTime
from edl.coordination.store import Store, StoreRefused
from edl.errors import EdlError, Fenced, StoreUnavailable, UsageError, said_of
from edl.host.host_processes import pid_space, process_start_time
from edl.launch.child_worker import search_path
from edl.scheduler.cluster_home import ClusterHome, NodeGiven
from edl.scheduler.environ_files import EnvironFiles, VariablesLost
from edl.scheduler.queue_store import ORDERS, QueueRefused, QueueStore, owner_of
from edl.scheduler.worker_engine import Make, Start, WorkerEngine

logger = logging.getLogger("edl")

LOOK_S = 0.5


class AgentProcess:
    """Use it once, in a running loop."""

    def __init__(self, home: ClusterHome, node: NodeGiven, store: Store, make: Make, fence: str | None = None) -> None:
        """`fence`: this agent's, where agents on several machines take turns."""
        self._fence = fence
        self._home, self._node = home, node
        self._store = store
        self._queue = QueueStore(store, EnvironFiles(home.environs))
        self._clock, self._time = SystemClock(), SeenTime()
        self._machine = AgentMachine()
        self._inbox: asyncio.Queue[AgentInput] = asyncio.Queue()
        self._engine: WorkerEngine = make(lambda worker, evidence: self._inbox.put_nowait(WorkerGone(worker, evidence)))
        self._wake = asyncio.Event()
        self._orders: tuple[WorkerOrder, ...] | None = None
        self._told: NodeReport | None = None
        self._known: set[str] = set()
        space, began = pid_space() or "", process_start_time(os.getpid()) or 0
        self._here = AgentHere(socket.gethostname(), os.getpid(), began, space)
        self._owner = owner_of(home)
        self._waits = False  # for another agent of the node to be gone

    async def run(self) -> None:
        """Run until it is cancelled. Raises QueueRefused."""
        while not await self._appeared():  # noqa: ASYNC110 - nothing tells of it but asking
            await asyncio.sleep(LOOK_S)
        for found in await self._engine.find():
            self._machine.handle(found, self._now())
        self._known = {seen.id for seen in self._machine.report}
        watch = self._queue.watch(f"{ORDERS}/{self._node.name}", self._wake.set)
        try:
            while True:
                try:
                    await self._turn()
                except (Fenced, QueueRefused):
                    raise
                except Exception:  # of one order, or one worker: the others go on
                    logger.exception("a fault of edl's: the agent of %s goes on", self._node.name)
                    await asyncio.sleep(LOOK_S)
        finally:
            watch.close()
            await self._engine.close()

    def _now(self) -> float:
        return self._time.advance(self._clock.wall(), self._clock.now())

    async def _turn(self) -> None:
        try:
            orders = await self._queue.orders(self._node.name) if await self._appeared() else None
            if orders is not None and orders != self._orders:
                self._orders = orders
                await self._take(OrdersCame(orders))
        except (StoreUnavailable, StoreRefused) as error:
            logger.warning("the coordinator does not answer: %s", error)
        while not self._inbox.empty():
            await self._take(self._inbox.get_nowait())
        await self._take(AgentLooked())
        await self._tell()
        await self._rest()

    async def _appeared(self) -> bool:
        """Raises QueueRefused."""
        try:
            acts = await self._queue.appear(self._node.name, self._here, self._owner, instead=self._fence is not None)
        except (StoreUnavailable, StoreRefused) as error:
            logger.warning("the coordinator does not answer: %s", error)
            return False
        if not acts and not self._waits:
            logger.warning("another agent of node %s may live: it is waited for", self._node.name)
        self._waits = not acts
        return acts

    async def _rest(self) -> None:
        """Wait until orders may have changed, a worker has ended, or `LOOK_S` seconds have passed."""
        waiting = [asyncio.create_task(self._wake.wait()), asyncio.create_task(self._inbox.get())]
        done, left = await asyncio.wait(waiting, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        self._wake.clear()
        if waiting[1] in done:
            await self._take(waiting[1].result())  # type: ignore[arg-type]

    async def _take(self, happened: AgentInput) -> None:
        todo = self._machine.handle(happened, self._now())
        while todo:
            command = todo.pop(0)
            try:
                todo += await self._carry_out(command)
            except Exception:  # the others are carried out
                logger.exception("a fault of edl's: %r", command)
        now = {seen.id for seen in self._machine.report}
        gone, self._known = self._known - now, now
        for worker in gone:
            self._engine.forget(worker)

    async def _carry_out(self, command: AgentCommand) -> list[AgentCommand]:
        match command:
            case StartOne(order):
                return await self._start(order)
            case BarOne(worker):
                return await self._bar(worker)
            case EndOne(worker, kill):
                logger.info("%s is %s", worker, "killed" if kill else "asked to leave")
                self._engine.end(worker, kill=kill)
                return []

    async def _start(self, order: WorkerOrder) -> list[AgentCommand]:
        """Raises nothing: a worker that cannot be started is gone."""
        try:
            job = await self._queue.job(order.job)
            if job is None:
                raise StoreUnavailable(f"the coordinator has no job {order.job}")
            given = worker_environ(self._queue.environ(job), job.asked, order, self._home)
            pid = await self._engine.start(Start(order, job.asked, given))
        except VariablesLost as error:  # of what was submitted, too: its machine is not to blame
            known = EndEvidence(refused=str(error))
        except (OSError, SubprocessError, EdlError) as error:  # the agent's own: of the command its warden tells
            known = EndEvidence(refused=str(error), unserved=True)
        except Exception as error:  # of what was submitted
            logger.exception("%s cannot be started", order.id)
            known = EndEvidence(refused=said_of(error))
        else:
            if pid is None:
                return self._machine.handle(WorkerClaimed(order.id), self._now())
            logger.info("%s is started: pid %d, devices %s", order.id, pid, order.devices)
            return self._machine.handle(WorkerBegan(order.id, pid), self._now())
        return self._machine.handle(WorkerGone(order.id, known), self._now())

    async def _bar(self, worker: str) -> list[AgentCommand]:
        try:
            found = await self._engine.bar(worker)
        except (OSError, EdlError) as error:
            logger.warning("what has become of %s is not known: %s", worker, error)
            return []
        return self._machine.handle(found if found.gone is None else WorkerGone(worker, found.gone), self._now())

    async def _tell(self) -> None:
        devices = self._node.devices if self._engine.takes_workers else ()
        workers = self._machine.report
        report = NodeReport(self._node.name, devices, workers, socket.gethostname(), os.getpid())
        if report == self._told:
            return
        try:
            await self._queue.tell(report, self._fence)
        except (StoreUnavailable, StoreRefused):
            return  # at the next turn
        except UsageError as error:  # no bound is such that it comes to this
            logger.error("the report is too long: %s", error)
            return
        self._told = report


def worker_environ(
    given: Mapping[str, str], asked: Submission, order: WorkerOrder, home: ClusterHome
) -> dict[str, str]:
    """Return the environment of a worker's script: the owner's variables, and those that make it the job's worker."""
    config = home.config()
    ours = {
        "EDL_JOB": asked.name,
        "EDL_COORDINATOR": config.coordinator,
        **config.credentials,
        "EDL_SECRET_FILE": str(home.secret),
        "EDL_HOME": str(home.home),
        "EDL_NP": str(max(1, order.np)),
        "EDL_MIN_WORKERS": str(asked.min_np),
        "EDL_MAX_WORKERS": str(asked.max_np),
        "EDL_WORKER_ID": order.id,
        "EDL_CHECKPOINT": asked.checkpoint or str(home.checkpoints(asked.name)),
        "EDL_LIFE": str(order.saved_life),
        "EDL_PROCESSES": str(asked.processes),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, order.devices)),
        "PYTHONUNBUFFERED": "1",
        "PATH": search_path(given),
    }
    if order.resume_from:
        ours["EDL_RESUME_FROM"] = order.resume_from
    return {**given, **ours}
