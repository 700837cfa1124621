"""`edl clean`: remove the nodes that finished jobs have left in a coordinator that outlives them."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from edl.cli import tables
from edl.cli.commands import seconds
from edl.clock import SystemClock
from edl.config import Settings
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.store import AccessDenied, Store, StoreRefused, connect
from edl.daemon import leftovers
from edl.daemon.leftovers import Leftovers, Standing
from edl.errors import ConfigError, NoSuchJob
from edl.host.credentials import coordinator_of
from edl.launch.job_coordinator import LOOK_AGAIN_S, opening
from edl.launch.job_records import find
from edl.protocol import node_paths


def clean(arguments: argparse.Namespace) -> int:
    settings = Settings.from_given(arguments.given, os.environ)
    older_s = seconds(arguments.older_than, "--older-than", or_none=True) or 0.0
    asyncio.run(_clean(_located(settings, arguments.job), older_s))
    return 0


class _Place(msgspec.Struct, frozen=True):
    """The coordinator to clean. `job` None: all jobs that are over."""

    settings: Settings
    coordinator: Coordinator
    job: str | None

    @asynccontextmanager
    async def opened(self, job: str) -> AsyncIterator[Store]:
        """Open a connection with the secret of `job`, if this machine has it on record."""
        coordinator = opening(self.settings, self.coordinator, job)
        store = await connect(coordinator, self.settings.session_timeout_s)
        try:
            yield store
        finally:
            await store.close()


def _located(settings: Settings, job: str | None) -> _Place:
    """Raises ConfigError."""
    coordinator = coordinator_of(settings)
    if coordinator is None and job is not None and (folder := find(settings.home, job)) is not None:
        record = folder.read()
        if record is not None and record.own_coordinator:
            raise ConfigError(f"job {job} had a coordinator of its own, which went with it: nothing is left to clean")
        if record is not None:
            coordinator = coordinator_of(msgspec.structs.replace(settings, coordinator=record.coordinator))
    if coordinator is None:
        raise ConfigError("which coordinator is to be cleaned? Name it by --coordinator HOST:PORT or EDL_COORDINATOR")
    return _Place(settings, coordinator, job)


async def _clean(place: _Place, older_s: float) -> None:
    if place.job is not None:
        await _clean_one(place, place.job, older_s)
        return
    async with AsyncExitStack() as stack:
        all_jobs = await connect(place.coordinator, place.settings.session_timeout_s)
        stack.push_async_callback(all_jobs.close)
        names = await leftovers.jobs(all_jobs)
    kept: list[str] = []
    closed: list[str] = []
    removed = 0
    for name in names:
        try:
            async with place.opened(name) as store:
                found = await leftovers.look(store, name)
                if found is None:
                    continue
                if found.verdict is Standing.OVER and SystemClock().wall() - found.newest >= older_s:
                    await _remove(store, found)
                    removed += 1
                elif found.verdict is not Standing.LIVING:
                    kept.append(name)
        except AccessDenied:
            closed.append(name)
    _tell(removed, kept, closed)


def _tell(removed: int, kept: Sequence[str], closed: Sequence[str]) -> None:
    if not removed:
        tables.say("nothing to remove")
    if kept:
        tables.say(
            f"kept: {', '.join(kept)} (over for less long, or without any worker and not over: name it to remove it)"
        )
    if closed:
        tables.say(f"closed to you: {', '.join(closed)}; EDL_SECRET_FILE or EDL_COORDINATOR_AUTH of the job opens it")


async def _clean_one(place: _Place, job: str, older_s: float) -> None:
    """Raises NoSuchJob, ConfigError."""
    async with place.opened(job) as store:
        found = await _look(store, place, job)
        if found.verdict is Standing.DESERTED:
            tables.say(f"job {job} is {found.state}, and no worker of it is there; looking again in {LOOK_AGAIN_S:g} s")
            await asyncio.sleep(LOOK_AGAIN_S)
            found = await _look(store, place, job)
        if found.verdict is Standing.LIVING:
            raise ConfigError(f"job {job} is {found.state}: end it first, by `edl stop {job}`")
        age_s = SystemClock().wall() - found.newest
        if age_s < older_s:
            tables.say(f"kept: job {job} has been over for {age_s:.0f} s only")
            return
        await _remove(store, found)


async def _look(store: Store, place: _Place, job: str) -> Leftovers:
    found = await leftovers.look(store, job)
    if found is None:
        left = await leftovers.jobs(store)
        there = f"; there are {', '.join(left)}" if left else ""
        raise NoSuchJob(f"there is no job {job} at {place.coordinator.hosts}{there}")
    return found


async def _remove(store: Store, found: Leftovers) -> None:
    try:
        await leftovers.remove(store, found.job)
    except StoreRefused:
        raise ConfigError(
            f"a worker has come to job {found.job} meanwhile ({node_paths.root(found.job)}): try again"
        ) from None
    tables.say(f"removed job {found.job} ({found.state})")
