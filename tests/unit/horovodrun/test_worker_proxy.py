"""A stand-in's look at its job after its trainer's end, without processes."""

from __future__ import annotations

import asyncio
import os

import pytest
from horovodrun_told import TOLD

from edl.config import Settings
from edl.coordination.coordinator_settings import Coordinator
from edl.errors import ConfigError
from edl.horovodrun import worker_proxy as module
from edl.horovodrun.proxy_machine import JobUnknown, TrainerEnded
from edl.horovodrun.worker_proxy import WorkerProxy
from edl.host.credentials import coordinator_of
from edl.outside import job_client


@pytest.mark.parametrize("by", ["digest", "tls"])
async def test_it_is_let_in_to_the_coordinator_as_its_daemon_is(by, monkeypatch, tmp_path):
    authority = tmp_path / "ca.pem"
    authority.touch()
    given = {"digest": {"EDL_COORDINATOR_AUTH": "edl:password"}, "tls": {"EDL_COORDINATOR_TLS_CA": str(authority)}}
    for name, value in {**TOLD, **given[by], "EDL_COORDINATOR": "zk:2181", "EDL_JOB": "j"}.items():
        monkeypatch.setenv(name, value)
    asked: list[Coordinator] = []

    def refusing(coordinator: Coordinator, *_: object) -> None:
        asked.append(coordinator)
        raise ConfigError("not let in")

    monkeypatch.setattr(job_client, "JobClient", refusing)
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    stand_in = WorkerProxy([])
    stand_in._post.handle(TrainerEnded(-9), 0.0)
    looking = asyncio.ensure_future(stand_in._look())
    assert isinstance(await stand_in._inbox.get(), JobUnknown)
    looking.cancel()
    assert asked[0] == coordinator_of(Settings.from_given({}, os.environ))
    assert asked[0].digest is not None or asked[0].tls is not None
