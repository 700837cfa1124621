"""Workers as jobs of Slurm: one job for each, with a warden in it that outlives the agent.

The agent of each node runs where the cluster was started, and asks Slurm for all that it does. A worker is gone when
Slurm has seen all processes of its job end; a node that Slurm has lost takes no workers until it is back. Agent and
nodes see the same folders.

Owns: how workers become jobs of Slurm's, and what their ends mean. Does not own: Slurm's commands (`slurm`), nor what
is started when.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import msgspec

from edl.cluster.queue.agent_machine import WorkerFound
from edl.cluster.queue.end_causes import EndEvidence
from edl.errors import EdlError
from edl.launch.job_processes import MARK
from edl.scheduler.cluster_home import put
from edl.scheduler.slurm import TAKEN, Slurm, SlurmError, SlurmJob, SlurmNode, flags_of, script_of
from edl.scheduler.worker_engine import Ended, Start
from edl.scheduler.worker_folders import WorkerFolders, devices_of, evidence, mark_of, path_here, was_terminated

logger = logging.getLogger("edl")

LOOK_S = 0.2  # at folders
ASK_S = 2.0  # Slurm
AGAIN_S = 1.0
LINGER_S = 15.0  # for daemons of edl, which outlive their trainers a little
GIVEN_THERE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "SLURM_JOB_ID", "SLURMD_NODENAME")
CANCELLED = ("--state=PENDING",)  # only where it has not begun
ASKED = ("--signal=URG",)  # which goes to its step, where only the warden heeds it
KILLED = ("--signal=KILL",)
ALL_KILLED = ("--signal=KILL", "--full")  # with the script around the step
OUTPUT = "slurm.out"  # of the batch script, not of the worker


def job_name(folder: Path) -> str:
    """Name a worker's job in Slurm by the worker's folder: other clusters may have workers of the same id."""
    return f"edl-{hashlib.sha256(str(folder.parent).encode()).hexdigest()[:12]}-{folder.name}"


def left_of(folders: Iterable[Path]) -> dict[Path, int]:
    """Return the workers whose jobs run or wait in Slurm, with Slurm's numbers. Raises EdlError."""
    names = {job_name(folder): folder for folder in folders}
    jobs = Slurm().jobs(list(names)) if names else []
    return {names[job.name]: job.number for job in jobs if job.name in names and job.under_way}


def kill(number: int) -> None:
    """Raises EdlError."""
    for flags in (CANCELLED, KILLED, ALL_KILLED):
        Slurm().cancel(number, *flags)


class SlurmEngine:
    """Engine of one node whose workers are jobs of Slurm."""

    def __init__(self, node: str, slots: int, folders: WorkerFolders, ended: Ended) -> None:
        self._name, self._slots, self._folders, self._ended = node, slots, folders, ended
        self._slurm = Slurm()
        self._node = SlurmNode(node, "unknown", 1, 0)
        self._all_hear = False
        self._jobs: dict[str, int] = {}  # of workers that are not gone, as far as is known: Slurm's number
        self._out: set[str] = set()  # of these, those whose worker has ended
        self._asked = 0.0
        self._dumb = False  # Slurm does not answer
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def takes_workers(self) -> bool:
        return self._node.gives

    async def find(self) -> list[WorkerFound]:
        while True:
            try:
                self._all_hear = await asyncio.to_thread(self._slurm.signals_all)
                found = await self._find()
            except SlurmError as error:
                self._tell_dumb(error)
                await asyncio.sleep(AGAIN_S)
            else:
                self._begin(self._watch())
                return found

    async def start(self, start: Start) -> int | None:
        worker = start.order.id
        told = {"taken_here": GIVEN_THERE, "wait_alone": LINGER_S, "all_hear": self._all_hear}
        environ = {name: value for name, value in start.environ.items() if not name.startswith("SLURM_")}
        start = msgspec.structs.replace(start, environ=environ)
        folder = await asyncio.to_thread(self._folders.claim, start, **told)
        if folder is None:
            return None
        ours = {MARK: mark_of(folder), "PATH": path_here()}
        each = len(start.order.devices)
        flags = flags_of(self._job_name(worker), self._node, self._slots, folder / OUTPUT, each)
        try:
            put(folder / OUTPUT, b"")
            number = await asyncio.to_thread(self._slurm.submit, flags, script_of(self._folders.warden(start), ours))
        except (OSError, EdlError):
            if self._folders.withdraw(worker):
                raise
            number = 0  # it runs all the same: its number is found by its name
        self._jobs[worker] = number
        return number

    async def bar(self, worker: str) -> WorkerFound:
        await asyncio.to_thread(self._folders.bar, worker)
        return self._found(worker, (await self._listed([worker])).get(worker))

    def end(self, worker: str, *, kill: bool) -> None:
        self._begin(self._end(worker, kill=kill))

    def forget(self, worker: str) -> None:
        self._folders.forget(worker)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -------------------------------------------------------------------------------------------------------- inside

    def _job_name(self, worker: str) -> str:
        return job_name(self._folders[worker])

    def _begin(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _find(self) -> list[WorkerFound]:
        await self._look_at_node()
        workers = [folder.name for folder in self._folders.kept()]
        jobs = await self._listed(workers)
        return [self._found(worker, jobs.get(worker)) for worker in workers]

    def _found(self, worker: str, job: SlurmJob | None) -> WorkerFound:
        """A worker without a job was claimed by an agent that died before it submitted the job: the worker never
        begins.
        """
        devices, number = devices_of(self._folders[worker]), job.number if job else 0
        if job is not None and job.under_way:
            self._jobs[worker] = number
            return WorkerFound(worker, devices, number, None)
        return WorkerFound(worker, devices, number, self._evidence(worker, job))

    async def _end(self, worker: str, *, kill: bool) -> None:
        """Ask a worker to leave, or kill it. Kill a worker that has not begun: its step, which does not exist yet,
        would not hear that it is to leave.
        """
        try:
            kill = self._folders.withdraw(worker) or kill
            number = self._jobs.get(worker)
            if not number:
                return  # nothing was submitted, or its number is not known yet: who is to be killed is told again
            for flags in (CANCELLED, KILLED, ALL_KILLED) if kill else (CANCELLED, ASKED):
                await asyncio.to_thread(self._slurm.cancel, number, *flags)
        except (OSError, EdlError) as error:
            logger.warning("%s is not told to end: %s", worker, error)

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                out = {worker for worker in self._jobs if (self._folders[worker] / "exit.json").exists()}
                if out - self._out or clock() - self._asked >= (LOOK_S if out else ASK_S):
                    self._out, self._asked = out, clock()
                    await self._ask()
            except OSError as error:  # of folders, which may lie on another machine: ends are told when they are back
                self._tell_dumb(error)
            await asyncio.sleep(LOOK_S)

    async def _ask(self) -> None:
        try:
            await self._look_at_node()
            waiting = list(self._jobs)
            jobs = await self._listed(waiting) if waiting else {}
        except EdlError as error:
            self._tell_dumb(error)
            return
        self._dumb = False
        for worker in waiting:
            job = jobs.get(worker)
            if job is not None and job.under_way:
                self._jobs[worker] = job.number
            else:
                known = self._evidence(worker, job)  # first: where this fails, it is told the next time
                del self._jobs[worker]
                self._ended(worker, known)

    async def _look_at_node(self) -> None:
        for node in await asyncio.to_thread(self._slurm.nodes, self._name):
            if node.state != self._node.state:
                logger.info("node %s is %s, says Slurm", node.name, node.state)
            self._node = node

    async def _listed(self, workers: list[str]) -> dict[str, SlurmJob]:
        """Return the newest job of each worker."""
        names = {self._job_name(worker): worker for worker in workers}
        if not names:
            return {}
        jobs = await asyncio.to_thread(self._slurm.jobs, list(names))
        return {names[job.name]: job for job in sorted(jobs, key=lambda job: job.number) if job.name in names}

    def _evidence(self, worker: str, job: SlurmJob | None) -> EndEvidence:
        folder = self._folders[worker]
        state, never = job.state if job else "", self._folders.withdraw(worker)
        found = evidence(folder)
        taken = TAKEN.get(state, "Slurm has asked it to go" if was_terminated(folder) else "")
        if never and not taken:
            return EndEvidence(refused=self._refusal(worker), unserved=True)
        return msgspec.structs.replace(found, taken=taken, starved=found.starved or state == "OUT_OF_MEMORY")

    def _refusal(self, worker: str) -> str:
        try:
            lines = (self._folders[worker] / OUTPUT).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "Slurm could not start it"

    def _tell_dumb(self, error: OSError | EdlError) -> None:
        if not self._dumb:
            logger.warning("Slurm or a folder does not answer: %s; trying again", error)
        self._dumb = True
