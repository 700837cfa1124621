"""A local server is closed to other users from the first connection that it takes, whatever it begins with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from seen_server import until

from edl.coordination import child_server, zookeeper_server
from edl.coordination.coordinator_settings import Digest
from edl.coordination.store import connect
from edl.coordination.zookeeper_server import LocalServer
from edl.errors import ConfigError

pytestmark = pytest.mark.integration

MINE = Digest("edl", "a" * 64)
NOBODY = 65534
PLACES = ("/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="plays another user")
gated = pytest.mark.skipif(zookeeper_server.find_gate() is None, reason="the gate is not compiled")


@contextlib.contextmanager
def guest(port, auth=("digest", "x:y")):
    client = KazooClient(f"127.0.0.1:{port}", auth_data=[auth], timeout=4.0)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def refusals(port):
    """What a client with a digest of its own is refused, of what it tries."""
    refused = []
    with guest(port) as client:
        for place in PLACES:
            for act, path in ((client.create, f"{place.rstrip('/')}/made"), (client.get_children, place)):
                try:
                    act(path)
                except NoAuthError:
                    refused.append(place)
    return refused


@pytest.fixture
async def local(tmp_path):
    server = await LocalServer.start(tmp_path / "zk", digest=MINE)
    yield server
    await server.stop()


async def test_nothing_in_it_opens_to_another_digest_not_even_zookeepers_own_nodes(local):
    assert await asyncio.to_thread(refusals, local.port) == [place for place in PLACES for _ in range(2)]


async def test_it_is_closed_before_its_process_begins(tmp_path):
    """So that there is no first moment."""
    seen = []

    class Watched(LocalServer):
        def _command(self):
            seen.append((tmp_path / "zk" / "data" / "version-2" / "snapshot.0").read_bytes())
            return super()._command()

    server = await Watched.start(tmp_path / "zk", digest=MINE)
    await server.stop()
    assert seen and b"world" not in seen[0]


async def test_a_server_whose_data_was_removed_comes_back_closed(local, tmp_path):
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    shutil.rmtree(tmp_path / "zk" / "data")
    await local.restart()
    assert len(await asyncio.to_thread(refusals, local.port)) == 2 * len(PLACES)


async def test_data_that_was_open_to_all_is_not_taken_for_ours(tmp_path):
    open_one = await LocalServer.start(tmp_path / "zk")
    await open_one.stop()
    for marked in (True, False):
        if not marked:
            (tmp_path / "zk" / "owner").unlink()
        with pytest.raises(ConfigError, match=r"^[^\n]*was used with other credentials: use another folder$"):
            await LocalServer.start(tmp_path / "zk", digest=MINE)


async def test_wrong_connections_leave_nothing_in_its_log(local):
    before = local.log.stat().st_size
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", local.port), 5) as link, contextlib.suppress(ConnectionError):
            link.sendall(b"\xff\xff\xff\xff")
            assert link.recv(1) == b""  # who ends it first is not let in at all: whose it was is not known any more
    assert await asyncio.to_thread(refusals, local.port)
    assert local.log.stat().st_size == before


async def test_its_log_has_a_bound_whatever_it_says(local, monkeypatch):
    monkeypatch.setattr(child_server, "LOG_BYTES", 1000)
    waiting = asyncio.create_task(local.wait_exit())
    with local.log.open("ab") as log:
        log.write(b"x" * 2000)
    await until(lambda: local.log.stat().st_size == 0)
    assert local.log.with_name("zookeeper.log.1").stat().st_size >= 2000
    waiting.cancel()


# ------------------------------------------------------------------------------------------------------- another user

CALL = """
import socket, struct, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5) as link:
    link.sendall(b"srvr")
    try:
        print(len(link.recv(100)))
    except ConnectionResetError:
        print(0)
"""


def call(port, *before):
    done = subprocess.run([*before, sys.executable, "-I", "-c", CALL, str(port)], capture_output=True, check=True)
    return int(done.stdout)


def as_nobody():
    return ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]


@as_root
@gated
async def test_another_user_of_the_machine_is_cut_off_before_a_word(local):
    assert await asyncio.to_thread(call, local.port) > 0
    assert await asyncio.to_thread(call, local.port, *as_nobody()) == 0


SQUAT = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as ear:
    print("there", flush=True)
    ear.settimeout(20)
    while True:
        link, _ = ear.accept()
        link.settimeout(3)
        try:
            print(link.recv(1000).hex() or "nothing", flush=True)
        except OSError:
            print("nothing", flush=True)
"""


@as_root
async def test_another_user_who_took_the_port_meanwhile_is_sent_nothing(local):
    port = local.port
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    squatter = await asyncio.create_subprocess_exec(
        *as_nobody(), sys.executable, "-I", "-c", SQUAT, str(port), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert await squatter.stdout.readline() == b"there\n"
        with pytest.raises(ConfigError, match=rf"another user's server, uid {NOBODY}, has taken its port[^\n]*$"):
            await connect(local.coordinator, 4.0, connect_timeout_s=1.0)
        assert await squatter.stdout.readline() == b"nothing\n"
    finally:
        squatter.kill()
        await squatter.wait()
    await local.restart()
    await (await connect(local.coordinator, 4.0)).close()
