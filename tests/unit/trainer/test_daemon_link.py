"""A trainer's link to its daemon: what it makes of the daemon's end."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edl.config import Settings
from edl.core.worker.next_move import NEVER
from edl.errors import ConfigError, JobFailed, PeerError
from edl.protocol import trainer_messages as say
from edl.protocol.leader_messages import Phase
from edl.trainer import daemon_link as module
from edl.trainer.daemon_link import MOST_RESTARTS, DaemonLink, DaemonRestarts
from edl.transport.pipe import Connection, PipeClient, PipeServer

NO_PROCESS = 2**22 + 1
LEAVING = say.TrainerStatus(leaving=True)


class Daemons:
    """Stand in for processes: the newest daemon listens on an event loop of this one."""

    def __init__(self) -> None:
        self.spawned = 0
        self.errors: Iterator[Exception] = iter(())  # instead of the next ones
        self.die_at_once: set[int] = set()
        self.heard: list[say.FromTrainer] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server: PipeServer | None = None
        self._newest: Connection | None = None

    def spawn(self, _command: object, environ: Mapping[str, str], _log: Path) -> int:
        self.spawned += 1
        for error in self.errors:
            raise error
        asyncio.run_coroutine_threadsafe(self._listen(Path(environ["FOLDER"]) / "pipe"), self._loop).result(10)
        return NO_PROCESS

    def send(self, message: say.FromDaemon) -> None:
        assert self._newest is not None
        self._loop.call_soon_threadsafe(self._newest.send, message)

    def die(self) -> None:
        """The newest one, once all that it has said is sent."""
        assert self._newest is not None
        self._loop.call_soon_threadsafe(self._newest.close)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self, path: Path) -> None:
        await self._stop()
        self._server = PipeServer(path, say.FromTrainer, self._on_message, lambda _: None)
        await self._server.start()

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    def _on_message(self, connection: Connection, message: say.FromTrainer) -> None:
        self.heard.append(message)
        if isinstance(message, say.Hello):
            self._newest = connection
            connection.send(say.Introduced())
            if self.spawned in self.die_at_once:
                connection.close()


@pytest.fixture
def settings(tmp_path):
    return Settings(job="x", home=tmp_path)


@pytest.fixture
def newest():
    """The trainer's status."""
    return SimpleNamespace(status=say.TrainerStatus())


@pytest.fixture
def unlinked(settings, newest, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:  # the path of a socket is short
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        link = DaemonLink(settings, "w1", lambda _: None, lambda: newest.status)
        monkeypatch.setenv("FOLDER", str(link.folder))
        yield link
        link.close()


@pytest.fixture
def daemons(monkeypatch):
    daemons = Daemons()
    monkeypatch.setattr(module, "spawn_daemon", daemons.spawn)
    yield daemons
    daemons.stop()


@pytest.fixture
def link(daemons, unlinked):
    unlinked.start()
    return unlinked


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def is_settled() -> bool:
    """Tell whether the newest daemon alone is listened to: no thread replaces one that died."""
    return [thread.name for thread in threading.enumerate()].count("edl-pipe") == 1


def test_a_daemon_that_died_is_replaced(link, daemons):
    daemons.die()
    until(lambda: len(daemons.heard) == 2 and is_settled())
    assert daemons.spawned == 2
    assert link.page.attention_step == NEVER


def test_one_that_always_dies_is_not_started_for_ever_and_the_script_ends_with_the_reason(link, daemons):
    why = [OSError("no memory for a fork"), ConfigError("no such file: libz.so")]
    daemons.errors = itertools.cycle(why)
    daemons.die()
    until(lambda: link.page.attention_step == 0)
    assert daemons.spawned == 1 + MOST_RESTARTS
    said = rf"died {MOST_RESTARTS + 1} times within 60 s; its log is .*; the last one: no memory"
    with pytest.raises(JobFailed, match=said):
        _ = link.orders


def test_one_that_dies_now_and_then_is_started_each_time():
    restarts = DaemonRestarts(10.0)
    assert all(restarts.allow(15.0 * number) for number in range(20))
    assert [restarts.allow(1000.0) for _ in range(MOST_RESTARTS + 1)] == [*MOST_RESTARTS * [True], False]


def test_one_that_dies_while_another_is_started_is_not_started_twice(link, daemons):
    """Its end is seen by another thread than the one that starts it."""
    daemons.die_at_once = {2}
    daemons.die()
    until(lambda: len(daemons.heard) >= 3 and is_settled())
    assert daemons.spawned == 3


@pytest.mark.integration  # processes that take seconds: not for scripts/check
def test_one_that_does_not_answer_is_ended_before_another_is_started(link, daemons, monkeypatch):
    sleeper = subprocess.Popen(["sleep", "1000"])
    monkeypatch.setattr(module, "spawn_daemon", lambda *_: sleeper.pid)
    monkeypatch.setattr(module, "BOOT_TIMEOUT_S", 0.1)
    daemons.die()
    assert sleeper.wait(10) == -signal.SIGKILL


def test_the_end_is_told_by_the_next_daemon_where_one_dies_just_then(link, daemons):
    daemons.die()
    until(lambda: len(daemons.heard) == 2)
    daemons.send(say.Noted())
    assert link.wait_noted(10.0)


def test_a_daemon_that_gave_up_is_not_and_the_script_ends_after_its_step(link, daemons):
    daemons.send(say.GaveUp("the job's leader has given this worker up"))
    daemons.die()
    until(lambda: link.page.attention_step == 0)
    assert daemons.spawned == 1
    with pytest.raises(JobFailed, match="given this worker up"):
        _ = link.orders


def test_a_daemon_that_is_dying_still_listens_and_is_not_called(unlinked, monkeypatch):
    """Its end would be taken for that of its successor, and two daemons would speak for one trainer."""
    monkeypatch.setattr(module, "spawn_daemon", lambda *_: NO_PROCESS)
    monkeypatch.setattr(module, "BOOT_TIMEOUT_S", 1.0)
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(unlinked.folder / "pipe"))
        dying.listen()
        dying.settimeout(0.2)
        with pytest.raises(PeerError):
            unlinked.start()
        with pytest.raises(TimeoutError):
            dying.accept()


RECORD = "2026-11-24 13:15:14,873 edl.coordination.kazoo INFO Connecting to 127.0.0.1\n"


@pytest.mark.parametrize(
    ("written", "error", "words"),
    [
        ("", PeerError, "was killed, or has crashed; see .*daemon.log"),
        (RECORD, PeerError, "was killed, or has crashed"),
        (f"{RECORD}edl: no job x at zk://nowhere\n", ConfigError, "^no job x at zk://nowhere$"),
    ],
)
def test_who_is_at_fault_when_one_ends_as_it_starts(unlinked, settings, monkeypatch, written, error, words):
    before = settings.job_home / "logs" / "w1.daemon.log"
    before.parent.mkdir(mode=0o700, parents=True)
    before.write_text("edl: said by the one before\n")

    def ending(_command: object, _environ: object, log: Path) -> int:
        assert log == before
        with log.open("a") as lines:
            lines.write(written)
        return NO_PROCESS

    monkeypatch.setattr(module, "spawn_daemon", ending)
    with pytest.raises(error, match=words):
        unlinked.start()


@pytest.mark.slow
@pytest.mark.integration  # processes that take seconds: not for scripts/check
def test_one_that_was_killed_as_it_started_is_replaced(link, daemons, monkeypatch):
    monkeypatch.setattr(module, "spawn_daemon", lambda *_: NO_PROCESS)
    daemons.die()
    until(lambda: link.page.attention_step == 0)
    with pytest.raises(JobFailed, match="the last one: edl's daemon was killed, or has crashed"):
        _ = link.orders


def test_a_status_is_sent_when_it_has_changed_and_once(link, newest, daemons):
    newest.status = say.TrainerStatus(generation=1)
    link.tell()
    link.tell()
    newest.status = LEAVING
    link.tell()
    until(lambda: daemons.heard[-1] == LEAVING)
    assert daemons.heard == [say.Hello(say.TrainerStatus(), member=False), say.TrainerStatus(generation=1), LEAVING]


def test_of_two_threads_that_tell_the_newest_status_is_sent_last(link, newest, daemons, monkeypatch):
    """The thread that hears the daemon tells of its news while the training thread tells of its own."""
    other, send = threading.Thread(target=link.tell), PipeClient.send

    def sends_late(pipe: PipeClient, message: Any) -> None:
        if not other.ident:
            newest.status = LEAVING
            other.start()
            other.join(0.05)  # it waits for its turn
        send(pipe, message)

    monkeypatch.setattr(PipeClient, "send", sends_late)
    newest.status = say.TrainerStatus(generation=1)
    link.tell()
    other.join(10)
    until(lambda: len(daemons.heard) == 3)
    assert daemons.heard[1:] == [say.TrainerStatus(generation=1), LEAVING]


def test_each_daemon_is_greeted_with_all_that_there_is_to_know(link, newest, daemons):
    newest.status = say.TrainerStatus(phase=Phase.BROKEN, generation=3, reason="reset", leaving=True)
    greeted = daemons.spawned
    daemons.die()
    until(lambda: len(daemons.heard) > greeted)
    link.tell()
    newest.status = LEAVING
    link.tell()
    until(lambda: daemons.heard[-1] == LEAVING)
    told = say.TrainerStatus(phase=Phase.BROKEN, generation=3, reason="reset", leaving=True)
    assert daemons.heard[1:] == [say.Hello(told, member=False), LEAVING]
