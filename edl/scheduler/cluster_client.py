"""A cluster as its users hold it: jobs submitted, listed, waited for, cancelled.

Owns: these calls. Does not own: their looks (`edl.cli`), nor the queue's form (`edl.scheduler.queue_store`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from edl.cluster.queue.job_view import JobShown, left_out_by
from edl.cluster.queue.queue_entries import JobEntry, NodeReport, QueueEvent, Submission
from edl.coordination.election import read_leader
from edl.coordination.store import connect
from edl.errors import EdlError, NoSuchJob, StoreUnavailable, TimedOut, UsageError
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome
from edl.scheduler.environ_files import EnvironFiles
from edl.scheduler.queue_store import SCHEDULER, QueueStore, owner_of

SESSION_S = 10.0
LOOK_S = 0.2
PATIENCE_S = 3 * SESSION_S  # for a server to come back


class ClusterStatus(msgspec.Struct, frozen=True):
    """Content of `edl cluster status --json`."""

    policy: str
    coordinator: str
    scheduler: str  # that leads
    term: int
    draining: bool
    processes: dict[str, int]  # by name: pid
    nodes: tuple[NodeStatus, ...]
    jobs: dict[str, int]  # by phase: how many
    story: tuple[QueueEvent, ...]


class NodeStatus(msgspec.Struct, frozen=True):
    name: str
    devices: tuple[int, ...]
    agent: bool  # is there
    held: dict[str, str]  # by device: the worker
    left_out_until: float | None = None  # it has failed its workers, and is given none before


class ClusterClient:
    """Calls of a client to the cluster, over one session with the coordinator. `opened` yields a client."""

    def __init__(self, home: ClusterHome, config: ClusterConfig, queue: QueueStore) -> None:
        self.home, self.config, self.queue = home, config, queue

    async def job(self, name: str) -> JobEntry:
        """Raises NoSuchJob."""
        found = await self.queue.job(name)
        if found is None:
            raise NoSuchJob(f"the cluster has no job {name}: `edl queue` lists those that it has")
        return found

    async def submit(self, asked: Submission, environ: Mapping[str, str]) -> None:
        """Submit a job once, though an answer is lost or the coordinator is away a while. Raises UsageError,
        StoreUnavailable.
        """
        until, lost = time.monotonic() + PATIENCE_S, False
        while True:
            try:
                found = await self.queue.job(asked.name) if lost else None
                if found is not None and found.asked == asked:
                    return
                if found is None:
                    await self._check_new(asked.name)
                await self.queue.submit(asked, environ)
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise StoreUnavailable(
                        f"the coordinator does not answer: `edl queue` shows whether job {asked.name} was submitted"
                    ) from None
                lost = True
                await asyncio.sleep(LOOK_S)
            else:
                return

    async def _check_new(self, name: str) -> None:
        """Refuse a name under which a forgotten job has left files: the new job would own them. Raises UsageError."""
        left = self.home.remains_of(name)
        if left is not None and await self.queue.job(name) is None:
            raise UsageError(
                f"{left} is left of a job {name} that was forgotten since: give this one another name by --name"
            )

    async def scale(self, job: JobShown, np: int | None) -> None:
        """Limit a job that is not over to `np` workers; None: to as many as it was submitted for. Raises UsageError."""
        if job.over:
            raise UsageError(f"job {job.name} is over: {job.state}")
        if np is not None and not job.min_np <= np <= job.max_np:
            raise UsageError(f"job {job.name} was submitted for {job.min_np} to {job.max_np} workers, and not for {np}")
        await self.queue.ask_size(job.name, np or 0)

    async def leader(self) -> tuple[str, int]:
        """Return the leader's name and term; the name is empty where no scheduler leads now."""
        elected = await read_leader(self.queue.store, SCHEDULER)
        if elected is None:
            return "", 0
        candidates = await self.queue.store.children(f"{SCHEDULER}/candidates")
        leads = any(name.endswith(f"-{elected.term}") and name.count("-") == 2 for name in candidates)
        return (elected.ident if leads else ""), elected.term

    async def status(self, jobs: list[JobEntry] | None = None) -> ClusterStatus:
        """`jobs`: all of the queue's, if the caller has just read them; None: they are read here."""
        jobs = await self.queue.jobs() if jobs is None else jobs
        leader, term = await self.leader()
        there = set(await self.queue.agents())
        phases: dict[str, int] = {}
        for job in jobs:
            phases[job.phase.value] = phases.get(job.phase.value, 0) + 1
        story, now = await self.queue.story(), time.time()
        left_out = {node: until for node, (until, _) in left_out_by(story).items() if until > now}
        return ClusterStatus(
            policy=self.config.policy,
            coordinator=self.config.coordinator,
            scheduler=leader,
            term=term,
            draining=await self.queue.draining() is not None,
            processes=self.home.living(),
            nodes=tuple(
                _node(report, report.node in there, jobs, left_out.get(report.node))
                for report in await self.queue.reports()
            ),
            jobs=phases,
            story=story[-10:],
        )

    async def wait(self, name: str, timeout_s: float | None, seen: Callable[[JobEntry], object]) -> JobEntry:
        """Wait until the job is over. Raises TimedOut, NoSuchJob."""
        changed = asyncio.Event()
        watch = self.queue.watch(f"/edl-cluster/jobs/{name}", changed.set)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                changed.clear()
                job = await patiently(lambda: self.job(name))
                seen(job)
                if job.over:
                    return job
                if until is not None and time.monotonic() >= until:
                    raise TimedOut(f"job {name} is not over after {timeout_s:g} s: it is {job.phase.value}")
                wait_s = 5.0 if until is None else max(0.01, min(5.0, until - time.monotonic()))
                await _set_within(changed, wait_s)
        finally:
            watch.close()


async def patiently(call: Callable[[], object]) -> JobEntry:
    """Repeat a call while the coordinator is away, up to the time that a server takes to come back."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = await call()  # type: ignore[misc]
        except StoreUnavailable:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(LOOK_S)
        else:
            assert isinstance(found, JobEntry)
            return found


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    task = asyncio.ensure_future(event.wait())
    await asyncio.wait({task}, timeout=seconds)
    task.cancel()


def _node(report: NodeReport, there: bool, jobs: list[JobEntry], left_out_until: float | None) -> NodeStatus:
    here = [one for job in jobs for one in job.workers if one.node == report.node]
    held = {str(device): one.id for one in here for device in one.devices}
    return NodeStatus(report.node, report.devices, there, held, left_out_until)


@asynccontextmanager
async def opened(
    home: ClusterHome, *, connect_timeout_s: float = 10.0, begins: bool = False
) -> AsyncIterator[ClusterClient]:
    """Raises UsageError where there is no cluster, EdlError where it does not run, QueueRefused where the coordinator
    holds the queue of another one. `begins`: the caller starts the cluster, looks for these itself, and may take the
    queue.
    """
    config = home.config()
    if config.own_coordinator and not home.living():
        raise EdlError(f"the cluster of EDL_HOME={home.home} does not run: `edl cluster start` goes on with its queue")
    store = await connect(home.coordinator(), SESSION_S, connect_timeout_s=connect_timeout_s)
    try:
        queue = QueueStore(store, EnvironFiles(home.environs))
        if not begins:
            await queue.check_owner(owner_of(home))
        await queue.prepare()
        yield ClusterClient(home, config, queue)
    finally:
        await store.close()
