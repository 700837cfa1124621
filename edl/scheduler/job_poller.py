"""Observe the jobs of a cluster and ask things of them: each job has a leader of its own.

Owns: asking the leaders, by one session with the coordinator for all of them, and preparing a life. Does not own: what
follows (`edl.cluster.queue`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import Any, cast

from edl.checkpoints.resume_choice import begin, to_go_on_from
from edl.cluster.queue.queue_entries import JobEntry
from edl.cluster.queue.scheduler_inputs import JobLook, LifeReady, LifeRefused
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.store import AccessDenied, Store, StoreRefused
from edl.daemon import leftovers
from edl.daemon.leftovers import Leftovers, Standing
from edl.errors import CheckpointError, JobFailed, NoSuchJob, UsageError
from edl.launch.job_coordinator import LOOK_AGAIN_S
from edl.launch.job_run import in_a_thread
from edl.outside.job_client import JobClient
from edl.protocol.job_policy import BatchRule
from edl.protocol.record import Status
from edl.scheduler.cluster_home import ClusterHome

AT_ONCE = 16  # jobs that are looked at
ASK_S = 20.0
RENAME = "submit this one under another name"
LASTING = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP}
)


class LentStore:
    """A client may close this store; the lent session stays open."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def close(self) -> None:
        """Leave the session open: it belongs to its lender."""


class JobsObserver:
    def __init__(
        self,
        home: ClusterHome,
        coordinator: Coordinator,
        secret: bytes,
        store: Store,
        fence: str | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """`fence`: of the scheduler that has jobs begin. `alone`: the coordinator has this cluster's jobs only."""
        self._fence, self._alone = fence, alone
        self._home, self._coordinator, self._secret, self._store = home, coordinator, secret, store
        self._turns = asyncio.Semaphore(AT_ONCE)

    def _client(self, job: str) -> JobClient:
        async def connect(*_: object) -> Store:
            return cast("Store", LentStore(self._store))

        return JobClient(self._coordinator, job, self._secret, connect=connect)

    async def look(self, job: str) -> JobLook:
        """Raises StoreUnavailable, PeerError."""
        async with self._turns, self._client(job) as client:
            try:
                return look_of(await client.status())
            except NoSuchJob:
                return JobLook()

    async def send_away(self, job: str, saved_life: int, reason: str, deadline_s: float) -> None:
        """Do nothing where the job is over already, or in another life. Raises EdlError."""
        async with self._client(job) as client:
            with contextlib.suppress(JobFailed):
                await client.preempt(reason, deadline_s, timeout_s=ASK_S, life=saved_life)

    async def change_batch(self, job: str, samples: int) -> None:
        async with self._client(job) as client:
            with contextlib.suppress(JobFailed):
                await client.batch(samples, timeout_s=ASK_S)

    async def begin_life(self, job: JobEntry) -> LifeReady | LifeRefused:
        """Prepare a life: no process of the life before is left, so remove its nodes. Leave the nodes of another job of
        this name, as of `edl run` at a coordinator that is not the cluster's own. Raises StoreUnavailable,
        StoreRefused.
        """
        try:
            if strangers := await self._strangers(job):
                others = (
                    f"another job {job.name} lives in this coordinator, as by `edl run`: {', '.join(strangers[:3])}"
                )
                return LifeRefused(job.name, job.life, f"{others}; {RENAME}", again=True)
            await leftovers.remove(self._store, job.name, self._fence)
        except AccessDenied:
            others = f"another's job {job.name} is in this coordinator, and is closed to this cluster"
            return LifeRefused(job.name, job.life, f"{others}; {RENAME}", again=False)
        where = job.asked.checkpoint or str(self._home.checkpoints(job.name))
        try:
            found = await in_a_thread(lambda: to_go_on_from(where, job.name, "auto"))
            life = await in_a_thread(lambda: begin(where, job.name, found))
        except CheckpointError as error:  # one that comes from another error is of the storage
            return LifeRefused(job.name, job.life, str(error), again=may_pass(error.__cause__))
        except UsageError as error:
            return LifeRefused(job.name, job.life, str(error), again=False)
        except OSError as error:
            return LifeRefused(job.name, job.life, str(error), again=may_pass(error))
        path = "" if life.checkpoint is None else life.checkpoint.path
        return LifeReady(job.name, job.life, life.number, path, life.step)

    async def forget(self, job: str) -> None:
        """Remove the own nodes of a job that the queue no longer keeps. Raises Fenced, StoreUnavailable."""
        with contextlib.suppress(StoreRefused):  # they are another job's by now, or closed to this cluster
            found = await leftovers.look(self._store, job)
            if found is not None and (found.verdict is Standing.OVER or (self._alone and _is_left(found))):
                await leftovers.remove(self._store, job, self._fence)

    async def _strangers(self, job: JobEntry) -> list[str]:
        """Return living workers under the job's name that no agent of this cluster has started. All sessions end at
        once where the coordinator was away, and are back a moment later: what was never this cluster's is looked at
        twice.
        """
        found = await leftovers.look(self._store, job.name)
        if found is not None and found.verdict is Standing.DESERTED and job.life == 1:
            await asyncio.sleep(LOOK_AGAIN_S)
            found = await leftovers.look(self._store, job.name)
        if found is not None and found.verdict is Standing.OVER:
            return []
        ours = {f"{job.name}-{number}" for number in range(1, job.made + 1)}
        return [worker for worker in await leftovers.present(self._store, job.name) if worker not in ours]


def _is_left(found: Leftovers) -> bool:
    """Tell whether a job looks deserted: a job whose workers were killed could not say that it is over."""
    return found.verdict is Standing.DESERTED


def may_pass(error: BaseException | None) -> bool:
    """Tell whether an error of a storage may pass: a full or absent disk may come back, a folder without permission
    stays closed.
    """
    return error is not None and not (isinstance(error, OSError) and error.errno in LASTING)


def look_of(status: Status) -> JobLook:
    rate = status.rate
    known = rate is not None and rate.size == status.size and rate.batches > 0
    return JobLook(
        state=status.state.value,
        reason=status.reason,
        failed_by=status.failed_by,
        size=status.size,
        step=status.step,
        batch=status.batch,
        grows=status.batching == BatchRule.LOCAL,
        step_s=rate.step_s if known and rate is not None else 0.0,
        save_s=status.saving.took_s if status.saving is not None else 0.0,
        left=_left(status),
        grad_sqr=_told(status, "grad_sqr"),
        grad_var=_told(status, "grad_var"),
    )


def _told(status: Status, figure: str) -> float | None:
    """Return a reported figure that is equal on all workers. A newcomer may not have reported the figure yet."""
    told = [
        worker.usage.reported[figure] for worker in status.workers if worker.usage and figure in worker.usage.reported
    ]
    return told[0] if told else None


def _left(status: Status) -> float | None:
    """Return the steps left at the present batch; None: not known, or without end."""
    spec, data = status.spec, status.data
    if spec is None or data is None or spec.open_ended or not status.batch:
        return None
    return max(0.0, ((spec.epochs - data.epoch) * data.total - data.trained) / status.batch)
