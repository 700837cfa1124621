"""A trainer's link to its own daemon: starts it, hears the leader's orders through it, and knows at once when it dies.

Owns: the daemon's process, the pipe and the page, seen from the trainer, and how often a dying daemon is started again.
Does not own: what the orders mean (`edl.core.worker.next_move`), nor what the trainer does about them
(`edl.trainer.trainer`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edl.config import Settings
from edl.errors import ConfigError, EdlError, JobFailed, PeerError
from edl.host.daemon_process import COMMAND, environ_of, fork_daemon
from edl.host.host_processes import LIFE, hold_for_life, process_start_time, spawn_daemon
from edl.host.memory_folders import make_folder
from edl.protocol import trainer_messages as say
from edl.protocol.assignment import Orders
from edl.transport.call_errors import PipeClosed
from edl.transport.pipe import PipeClient
from edl.transport.shared_page import SharedPage

MOST_RESTARTS: Final = 5
RESTART_SESSIONS: Final = 6.0  # so many session time-outs make the time within which `MOST_RESTARTS` are too many


class DaemonRestarts:
    """Restarts of a daemon: without limit for one that dies now and then, but not for one that keeps dying (I12)."""

    def __init__(self, session_timeout_s: float) -> None:
        self.within_s = RESTART_SESSIONS * session_timeout_s
        self._started: list[float] = []

    def allow(self, now: float) -> bool:
        """Tell whether another restart is allowed, and count it."""
        self._started = [at for at in self._started if now - at < self.within_s]
        if len(self._started) >= MOST_RESTARTS:
            return False
        self._started.append(now)
        return True


logger = logging.getLogger("edl")

BOOT_TIMEOUT_S = 30.0
LIMB_TIMEOUT_S = 120.0  # between the first process of a worker and its last one to come: they import for so long
TICK_S = 0.5
ORDERS_S = 5.0  # for orders that another process of the same worker has heard
RECENT = 32
MEET_POLL_S = 0.02
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ")  # a line of a daemon's log that tells what it did


class DaemonLink:
    """One trainer's daemon. Messages arrive on the pipe's reader thread; everything else runs on the caller's."""

    def __init__(
        self,
        settings: Settings,
        worker: str,
        on_orders: Callable[[Orders], object],
        status: Callable[[], say.TrainerStatus],
    ) -> None:
        """`status` returns the trainer's newest status, which each daemon is told."""
        self.worker = worker
        self.trainer = os.getpid()
        self._settings = settings
        self._on_orders = on_orders
        self._status = status
        self._telling = threading.Lock()  # so that the last status that is sent is the newest
        self._told: say.TrainerStatus | None = None  # the newest that this daemon was sent
        self._folder = self._home = make_folder()
        self.page = SharedPage.create(self._folder / "page")
        hold_for_life(self._folder / LIFE)
        self._news = threading.Condition()
        self._orders: Orders | None = None
        self._recent: deque[Orders] = deque(maxlen=RECENT)  # the newest at the end
        self._count = 0  # commands heard from this daemon
        self._introduced = False
        self._gave_up: str | None = None
        self._noted = False
        self._gone = False
        self._starting = False  # one is started, by the thread that has set this
        self._restarts = DaemonRestarts(settings.session_timeout_s)
        self._closed = False
        self._pid = 0
        self._started: int | None = None
        self._log_begin = 0  # what stands before it in the log was written by the daemon before
        self._pipe: PipeClient | None = None

    # ------------------------------------------------------------------------------------------------ the daemon

    def start(self) -> None:
        """Start the daemon and greet it with the trainer's status. Raises ConfigError with the daemon's own last words,
        PeerError where it has ended without any.
        """
        self._starting = True
        if self._settings.limb:
            self._home = _meet(self._settings.meeting)
        self._start()
        self._started_well()

    def _started_well(self) -> None:
        """Let `_on_gone` notice the daemon's end from now on. Raises as `start` where it has died in between."""
        with self._news:
            if self._gone and self._gave_up is None:
                raise self._end_of_daemon()
            self._starting = False

    def _start(self, *, anew: bool = False) -> None:
        self._introduced = self._gone = False
        self._count = self.page.flags = 0  # what the one before promised, it cannot keep
        if not self._settings.limb:
            self._start_process(anew=anew)
        self._connect()
        with self._telling:
            self._told = self._status()
            here = "" if self._home is self._folder else str(self._folder)
            self._send(say.Hello(self._told, self._orders is not None, self._settings.limb, here))
        self._wait(lambda: self._introduced, BOOT_TIMEOUT_S, "the daemon did not answer")

    def _start_process(self, *, anew: bool) -> None:
        self._socket.unlink(missing_ok=True)  # a dying daemon listens on for a moment: it must not be called
        self._log_begin = self._log.stat().st_size if self._log.exists() else 0
        arguments = ["--folder", str(self._folder), "--trainer", str(os.getpid()), *(["--anew"] if anew else [])]
        environ, log = self._environment(), self._log
        self._pid = fork_daemon(arguments, environ, log) or spawn_daemon(
            [sys.executable, *COMMAND, *arguments], environ, log
        )
        self._started = process_start_time(self._pid)
        if self._settings.meeting is not None:
            _tell_meeting(self._settings.meeting, self._folder)

    def _environment(self) -> dict[str, str]:
        return environ_of({**os.environ, **self._settings.to_environment(), "EDL_WORKER_ID": self.worker})

    @property
    def _log(self) -> Path:
        if self._settings.job is None:
            return self._folder / "daemon.log"
        logs = self._settings.job_home / "logs"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        return logs / f"{self.worker}.daemon.log"

    @property
    def folder(self) -> Path:
        """The folder that trainer and daemon share: private to the user, and in memory where that can be had."""
        return self._folder

    @property
    def home(self) -> Path:
        """The folder of the worker's first process, in which its daemon listens."""
        return self._home

    @property
    def _socket(self) -> Path:
        return self._home / "pipe"

    def _connect(self) -> None:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while True:
            pipe = PipeClient(self._socket, say.FromDaemon, self._on_message, self._on_gone)
            try:
                pipe.connect(0.5)
            except PipeClosed:
                ended = self._started is None or process_start_time(self._pid) != self._started
                if ended and not self._settings.limb:
                    raise self._end_of_daemon() from None
                if self._closed or time.monotonic() > deadline:
                    raise ConfigError(f"edl's daemon does not listen; its log is {self._log}") from None
            else:
                dead, self._pipe = self._pipe, pipe
                if dead is not None:
                    dead.close()
                return

    def _end_of_daemon(self) -> EdlError:
        """Return why the daemon ended: what it said last. A daemon that says nothing was killed, and another one may
        live.
        """
        words = self._last_words()
        return ConfigError(words) if words else PeerError(f"edl's daemon was killed, or has crashed; see {self._log}")

    def _last_words(self) -> str:
        """Return the last line that this daemon wrote; nothing where that is a record of what it did, and no reason to
        end.
        """
        written = self._log.read_bytes()[self._log_begin :] if self._log.exists() else b""
        lines = [line for line in written.decode(errors="replace").splitlines() if line.strip()]
        return "" if not lines or RECORD.match(lines[-1]) else lines[-1].removeprefix("edl: ")

    # -------------------------------------------------------------------------------------------------- messages

    def tell(self) -> None:
        """Send the trainer's status to the daemon, unless that has it. If the daemon is gone, the next one is greeted
        with it. Any thread may call.
        """
        with self._telling:
            status = self._status()
            if status is not self._told:
                self._told = status
                self._send(status)

    def _send(self, message: say.FromTrainer) -> None:
        if self._pipe is not None:
            with contextlib.suppress(PipeClosed):
                self._pipe.send(message)

    @property
    def orders(self) -> Orders | None:
        """The newest orders, at least as new as the page's flags promise."""
        if self._gave_up is not None:
            raise JobFailed(self._gave_up)
        promised = self.page.flags
        if self._count < promised and not self._gone:
            self._wait(lambda: self._count >= promised or self._gone, 5.0, "")
        return self._orders

    @property
    def newest(self) -> Orders | None:
        """The newest orders that have come, without waiting for what is promised."""
        return self._orders

    def wait_orders(self, stamp: tuple[int, int]) -> Orders | None:
        """Wait until these orders, by term and version, have come, or newer ones. None: these never came here. Raises
        JobFailed when the daemon gave up.
        """
        with self._news:
            self._news.wait_for(lambda: _stamp(self._orders) >= stamp or self._gave_up is not None, ORDERS_S)
            found = next((one for one in reversed(self._recent) if _stamp(one) == stamp), None)
        if self._gave_up is not None:
            raise JobFailed(self._gave_up)
        return found

    def wait_news(self, older: Orders | None) -> Orders | None:
        """Wait a moment for orders other than `older`. Raises JobFailed when the daemon gave up."""
        with self._news:
            self._news.wait_for(lambda: self._orders is not older or self._gone or self._gave_up is not None, TICK_S)
        if self._gave_up is not None:
            raise JobFailed(self._gave_up)
        return self._orders

    def wait_noted(self, timeout_s: float) -> bool:
        """Wait until the leader knows of this worker's end, by whichever daemon; return whether it does."""
        with self._news:
            return self._news.wait_for(lambda: self._noted or self._gave_up is not None, timeout_s)

    def close(self) -> None:
        """Let go of the daemon; it ends by itself when it has nothing left to do."""
        with self._news:
            self._closed = True
            self._news.notify_all()  # another daemon may be being started: it is not needed
        if self._pipe is not None:
            self._pipe.close()

    def _wait(self, ready: Callable[[], bool], timeout_s: float, complaint: str) -> None:
        with self._news:
            over = lambda: ready() or self._gave_up is not None or self._gone or self._closed  # noqa: E731
            done = self._news.wait_for(over, timeout_s)
        if self._gave_up is not None:
            raise JobFailed(self._gave_up)
        if complaint and (not done or not ready()):
            raise self._end_of_daemon() if self._gone else ConfigError(f"{complaint}; its log is {self._log}")

    def _on_message(self, message: say.FromDaemon) -> None:
        with self._news:
            match message:
                case say.Introduced():
                    self._introduced = True
                case say.Commanded(orders):
                    self._orders = orders
                    self._recent.append(orders)
                    self._count += 1
                case say.GaveUp(reason):
                    self._gave_up = reason
                case say.Noted():
                    self._noted = True
                case say.Said(line):
                    sys.stderr.write(f"edl: {line}\n")
            self._news.notify_all()
        if isinstance(message, say.Commanded):
            self._on_orders(message.orders)

    def _on_gone(self) -> None:
        """Start another daemon, as this one died. The ring is not touched, and the training thread need not know."""
        with self._news:
            self._gone = True
            if self._gave_up is not None:  # another one would hear the same
                self._stop_script()
            self._news.notify_all()
            if self._closed or self._gave_up is not None or self._starting:
                return
            self._starting = True
        self._replace()

    def _replace(self) -> None:
        """Start one daemon after the other, on the thread that has seen the first one's end. Bounded (I12)."""
        words, started = "", False
        while not (started or self._closed):
            if not self._restarts.allow(time.monotonic()):
                often = f"{MOST_RESTARTS + 1} times within {self._restarts.within_s:g} s"
                self._give_up(f"edl's daemon has died {often}; its log is {self._log}{words}")
                return
            logger.warning("the daemon of worker %s died: starting another", self.worker)
            try:
                self._start(anew=True)
                self._started_well()
                started = True
            except (ConfigError, PeerError, OSError, subprocess.SubprocessError) as error:  # no memory for a fork, say
                words = f"; the last one: {error}"
                self._end_daemon()
            except JobFailed as error:
                self._give_up(str(error))
                return

    def _end_daemon(self) -> None:
        """Kill a daemon that does not answer, and may yet: two must not speak for one trainer."""
        if self._started is not None and process_start_time(self._pid) == self._started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _give_up(self, reason: str) -> None:
        with self._news:
            self._gave_up = reason
            self._stop_script()
            self._news.notify_all()

    def _stop_script(self) -> None:
        """Stop the script after this step. The page has no other writer, now that the daemon is gone."""
        self.page.attention_step = 0


def _stamp(orders: Orders | None) -> tuple[int, int]:
    return (0, 0) if orders is None else (orders.term, orders.version)


def _tell_meeting(meeting: Path, folder: Path) -> None:
    """Tell the other processes of this worker where its daemon listens."""
    draft = meeting.with_name(f".{meeting.name}")
    draft.write_text(str(folder))
    draft.rename(meeting)


def _meet(meeting: Path | None) -> Path:
    """Wait until the first process of this worker has told where its daemon listens. Raises ConfigError."""
    assert meeting is not None  # the settings were checked
    deadline = time.monotonic() + LIMB_TIMEOUT_S
    while not meeting.exists():
        if time.monotonic() > deadline:
            raise ConfigError(
                f"the first process of this worker did not call edl.init() within {LIMB_TIMEOUT_S:g} s: call it on all "
                "processes of a worker alike"
            )
        time.sleep(MEET_POLL_S)  # nothing announces a file
    return Path(meeting.read_text())
