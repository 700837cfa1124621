"""Remove the nodes that finished jobs have left in a coordinator that outlives them.

Owns: which nodes a job has left, whether they may be removed, and in which order: the secret first, the record last, so
that an interrupted removal can be continued. Does not own: when a removal is asked for (`edl.cli.clean`; each leader,
for other jobs, `edl.daemon.leader_shell`).

A job is over when its record tells so. A job whose workers all vanished without a message is only *deserted*: a
coordinator that was away ends all sessions at once, and their owners come back a moment later.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator, Sequence
from enum import Enum, auto

import msgspec

from edl.coordination.store import MAX_OPS, AccessDenied, Check, Delete, NoNode, NotEmpty, Store, StoreRefused
from edl.protocol import node_paths
from edl.protocol.record import OVER, decode_record

AT_ONCE = MAX_OPS - 1  # nodes that are deleted in one transaction, besides the check


class Standing(Enum):
    """The condition of a job that has nodes."""

    LIVING = auto()  # some worker has a session, or the job has only begun
    DESERTED = auto()  # it is not over, and no worker has a session
    OVER = auto()


class _Stamp(msgspec.Struct, frozen=True):
    """The time of an event of any version of edl."""

    ts: float


class Leftovers(msgspec.Struct, frozen=True):
    job: str
    verdict: Standing
    state: str
    newest: float  # time of its newest event; if there is none, when the job began
    keep_s: float  # how long after its end the job's nodes are to stay

    def is_due(self, now: float) -> bool:
        """Tell whether the time that the job itself was started with is over."""
        return self.verdict is Standing.OVER and now - self.newest >= self.keep_s


async def jobs(store: Store) -> tuple[str, ...]:
    """Return the names of all jobs that have nodes."""
    return await store.children(node_paths.ROOT)


async def look(store: Store, job: str) -> Leftovers | None:
    """Examine a job's nodes; None if there are none, or they are not edl's. Raises AccessDenied."""
    node = await store.read(node_paths.record(job))
    if node is None:
        return None
    try:
        record = decode_record(node.value)
        newest = await _newest_event(store, job)
    except (msgspec.MsgspecError, zlib.error):
        return None
    return Leftovers(
        job=job,
        verdict=Standing.OVER if record.state in OVER else await _verdict(store, job),
        state=record.state.value,
        newest=record.started if newest is None else newest,
        keep_s=record.keep_s,
    )


async def present(store: Store, job: str) -> tuple[str, ...]:
    """List the workers that have a session there."""
    return await store.children(node_paths.workers(job))


async def remove(store: Store, job: str, fence: str | None = None) -> None:
    """Remove all nodes of a job, its secret first. Harmless twice, and beside another process that does the same: once
    the record is gone, or belongs to another life, all other nodes are not this life's.

    Raises StoreRefused if a worker has come meanwhile, or another life has begun; their nodes stay, but for the node of
    a worker that had come before. `fence`: of the scheduler that leads. Raises Fenced.
    """
    root, record = node_paths.root(job), node_paths.record(job)
    node = await store.read(record)
    if node is None:
        return
    mine = Check(record, node.version)
    await _delete(store, [node_paths.secret(job)], mine, fence)
    async for folder, leaves in _below(store, root, last=record):
        for begin in range(0, len(leaves), AT_ONCE):
            await _delete(store, leaves[begin : begin + AT_ONCE], mine, fence)
        if folder != root:
            await _delete(store, [folder], mine, fence)
    await store.commit([Delete(record, node.version)], fence=fence)
    with contextlib.suppress(AccessDenied, NoNode, NotEmpty):  # another user's folder keeps a node; or a life has begun
        await store.delete(root)


async def forget_secret(store: Store, job: str) -> None:
    """Delete the secret of a job that is over: it is not needed any more, and a reader could act in the job's name."""
    with contextlib.suppress(NoNode):
        await store.delete(node_paths.secret(job))


async def sweep(store: Store, now: float, besides: str) -> list[str]:
    """Remove the jobs whose time is up, as far as access is granted; not the job `besides`. Return their names."""
    gone = []
    for job in await jobs(store):
        if job == besides:
            continue
        # access is denied, or another leader does the same just now
        with contextlib.suppress(AccessDenied, StoreRefused):
            remains = await look(store, job)
            if remains is not None and remains.is_due(now):
                await remove(store, job)
                gone.append(job)
    return gone


async def _verdict(store: Store, job: str) -> Standing:
    sessions = [await store.children(folder) for folder in (node_paths.workers(job), node_paths.candidates(job))]
    return Standing.LIVING if any(sessions) else Standing.DESERTED


async def _newest_event(store: Store, job: str) -> float | None:
    names = node_paths.in_order(await store.children(node_paths.events(job)))
    node = await store.read(f"{node_paths.events(job)}/{names[-1]}") if names else None
    return None if node is None else msgspec.json.decode(node.value.rpartition(b"\n")[2], type=_Stamp).ts


async def _below(store: Store, folder: str, last: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Yield each folder with the leaves in it, the deepest first; `last` is left out."""
    leaves = []
    for name in await store.children(folder):
        path = f"{folder}/{name}"
        if await store.children(path):
            async for one in _below(store, path, last):
                yield one
        elif path != last:
            leaves.append(path)
    yield folder, leaves


async def _delete(store: Store, paths: Sequence[str], mine: Check, fence: str | None) -> None:
    """Delete nodes in one transaction while the record is unchanged; one by one if some of them are gone already."""
    if not paths:
        return
    try:
        await store.commit([mine, *map(Delete, paths)], fence=fence)
    except NoNode as error:
        if error.op == mine:
            raise
        for path in paths:
            with contextlib.suppress(NoNode):
                await store.commit([mine, Delete(path)], fence=fence)
