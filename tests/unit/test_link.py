"""A trainer's link to its daemon: what it makes of the daemon's end."""

from __future__ import annotations

import pytest

from edl.config import Settings
from edl.errors import JobFailed
from edl.protocol import link as say
from edl.runtime.link import DaemonLink


@pytest.fixture
def link(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    link = DaemonLink(Settings(job="x", home=tmp_path), "w1", lambda _: None, lambda: ())
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
