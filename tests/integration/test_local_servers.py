"""The life of a local server, ZooKeeper, etcd or embedded: it starts, survives, and is gone when it should be."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from typing import Any

import pytest
from seen_server import alive, listening, until

from edl.coordination import child_server
from edl.coordination.child_server import free_port
from edl.coordination.coordinator_settings import Digest
from edl.coordination.embedded.embedded_server import LocalEmbedded
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.coordination.store import Link, connect
from edl.coordination.zookeeper_server import LocalServer
from edl.errors import ConfigError, UsageError

pytestmark = pytest.mark.integration

SERVERS: dict[str, Any] = {"zookeeper": LocalServer, "etcd": LocalEtcd, "embedded": LocalEmbedded}
PROGRAMS = {"zookeeper": "EDL_JAVA", "etcd": "EDL_ETCD"}


of_others = pytest.mark.parametrize("kind", PROGRAMS, indirect=True)
"""The embedded one has no port, and runs by the Python that runs edl."""


@pytest.fixture(params=SERVERS)
def kind(request):
    return request.param


@pytest.fixture
def start(kind, tmp_path):
    """Start one that has a port, in a folder below the test's."""

    async def started(folder="server", **more):
        return await SERVERS[kind].start(tmp_path / folder, **({"address": "127.0.0.1"} | more))

    return started


@pytest.fixture
async def local(start):
    started = await start()
    yield started
    await started.stop()


@pytest.fixture
def sleeper(kind, tmp_path, monkeypatch):
    """A program that never serves; the file that it writes its process id to."""
    program, pid = tmp_path / "program", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setenv(PROGRAMS[kind], str(program))
    return pid


# ------------------------------------------------------------------------------------------------- from start to end


async def test_it_serves_once_started_and_is_gone_once_stopped(start):
    mine = Digest("edl", "mine")
    local = await start("deep/server", digest=mine)
    store = await connect(local.coordinator, 4.0, connect_timeout_s=2.0)
    await store.create("/a")
    await store.close()
    pid = local.pid
    await local.stop()
    assert not alive(pid)
    await local.stop()
    again = await start("deep/server", digest=mine)  # the folder is free, and kept its data
    store = await connect(again.coordinator, 4.0)
    assert await store.read("/a") is not None
    await store.close()
    await again.stop()


@of_others
async def test_its_folder_is_private_and_it_listens_on_one_loopback_port_only(local, tmp_path):
    """None for peers above all, whom an etcd lets in without a password."""
    assert (tmp_path / "server").stat().st_mode & 0o777 == 0o700
    assert listening(local.pid) == {("127.0.0.1", local.port)}


async def test_it_has_a_session_of_its_own_so_that_ctrl_c_passes_it_by(local):
    assert os.getsid(local.pid) == local.pid != os.getsid(0)


async def test_killed_and_restarted_it_has_all_data_and_sessions(local):
    store = await connect(local.coordinator, 10.0)
    links = []
    store.watch_link(links.append)
    await store.create("/kept", b"value")
    await store.create("/mine", ephemeral=True)
    session = store.session
    local.signal(signal.SIGKILL)
    assert await local.wait_exit() == -signal.SIGKILL
    await until(lambda: links == [Link.SUSPENDED])
    await local.restart()
    await until(lambda: links == [Link.SUSPENDED, Link.CONNECTED])
    assert (await store.read("/kept")).value == b"value"
    assert (await store.read("/mine")).owner == store.session == session
    await store.close()


async def test_a_frozen_server_is_stopped_too(local):
    pid = local.pid
    local.signal(signal.SIGSTOP)
    await local.stop()
    assert not alive(pid)


PARENT = """
import asyncio, json, sys
from pathlib import Path
from edl.coordination.local_coordinator import start_local

async def main():
    server = await start_local(sys.argv[1], Path(sys.argv[2]), port=None, digest=None)
    print(json.dumps({"pid": server.pid}), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_it_dies_with_its_launcher_however_that_ends(kind, tmp_path):
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, kind, tmp_path, stdout=asyncio.subprocess.PIPE
    )
    pid = json.loads(await parent.stdout.readline())["pid"]
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(pid))
    again = await SERVERS[kind].start(tmp_path / kind)  # the lock went with it
    await again.stop()


# --------------------------------------------------------------------------------------------- what stands in the way


@of_others
async def test_a_port_in_use_is_one_clear_line(start):
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^port {port} on 127\.0\.0\.1 is in use: name another[^\n]*$"):
            await start(port=port)


@of_others
async def test_a_free_port_that_is_taken_meanwhile_is_given_up_for_another(local, start, monkeypatch):
    """By another of its kind even: that is not taken for ours."""
    ports = [local.port, free_port()]
    wanted = ports[1]
    monkeypatch.setattr(child_server, "free_port", lambda _: ports.pop(0))
    second = await start("other")
    assert second.port == wanted
    await second.stop()


@pytest.mark.slow
async def test_a_folder_in_use_is_one_clear_line(local, start):
    with pytest.raises(ConfigError, match=r"^another local (ZooKeeper|etcd|coordinator) runs in [^\n]*server[^\n]*$"):
        await start()


@of_others
async def test_one_that_never_serves_is_killed(start, sleeper, monkeypatch):
    monkeypatch.setattr(child_server, "START_S", 0.5)
    with pytest.raises(ConfigError, match="does not serve after"):
        await start()
    assert not alive(int(sleeper.read_text()))


@of_others
async def test_an_interrupted_start_leaves_no_process(start, sleeper):
    starting = asyncio.create_task(start())
    await until(sleeper.exists)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not alive(int(sleeper.read_text()))


def test_a_thread_that_may_end_cannot_start_one(start):
    caught = []

    def begin():
        try:
            asyncio.run(start())
        except UsageError as error:
            caught.append(str(error))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert "main thread" in caught[0]
