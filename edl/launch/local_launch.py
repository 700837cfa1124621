"""A life of a job under `edl run`: the workers of one machine, from its coordinator to the last of its processes.

Owns: the order of starting and cleaning up, and carrying out what `Supervisor` decides. Does not own: those decisions,
the job's name and its other lives (`edl.launch.job_run`), nor how a worker joins its job (`edl.init()` in the user's
script does, told by EDL_ variables).

Everything runs in the main thread's event loop, also the starting of processes: the kernel ties a worker's life to
the thread that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edl.clock import SystemClock
from edl.config import Settings, scrubbed
from edl.errors import ConfigError, EdlError, JobFailed
from edl.host.host_processes import holding_mark, wait_exit
from edl.host.memory_folders import make_folder, sweep
from edl.host.visible_gpus import VISIBLE, choose_gpus, count_gpus, told_of, visible_gpus
from edl.launch.child_worker import LimbProcesses, Worker, WorkerProcess, WorkersTold, search_path, start_process
from edl.launch.forking import Forks
from edl.launch.job_coordinator import launched_coordinator
from edl.launch.job_processes import MARK, end_marked, wait_marked_gone
from edl.launch.job_records import OVER, Folder, LaunchRecord
from edl.launch.life_outcome import INTERRUPTED, NOT_BEGUN, LaunchVerdict
from edl.launch.status_poller import JobWatch
from edl.launch.supervisor import (
    RUNNING,
    TELL_GRACE_S,
    AskedToGo,
    AskForLastWord,
    Command,
    DeadlineReached,
    EndTimeouts,
    EndWorkers,
    Happening,
    Interrupted,
    JobSeen,
    JobSilent,
    JobTold,
    KillWorkers,
    LookAtJob,
    Looked,
    OwnChoice,
    PreemptJob,
    Stage,
    StartWorkers,
    StopJob,
    Supervisor,
    WorkerExited,
    WorkerStarted,
)
from edl.launch.worker_output import Printer, ToldOnce, WorkerNumbers, rank_folder
from edl.outside.job_client import PREEMPT_S, JobClient
from edl.protocol.assignment import AUTO, RingKind
from edl.protocol.record import Status

PATIENCE_S = 5.0  # for daemons to end after their trainers
PRINT_TIMEOUT_S = 2.0  # for output whose reader stalls, or whose writer has left its pipe to others
LAST_LOOK_S = 2.0
WITHOUT_HOROVOD = "Horovod is not installed: gradients are averaged by PyTorch's own process groups (--ring torch)"

T = TypeVar("T")


class InterruptedStart(Exception): ...


class Outcome(msgspec.Struct, frozen=True):
    """Result of one life."""

    verdict: LaunchVerdict
    status: Status | None = None  # of the job, as it was seen last
    restarts: int = 0  # that are left
    newest_step: int = 0  # of this life, that any worker was known to have made
    cause: str = ""  # how the first worker ended that was lost at last


class Launch:
    """A single life of a job under `edl run`. Use it once, in a running event loop of the main thread."""

    def __init__(
        self,
        settings: Settings,
        record: LaunchRecord,
        printer: Printer,
        policy: bytes | None = None,
        *,
        waits: bool = False,
        chosen: OwnChoice | None = None,
    ) -> None:
        """`record` has claimed the job's name. `policy`: source of the user's policy file. `waits`: no worker starts
        before the job moves to this machine. `chosen`: this line's choice of a checkpoint to resume from.
        """
        self._chosen = chosen
        self.record = record
        self._waits = waits
        self._policy = policy
        self._settings = settings
        self._folder = Folder(settings.job_home)
        self._clock = SystemClock()
        self._inbox: asyncio.Queue[Happening] = asyncio.Queue()
        self._interrupted = asyncio.Event()
        self._to_go = False  # the machine is to be left, and the job is saved
        self._hurry = threading.Event()  # a second signal, or nothing to be patient for
        self._printer = printer
        self._workers: list[Worker | LimbProcesses] = []
        self._meetings: Path | None = None  # folder where processes of one worker find each other
        self._visible = visible_gpus(os.environ, count_gpus())
        self._gpus: dict[int, tuple[str, ...]] = {}  # of each worker of several processes that runs, by slot
        self._told = WorkersTold(WorkerNumbers(), ToldOnce())
        self._job: JobClient | None = None
        self._watch: JobWatch | None = None
        self._following: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._last_word: asyncio.Task[None] | None = None
        self._ending_job: asyncio.Task[None] | None = None
        self._going: asyncio.Task[None] | None = None
        self._announced = self._compared = False
        self._waited = False  # for the daemons to end
        self._restarts = settings.max_restarts
        self._forks = Forks(record.command, self._folder.logs / "warm.log", self._tell_warm, settings.warm_starts)

    async def run(self) -> Outcome:
        """Run this life to its end, and leave no process behind. Raises ConfigError if it cannot begin."""
        try:
            async with AsyncExitStack() as stack:
                try:
                    await self._start(stack)
                    verdict = await self._supervise()
                finally:
                    await self._clean_up()
        except InterruptedStart:
            verdict = NOT_BEGUN if self._to_go else INTERRUPTED
        if self._watch is None:
            return Outcome(verdict, restarts=self._restarts)
        seen = self._watch
        return Outcome(verdict, seen.status, self._restarts, seen.newest_step, seen.cause)

    def ask_to_go(self) -> None:
        """Save the job and end it, as this machine is to be left."""
        self._to_go = True
        self._inbox.put_nowait(AskedToGo())
        if self._job is None:
            self._interrupted.set()

    def interrupt(self) -> None:
        """Interrupt the job; a second call hurries."""
        if self._interrupted.is_set():
            self._hurry.set()
        self._interrupted.set()
        self._inbox.put_nowait(Interrupted())

    # ------------------------------------------------------------------------------------------------- starting

    async def _start(self, stack: AsyncExitStack) -> None:
        self._keep_secret()
        self._keep_policy()
        coordinator = await self._unless_interrupted(
            stack.enter_async_context(launched_coordinator(self._settings, self._folder, say=self._printer.say))
        )
        self._settings = msgspec.structs.replace(self._settings, coordinator=coordinator.hosts)
        self._write_record(coordinator=coordinator.hosts)
        client = JobClient(coordinator, self.record.job, self._settings.secret())
        job = await self._unless_interrupted(stack.enter_async_context(client))
        await self._unless_interrupted(self._check_joinable(job))
        for slot in range(0 if self._waits else self._settings.np):
            await self._unless_interrupted(asyncio.sleep(0))
            self._start_worker(slot)
        if self._waits:
            self._printer.say(
                f"waiting for `edl migrate {self.record.job} --from HOST --to {socket.gethostname()}:SLOTS`"
            )
        self._job = job
        self._watch = JobWatch(job, self._folder, self._seen, tell=self._printer.say)
        self._following = asyncio.create_task(self._watch.run())

    async def _check_joinable(self, job: JobClient) -> None:
        # A coordinator that outlives its jobs remembers those that are over: none of our workers would be let in.
        try:
            state = (await job.status()).state.value
        except JobFailed:  # it knows no such job: we start it
            return
        if state in OVER:
            raise ConfigError(
                f"job {self.record.job} is over already ({state}) at {self._settings.coordinator}: "
                f"give this one another name by --job, or remove that one by `edl clean {self.record.job}`"
            )

    def _keep_secret(self) -> None:
        # The secret lies beside the record, where the other commands find it. In an outside coordinator the job may
        # have its own.
        if self._settings.secret_file is not None:
            self._folder.write_secret(self._settings.secret())
        elif self.record.own_coordinator:
            self._folder.write_secret(secrets.token_hex(32).encode())
        else:
            return
        self._settings = msgspec.structs.replace(self._settings, secret_file=self._folder.secret)

    def _keep_policy(self) -> None:
        # The policy is kept as it was when it was typed: later leaders run the same, even if the file changes.
        if self._policy is not None:
            self._folder.write_policy(self._policy)
        kept = self._folder.policy if self._policy is not None else None
        self._settings = msgspec.structs.replace(self._settings, policy_file=kept)

    async def _unless_interrupted(self, action: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(action)
        signalled = asyncio.create_task(self._interrupted.wait())
        await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if self._interrupted.is_set():
            task.cancel()
            await asyncio.wait({task})
            raise InterruptedStart
        return task.result()

    def _start_worker(self, slot: int) -> None:
        folder, environ = self._output_folder(slot), self._environ(slot)
        if self._settings.processes > 1:
            self._start_limbs(slot, environ, folder)
            return
        worker = Worker(slot, self._started(environ), self._printer, folder, self._told)
        worker.when_exited(lambda slot, code: self._exited(slot, [worker.pid], code))
        self._workers.append(worker)

    def _start_limbs(self, slot: int, environ: Mapping[str, str], folder: Path | None) -> None:
        """Start the processes of a worker, which find each other by a file in memory."""
        if self._meetings is None:
            self._meetings = make_folder()
        worker_id = f"w{secrets.token_hex(4)}"
        ours = {"EDL_WORKER_ID": worker_id, "EDL_MEETING": str(self._meetings / worker_id), **self._take_gpus(slot)}
        shared = {**environ, **ours}
        limbs = []
        for limb in range(self._settings.processes):
            process = self._started({**shared, "EDL_LIMB": str(limb)})
            within = folder if folder is None or not limb else _made(folder / f"limb.{limb}")
            limbs.append(Worker(slot, process, self._printer, within, self._told, limb))
        worker = LimbProcesses(limbs, holding_mark(self._meetings / worker_id))
        worker.when_exited(lambda slot, code: self._exited(slot, worker.pids, code))
        self._workers.append(worker)

    def _take_gpus(self, slot: int) -> dict[str, str]:
        """Give a worker GPUs of its own: its processes choose among them by LOCAL_RANK, their number within it."""
        taken, processes = list(self._gpus.values()), self._settings.processes
        if line := told_of(self._visible, processes, taken):
            self._printer.say(line)
        chosen = choose_gpus(self._visible, processes, taken)
        self._gpus[slot] = chosen
        return {VISIBLE: ",".join(chosen)} if chosen else {}

    def _started(self, environ: Mapping[str, str]) -> WorkerProcess:
        return self._forks.start(environ) or start_process(self.record.command, environ)

    def _exited(self, slot: int, pids: Sequence[int], code: int) -> None:
        for pid in pids:
            self._forks.ended(pid, code)
        self._gpus.pop(slot, None)
        self._inbox.put_nowait(WorkerExited(slot, code))

    def _environ(self, slot: int) -> dict[str, str]:
        settings = msgspec.structs.replace(
            self._settings,
            slot=slot,
            output_filename=None,
            tensorboard=None,
            zookeeper_port=None,
            local_coordinator=None,
        )
        ours = {MARK: self.record.mark, "PYTHONUNBUFFERED": "1"}  # unbuffered: a line shows when it is printed
        inherited = scrubbed(os.environ, credentials=self.record.own_coordinator)
        return {**inherited, **settings.to_environment(), **ours, "PATH": search_path(os.environ)}

    def _tell_warm(self, words: str) -> None:
        self._write_record(warm_starts=words)

    def _output_folder(self, slot: int) -> Path | None:
        if self._settings.output_filename is None:
            return None
        return _made(rank_folder(self._settings.output_filename, slot, self._settings.max_workers or self._settings.np))

    # ---------------------------------------------------------------------------------------------- supervising

    async def _supervise(self) -> LaunchVerdict:
        limits = EndTimeouts.of(self._settings.session_timeout_s, self._settings.step_timeout_s)
        started = {worker.slot: worker.pid for worker in self._workers}
        own, restarts = self.record.own_coordinator, self._restarts
        supervisor = Supervisor(started, limits, hosts=own, restarts=restarts, waits=self._waits, chosen=self._chosen)
        while supervisor.phase is not Stage.ENDED:
            happening = await self._next_happening(supervisor.deadline)
            for command in supervisor.handle(happening, self._clock.now()):
                self._carry_out(command)
            if not supervisor.starts_workers:
                self._forks.end()
            self._restarts = supervisor.restarts
        assert supervisor.verdict is not None
        return supervisor.verdict

    async def _next_happening(self, deadline: float | None) -> Happening:
        try:
            async with asyncio.timeout(None if deadline is None else deadline - self._clock.now()):
                return await self._inbox.get()
        except TimeoutError:
            return DeadlineReached()

    def _carry_out(self, command: Command) -> None:
        match command:
            case EndWorkers():
                self._signal_workers(signal.SIGTERM)
            case KillWorkers():
                self._signal_workers(signal.SIGKILL)
            case StartWorkers(number, replacing):
                if replacing:
                    self._printer.say(f"starting {replacing} more in place of what crashed")
                for _ in range(number):
                    self._start_worker(slot=len(self._workers) + self._waits)  # beyond -np: the job has asked for it
                    started = self._workers[-1]
                    self._inbox.put_nowait(WorkerStarted(started.slot, started.pid))
            case StopJob(reason, others):
                self._ending_job = asyncio.create_task(self._end_job(reason, others))
            case PreemptJob():
                self._going = asyncio.create_task(self._preempt())
            case LookAtJob():
                self._looking = asyncio.create_task(self._look())
            case AskForLastWord():
                self._last_word = asyncio.create_task(self._wait_last_word())

    def _signal_workers(self, signum: signal.Signals) -> None:
        for worker in self._workers:
            worker.signal(signum)

    async def _look(self) -> None:
        assert self._watch is not None
        await self._watch.look()
        self._inbox.put_nowait(Looked())

    async def _wait_last_word(self) -> None:
        # Daemons outlive their trainers a little, to say the last things to each other and to the coordinator.
        assert self._watch is not None
        if self._watch.heard:  # else there are no daemons, and what runs is the command's own
            await asyncio.to_thread(wait_marked_gone, self.record.mark, self._settings.session_timeout_s, self._hurry)
        self._waited = True
        await self._watch.look()
        self._inbox.put_nowait(JobSilent())

    async def _preempt(self) -> None:
        # A job that cannot be asked is interrupted.
        assert self._job is not None
        self._printer.say("the job is to go: it is saved once more; a second signal ends it at once")
        try:
            await self._job.preempt("`edl run` was asked to end", PREEMPT_S)
        except EdlError as error:
            self._printer.say(f"the job cannot be saved: {error}")
            self._inbox.put_nowait(Interrupted())

    async def _end_job(self, reason: str, others: frozenset[int]) -> None:
        # Workers that others started end with the job: without our coordinator they would wait for it for ever.
        assert self._job is not None
        limits = EndTimeouts.of(self._settings.session_timeout_s, self._settings.step_timeout_s)
        for_s = limits.settle_s if others else TELL_GRACE_S
        try:
            async with asyncio.timeout(for_s):
                with contextlib.suppress(JobFailed):  # it is over already
                    await self._job.stop(reason, timeout_s=for_s)
                self._inbox.put_nowait(JobTold())
                await asyncio.gather(*map(wait_exit, others))
        except (TimeoutError, EdlError):
            if others:
                left = ", ".join(map(str, sorted(others)))
                self._printer.say(f"workers that were started elsewhere may not have ended with the job: {left}")

    def _seen(self, job: JobSeen) -> None:
        self._inbox.put_nowait(job)
        ranks = {worker.slot: job.ranks[worker.pid] for worker in self._workers if worker.pid in job.ranks}
        numbers = self._told.numbers.rank(ranks)
        if job.state in RUNNING:
            seen = [pid for worker in self._workers if worker.pid in job.ranks for pid in worker.pids]
            self._forks.see(seen, self._next_environ)
        for worker in self._workers:
            if worker.slot in numbers:
                worker.take_number(numbers[worker.slot])
        if job.state != self.record.state and job.state not in OVER:
            self._write_record(state=job.state)
        if job.members and not self._compared:
            self._compared = True
            self._compare(job)
        if job.state == "running" and not self._announced:
            self._announced = True
            name = self.record.job
            self._printer.say(
                f"job {name} is running with {job.size} worker{'s' * (job.size != 1)}; see `edl status {name}`"
            )

    def _next_environ(self) -> dict[str, str]:
        return self._environ(len(self._workers) + self._waits)

    def _compare(self, job: JobSeen) -> None:
        # Compare the job with the announcement made before its first worker was there.
        if self._settings.ring == AUTO and job.ring == RingKind.TORCH:
            self._printer.say(WITHOUT_HOROVOD)
        if job.resumed and job.resumed != self._settings.resume_from:
            self._printer.say(
                f"job {self.record.job} goes on from step {job.base}, {job.resumed}, as another line has begun it so"
            )

    # ---------------------------------------------------------------------------------------------- cleaning up

    async def _clean_up(self) -> None:
        # The coordinator still lives. All waits are bounded: patience, TERM, KILL.
        self._forks.end()
        daemons = self._watch is not None and self._watch.heard and not self._waited
        patience_s = PATIENCE_S if daemons else 0.0
        left = await asyncio.to_thread(end_marked, self.record.mark, patience_s, self._hurry)
        if left:
            self._printer.say(f"these processes do not end, not even when killed: {', '.join(map(str, left))}")
        if self._ending_job is not None and not self._hurry.is_set():
            await self._ending_job
        if self._meetings is not None:
            shutil.rmtree(self._meetings, ignore_errors=True)
        sweep()  # of a worker whose trainer and daemon were killed together
        for worker in self._workers:
            await worker.wait_printed(PRINT_TIMEOUT_S)
        for task in (self._looking, self._last_word, self._following, self._ending_job, self._going):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._watch is not None and not self._watch.over:
            with contextlib.suppress(TimeoutError):  # the coordinator is gone: what was seen last has to do
                async with asyncio.timeout(LAST_LOOK_S):
                    await self._watch.look()

    def _write_record(self, **changes: Any) -> None:
        self.record = msgspec.structs.replace(self.record, **changes)
        self._folder.update(self.record)


def _made(folder: Path) -> Path:
    """Make a folder for what a worker prints. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output-filename: cannot make {folder}: {error.strerror}") from None
    return folder
