"""A daemon in the place of one that died, while the coordinator is away."""

from __future__ import annotations

import asyncio
import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from edl.clock import ManualClock
from edl.config import Settings
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Store
from edl.daemon import daemon as module
from edl.daemon.daemon import AFTER_END, Daemon
from edl.errors import ConfigError
from edl.host.host_processes import LIFE
from edl.transport.shared_page import SharedPage

AWAY = 5


class Tried(list):
    """The tries to connect."""

    def __init__(self) -> None:
        super().__init__()
        self.connected = asyncio.Event()


@pytest.fixture
def tried(monkeypatch):
    tried = Tried()

    async def away(*_: object) -> Store:
        tried.append(True)
        if len(tried) <= AWAY:
            raise ConfigError("no worker answers")
        tried.connected.set()
        return MemoryServer().connect()

    monkeypatch.setattr(module, "connect", away)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    return tried


def daemon(tmp_path, *, anew: bool, trainer: int = 0) -> Daemon:
    SharedPage.create(tmp_path / "page")
    (tmp_path / LIFE).touch()
    settings = Settings(job="j", session_timeout_s=4.0, coordinator="zk:2181")
    return Daemon(settings, tmp_path, trainer or os.getpid(), anew=anew)


async def ended_process() -> int:
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    return ended.pid


async def test_it_waits_for_the_coordinator_as_long_as_the_trainer_lives(tried, tmp_path):
    running = asyncio.create_task(daemon(tmp_path, anew=True).run())
    async with asyncio.timeout(20):
        await tried.connected.wait()
    assert len(tried) == AWAY + 1
    running.cancel()
    await asyncio.wait({running})


async def test_the_first_one_says_at_once_what_is_wrong(tried, tmp_path):
    with pytest.raises(ConfigError, match="no worker answers"):
        await daemon(tmp_path, anew=False, trainer=await ended_process()).run()
    assert len(tried) == 1


@pytest.mark.parametrize("anew", [True, False])
async def test_metrics_that_cannot_be_served_end_no_trainer_that_is_healthy(tmp_path, anew):
    settings = Settings(job="j", metrics_port=0, metrics_address="192.0.2.1", home=tmp_path)
    SharedPage.create(tmp_path / "page")
    one, office = Daemon(settings, tmp_path, os.getpid(), anew=anew), SimpleNamespace(status=lambda: None)
    with nullcontext() if anew else pytest.raises(ConfigError, match=r"cannot listen at 192\.0\.2\.1"):
        assert await one._offer_metrics(office) is None  # type: ignore[arg-type]


async def test_it_gives_up_a_while_after_the_trainers_end(tried, tmp_path, monkeypatch):
    clock = ManualClock()
    monkeypatch.setattr(module, "SystemClock", lambda: clock)

    async def away(*_: object) -> Store:
        tried.append(True)
        clock.advance(2.0)
        raise ConfigError("no worker answers")

    monkeypatch.setattr(module, "connect", away)
    with pytest.raises(ConfigError, match="no worker answers"):
        await daemon(tmp_path, anew=True, trainer=await ended_process()).run()
    assert len(tried) == AFTER_END * 4.0 / 2.0 + 1
