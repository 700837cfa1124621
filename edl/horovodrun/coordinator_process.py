"""The coordinator of a job that horovodrun has started and for which none was named.

It is a process of its own on the first worker's host, and belongs to no worker: it outlives horovodrun and the worker
that started it, and ends when the job is over or when no worker of the job is left. It keeps the job's record there, so
that `edl status`, `edl scale` and the other commands find the job by its name.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import edl
from edl.clock import SystemClock
from edl.config import Settings
from edl.config.settings import check_home
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.store import Store, connect
from edl.errors import ConfigError, EdlError
from edl.host.host_processes import process_start_time, spawn_daemon
from edl.host.network import address_of
from edl.launch.job_coordinator import launched_coordinator
from edl.launch.job_records import OVER, Folder, LaunchRecord, claim, launch_record
from edl.launch.status_poller import JobWatch
from edl.launch.supervisor import JobSeen
from edl.outside.job_client import JobClient
from edl.protocol import node_paths

START_S = 90.0
LOOK_S = 0.05
PERIOD_S = 1.0
FIRST_S = 600.0  # until the first worker comes: scripts may import for long
NOBODY_S = 60.0  # without a worker of the job on any host
LINGER_S = 5.0  # after the end of the job and of its workers, for the last requests of stand-ins and people


async def start_keeper(settings: Settings, interface: str, command: Sequence[str]) -> str:
    """Start a coordinator process that outlives this one; return its address. Raises ConfigError with its last line."""
    claimed = msgspec.structs.replace(settings, slot=None, worker_id=None)
    log = _log(settings)
    before = Folder(settings.job_home).read()
    if before is not None and before.alive:
        raise ConfigError(f"job {settings.job} is running here already: choose another EDL_JOB, or `edl stop` that one")
    paths = [str(Path(edl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, **claimed.to_environment(), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    argv = [sys.executable, "-P", "-m", "edl.horovodrun.coordinator_process", "--interface", interface, "--", *command]
    pid = spawn_daemon(argv, environ, log)
    started, deadline = process_start_time(pid), asyncio.get_running_loop().time() + START_S
    while asyncio.get_running_loop().time() < deadline:
        record = Folder(settings.job_home).read()
        if record is not None and record.launcher_pid == pid and record.coordinator:
            return record.coordinator
        if process_start_time(pid) != started:
            break
        await asyncio.sleep(LOOK_S)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    words = lines[-1].removeprefix("edl: ") if lines else "it ended without a word"
    raise ConfigError(f"the job's coordinator does not start: {words} (log: {log})")


def _say(line: str) -> None:
    """Write a line to the process's log, as it has no terminal."""
    sys.stderr.write(f"edl: {line}\n")


def _log(settings: Settings) -> Path:
    """Return the log's path, beside the job's folder: the process that claims the name makes that folder anew."""
    check_home(settings.home)
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return settings.home / f"keeper-{settings.job}.log"


class CoordinatorProcess:
    """The coordinator and the record of one job."""

    def __init__(self, settings: Settings, record: LaunchRecord) -> None:
        self._settings = settings
        self._record = record
        self._folder = Folder(settings.job_home)
        self._clock = SystemClock()
        self._stopped = asyncio.Event()

    async def run(self, address: str) -> None:
        """Serve until the job is over, or no worker of it is left. Raises ConfigError if it cannot begin."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, self._stopped.set)
        claim(self._settings.home, self._record)
        state, reason = "failed", "its coordinator ended"
        try:
            given = self._settings.secret_file is not None
            self._folder.write_secret(self._settings.secret() if given else secrets.token_hex(32).encode())
            self._settings = msgspec.structs.replace(self._settings, secret_file=self._folder.secret)
            async with launched_coordinator(self._settings, self._folder, address) as coordinator:
                self._write(coordinator=coordinator.hosts)
                state, reason = await self._keep(coordinator)
        finally:
            self._write(state=state, reason=reason, ended=self._clock.wall())

    async def _keep(self, coordinator: Coordinator) -> tuple[str, str]:
        """Watch the job; return how it ended, and why."""
        store = await connect(coordinator, self._settings.session_timeout_s)
        try:
            async with JobClient(coordinator, self._record.job, self._settings.secret()) as client:
                watch = JobWatch(client, self._folder, self._seen, _say)
                watching = asyncio.create_task(watch.run())
                try:
                    return await self._until_over(store, watch)
                finally:
                    watching.cancel()
                    await asyncio.wait({watching})
        finally:
            await store.close()

    async def _until_over(self, store: Store, watch: JobWatch) -> tuple[str, str]:
        seen, patience_s = self._clock.now(), FIRST_S
        while not watch.over:
            if await self._is_stopped(PERIOD_S):
                return "failed", "its coordinator was told to end"
            with contextlib.suppress(EdlError):
                if await store.children(node_paths.workers(self._record.job)):
                    seen, patience_s = self._clock.now(), NOBODY_S
            if self._clock.now() - seen > patience_s:
                return "failed", "none of its workers is left"
        status = watch.status
        assert status is not None
        await self._until_left(store)
        await self._is_stopped(LINGER_S)
        return status.state.value, status.reason

    async def _until_left(self, store: Store) -> None:
        # A trainer may take long to end on a busy machine, and only then its stand-in asks how the job ended.
        deadline = self._clock.now() + NOBODY_S
        while self._clock.now() < deadline and not await self._is_stopped(PERIOD_S):
            with contextlib.suppress(EdlError):
                if not await store.children(node_paths.workers(self._record.job)):
                    return

    async def _is_stopped(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._stopped.wait()
        return self._stopped.is_set()

    def _seen(self, job: JobSeen) -> None:
        if job.state not in {*OVER, self._record.state}:
            self._write(state=job.state)

    def _write(self, **changes: Any) -> None:
        self._record = msgspec.structs.replace(self._record, **changes)
        self._folder.write(self._record)


async def keep(settings: Settings, interface: str, command: Sequence[str]) -> None:
    """See `CoordinatorProcess.run`."""
    record = msgspec.structs.replace(launch_record(settings, command), launcher="horovodrun")
    await CoordinatorProcess(settings, record).run(address_of(interface))


def main() -> int:
    """Entry point of `python -m edl.horovodrun.coordinator_process`."""
    parser = argparse.ArgumentParser(
        prog="edl.horovodrun.coordinator_process", description="A job's coordinator; edl starts it."
    )
    parser.add_argument("--interface", required=True)
    parser.add_argument("command", nargs="*")
    arguments = parser.parse_args()
    try:
        asyncio.run(keep(Settings.from_given({}, os.environ), arguments.interface, arguments.command))
    except EdlError as error:
        sys.stderr.write(f"edl: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
