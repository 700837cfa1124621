"""The rendezvous of a job's workers without configuration: in the store of horovodrun's own server.

One stand-in writes the job's name and coordinator there, and all others read it: a stand-in on the driver's own host if
there is any, since the job depends on that host already, else that of the first worker. The driver empties the store at
each recount, so each stand-in that has asked the driver writes the entry again.

The store is open to all that reach its port. So the job's secret goes into it only if the job may span hosts and no
file with a secret was given (docs/security.md).

The stand-in that begins the job also chooses, once for all, the checkpoint that this life resumes from.

The processes above a stand-in are horovodrun's driver, and one between that carries out its orders.
Horovod starts each local worker below a process of its own, the leader of a session, which ends all processes below it
as soon as the driver is gone. So when the driver was killed, that process is killed first: it waits five seconds
between asking and killing. On another host there is none: sshd leaves the processes that it has started alone.

Owns: the meeting, finding those processes, when a life begins here, and the messages about it. Does not own: the choice
of the checkpoint (`edl.checkpoints.resume_choice`), nor the nodes that an earlier life has left in a coordinator
(`edl.launch.job_coordinator`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from edl.config import Settings
from edl.errors import ConfigError, PeerError
from edl.horovodrun.coordinator_process import start_keeper
from edl.horovodrun.driver_requests import Driver
from edl.host.horovodrun_env import HorovodrunEnv
from edl.host.host_processes import ExitWatch, process_start_time, watch_exit
from edl.host.network import address_of
from edl.launch.job_records import Folder, find, new_name

MARK = b"multiprocessing"


class Launcher:
    """The known processes above this one; possibly none."""

    def __init__(self, middleman: int | None, driver: int | None) -> None:
        self._middleman, self._driver = middleman, driver
        self._started = None if middleman is None else process_start_time(middleman)
        self._watch: ExitWatch | None = None
        self.gone = False

    @classmethod
    def of_this_process(cls) -> Launcher:
        above, middleman = _ancestors(os.getpid()), os.getsid(0)
        if middleman not in above or MARK not in _command(middleman):
            return cls(None, None)
        return cls(middleman, next(iter(_ancestors(middleman)), None))

    @property
    def is_here(self) -> bool:
        """Tell whether the driver is on this host, so that `watch` reports its end."""
        return self._driver is not None

    def watch(self, gone: Callable[[], object]) -> None:
        """Call `gone` when the driver has ended, after killing the process between, which would kill the workers."""
        if self._driver is not None:
            self._watch = watch_exit(self._driver, lambda _: self._on_gone(gone))

    def _on_gone(self, gone: Callable[[], object]) -> None:
        self.gone = True
        middleman = self._middleman
        if middleman is not None and process_start_time(middleman) == self._started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(middleman, signal.SIGKILL)
        gone()


def _ancestors(pid: int) -> list[int]:
    """Return the ancestors of a process, the nearest first."""
    found: list[int] = []
    while (pid := _parent(pid)) > 1:
        found.append(pid)
    return found


def _parent(pid: int) -> int:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(line[line.rindex(")") + 2 :].split()[1])


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class GoesOnFrom(msgspec.Struct, frozen=True):
    """The checkpoint that one life of a job resumes from."""

    life: int = 1  # number of the life
    path: str = ""  # of the checkpoint; empty: the job begins anew


async def name_of(settings: Settings) -> str | None:
    """Return the job's name: the given one, or that of the only job saved in the folder. Raises CheckpointError."""
    if settings.job is not None or not settings.checkpoint:
        return settings.job
    from edl.checkpoints.resume_choice import only_job  # here and below: imports for jobs that are saved only
    from edl.launch.job_run import in_a_thread

    return await in_a_thread(lambda: only_job(settings.checkpoint))


async def begin(settings: Settings, say: Callable[[str], object]) -> GoesOnFrom:
    """Begin a life of the job; return the checkpoint that it resumes from. Raises ConfigError, UsageError,
    CheckpointError.
    """
    job = settings.job
    if not settings.checkpoint or job is None:
        return GoesOnFrom()
    if settings.coordinator is not None:
        from edl.launch.job_coordinator import clear

        living = await clear(settings, say)
        if living is not None:  # begun by another command line, which these workers join
            return GoesOnFrom(path=living.resumed)
    from edl.checkpoints import resume_choice
    from edl.launch.job_run import in_a_thread

    found = await in_a_thread(lambda: resume_choice.to_go_on_from(settings.checkpoint, job, settings.resume))
    life = await in_a_thread(lambda: resume_choice.begin(settings.checkpoint, job, found))
    for line in resume_choice.words_of(job, found):
        say(line)
    return GoesOnFrom(life.number, "" if life.checkpoint is None else life.checkpoint.path)


SCOPE, KEY = "edl", "job"
AT_DRIVER, ELSEWHERE = b"at the driver", b"elsewhere"  # values under a rank's number: where that stand-in is
ALL_S = 120.0  # for all of the first workers to come; scripts may import for long
PATIENCE_S = 600.0  # as long as Horovod itself waits for slots
NOTE_S = 10.0
LOOK_S = 0.2


class MeetingPlace(msgspec.Struct, frozen=True):
    """The entry in the store: the job and its coordinator."""

    job: str
    coordinator: str
    host: str  # host of the coordinator's record
    secret: str = ""
    recounts: int = 0  # of the driver, so far: each stand-in that it starts takes part in all later ones
    beginning: GoesOnFrom = GoesOnFrom()  # the checkpoint that this life of the job resumes from


class WayToMeeting:
    """The way of one stand-in to the rendezvous."""

    def __init__(self, about: HorovodrunEnv, settings: Settings, driver: Driver, folder: Path) -> None:
        """`folder`: private, for a secret that came from another host."""
        self._about = about
        self._settings = settings
        self._driver = driver
        self._folder = folder
        self._place: MeetingPlace | None = None
        self._come = 0  # ranks that are known to have come, and are not at the driver

    async def attend(self, command: list[str], say: Callable[[str], object]) -> Settings:
        """Read the rendezvous entry, or write it. Raises ConfigError, PeerError."""
        place = await self._read()
        if place is None:
            mark = AT_DRIVER if self._is_at_driver() else ELSEWHERE
            await self._driver.put(SCOPE, str(self._about.rank), mark)
            place = await self._wait(command, say)
        self._place = place
        return self._completed(place)

    @property
    def recounts(self) -> int:
        """Return the number of recounts when this stand-in was started."""
        return self._place.recounts if self._place is not None else 0

    async def renew(self, recounts: int = 0) -> None:
        """Write the entry again after a recount, which empties the store. Raises PeerError."""
        if self._place is not None:
            there = await self._read()
            # A stand-in that asked too late for the recount before has a smaller number than the others: the largest
            # counts.
            largest = max(recounts, there.recounts if there is not None else 0)
            place = msgspec.structs.replace(self._place, recounts=largest)
            await self._driver.put(SCOPE, KEY, msgspec.json.encode(place))

    async def _read(self) -> MeetingPlace | None:
        value = await self._driver.get(SCOPE, KEY)
        try:
            return None if value is None else msgspec.json.decode(value, type=MeetingPlace)
        except msgspec.MsgspecError as error:
            raise PeerError(f"horovodrun's driver has something odd under /{SCOPE}/{KEY}: {error}") from None

    async def _wait(self, command: list[str], say: Callable[[str], object]) -> MeetingPlace:
        clock = asyncio.get_running_loop().time
        began, noted = clock(), False
        while (place := await self._read()) is None:
            if await self._is_founder(clock() - began):
                self._place = place = await self._found(command, say)
                await self.renew()
                return place
            if clock() - began > PATIENCE_S:
                raise ConfigError(f"no worker has begun the job within {PATIENCE_S:g} s")
            if clock() - began > NOTE_S and not noted:
                say("waiting for the worker that starts the job's coordinator")
                noted = True
            await asyncio.sleep(LOOK_S)
        return place

    def _is_at_driver(self) -> bool:
        return self._about.one_host or address_of(self._about.interface) == self._about.driver

    async def _is_founder(self, waited_s: float) -> bool:
        """Tell whether this stand-in begins the job."""
        # Rank 0, if it is not at the driver, first waits until all have come, as none of them may be at the driver.
        if self._is_at_driver() or self._about.rank:
            return self._is_at_driver() and self._about.slot == 0
        while self._come < self._about.size:
            mark = await self._driver.get(SCOPE, str(self._come))
            if mark is None:
                return waited_s > ALL_S
            if mark == AT_DRIVER:
                return False
            self._come += 1
        return True

    async def _found(self, command: list[str], say: Callable[[str], object]) -> MeetingPlace:
        """Begin the job, as one of its first workers."""
        settings, host = self._settings, socket.gethostname()
        job = await name_of(settings) or new_name(settings.home)
        settings = msgspec.structs.replace(settings, job=job, np=self._about.size)
        beginning = await begin(settings, say)
        if settings.coordinator is not None:
            return MeetingPlace(job, settings.coordinator, host, beginning=beginning)
        coordinator = await start_keeper(settings, self._about.interface, command)
        return MeetingPlace(job, coordinator, host, self._shown_secret(Folder(settings.job_home)), beginning=beginning)

    def _shown_secret(self, folder: Folder) -> str:
        if self._about.one_host or self._settings.secret_file is not None:
            return ""
        return folder.secret.read_text()

    def _completed(self, place: MeetingPlace) -> Settings:
        """Return the trainer's settings."""
        settings = msgspec.structs.replace(
            self._settings,
            job=place.job,
            coordinator=place.coordinator,
            life=place.beginning.life,
            resume_from=place.beginning.path,
        )
        if settings.secret_file is not None or self._settings.coordinator is not None:
            return settings
        folder = find(settings.home, place.job) if place.host == socket.gethostname() else None
        if folder is not None:
            return msgspec.structs.replace(settings, secret_file=folder.secret)
        if not place.secret:
            raise ConfigError(
                f"job {place.job} was begun on {place.host}, for workers of that host alone: start horovodrun with a "
                "--network-interface that its hosts reach each other by, or give all workers EDL_SECRET_FILE"
            )
        file = self._folder / "secret"
        with open(file, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as secret:
            secret.write(place.secret)
        return msgspec.structs.replace(settings, secret_file=file)
