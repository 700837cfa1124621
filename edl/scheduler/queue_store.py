"""The queue as it lies in the coordinator, and how one scheduler after the other writes it.

    /edl-cluster/owner               which cluster's this queue is           `edl cluster start`, its agents
    /edl-cluster/jobs/<name>         a job as decided (JobEntry)             its owner, then schedulers, fenced
    /edl-cluster/wishes/<name>       its owner wants it cancelled            its owner
    /edl-cluster/sizes/<name>        its owner wants so many workers         its owner
    /edl-cluster/drain               the cluster is to stop; `kill`: at once `edl cluster stop`
    /edl-cluster/orders/<node>       what its agent is to do                 schedulers, fenced
    /edl-cluster/reports/<node>      what its agent knows                    that agent
    /edl-cluster/agents/<node>       which agent lives (ephemeral)           that agent
    /edl-cluster/turns/<node>/...    which agent of several acts             edl.coordination.election
    /edl-cluster/story               what has happened to the cluster        schedulers, fenced
    /edl-cluster/scheduler/...       who stands for election, and who leads  edl.coordination.election

A submission is one write of the owner's: it is durable as soon as it is answered, whether a scheduler lives or not.
The variables that its workers get lie in a file (`environ_files`), which is written before.

Owns: these nodes and their forms. Does not own: what is decided (`edl.cluster.queue`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, islice

import msgspec

from edl.cluster.queue.end_causes import RetryRules
from edl.cluster.queue.queue_entries import (
    JobEntry,
    NodeReport,
    QueueEvent,
    Submission,
    WorkerOrder,
    orders_of,
    within,
)
from edl.cluster.queue.queue_ownership import AgentHere, QueueOwner, gives_way, is_owner
from edl.cluster.queue.scheduler_inputs import Resolved
from edl.cluster.queue.submission import ENTRY_BYTES
from edl.coordination.store import (
    MAX_OPS,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Op,
    Store,
    StoredNode,
    VersionConflict,
    Watch,
    Write,
)
from edl.errors import ConfigError, StoreUnavailable, UsageError
from edl.launch.job_processes import is_running
from edl.scheduler.cluster_home import ClusterHome
from edl.scheduler.environ_files import EnvironFiles, VariablesLost, job_of

logger = logging.getLogger("edl")

ROOT = "/edl-cluster"
JOBS, WISHES, SIZES, ORDERS, REPORTS, AGENTS = (
    f"{ROOT}/{name}" for name in ("jobs", "wishes", "sizes", "orders", "reports", "agents")
)
DRAIN, STORY, SCHEDULER, TURNS, OWNER = (f"{ROOT}/{name}" for name in ("drain", "story", "scheduler", "turns", "owner"))
OLD_ENVIRONS = f"{ROOT}/environs"  # where an edl before this one kept the jobs' variables
FOLDERS = (JOBS, WISHES, SIZES, ORDERS, REPORTS, AGENTS)
AT_ONCE_BYTES = 400_000  # of one transaction: the coordinator takes a million
KEPT_STORY = 200
READS_AT_ONCE = 64
KEPT_OVER = 2000  # jobs that are over
KEPT_OVER_BYTES = 16_000_000  # of all of them

_ENVIRON = msgspec.json.Decoder(dict[str, str])
_JOB = msgspec.json.Decoder(JobEntry)
_REPORT = msgspec.json.Decoder(NodeReport)
_ORDERS = msgspec.json.Decoder(tuple[WorkerOrder, ...])
_STORY = msgspec.json.Decoder(tuple[QueueEvent, ...])


class QueueRefused(ConfigError):
    """The queue is not to be acted on as it was asked."""


class QueueStore:
    """The access of one process to the queue in the coordinator."""

    def __init__(self, store: Store, environs: EnvironFiles | None = None) -> None:
        """`environs`: needed to submit jobs with variables, to start workers and to lead."""
        self.store, self.environs = store, environs
        self._bytes: dict[str, int] = {}  # of entries that this process has seen, by job
        self._versions: dict[str, int] = {}  # of the nodes that this process writes
        self._orders: dict[str, bytes] = {}  # as they stand there, by path
        self._orphans: frozenset[str] = frozenset()  # files of variables that were no job's at the last sweep
        self._ordered: set[str] = set()  # nodes whose orders this process has seen to be those of the entries

    async def prepare(self) -> None:
        """Make only the folders that are missing: a look is one reading, each refused creation a write."""
        there = {f"{ROOT}/{name}" for name in await self.store.children(ROOT)}
        for folder in FOLDERS:
            if folder not in there:
                with contextlib.suppress(NodeExists):
                    await self.store.create(folder)

    def watch(self, path: str, wake: Callable[[], None]) -> Watch:
        return self.store.watch(path, wake)

    # ------------------------------------------------------------------------------------------------- what owners do

    async def submit(self, asked: Submission, environ: Mapping[str, str]) -> None:
        """Raises UsageError where the name is taken, QueueFull, ConfigError."""
        at = asked.submitted
        story = (QueueEvent(at, "job_queued", asked.name, asked.workers_in_words),)
        entry = JobEntry(asked, since=at, since_phase=at, tries_left=RetryRules().tries, story=story)
        size = len(msgspec.json.encode(entry))
        if size > ENTRY_BYTES:  # it grows: with its workers, its story
            raise UsageError(f"the command has {size} bytes: put it into a file, {ENTRY_BYTES} at most")
        kept = ""
        if self.environs is not None:
            kept = self.environs.keep(asked, size, environ)
        elif environ:
            raise UsageError("this way to the queue has no folder for the job's variables")
        entry = msgspec.structs.replace(entry, environ=kept)
        try:
            await self.store.create(f"{JOBS}/{asked.name}", msgspec.json.encode(entry), parents=False)
        except NodeExists:
            self.forget_environs({kept})
            raise UsageError(f"there is a job {asked.name} already: give this one another name by --name") from None

    async def cancel(self, job: str) -> None:
        with contextlib.suppress(NodeExists):
            await self.store.create(f"{WISHES}/{job}")

    async def ask_size(self, job: str, np: int) -> None:
        """The newest wish counts; 0: as it was submitted."""
        path, value = f"{SIZES}/{job}", str(np).encode()
        try:
            await self.store.create(path, value)
        except NodeExists:
            try:
                await self.store.write(path, value)
            except NoNode:  # the one before was carried out meanwhile
                await self.store.create(path, value)

    async def drain(self, *, kill: bool) -> None:
        value = b"kill" if kill else b""
        try:
            await self.store.create(DRAIN, value)
        except NodeExists:
            if kill:
                await self.store.write(DRAIN, value)

    async def go_on(self) -> None:
        with contextlib.suppress(NoNode):
            await self.store.delete(DRAIN)

    async def own(self, owner: QueueOwner, *, take: bool = False) -> None:
        """Make this cluster the queue's owner, if the queue is no cluster's; with `take`, also if its cluster no longer
        uses it. Raises QueueRefused where it stays another cluster's.
        """
        value = msgspec.json.encode(owner)
        with contextlib.suppress(NodeExists):
            if await self.store.read(OWNER) is None:
                await self.store.create(OWNER, value)
        found = await self.store.read(OWNER)
        if found is None:
            raise StoreUnavailable("what is in the coordinator has just been removed")
        before = msgspec.json.decode(found.value, type=QueueOwner)
        if before.identity == owner.identity:
            return
        if not is_owner(before, owner, takes=take, in_use=await self._in_use()):
            raise _refusal(before)
        await self.store.write(OWNER, value, found.version)

    async def check_owner(self, owner: QueueOwner) -> None:
        """Raises QueueRefused: no agent of another cluster has the variables of what is submitted from here."""
        found = await self.store.read(OWNER)
        if found is not None:
            before = msgspec.json.decode(found.value, type=QueueOwner)
            if before.identity != owner.identity:
                raise _refusal(before)

    async def _in_use(self) -> bool:
        """Tell whether a process or a worker uses the queue, or a job waits whose variables lie in the other cluster's
        home.
        """
        if await self.agents() or await self.store.children(f"{SCHEDULER}/candidates"):
            return True
        here = frozenset() if self.environs is None else self.environs.names()
        return any(
            job.workers or (not job.over and job.environ and job.environ not in here) for job in await self.jobs()
        )

    async def keep_nodes(self, nodes: Mapping[str, Collection[int]]) -> None:
        """Forget all other nodes. Raises QueueRefused where a worker on record holds a device that none of these has:
        no agent could end it, and its device could be given on under another node's name (I17).
        """
        for worker in [worker for job in await self.jobs() for worker in job.workers]:
            if worker.node not in nodes:
                raise QueueRefused(f"node {worker.node} still has worker {worker.id}: name it in --nodes too")
            if lacking := {*worker.devices} - {*nodes[worker.node]}:
                raise QueueRefused(
                    f"worker {worker.id} still has device {min(lacking)} of node {worker.node}: "
                    "give --nodes as they were before, or end it by `edl cluster stop --now`"
                )
        for node in await self.store.children(REPORTS):
            if node in nodes:
                continue
            for path in (f"{REPORTS}/{node}", f"{ORDERS}/{node}"):
                with contextlib.suppress(NoNode):
                    await self.store.delete(path)

    # -------------------------------------------------------------------------------------------------------- reading

    async def names(self) -> tuple[str, ...]:
        return await self.store.children(JOBS)

    async def job(self, name: str) -> JobEntry | None:
        node = await self._read(f"{JOBS}/{name}")
        if node is None:
            return None
        self._bytes[name] = len(node.value)
        return _JOB.decode(node.value)

    async def jobs(self) -> list[JobEntry]:
        names = await self.names()
        for gone in self._bytes.keys() - set(names):
            del self._bytes[gone]
            self._versions.pop(f"{JOBS}/{gone}", None)
        found = await self.some(names)
        return sorted(found, key=lambda job: (job.asked.submitted, job.name))

    async def some(self, names: Sequence[str]) -> list[JobEntry]:
        """Return the jobs of these names that exist, read many at a time: there may be ten thousand."""
        found: list[JobEntry | None] = []
        for first in range(0, len(names), READS_AT_ONCE):
            found += await asyncio.gather(*map(self.job, names[first : first + READS_AT_ONCE]))
        return [job for job in found if job is not None]

    def environ(self, job: JobEntry) -> dict[str, str]:
        """Raises VariablesLost, EdlError."""
        if self.environs is None:
            return {}
        if not job.environ:
            raise VariablesLost(f"job {job.name} was submitted by another version of edl: submit it again")
        return self.environs.read(job.environ)

    async def reports(self) -> list[NodeReport]:
        nodes = [await self.store.read(f"{REPORTS}/{name}") for name in await self.store.children(REPORTS)]
        return [_REPORT.decode(node.value) for node in nodes if node is not None]

    async def report(self, node: str) -> NodeReport | None:
        found = await self.store.read(f"{REPORTS}/{node}")
        return None if found is None else _REPORT.decode(found.value)

    async def agents(self) -> tuple[str, ...]:
        return await self.store.children(AGENTS)

    async def wishes(self) -> tuple[str, ...]:
        return await self.store.children(WISHES)

    async def sizes(self) -> dict[str, tuple[int, int]]:
        """Return by job the workers wanted, and the version of that wish."""
        found = {}
        for name in await self.store.children(SIZES):
            node = await self.store.read(f"{SIZES}/{name}")
            if node is not None:
                found[name] = int(node.value), node.version
        return found

    async def draining(self) -> bool | None:
        """Return None unless the cluster drains; else whether all workers are to be killed."""
        node = await self.store.read(DRAIN)
        return None if node is None else node.value == b"kill"

    async def story(self) -> tuple[QueueEvent, ...]:
        node = await self._read(STORY)
        return () if node is None else _STORY.decode(node.value)

    async def orders(self, node: str) -> tuple[WorkerOrder, ...] | None:
        """Return a node's orders; None: nothing was ever ordered."""
        found = await self._read(f"{ORDERS}/{node}")
        if found is not None:
            self._orders[f"{ORDERS}/{node}"] = found.value
        return None if found is None else _ORDERS.decode(found.value)

    async def _read(self, path: str) -> StoredNode | None:
        node = await self.store.read(path)
        if node is not None:
            self._versions[path] = node.version
        return node

    # ----------------------------------------------------------------------------------------------- what agents write

    async def tell(self, report: NodeReport, fence: str | None = None) -> None:
        """`fence`: of the one agent of several that acts. Raises Fenced."""
        path, value = f"{REPORTS}/{report.node}", msgspec.json.encode(within(report, AT_ONCE_BYTES))
        try:
            await self.store.commit([Write(path, value)], fence=fence)
        except NoNode:
            await self.store.commit([Create(path, value)], fence=fence)

    async def appear(self, node: str, here: AgentHere, owner: QueueOwner, *, instead: bool) -> bool:
        """Announce an agent for as long as this session lives. Return False where another agent of the node may live:
        then this agent does nothing. `instead`: the other agent has lost its turn. Raises QueueRefused.
        """
        path = f"{AGENTS}/{node}"
        found = await self.store.read(path)
        if found is not None and found.owner == self.store.session:
            return True
        await self.own(owner)
        if found is not None:
            if not _gives_way(found.value, here, deposed=instead):
                return False
            with contextlib.suppress(NoNode, VersionConflict):
                await self.store.delete(path, found.version)
        with contextlib.suppress(NodeExists):
            await self.store.create(path, msgspec.json.encode(here), ephemeral=True)
            return True
        return False

    # ------------------------------------------------------------------------------------------- what schedulers write

    async def keep(self, resolved: Resolved, jobs: Mapping[str, JobEntry], nodes: Sequence[str], fence: str) -> None:
        """`nodes`: all that any worker ever was on. Raises Fenced, StoreUnavailable, StoreRefused: then what stands
        there is to be read again.
        """
        batches = self._batches(resolved, jobs, nodes)
        for batch in batches:
            results = await self.store.commit(batch, fence=fence)
            for op, result in zip(batch, results, strict=True):
                if isinstance(op, Create):
                    self._versions[op.path] = 0
                elif isinstance(op, Write) and isinstance(result, int):
                    self._versions[op.path] = result
                if isinstance(op, Create | Write) and op.path.startswith(ORDERS):
                    self._orders[op.path] = op.value
                elif isinstance(op, Create | Write):
                    self._bytes[op.path.rpartition("/")[2]] = len(op.value)
        self._ordered |= set(nodes)

    def _batches(self, resolved: Resolved, jobs: Mapping[str, JobEntry], nodes: Sequence[str]) -> list[list[Op]]:
        """Order the writes: jobs with fewer workers first, so that no device is given to a job before another has given
        it up; orders last.
        """
        entries = sorted(resolved.changed.values(), key=lambda job: len(job.workers))
        ops: list[tuple[str, bytes]] = [(f"{JOBS}/{job.name}", msgspec.json.encode(job)) for job in entries]
        doubtful = set(nodes) - self._ordered  # who led before may have died between the entries and the orders
        for node in sorted(nodes if resolved.changed else doubtful):
            path, value = f"{ORDERS}/{node}", msgspec.json.encode(orders_of(node, jobs))
            if self._orders.get(path) != value:
                ops.append((path, value))
        batches: list[list[Op]] = [[]]
        size = 0
        for path, value in ops:
            if batches[-1] and (size + len(value) > AT_ONCE_BYTES or len(batches[-1]) == MAX_OPS):
                batches.append([])
                size = 0
            size += len(value)
            known = self._versions.get(path)
            batches[-1].append(Create(path, value) if known is None else Write(path, value, known))
        return [batch for batch in batches if batch]

    async def tell_story(self, told: Sequence[QueueEvent], fence: str) -> None:
        """Append events to the cluster's story; each job has a story of its own."""
        value = msgspec.json.encode((*await self.story(), *told)[-KEPT_STORY:])
        known = self._versions.get(STORY)
        op = Create(STORY, value) if known is None else Write(STORY, value, known)
        [result] = await self.store.commit([op], fence=fence)
        self._versions[STORY] = result if isinstance(result, int) else 0

    async def heed(self, wishes: Sequence[str], fence: str) -> None:
        """Delete wishes that were carried out."""
        for name in wishes:
            with contextlib.suppress(NoNode):
                await self.store.commit([Delete(f"{WISHES}/{name}")], fence=fence)

    async def heed_sizes(self, sizes: Mapping[str, tuple[int, int]], fence: str) -> None:
        """Delete wished sizes that were carried out; a newer wish stays."""
        for name, (_, version) in sizes.items():
            with contextlib.suppress(NoNode, VersionConflict):
                await self.store.commit([Delete(f"{SIZES}/{name}", version)], fence=fence)

    async def forget(self, job: str, fence: str) -> None:
        await self.store.commit([Delete(f"{JOBS}/{job}")], fence=fence)
        self._versions.pop(f"{JOBS}/{job}", None)
        self._bytes.pop(job, None)

    async def adopt_environs(self, jobs: Sequence[JobEntry], fence: str) -> list[JobEntry]:
        """Return the jobs, with files for the variables that an edl before this one kept in the coordinator, which then
        holds none of them. Raises Fenced, StoreUnavailable, StoreRefused.
        """
        found = {job.name: job for job in jobs}
        for name in await self.store.children(OLD_ENVIRONS):
            node, job = await self.store.read(f"{OLD_ENVIRONS}/{name}"), found.get(name)
            ops: list[Op] = [Delete(f"{OLD_ENVIRONS}/{name}")]
            if self.environs and node and job and not job.environ and (job.workers or not job.over):
                try:
                    kept = self.environs.keep(job.asked, len(msgspec.json.encode(job)), _ENVIRON.decode(node.value))
                except (UsageError, ConfigError) as error:
                    logger.warning("the variables of job %s stay in the coordinator: %s", name, error)
                    continue
                found[name] = job = msgspec.structs.replace(job, environ=kept)
                path = f"{JOBS}/{name}"
                ops.append(Write(path, msgspec.json.encode(job), self._versions[path]))
            results = await self.store.commit(ops, fence=fence)
            self._versions |= {
                op.path: version for op, version in zip(ops, results, strict=True) if isinstance(version, int)
            }
        return list(found.values())

    def beyond(self, over: Sequence[JobEntry]) -> list[JobEntry]:
        """Return the jobs, of those that are over, for which the queue has no room: the newest are kept."""
        newest = sorted(over, key=lambda job: job.ended or 0.0, reverse=True)
        sizes = accumulate(self._bytes.get(job.name, 0) for job in newest)
        kept = sum(size <= KEPT_OVER_BYTES for size in islice(sizes, KEPT_OVER))
        return newest[kept:]

    def forget_environs(self, names: Collection[str]) -> None:
        """Remove variables with which no worker will start any more: they may hold passwords."""
        if self.environs is not None:
            self.environs.forget(set(names) - {""})

    async def sweep_environs(self, jobs: Collection[JobEntry], fence: str) -> None:
        """Remove the variables of `jobs` that are over, and of failed submissions: those that two sweeps in a row found
        to be no job's. Raises Fenced, StoreUnavailable.
        """
        if self.environs is None:
            return
        there = self.environs.names()
        self.forget_environs(there & {job.environ for job in jobs if job.over and not job.workers})
        orphans = there - {job.environ for job in jobs}
        await self._forget_orphans(orphans & self._orphans, fence)
        self._orphans = orphans

    async def _forget_orphans(self, names: Collection[str], fence: str) -> None:
        # A scheduler that leads no more, and has not noticed, may never hear of their jobs.
        if not names:
            return
        jobs = await self.some(sorted(set(map(job_of, names))))
        await self.store.commit([], fence=fence)
        self.forget_environs(set(names) - {job.environ for job in jobs})


def _refusal(other: QueueOwner) -> QueueRefused:
    return QueueRefused(
        f"this coordinator holds the queue of the cluster of EDL_HOME={other.home} on {other.host}: give this one a "
        "place of its own by --coordinator HOST:PORT/NAME, or cancel that one's jobs, and end it by `edl cluster stop`"
    )


def _gives_way(told: bytes, here: AgentHere, *, deposed: bool) -> bool:
    try:
        other = msgspec.json.decode(told, type=AgentHere)
    except msgspec.MsgspecError:  # of an edl before this one
        return True
    return gives_way(other, here, runs=is_running(other.pid, other.started), deposed=deposed)


def owner_of(home: ClusterHome) -> QueueOwner:
    return QueueOwner(home.identity, str(home.home), socket.gethostname())
