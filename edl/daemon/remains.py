"""What jobs that are over have left in a coordinator that outlives them, and how it goes.

Owns: what is left of a job, whether it may go, and in which order its nodes do: the secret first, the record last, so
that what was broken off can be gone on with. Does not own: when that is asked for (`edl.cli.clean`; each leader, for
the jobs of others, `edl.daemon.leader`).

A job is over when its record says so. One whose workers all vanished without a word is only *deserted*: a coordinator
that was away ends all sessions at once, and their owners come back a moment later.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator, Sequence
from enum import Enum, auto

import msgspec

from edl.coordination.store import MAX_OPS, AccessDenied, Check, Delete, NoNode, NotEmpty, Store, StoreRefused
from edl.protocol import keeping, tree
from edl.protocol.job import OVER

AT_ONCE = MAX_OPS - 1  # nodes that are deleted in one transaction, beside the check


class Standing(Enum):
    """What a job's nodes are."""

    LIVING = auto()  # some worker has a session, or the job has only begun
    DESERTED = auto()  # it is not over, and no worker has a session
    OVER = auto()


class _Stamp(msgspec.Struct, frozen=True):
    """Of an event of any version of edl."""

    ts: float


class Remains(msgspec.Struct, frozen=True):
    """One job's nodes."""

    job: str
    verdict: Standing
    state: str
    newest: float  # when its newest event was; when the job began, where it has none
    keep_s: float  # how long after its end the job's nodes are to stay

    def is_due(self, now: float) -> bool:
        """By the time that the job itself was started with."""
        return self.verdict is Standing.OVER and now - self.newest >= self.keep_s


async def jobs(store: Store) -> tuple[str, ...]:
    """Names of all jobs that have nodes there."""
    return await store.children(tree.ROOT)


async def look(store: Store, job: str) -> Remains | None:
    """None: there is no such job, or what is there is none of ours. Raises AccessDenied where it is closed to us."""
    node = await store.read(tree.record(job))
    if node is None:
        return None
    try:
        record = keeping.decode(node.value)
        newest = await _newest_event(store, job)
    except (msgspec.MsgspecError, zlib.error):
        return None
    return Remains(
        job=job,
        verdict=Standing.OVER if record.state in OVER else await _verdict(store, job),
        state=record.state.value,
        newest=record.started if newest is None else newest,
        keep_s=record.keep_s,
    )


async def present(store: Store, job: str) -> tuple[str, ...]:
    """List the workers that have a session there."""
    return await store.children(tree.workers(job))


async def remove(store: Store, job: str, fence: str | None = None) -> None:
    """All nodes of a job, its secret first. Harmless twice, and beside another process that does the same: where the
    record is gone, or is that of another life by now, what else is there is not of this one.

    Raises StoreRefused when a worker has come meanwhile, or another life has begun; what these have made stays, but for
    the node of a worker that had come before. `fence`: of the scheduler that leads. Raises Fenced.
    """
    root, record = tree.root(job), tree.record(job)
    node = await store.read(record)
    if node is None:
        return
    mine = Check(record, node.version)
    await _delete(store, [tree.secret(job)], mine, fence)
    async for folder, leaves in _below(store, root, last=record):
        for begin in range(0, len(leaves), AT_ONCE):
            await _delete(store, leaves[begin : begin + AT_ONCE], mine, fence)
        if folder != root:
            await _delete(store, [folder], mine, fence)
    await store.commit([Delete(record, node.version)], fence=fence)
    with contextlib.suppress(AccessDenied, NoNode, NotEmpty):  # another user's folder keeps a name; or a life has begun
        await store.delete(root)


async def forget_secret(store: Store, job: str) -> None:
    """Of a job that is over: it is not needed any more, and a reader could speak in the job's name."""
    with contextlib.suppress(NoNode):
        await store.delete(tree.secret(job))


async def sweep(store: Store, now: float, besides: str) -> list[str]:
    """Remove the jobs whose time is up, as far as they open to us; not the job `besides`. Returns their names."""
    gone = []
    for job in await jobs(store):
        if job == besides:
            continue
        with contextlib.suppress(AccessDenied, StoreRefused):  # closed to us, or another leader does the same just now
            remains = await look(store, job)
            if remains is not None and remains.is_due(now):
                await remove(store, job)
                gone.append(job)
    return gone


async def _verdict(store: Store, job: str) -> Standing:
    sessions = [await store.children(folder) for folder in (tree.workers(job), tree.candidates(job))]
    return Standing.LIVING if any(sessions) else Standing.DESERTED


async def _newest_event(store: Store, job: str) -> float | None:
    names = tree.in_order(await store.children(tree.events(job)))
    node = await store.read(f"{tree.events(job)}/{names[-1]}") if names else None
    return None if node is None else msgspec.json.decode(node.value.rpartition(b"\n")[2], type=_Stamp).ts


async def _below(store: Store, folder: str, last: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Each folder with the leaves in it, the deepest first; `last` is left out."""
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
    """At once, while the record is still that one; one by one where some of them are gone already."""
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
