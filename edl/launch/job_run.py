"""`edl run`: a job under its name on this machine, from its first life to its last.

Owns: the claim of the name, the signals, the order of lives, and what is said of each as it begins. Does not own: a
life (`edl.launch.local_launch`), whether another one follows (`edl.launch.life_outcome`), and which checkpoint it goes
on from (`edl.checkpoints.resume_choice`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from edl import facts
from edl.checkpoints.checkpoint_reader import Newest
from edl.checkpoints.resume_choice import begin, to_go_on_from, words_of
from edl.clock import SystemClock
from edl.config import Settings
from edl.errors import EdlError
from edl.events import Event
from edl.launch import export_process
from edl.launch.job_coordinator import clear
from edl.launch.job_records import Folder, LaunchRecord, claim, renew
from edl.launch.life_outcome import INTERRUPTED, NOT_BEGUN, Again, Enough, LaunchVerdict, LifeEnd, RestartRule
from edl.launch.local_launch import PRINT_TIMEOUT_S, Launch, Outcome
from edl.launch.orphan_reaper import OrphanReaper
from edl.launch.supervisor import OwnChoice
from edl.launch.worker_output import OutputFile, Printer
from edl.protocol.record import JobState, Status

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


class AskedMeanwhile(Exception): ...


class JobRun:
    """Lives of a job under one command. Use it once, in a running event loop of the main thread."""

    def __init__(
        self, settings: Settings, record: LaunchRecord, policy: bytes | None = None, *, waits: bool = False
    ) -> None:
        """`policy`: source of the user's policy file. `waits`: for a job to move here, whose lives other lines
        begin.
        """
        self._waits = waits
        self._settings = settings
        self._record = record
        self._policy = policy
        self._folder = Folder(settings.job_home)
        self._clock = SystemClock()
        self._printer = Printer()
        self._restarts = RestartRule(settings.max_restarts)
        self._launch: Launch | None = None
        self._asked = asyncio.Event()
        self._to_go = False  # the machine is to be left, and the job is saved
        self._first = 0  # number of the first life that this run has begun
        self._began = 0  # the step after which the present one has

    async def run(self) -> Outcome:
        """Run the job to its end; leave no process behind. Raises ConfigError, UsageError, CheckpointError at its
        start.
        """
        for signum in SIGNALS:
            if signum is not signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:  # nohup edl run ...
                asyncio.get_running_loop().add_signal_handler(signum, self._signalled, signum)
        try:
            return await self._run()
        finally:
            await self._printer.close(PRINT_TIMEOUT_S)

    async def _run(self) -> Outcome:
        try:
            await self._begin_first()
        except AskedMeanwhile:
            return Outcome(NOT_BEGUN if self._to_go else INTERRUPTED)
        claim(self._settings.home, self._record)
        self._printer.kept = OutputFile(self._folder.output)
        verdict = INTERRUPTED
        guard = OrphanReaper(self._folder, self._record.mark)
        exports: export_process.Exports | None = None
        logging.getLogger("edl").addHandler(logging.FileHandler(self._folder.logs / "edl-run.log", delay=True))
        try:
            exports = export_process.start(self._settings, self._folder, self._record.mark, self._printer.say)
            while (end := await self._again(await self._live())) is None:
                pass
            verdict = end.verdict
        except Exception as error:
            verdict = LaunchVerdict(1, "failed", str(error))
            raise
        finally:
            self._write(state=verdict.state, reason=verdict.reason, ended=self._clock.wall())
            if exports is not None:
                await exports.end()
            guard.dismiss()
        return end

    async def _live(self) -> Outcome:
        launch = self._launch = Launch(
            self._settings, self._record, self._printer, self._policy, waits=self._waits, chosen=self._chosen()
        )
        if self._asked.is_set():
            launch.ask_to_go() if self._to_go else launch.interrupt()
        try:
            return await launch.run()
        finally:
            self._record, self._launch = launch.record, None

    def _chosen(self) -> OwnChoice | None:
        """Return the checkpoint that this line chose, if others may have begun the job with another choice."""
        path = self._settings.resume_from
        return None if self._record.own_coordinator or not path else OwnChoice(path, self._began)

    # ------------------------------------------------------------------------------------------- from life to life

    async def _begin_first(self) -> None:
        """Begin the first life, from a checkpoint if the job is saved and has one."""
        if not self._settings.checkpoint or self._waits:
            return
        if self._record.own_coordinator or not await self._joins():
            found = await self._unless_asked(in_a_thread(self._find))
            await self._begin(found)
            self._tell_of(found)

    async def _joins(self, patience_s: float = 0.0) -> bool:
        """Tell whether another line's job lives in the coordinator, so that this line only adds workers to it."""
        status = await self._unless_asked(clear(self._settings, self._printer.say, patience_s))
        if status is None:
            return False
        self._settings = msgspec.structs.replace(self._settings, resume_from=status.resumed)
        self._began = status.base
        return True

    def _find(self) -> Newest:
        settings = self._settings
        return to_go_on_from(settings.checkpoint, self._record.job, settings.resume, self._first)

    async def _begin(self, found: Newest) -> None:
        where, job = self._settings.checkpoint, self._record.job
        life = await self._unless_asked(in_a_thread(lambda: begin(where, job, found)))
        path = "" if life.checkpoint is None else life.checkpoint.path
        self._settings = msgspec.structs.replace(self._settings, life=life.number, resume_from=path)
        self._first, self._began = self._first or life.number, life.step

    def _tell_of(self, found: Newest) -> None:
        for line in words_of(self._record.job, found):
            self._printer.say(line)

    async def _again(self, outcome: Outcome) -> Outcome | None:
        """Return the final outcome; None if another life is to begin, which is prepared then."""
        if not self._settings.checkpoint or self._waits:
            return outcome
        end = self._end_of(outcome)
        try:
            verdict = await self._decided(outcome, end)
        except AskedMeanwhile:
            going = msgspec.structs.replace(end, to_go=self._to_go)
            verdict = self._restarts.ends(going) if self._to_go else INTERRUPTED
        except EdlError as error:
            reason = f"{end.verdict.reason}; it cannot be begun again: {error}"
            verdict = msgspec.structs.replace(end.verdict, reason=reason)
        return None if verdict is None else msgspec.structs.replace(outcome, verdict=verdict)

    def _end_of(self, outcome: Outcome) -> LifeEnd:
        status = outcome.status
        if status is not None and status.resumed:  # by another line's choice, perhaps
            self._began = status.base
        newest = self._began + outcome.newest_step
        going = self._to_go or (status is not None and status.state is JobState.PREEMPTING)
        return LifeEnd(outcome.verdict, self._began, newest, outcome.cause, 0, outcome.restarts, to_go=going)

    async def _decided(self, outcome: Outcome, end: LifeEnd) -> LaunchVerdict | None:
        """Decide whether another life begins. Raises EdlError, AskedMeanwhile."""
        if (verdict := self._restarts.ends(end)) is not None:
            return verdict
        if self._asked.is_set():
            return outcome.verdict
        self._write(state="resuming", reason=end.verdict.reason)
        found = await self._unless_asked(in_a_thread(self._find))
        saved = 0 if found.checkpoint is None else found.checkpoint.step
        decided = self._restarts.decide(msgspec.structs.replace(end, saved=saved))
        if isinstance(decided, Enough):
            return decided.verdict
        self._printer.say(f"job {self._record.job} has ended: {decided.reason}")
        if self._record.own_coordinator or not await self._joins(2 * self._settings.session_timeout_s):
            await self._begin(found)
        self._arrange(decided, outcome.status)
        self._tell(decided, found)
        return None

    def _arrange(self, again: Again, status: Status | None) -> None:
        size = self._settings.np
        if self._record.own_coordinator and status is not None and status.target:
            size = status.target  # it may have been asked for another one since
        ring = self._settings.ring if status is None else status.ring or self._settings.ring  # as in the life before
        self._settings = msgspec.structs.replace(self._settings, np=size, max_restarts=again.restarts, ring=ring)

    def _tell(self, again: Again, found: Newest) -> None:
        job, life, path = self._record.job, self._settings.life, self._settings.resume_from
        self._tell_of(found)
        if not path:
            self._printer.say(f"job {job} begins at its start: nothing of it is saved")
        self._printer.say(f"this is life {life} of job {job}; restarts left: {again.restarts}")
        fact = facts.LifeBegun(
            life=life, reason=again.reason, from_step=self._began, path=path, restarts_left=again.restarts
        )
        event = Event(self._clock.wall(), job, fact.kind, 0, 0, 0, fact.details())
        self._folder.append_events([event.to_json()])
        coordinator = "" if self._record.own_coordinator else self._record.coordinator
        self._record = msgspec.structs.replace(self._record, coordinator=coordinator)
        self._record = renew(self._folder, self._record)

    # ------------------------------------------------------------------------------------------------- small parts

    def _signalled(self, signum: signal.Signals) -> None:
        goes = signum is signal.SIGTERM and self._settings.checkpoint and not self._to_go and not self._asked.is_set()
        self._to_go = self._to_go or bool(goes)
        self._asked.set()
        if self._launch is not None:
            self._launch.ask_to_go() if goes else self._launch.interrupt()

    async def _unless_asked(self, action: Coroutine[Any, Any, T]) -> T:
        task, asked = asyncio.create_task(action), asyncio.create_task(self._asked.wait())
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if self._asked.is_set():
            task.cancel()
            await asyncio.wait({task})
            raise AskedMeanwhile
        return task.result()

    def _write(self, **changes: Any) -> None:
        self._record = msgspec.structs.replace(self._record, **changes)
        self._folder.update(self._record)


async def in_a_thread(call: Callable[[], T]) -> T:
    # Not a thread of the pool: the process would wait for it at its end, and a disk or a store may never answer.
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(set_: Callable[[Any], None], what: Any) -> None:
        if not done.done():
            set_(what)

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            answer: tuple[Callable[[Any], None], Any] = (done.set_exception, error)
        else:
            answer = (done.set_result, result)
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, *answer)

    threading.Thread(target=run, daemon=True, name="edl-checkpoints").start()
    return await done
