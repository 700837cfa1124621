"""Watch the other daemons of a job on this host, its siblings.

If trainer and daemon of a worker are killed at once, no process is left to report it, and its session would end long
after. Owns: the observations of the siblings' processes, and that a dead one is no candidate in an election. Does not
own: the consequences of a worker's death (`edl.core.job.leader_machine`), nor a worker whose host is gone (its session
tells).

The observations are sure: a process counts as dead only if it was there, with that pid and begun at that moment, when
this daemon looked first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from edl.coordination.election import strike_off
from edl.coordination.store import Store
from edl.errors import StoreUnavailable
from edl.host.host_processes import is_ending, process_start_time, watch_exit

logger = logging.getLogger("edl")

RETRY_S = 0.1


class Process(msgspec.Struct, frozen=True):
    """The identity of a process, which no later process shares."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return None if no process has this pid now."""
        started = process_start_time(pid)
        return None if started is None else cls(pid, started)


class HostProcesses(msgspec.Struct, frozen=True):
    """The entry of a daemon for its siblings."""

    candidate: str  # its identity as a candidate for election
    daemon: Process
    trainer: Process


class _Followed:
    """The watch of one sibling, while it is listed."""

    def __init__(self, kin: HostProcesses, on_daemons_end: Callable[[], None], on_end: Callable[[], None]) -> None:
        self.kin = kin
        self.striking_off: asyncio.Task[None] | None = None
        self._living = {kin.daemon, kin.trainer}
        self._on_daemons_end, self._on_end = on_daemons_end, on_end
        self._watches = [
            watch_exit(process.pid, partial(self._ended, process), started=process.started)
            for process in (kin.daemon, kin.trainer)
        ]

    @property
    def is_dead(self) -> bool:
        return not self._living

    def _ended(self, process: Process, _: int) -> None:
        if process not in self._living:
            return
        self._living.discard(process)
        if process == self.kin.daemon:
            self._on_daemons_end()
            if self.kin.trainer in self._living and is_ending(self.kin.trainer.pid):
                # it was killed with its daemon; freeing its memory takes a while
                self._living.discard(self.kin.trainer)
        if self.is_dead:
            self._on_end()

    def close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        if self.striking_off is not None:
            self.striking_off.cancel()


class HostWatch:
    def __init__(self, store: Store, root: str, folder: str, worker: str, tell: Callable[[], None]) -> None:
        """`folder`: the list of this host's workers, of which `worker` is this one. `tell` is called when `dead` may
        have changed.
        """
        self._store = store
        self._root = root
        self._folder = folder
        self._worker = worker
        self._tell = tell
        self._followed: dict[str, _Followed] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def dead(self) -> tuple[str, ...]:
        """The workers of which neither process lives, until their sessions end."""
        return tuple(sorted(worker for worker, one in self._followed.items() if one.is_dead))

    def start(self) -> None:
        self._running = asyncio.ensure_future(self._run())
        self._running.add_done_callback(_tell_of_crash)

    async def stop(self) -> None:
        """`tell` is not called after this."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        for one in self._followed.values():
            one.close()

    async def _run(self) -> None:
        changed = asyncio.Event()
        changed.set()
        watch = self._store.watch(self._folder, changed.set)
        try:
            while True:
                await changed.wait()
                changed.clear()
                try:
                    await self._look()
                except StoreUnavailable:
                    await asyncio.sleep(RETRY_S)
                    changed.set()
        finally:
            watch.close()

    async def _look(self) -> None:
        listed = {worker: await self._read(worker) for worker in await self._store.children(self._folder)}
        for worker in [worker for worker, one in self._followed.items() if listed.get(worker) != one.kin]:
            self._followed.pop(worker).close()
            self._tell()
        for worker, kin in listed.items():
            if kin is not None and worker not in (*self._followed, self._worker) and _is_seen(kin):
                self._follow(worker, kin)

    async def _read(self, worker: str) -> HostProcesses | None:
        node = await self._store.read(f"{self._folder}/{worker}")
        try:
            return None if node is None else msgspec.json.decode(node.value, type=HostProcesses)
        except msgspec.DecodeError:  # of another version of edl: its session tells of its end
            logger.debug("no process of worker %s is known here", worker)
            return None

    def _follow(self, worker: str, kin: HostProcesses) -> None:
        def strike_off_the_dead() -> None:
            followed.striking_off = asyncio.ensure_future(self._strike_off(worker, kin))

        followed = self._followed[worker] = _Followed(kin, strike_off_the_dead, self._tell)

    async def _strike_off(self, worker: str, kin: HostProcesses) -> None:
        """Remove a dead daemon from the election, so that the next leader comes at once, also if its trainer starts
        another daemon.

        A daemon that has ended well has closed its session before: then there is nothing to look for among all
        candidates.
        """
        while True:
            try:
                if await self._read(worker) == kin and await strike_off(self._store, self._root, kin.candidate):
                    logger.info("the daemon of worker %s is dead: it stands in no election any more", worker)
                return
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)


def _tell_of_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("siblings are not looked after any more: their sessions tell", exc_info=error)


def _is_seen(kin: HostProcesses) -> bool:
    return all(process_start_time(process.pid) == process.started for process in (kin.daemon, kin.trainer))
