"""A daemon in the place of one that died, while the coordinator is away."""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from edl.clock import ManualClock
from edl.config import Settings
from edl.coordination import connect
from edl.coordination.coordinator_settings import Coordinator
from edl.daemon import daemon as module
from edl.daemon.daemon import AFTER_END, Daemon
from edl.errors import ConfigError
from edl.transport.shared_page import SharedPage

AWAY = 5


@pytest.fixture
def tried(monkeypatch):
    tried = []

    async def away(*_: object) -> str:
        tried.append(True)
        if len(tried) <= AWAY:
            raise ConfigError("no worker answers")
        return "a session"

    monkeypatch.setattr(connect, "connect", away)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    return tried


def daemon(tmp_path, *, anew: bool) -> Daemon:
    SharedPage.create(tmp_path / "page")
    return Daemon(Settings(job="j", session_timeout_s=4.0), tmp_path, os.getpid(), anew=anew)


async def test_it_waits_for_the_coordinator_as_long_as_the_trainer_lives(tried, tmp_path):
    assert await daemon(tmp_path, anew=True)._connect(Coordinator("zk:2181")) == "a session"
    assert len(tried) == AWAY + 1


async def test_the_first_one_says_at_once_what_is_wrong(tried, tmp_path):
    with pytest.raises(ConfigError, match="no worker answers"):
        await daemon(tmp_path, anew=False)._connect(Coordinator("zk:2181"))
    assert len(tried) == 1


@pytest.mark.parametrize("anew", [True, False])
async def test_metrics_that_cannot_be_served_end_no_trainer_that_is_healthy(tmp_path, anew):
    settings = Settings(job="j", metrics_port=0, metrics_address="192.0.2.1", home=tmp_path)
    SharedPage.create(tmp_path / "page")
    one, office = Daemon(settings, tmp_path, os.getpid(), anew=anew), SimpleNamespace(status=lambda: None)
    with nullcontext() if anew else pytest.raises(ConfigError, match=r"cannot listen at 192\.0\.2\.1"):
        assert await one._offer_metrics(office) is None  # type: ignore[arg-type]


async def test_it_gives_up_a_while_after_the_trainers_end(tried, tmp_path, monkeypatch):
    one, clock = daemon(tmp_path, anew=True), ManualClock()
    one._clock = clock  # type: ignore[assignment]
    one._trainer_gone.set()

    async def away(*_: object) -> str:
        tried.append(True)
        clock.advance(2.0)
        raise ConfigError("no worker answers")

    monkeypatch.setattr(connect, "connect", away)
    with pytest.raises(ConfigError, match="no worker answers"):
        await one._connect(Coordinator("zk:2181"))
    assert len(tried) == AFTER_END * 4.0 / 2.0 + 1
