"""A trainer's link to its daemon: what it makes of the daemon's end."""

from __future__ import annotations

import socket

import pytest

from edl.config import Settings
from edl.errors import ConfigError, JobFailed
from edl.protocol import link as say
from edl.runtime import link as module
from edl.runtime.link import DaemonLink


@pytest.fixture
def unlinked(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return DaemonLink(Settings(job="x", home=tmp_path), "w1", lambda _: None, lambda: ())


@pytest.fixture
def link(unlinked, monkeypatch):
    link = unlinked
    link.page.attention_step = 2**63 - 1
    link.starts = []
    monkeypatch.setattr(link, "start", lambda: link.starts.append(True))
    return link


def test_a_daemon_that_died_is_replaced(link):
    link._on_gone()
    assert link.starts and link.page.attention_step == 2**63 - 1


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
        with pytest.raises(ConfigError):
            unlinked.start()
        with pytest.raises(TimeoutError):
            dying.accept()
