"""What the embedded coordinator has to itself: who is kept out, its journal, and its sessions' time.

`test_local_servers` has the rest.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pace import patient
from seen_server import listening, until

from edl.coordination.embedded.embedded_core import BeginSession
from edl.coordination.embedded.embedded_server import LocalEmbedded
from edl.coordination.store import Link, connect
from edl.errors import ConfigError, StoreUnavailable, UsageError

pytestmark = pytest.mark.integration

# It becomes another user by itself: the interpreter may lie where no other user may look.
KNOCK = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as one:
    one.settimeout(10)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    try:
        one.connect(sys.argv[1])
        one.sendall(bytes.fromhex(sys.argv[2]))
        print("in" if one.recv(1) else "hung up")
    except ConnectionError:
        print("hung up")
    except PermissionError:
        print("kept out")
"""
HELLO = msgspec.msgpack.encode(BeginSession(0, 4.0))


@pytest.fixture
async def local(tmp_path):
    server = await LocalEmbedded.start(tmp_path / "embedded")
    yield server
    await server.stop()


def test_it_takes_no_port_and_no_address(tmp_path):
    for more in ({"port": 2181}, {"address": "10.0.0.1"}):
        with pytest.raises(ConfigError, match=r"^the embedded coordinator serves jobs of one machine[^\n]*$"):
            asyncio.run(LocalEmbedded.start(tmp_path / "embedded", **more))


async def test_it_listens_on_a_private_socket_only(local):
    assert listening(local.pid) == set()
    facts = os.stat(local.coordinator.socket)  # noqa: PTH116 - at once
    assert stat.S_ISSOCK(facts.st_mode)
    assert stat.S_IMODE(facts.st_mode) == 0o600
    assert stat.S_IMODE(os.stat(Path(local.coordinator.socket).parent).st_mode) == 0o700  # noqa: PTH116


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
async def test_another_user_is_kept_out_by_the_folder_and_by_the_kernels_word(local):
    def knock():
        greeting = struct.pack(">I", len(HELLO)) + HELLO
        command = [sys.executable, "-I", "-c", KNOCK, local.coordinator.socket, greeting.hex()]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()

    path = Path(local.coordinator.socket)
    above = list(path.parents)[:-1]
    modes = {folder: folder.stat().st_mode & 0o7777 for folder in above}
    assert await asyncio.to_thread(knock) == "kept out"
    try:
        for folder in above:
            folder.chmod(modes[folder] | 0o711)
        os.chmod(path, 0o666)  # noqa: PTH101 - at once
        assert await asyncio.to_thread(knock) == "hung up"
    finally:
        for folder in above:
            folder.chmod(modes[folder])


@pytest.mark.parametrize("said", [b"\xff" * 64, b"\0\0\0\1\x90", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2\x91\xa1"])
async def test_what_it_does_not_understand_it_hangs_up_on(local, said):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(patient(10))
        one.connect(local.coordinator.socket)
        one.sendall(said)
        assert await asyncio.to_thread(one.recv, 1) == b""
    store = await connect(local.coordinator, 4.0)
    await store.close()


async def test_a_disk_without_room_refuses_changes_and_goes_on_when_there_is_some(local, tmp_path):
    """By the kernel's bound for files of this process, which is as deaf as a full disk."""
    store = await connect(local.coordinator, 10.0)
    await store.create("/a", b"before")
    journal = tmp_path / "embedded" / "journal"
    room = (journal.stat().st_size + 20, resource.RLIM_INFINITY)
    before = resource.prlimit(local.pid, resource.RLIMIT_FSIZE, room)
    with pytest.raises(StoreUnavailable, match="cannot write its journal: File too large; free some space"):
        await store.write("/a", b"x" * 2000)
    assert (await store.read("/a")).value == b"before"
    assert store.link is Link.CONNECTED
    with pytest.raises(ConfigError, match=r"^the coordinator cannot write its journal: [^\n]*tried for 1 s"):
        await connect(local.coordinator, 10.0, connect_timeout_s=1.0)
    resource.prlimit(local.pid, resource.RLIMIT_FSIZE, before)
    await store.write("/a", b"after")
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    await local.restart()
    await until(lambda: store.link is Link.CONNECTED)
    assert (await store.read("/a")).value == b"after"
    await store.close()


async def test_damage_in_its_journal_is_one_line_and_is_left_as_it_is(local, tmp_path):
    store = await connect(local.coordinator, 10.0)
    await store.create("/a", b"value")
    await store.create("/b", b"value")
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    journal = tmp_path / "embedded" / "journal"
    data = bytearray(journal.read_bytes())
    data[data.index(b"/a")] ^= 1
    journal.write_bytes(data)
    with pytest.raises(
        ConfigError, match=r"^the local coordinator does not start again: [^\n]*journal is no journal [^\n]*damaged"
    ):
        await local.restart()
    assert journal.read_bytes() == data
    await store.close()


async def test_a_journal_that_somebody_removed_is_written_anew(local, tmp_path):
    store = await connect(local.coordinator, 10.0)
    await store.create("/a", b"before")
    journal = tmp_path / "embedded" / "journal"
    journal.unlink()
    await until(journal.exists)
    await store.create("/b", b"after")
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    await local.restart()
    await until(lambda: store.link is Link.CONNECTED)
    assert [(await store.read(path)).value for path in ("/a", "/b")] == [b"before", b"after"]
    await store.close()


@pytest.mark.slow
async def test_a_folder_that_somebody_removed_is_made_anew(local, tmp_path):
    folder = tmp_path / "embedded"
    store = await connect(local.coordinator, 10.0)
    session = store.session
    await store.create("/a", b"before")
    shutil.rmtree(folder)
    await until((folder / "journal").exists)
    newcomer = await connect(local.coordinator, 10.0)
    assert (await newcomer.read("/a")).value == b"before"
    await newcomer.close()
    with pytest.raises(ConfigError, match=r"^another local coordinator runs in "):
        await LocalEmbedded.start(folder)
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    await local.restart()
    await until(lambda: store.link is Link.CONNECTED)
    assert ((await store.read("/a")).value, store.session) == (b"before", session)
    await store.close()


@pytest.mark.slow
async def test_a_folder_that_another_server_has_by_now_is_left_to_it(local, tmp_path):
    folder = tmp_path / "embedded"
    local.signal(signal.SIGSTOP)
    shutil.rmtree(folder)
    other = await LocalEmbedded.start(folder)
    local.signal(signal.SIGCONT)
    assert await asyncio.wait_for(local.wait_exit(), patient(20)) == 1
    with pytest.raises(ConfigError, match=r"^another local coordinator runs in "):
        await local.restart()
    store = await connect(other.coordinator, 10.0)
    await store.create("/a", b"of the other")
    await store.close()
    await other.stop()


async def test_where_the_whole_job_was_removed_it_serves_on_but_does_not_start_again(tmp_path):
    local = await LocalEmbedded.start(tmp_path / "job" / "embedded")
    store = await connect(local.coordinator, 10.0)
    shutil.rmtree(tmp_path / "job")
    await asyncio.sleep(0.5)  # in which the server looks for its files
    await store.create("/a", b"kept")
    assert (await store.read("/a")).value == b"kept"
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    with pytest.raises(ConfigError, match=r"^the local coordinator does not start again: No such file [^\n]*embedded$"):
        await local.restart()
    await store.close()
    await local.stop()
    assert list(tmp_path.iterdir()) == []


async def test_a_wiped_server_takes_no_session_of_before_for_its_own(local, tmp_path):
    store = await connect(local.coordinator, 10.0)
    links = []
    store.watch_link(links.append)
    await store.create("/mine", ephemeral=True)
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    (tmp_path / "embedded" / "journal").unlink()
    await local.restart()
    await until(lambda: links == [Link.SUSPENDED, Link.LOST, Link.CONNECTED])
    assert await store.children("/") == ()
    await store.close()


@pytest.mark.slow
async def test_an_outage_costs_no_session(local):
    store = await connect(local.coordinator, 2.0)
    await store.create("/mine", ephemeral=True)
    session = store.session
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    await until(lambda: store.link is Link.SUSPENDED)
    await asyncio.sleep(2.5)  # longer than the session: what is measured
    await local.restart()
    await until(lambda: store.link is Link.CONNECTED)
    assert (await store.read("/mine")).owner == store.session == session
    await store.close()


@pytest.mark.slow
async def test_a_silent_server_is_noticed_before_the_session_can_expire_and_ends_none_when_it_wakes(local):
    store = await connect(local.coordinator, 4.0)
    session, loop = store.session, asyncio.get_running_loop()
    suspended = loop.create_future()
    store.watch_link(lambda link: None if suspended.done() else suspended.set_result(loop.time()))
    frozen_at = loop.time()
    local.signal(signal.SIGSTOP)
    async with asyncio.timeout(patient(10)):
        assert await suspended - frozen_at < 4.0
    await asyncio.sleep(frozen_at + 4.5 - loop.time())  # longer than the session: what is measured
    local.signal(signal.SIGCONT)
    await until(lambda: store.link is Link.CONNECTED)
    assert store.session == session
    await store.close()


async def test_a_process_that_stood_still_trusts_its_link_no_more(local, monkeypatch):
    store: Any = await connect(local.coordinator, 10.0)
    links = []
    store.watch_link(links.append)
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 10.0)
    assert store.link is Link.SUSPENDED
    with pytest.raises(StoreUnavailable):
        await store.read("/")
    await until(lambda: links == [Link.SUSPENDED, Link.CONNECTED])
    await store.close()


async def test_in_a_forked_child_every_call_fails_at_once(local):
    store = await connect(local.coordinator, 4.0)
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
    assert await store.read("/a") is None
    await store.close()


async def test_a_folder_with_a_long_name_will_do(tmp_path):
    """Longer than the kernel lets a socket's name be."""
    server = await LocalEmbedded.start(tmp_path / ("x" * 120) / "embedded")
    store = await connect(server.coordinator, 4.0)
    assert await store.create("/a") == "/a"
    await store.close()
    await server.stop()
    assert "socket" not in os.listdir(tmp_path / ("x" * 120) / "embedded")  # noqa: PTH208
    shutil.rmtree(tmp_path / ("x" * 120))
