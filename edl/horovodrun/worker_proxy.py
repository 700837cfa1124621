"""The process that horovodrun's driver takes for a worker.

Owns: the trainer's process, its output to horovodrun, and to a file once horovodrun is gone, the conversation with the
driver, and its own exit status. Does not own: the decisions (`edl.horovodrun.proxy_machine`), nor the worker's part in
the job (its daemon's).

Everything runs in the main thread's loop: the kernel ties a trainer's life to the thread that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from edl.clock import SystemClock
from edl.config import Settings
from edl.errors import EdlError, PeerError
from edl.horovodrun.driver_requests import Driver, HostUpdates
from edl.horovodrun.find_coordinator import Launcher, WayToMeeting
from edl.horovodrun.proxy_machine import (
    DriverGone,
    EndAsked,
    EndTrainer,
    Freed,
    Happening,
    JobAtEnd,
    JobUnknown,
    ProxyMachine,
    Say,
    StartTrainer,
    TrainerEnded,
)
from edl.host import horovodrun_env
from edl.host.credentials import coordinator_of
from edl.host.host_processes import watch_exit
from edl.host.network import address_of
from edl.launch.job_records import OVER
from edl.launch.worker_output import LinePrefixer, LineTarget, Printer, Sink, ToldOnce, forward_file
from edl.protocol.leader_messages import Ask, Word
from edl.protocol.record import Status, WorkerState
from edl.transport.pipe import Connection, PipeServer


class TrainerOutput(Sink):
    """A sink that outlives its reader."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.spare: Path | None = None

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.broken and self.spare is not None:
            self.spare.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.spare, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self.reopen(file)
            self.spare = None
            super().write(data)


class OutputReader:
    """Call `lost` once, on the running loop, when all of `descriptors` that are pipes have lost their readers.

    On a remote host nothing else tells of the end of the ssh by which horovodrun has started this process: neither
    killing horovodrun nor Ctrl-C sends a signal there, and sshd only closes the pipes.
    """

    def __init__(self, descriptors: Sequence[int], lost: Callable[[], object]) -> None:
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._heard = {descriptor for descriptor in descriptors if stat.S_ISFIFO(os.fstat(descriptor).st_mode)}
        for descriptor in self._heard:
            # an error is all that a writing end can report
            self._loop.add_reader(descriptor, self._on_error, descriptor)

    def stop(self) -> None:
        """Stop the calls. Harmless twice."""
        for descriptor in self._heard:
            self._loop.remove_reader(descriptor)
        self._heard = set()

    def _on_error(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._heard.discard(descriptor)
        if not self._heard:
            self._lost()


DOUBT_S = 0.5  # after a SIGTERM: whether the driver that sent it is about to die
LOOK_S = 1.0
PRINT_S = 2.0
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM", "--")


class WorkerProxy:
    """The stand-in of one slot of the driver. `run` returns the exit status."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv
        self._about = horovodrun_env.of(os.environ)
        self._settings = Settings.from_given({}, os.environ)
        self._clock = SystemClock()
        self._post = ProxyMachine(self._settings.max_restarts)
        self._inbox: asyncio.Queue[Happening] = asyncio.Queue()
        self._driver = Driver(self._about.driver, self._about.port)
        self._notices = HostUpdates(self._on_notice)
        self._word = Word(size=self._about.size, slots=self._about.slots)
        self._asked = 0
        self._asking: asyncio.Task[None] | None = None
        self._daemons: set[Connection] = set()
        self._printer = Printer()
        self._trainer = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, trainer: int, tell: int, outputs: Sequence[IO[bytes]]) -> int:
        """Serve until the stand-in may end. `trainer` waits at the other end of `tell` for its environment, and prints
        into `outputs`.
        """
        folder = Path(tempfile.mkdtemp(prefix="edl-stand-in-"))
        launcher = Launcher.of_this_process()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_sigterm, launcher)
        self._outlets = [TrainerOutput(1), TrainerOutput(2)]
        self._adopt(trainer, outputs, lambda: os.waitstatus_to_exitcode(os.waitpid(trainer, 0)[1]))
        meeting = WayToMeeting(self._about, self._settings, self._driver, folder)
        server = PipeServer(folder / "socket", Ask, self._on_message, self._daemons.discard)
        hearing: OutputReader | None = None
        try:
            try:
                environment = await self._prepare(meeting, server, folder)
            except EdlError as error:
                _answer(tell, error=str(error))
                return await self._last_status()
            _answer(tell, environment=environment)
            self._meeting, self._environment = meeting, environment
            launcher.watch(lambda: self._inbox.put_nowait(DriverGone()))
            if not launcher.is_here:
                hearing = OutputReader((1, 2), lambda: self._spawn(self._find_out()))
            return await self._serve()
        finally:
            if hearing is not None:
                hearing.stop()
            self._notices.stop()
            await server.stop()
            await self._printer.close(PRINT_S)
            shutil.rmtree(folder, ignore_errors=True)

    # ---------------------------------------------------------------------------------------------------- beginning

    async def _prepare(self, meeting: WayToMeeting, server: PipeServer, folder: Path) -> dict[str, str]:
        """Join the rendezvous; return the variables that the trainer needs. Raises EdlError."""
        # If the job has a coordinator of its own, credentials in the environment belong to another one.
        own = self._settings.coordinator is None
        foreign = {name: "" for name in os.environ if own and name.startswith("EDL_COORDINATOR_")}
        os.environ.update(foreign)
        settings = await meeting.attend(list(self._argv), self._printer.say)
        self._asked = meeting.recounts
        await server.start()
        if self._about.elastic:
            address = address_of(self._about.interface)
            port = await self._notices.start(address)
            await self._driver.announce(self._about.name, self._about.interface, address, port, self._notices.key)
        self._settings = settings = msgspec.structs.replace(
            settings,
            np=self._about.size if self._settings.np == 1 else self._settings.np,
            network_interface=settings.network_interface or self._about.interface,
            stand_in=folder / "socket",
            driver_slot=self._about.name if self._about.elastic else None,
        )
        for outlet, name in zip(self._outlets, ("out", "err"), strict=True):
            outlet.spare = settings.job_home / "logs" / f"{self._about.host}.{self._about.slot}.{name}"
        return {**foreign, **settings.to_environment()}

    async def _last_status(self) -> int:
        """Wait for the trainer's end, and return its exit status; nothing else is left to do."""
        while True:
            happened = await self._inbox.get()
            if isinstance(happened, TrainerEnded):
                await self._printed()
                return happened.status if happened.status >= 0 else 128 - happened.status

    # ---------------------------------------------------------------------------------------------------- the trainer

    def _adopt(self, pid: int, outputs: Sequence[IO[bytes]], status: Callable[[], int]) -> None:
        self._trainer = pid
        self._forwards = [
            asyncio.create_task(
                forward_file(stream, LinePrefixer(""), self._printer, LineTarget(outlet, (), ToldOnce()))
            )
            for stream, outlet in zip(outputs, self._outlets, strict=True)
        ]
        watch_exit(pid, lambda _: self._inbox.put_nowait(TrainerEnded(status())))

    def _start_trainer(self) -> None:
        """Run the user's command again, from its beginning: it joins the job as a new worker."""
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, sys.executable, *self._argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self._environment},
        )
        assert process.stdout is not None and process.stderr is not None
        self._adopt(process.pid, (process.stdout, process.stderr), process.wait)

    def _end_trainer(self) -> None:
        """Ask the trainer's daemon to leave the job; before there is a daemon, end the trainer at once."""
        if self._daemons:
            self._tell(leave=True)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._trainer, signal.SIGTERM)

    async def _printed(self) -> None:
        """Wait until the trainer's output has ended."""
        # Children of the trainer may hold the other end of the pipes after its end: the wait is bounded.
        _, late = await asyncio.wait(self._forwards, timeout=PRINT_S)
        for task in late:
            task.cancel()

    # ------------------------------------------------------------------------------------------------------ deciding

    async def _serve(self) -> int:
        while self._post.status is None:
            happened = await self._inbox.get()
            for command in self._post.handle(happened, self._clock.now()):
                match command:
                    case StartTrainer():
                        self._start_trainer()
                    case EndTrainer():
                        self._end_trainer()
                    case Say(line):
                        self._printer.say(line)
            if isinstance(happened, TrainerEnded):
                await self._printed()
                self._spawn(self._look())
        # if this ended in between, it would be counted twice, and the driver would never end
        if self._asking is not None:
            await asyncio.wait({self._asking})
        return self._post.status

    async def _look(self) -> None:
        """Read the job's status, while that decides what follows for this slot."""
        from edl.outside.job_client import JobClient  # half a second of imports, for the end only

        settings = self._settings
        coordinator = coordinator_of(settings)  # authorized as the daemons are
        assert coordinator is not None
        while self._post.looks:
            try:
                async with JobClient(coordinator, settings.job or "", settings.secret()) as client:
                    while self._post.looks:
                        status = await client.status()
                        self._ask(status.recounts)
                        self._inbox.put_nowait(self._seen(status))
                        await asyncio.sleep(LOOK_S)
            except EdlError:
                self._inbox.put_nowait(JobUnknown())
                await asyncio.sleep(LOOK_S)

    def _seen(self, status: Status) -> JobAtEnd:
        state, ours = status.state.value, (socket.gethostname(), self._trainer)
        done = any((one.host, one.pid) == ours and one.state is WorkerState.DONE for one in status.workers)
        return JobAtEnd(
            state in OVER,
            state == "finished",
            status.reason,
            done,
            status.spent,
            going=state == "preempting",
            resumable=state == "preempted",
        )

    def _spawn(self, action: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------------------------------------------- the driver

    def _on_notice(self) -> None:
        self._tell(noticed=self._clock.wall())

    def _ask(self, recount: int) -> None:
        """Ask the driver for this slot's rank, once for each recount: a stand-in that asks twice is counted twice."""
        if recount <= self._asked or self._word.freed:
            return
        # a recount is over without this slot: this host was cut off, and the slot is another's by now
        if recount > self._asked + 1:
            self._inbox.put_nowait(EndAsked())
            return
        self._asked = recount
        if self._asking is None:  # else this recount answers the question that was asked before
            self._asking = asyncio.create_task(self._hear_rank())

    async def _hear_rank(self) -> None:
        try:
            count = await self._driver.ask(self._about.name)
            await self._meeting.renew(self._asked)
        except PeerError:  # the driver is gone; others tell whether the job is over
            self._asking = None
            self._tell(answered=self._asked)
            return
        self._asking = None
        self._tell(answered=self._asked, freed=count.rank < 0, size=count.size, slots=count.slots)
        if count.rank < 0:
            self._inbox.put_nowait(Freed())

    def _tell(self, **changes: object) -> None:
        self._word = msgspec.structs.replace(self._word, **changes)
        for daemon in self._daemons:
            daemon.send(self._word)

    def _on_message(self, daemon: Connection, message: Ask) -> None:
        if daemon not in self._daemons:
            self._daemons.add(daemon)
            daemon.send(self._word)
        self._ask(message.recount)

    def _on_sigterm(self, launcher: Launcher) -> None:
        self._spawn(self._judge(launcher))

    async def _judge(self, launcher: Launcher) -> None:
        """Act on a SIGTERM unless the driver is about to die: a driver that dies ends its processes, too."""
        await asyncio.sleep(DOUBT_S)
        if not launcher.gone:
            self._inbox.put_nowait(EndAsked())

    async def _find_out(self) -> None:
        """Find out whether the driver lives, now that the ssh that has started this process is gone."""
        while True:
            try:
                there = await self._driver.is_there()
            except PeerError:  # this host is cut off
                await asyncio.sleep(LOOK_S)
                continue
            # A driver that lives takes this worker for dead.
            self._inbox.put_nowait(EndAsked() if there else DriverGone())
            return


def _answer(tell: int, **answer: object) -> None:
    with os.fdopen(tell, "wb") as pipe, contextlib.suppress(BrokenPipeError):
        pipe.write(json.dumps(answer).encode())


async def _main(trainer: int, tell: int, outputs: Sequence[IO[bytes]], argv: Sequence[str]) -> int:
    return await WorkerProxy(argv).run(trainer, tell, outputs)


def main(arguments: Sequence[str]) -> int:
    """Entry point of `python -m edl.horovodrun`, which a process that forks its stand-in becomes."""
    trainer, tell, *outputs = (int(number) for number in arguments[:4])
    for descriptor in (tell, *outputs):
        os.set_inheritable(descriptor, False)
    streams = [os.fdopen(descriptor, "rb", buffering=0) for descriptor in outputs]
    return asyncio.run(_main(trainer, tell, streams, arguments[5:]))
