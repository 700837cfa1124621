"""A trainer's link to its daemon: what it makes of the daemon's end."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import threading

import pytest

from edl.config import Settings
from edl.core.job.daemon_restarts import MOST
from edl.errors import ConfigError, JobFailed, PeerError
from edl.protocol import trainer_messages as say
from edl.protocol.leader_messages import Phase
from edl.trainer import daemon_link as module
from edl.trainer.daemon_link import DaemonLink


@pytest.fixture
def unlinked(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:  # the path of a socket is short
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield DaemonLink(Settings(job="x", home=tmp_path), "w1", lambda _: None, say.TrainerStatus)


@pytest.fixture
def link(unlinked, monkeypatch):
    link = unlinked
    link.page.attention_step = 2**63 - 1
    link.starts = []

    def starting(*, anew: bool) -> None:
        link.starts.append(anew)
        link._gone = False

    monkeypatch.setattr(link, "_start", starting)
    return link


def test_a_daemon_that_died_is_replaced(link):
    link._on_gone()
    assert link.starts and link.page.attention_step == 2**63 - 1


def test_one_that_always_dies_is_not_started_for_ever_and_the_script_ends_with_the_reason(link, monkeypatch):
    def dying(*, anew: bool) -> None:
        link.starts.append(anew)
        raise [ConfigError("no such file: libz.so"), OSError("no memory for a fork")][len(link.starts) % 2]

    monkeypatch.setattr(link, "_start", dying)
    link._on_gone()
    assert len(link.starts) == MOST
    assert link.page.attention_step == 0
    said = rf"died {MOST + 1} times within 60 s; its log is .*; the last one: no memory"
    with pytest.raises(JobFailed, match=said):
        _ = link.orders


def test_one_that_dies_now_and_then_is_started_each_time(link, monkeypatch):
    now = iter(range(0, 10_000, 15))
    monkeypatch.setattr("edl.trainer.daemon_link.time.monotonic", lambda: float(next(now)))
    for _ in range(20):
        link._on_gone()
    assert len(link.starts) == 20


def test_one_that_dies_while_another_is_started_is_not_started_twice(link, monkeypatch):
    """Its end is seen by another thread than the one that starts it."""

    def dying_once(*, anew: bool) -> None:
        link.starts.append(anew)
        link._gone = False
        if len(link.starts) == 1:
            link._on_gone()

    monkeypatch.setattr(link, "_start", dying_once)
    link._on_gone()
    assert link.starts == [True, True]


@pytest.mark.integration  # processes that take seconds: not for scripts/check
def test_one_that_does_not_answer_is_ended_before_another_is_started(unlinked, monkeypatch):
    sleeper = subprocess.Popen(["sleep", "1000"])
    monkeypatch.setattr(module, "spawn_daemon", lambda *_: sleeper.pid)
    monkeypatch.setattr(module, "BOOT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(module, "MOST", 1)
    unlinked._on_gone()
    assert sleeper.wait(10) == -signal.SIGKILL


def test_the_end_is_told_by_the_next_daemon_where_one_dies_just_then(link):
    threading.Timer(0.05, lambda: link._on_message(say.Noted())).start()
    link._on_gone()
    assert link.wait_noted(10.0)


def test_a_daemon_that_gave_up_is_not_and_the_script_ends_after_its_step(link):
    link._on_message(say.GaveUp("the job's leader has given this worker up"))
    link._on_gone()
    assert not link.starts
    assert link.page.attention_step == 0
    with pytest.raises(JobFailed, match="given this worker up"):
        _ = link.orders


def test_a_daemon_that_is_dying_still_listens_and_is_not_called(unlinked, monkeypatch):
    """Its end would be taken for that of its successor, and two daemons would speak for one trainer."""
    monkeypatch.setattr(module, "spawn_daemon", lambda *_: 2**22 + 1)  # no process
    monkeypatch.setattr(module, "BOOT_TIMEOUT_S", 1.0)
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(unlinked._socket))
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
def test_who_is_at_fault_when_one_ends_as_it_starts(unlinked, monkeypatch, written, error, words):
    unlinked._log.write_text("edl: said by the one before\n")

    def ending(*_: object) -> int:
        with unlinked._log.open("a") as log:
            log.write(written)
        return 2**22 + 1  # no process

    monkeypatch.setattr(module, "spawn_daemon", ending)
    with pytest.raises(error, match=words):
        unlinked.start()


@pytest.mark.integration  # processes that take seconds: not for scripts/check
def test_one_that_was_killed_as_it_started_is_replaced(unlinked, monkeypatch):
    monkeypatch.setattr(module, "spawn_daemon", lambda *_: 2**22 + 1)
    monkeypatch.setattr(module, "MOST", 1)
    unlinked._on_gone()
    with pytest.raises(JobFailed, match="the last one: edl's daemon was killed, or has crashed"):
        _ = unlinked.orders


class Pipe:
    """It keeps what it was sent; `before` it sends, something else may happen."""

    def __init__(self, before=lambda: None):
        self.sent: list[say.FromTrainer] = []
        self._before = before

    def send(self, message: say.FromTrainer) -> None:
        self._before()
        self.sent.append(message)


@pytest.fixture
def telling(unlinked):
    """A link of a trainer whose status is `status`."""
    unlinked.status = say.TrainerStatus()
    unlinked._status = lambda: unlinked.status
    return unlinked


def test_a_status_is_sent_when_it_has_changed_and_once(telling):
    telling._pipe = pipe = Pipe()
    telling.tell()
    telling.tell()
    telling.status = say.TrainerStatus(leaving=True)
    telling.tell()
    assert pipe.sent == [say.TrainerStatus(), say.TrainerStatus(leaving=True)]


def test_of_two_threads_that_tell_the_newest_status_is_sent_last(telling):
    """The thread that hears the daemon tells of its news while the training thread tells of its own."""
    other = threading.Thread(target=telling.tell)

    def comes_between() -> None:
        if not other.ident:
            telling.status = say.TrainerStatus(leaving=True)
            other.start()
            other.join(0.05)  # it waits for its turn

    telling._pipe = pipe = Pipe(comes_between)
    telling.tell()
    other.join(10)
    assert pipe.sent[-1] == say.TrainerStatus(leaving=True)


def test_each_daemon_is_greeted_with_all_that_there_is_to_know(telling, monkeypatch):
    pipe = Pipe()

    def connect() -> None:
        telling._pipe, telling._introduced = pipe, True

    monkeypatch.setattr(module, "spawn_daemon", lambda *_: 2**22 + 1)  # no process
    monkeypatch.setattr(telling, "_connect", connect)
    telling.status = status = say.TrainerStatus(phase=Phase.BROKEN, generation=3, reason="reset", leaving=True)
    telling.start()
    telling.tell()
    assert pipe.sent == [say.Hello(status, member=False)]
