"""A cluster as the command line holds it: the one of this machine, or by HTTP another one
(`edl.scheduler.remote_cluster`).

Owns: the calls that both have, and carrying them out here. Does not own: their looks (`edl.cli`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from edl.cluster.queue import job_view
from edl.cluster.queue.job_view import JobShown, shown
from edl.cluster.queue.submission import JobWish, check_fits, submission
from edl.config import Settings
from edl.errors import UsageError
from edl.scheduler.cluster_client import PATIENCE_S, ClusterClient, ClusterStatus, opened
from edl.scheduler.cluster_home import ClusterHome
from edl.scheduler.worker_logs import LogPiece, LogPlace, Printed, marked_lines

LOOK_S = 0.2

Write = Callable[[str], object]


class ReachedCluster(Protocol):
    """Port to a cluster. Every call raises EdlError. Ctrl-C ends a call that waits."""

    def settings_for(self, settings: Settings, /) -> Settings:
        """Return the settings by which the cluster's jobs are asked directly. Raises UsageError where they cannot be,
        from here.
        """

    def submit(self, wish: JobWish) -> None: ...

    def jobs(self) -> tuple[JobShown, ...]: ...

    def job(self, name: str) -> JobShown: ...

    def cancel(self, name: str) -> JobShown:
        """Cancel a job; return the job as it was before."""

    def scale(self, name: str, np: int | None) -> None: ...

    def wait(self, name: str, timeout_s: float | None, seen: Callable[[JobShown], object]) -> JobShown: ...

    def logs(self, name: str, worker: str | None, write: Write, *, follow: bool) -> None: ...

    def status(self) -> ClusterStatus: ...

    def accounts(self) -> job_view.Accounts: ...


class ClusterHere:
    """The cluster of this machine and EDL_HOME."""

    def __init__(self, home: ClusterHome, heed: Callable[[], None]) -> None:
        """`heed`: makes Ctrl-C cancel the task that runs it."""
        self._home, self._heed = home, heed

    def settings_for(self, settings: Settings) -> Settings:
        coordinator = self._home.config().coordinator
        return msgspec.structs.replace(settings, coordinator=coordinator, secret_file=self._home.secret)

    def submit(self, wish: JobWish) -> None:
        asyncio.run(self._submit(wish))

    async def _submit(self, wish: JobWish) -> None:
        assert wish.user is not None
        asked = submission(wish, wish.user, time.time())
        async with opened(self._home, connect_timeout_s=PATIENCE_S) as client:
            check_fits(asked, [len(node.devices) for node in client.config.nodes], flags=True)
            await client.submit(asked, wish.environ)

    def jobs(self) -> tuple[JobShown, ...]:
        async def read() -> tuple[JobShown, ...]:
            async with opened(self._home) as client:
                return tuple(shown(job, time.time()) for job in await client.queue.jobs())

        return asyncio.run(read())

    def job(self, name: str) -> JobShown:
        return asyncio.run(self._with(lambda client: _shown(client, name)))

    def cancel(self, name: str) -> JobShown:
        async def cancel(client: ClusterClient) -> JobShown:
            job = await _shown(client, name)
            if not job.over:
                await client.queue.cancel(name)
            return job

        return asyncio.run(self._with(cancel))

    def scale(self, name: str, np: int | None) -> None:
        async def scale(client: ClusterClient) -> JobShown:
            job = await _shown(client, name)
            await client.scale(job, np)
            return job

        asyncio.run(self._with(scale))

    async def _with(self, act: Callable[[ClusterClient], object]) -> JobShown:
        async with opened(self._home, connect_timeout_s=PATIENCE_S) as client:
            found = await act(client)  # type: ignore[misc]
            assert isinstance(found, JobShown)
            return found

    def wait(self, name: str, timeout_s: float | None, seen: Callable[[JobShown], object]) -> JobShown:
        async def wait() -> JobShown:
            self._heed()
            async with opened(self._home, connect_timeout_s=PATIENCE_S) as client:
                return shown(await client.wait(name, timeout_s, lambda job: seen(shown(job, time.time()))), time.time())

        return asyncio.run(wait())

    def logs(self, name: str, worker: str | None, write: Write, *, follow: bool) -> None:
        asyncio.run(self._logs(name, Printed(self._home.job_logs(name), worker), write, follow=follow))

    async def _logs(self, name: str, printed: Printed, write: Write, *, follow: bool) -> None:
        self._heed()
        if not follow and printed.workers():
            show_pieces(printed, write, final=True)
            return
        async with opened(self._home, connect_timeout_s=PATIENCE_S) as client:
            await client.job(name)
            over = False
            while not over:
                over = not follow or await _is_over(client, name)
                show_pieces(printed, write, final=over)
                if not over:
                    await asyncio.sleep(LOOK_S)
        if printed.worker is not None and not printed.workers():
            raise UsageError(printed.lacking(name))

    def status(self) -> ClusterStatus:
        async def read() -> ClusterStatus:
            async with opened(self._home) as client:
                return await client.status()

        return asyncio.run(read())

    def accounts(self) -> job_view.Accounts:
        async def read() -> job_view.Accounts:
            async with opened(self._home) as client:
                return job_view.accounts_of(await client.queue.jobs(), time.time())

        return asyncio.run(read())


def show_pieces(printed: Printed, write: Write, *, final: bool) -> None:
    several = printed.worker is None and len(printed.workers()) > 1
    before = LogPiece("", "\n", LogPlace())
    for piece in printed.news(final=final):
        if final and piece.worker != before.worker and not before.text.endswith("\n"):
            write("\n")
        write(marked_lines(piece) if several else piece.text)
        before = piece
    if final and not before.text.endswith("\n"):
        write("\n")


async def _shown(client: ClusterClient, name: str) -> JobShown:
    return shown(await client.job(name), time.time())


async def _is_over(client: ClusterClient, name: str) -> bool:
    found = await client.job(name)
    return found.over and not found.workers
