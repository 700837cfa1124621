"""What a local etcd has to itself: its sockets, who is kept out, its leases. `test_local_servers` has the rest."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pace import patient
from seen_server import listening, until

from edl.coordination.child_server import free_port
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.etcd.etcd_connection import EtcdConnection
from edl.coordination.etcd.etcd_messages import (
    AUTH_ENABLE,
    LEASE_GRANT,
    LEASE_REVOKE,
    RANGE,
    TXN,
    USER_ADD,
    WATCH,
    Empty,
    LeaseRevokeRequest,
    Method,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
    UserAddRequest,
    WatchCreateRequest,
    WatchRequest,
)
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.coordination.etcd.etcd_session import Watches
from edl.coordination.etcd.etcd_store import connect
from edl.coordination.etcd.etcd_transactions import KeyLayout
from edl.coordination.store import MAX_OPS, AccessDenied, Create, Link
from edl.errors import ConfigError, EdlError, StoreUnavailable, UsageError

pytestmark = pytest.mark.integration

MINE = Digest("edl", "mine")
CHANGE_PASSWORD = Method("/etcdserverpb.Auth/UserChangePassword", UserAddRequest, Empty)


@pytest.fixture
async def local(tmp_path):
    started = await LocalEtcd.start(tmp_path / "etcd", address="127.0.0.1")
    yield started
    await started.stop()


# ------------------------------------------------------------------------------------------------- from start to end


async def test_for_one_machine_it_listens_on_a_socket_that_only_this_user_can_open(tmp_path):
    local = await LocalEtcd.start(tmp_path / "etcd", digest=MINE)
    assert listening(local.pid) == set()
    socket_ = Path(local.coordinator.socket)
    assert local.coordinator.hosts == f"etcd://{socket_}"
    assert socket_.parent.stat().st_mode & 0o777 == 0o700
    store = await connect(local.coordinator, 10.0)
    await store.create("/a", b"1")
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    await local.restart()
    await until(lambda: store.link is Link.CONNECTED)
    assert (await store.read("/a")).value == b"1"
    await store.close()
    await local.stop()
    with pytest.raises(ConfigError, match="is gone, and with it the `edl run`"):
        await connect(local.coordinator, 4.0, connect_timeout_s=1.0)


async def test_where_a_sockets_name_would_be_too_long_it_lies_elsewhere(tmp_path):
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    local = await LocalEtcd.start(deep)
    folder = Path(local.coordinator.socket).parent
    assert folder != deep
    assert folder.stat().st_mode & 0o777 == 0o700
    store = await connect(local.coordinator, 4.0)
    await store.create("/a")
    await store.close()
    await local.stop()
    assert not folder.exists()


async def test_it_can_be_started_by_hand_and_ends_by_a_signal(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "edl.coordination", "--etcd", str(tmp_path / "etcd"), str(port)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert await process.stdout.readline() == f"EDL_COORDINATOR=etcd://127.0.0.1:{port}\n".encode()
    store = await connect(Coordinator(f"etcd://127.0.0.1:{port}"), 4.0)
    await store.create("/kept", b"1")
    await store.close()
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


# ------------------------------------------------------------------------------------------------ what keeps others out


async def test_a_stranger_can_neither_read_nor_write(tmp_path):
    local = await LocalEtcd.start(tmp_path / "etcd", digest=MINE, address="127.0.0.1")
    store = await connect(local.coordinator, 4.0)
    await store.create("/jobs/x", b"plan")
    for digest in (None, Digest("edl", "guessed"), Digest("root", "")):
        with pytest.raises(AccessDenied, match="EDL_COORDINATOR_AUTH"):
            await connect(Coordinator(local.coordinator.hosts, digest), 4.0)
    await no_call_of_a_strangers_works(local, store.session)
    assert (await store.read("/jobs/x")).value == b"plan"
    with pytest.raises(AccessDenied):  # nor may its own user write elsewhere, or let others in
        await connect(Coordinator(f"{local.coordinator.hosts}/elsewhere", MINE), 4.0)
    await store.close()
    await local.stop()


async def no_call_of_a_strangers_works(local, session):
    key = KeyLayout("/edl").node("/jobs/x")
    calls: tuple[tuple[Any, Any], ...] = (
        (RANGE, RangeRequest(key)),
        (TXN, TxnRequest(success=(RequestOp(request_put=PutRequest(key, b"0 0\nmine")),))),
        (LEASE_REVOKE, LeaseRevokeRequest(session)),
        (USER_ADD, UserAddRequest("me", "me")),
    )
    async with connected(local) as stranger:
        for method, request in calls:
            with pytest.raises(AccessDenied):
                await stranger.call(method, request, timeout_s=5)
        watching = stranger.stream(WATCH)
        await watching.write(WatchRequest(create_request=WatchCreateRequest(key)))
        assert (await watching.read()).canceled


@asynccontextmanager
async def connected(local, digest=None):
    """A client beside the stores'."""
    coordinator = Coordinator(local.coordinator.hosts, digest)
    connection = EtcdConnection(("127.0.0.1", local.port), coordinator, patience_s=5)
    await connection.open()
    yield connection
    await connection.close()


async def newest_revision(local):
    async with connected(local) as client:
        return (await client.call(RANGE, RangeRequest(b"/edl"), timeout_s=5)).header.revision


async def test_before_passwords_count_nobody_can_reach_it(tmp_path, monkeypatch):
    """As it is closed, it listens on no port."""
    ports = []
    original = EtcdConnection.call

    async def call(self, method, request, **how):
        if method is AUTH_ENABLE:
            ports.append((self._host, self._port))
        return await original(self, method, request, **how)

    monkeypatch.setattr(EtcdConnection, "call", call)
    local = await LocalEtcd.start(tmp_path / "etcd", digest=MINE, address="127.0.0.1")
    assert ports == [(str(tmp_path / "etcd" / "client:1"), 0)]
    await local.stop()


async def test_a_closing_that_breaks_off_is_begun_again(tmp_path, monkeypatch):
    original = EtcdConnection.call

    async def call(self, method, request, **how):
        if method is AUTH_ENABLE:
            raise EdlError("broken off")
        return await original(self, method, request, **how)

    with monkeypatch.context() as broken:
        broken.setattr(EtcdConnection, "call", call)
        with pytest.raises(ConfigError, match="cannot be closed to others: broken off"):
            await LocalEtcd.start(tmp_path / "etcd", digest=MINE, address="127.0.0.1")
    local = await LocalEtcd.start(tmp_path / "etcd", digest=MINE, address="127.0.0.1")
    with pytest.raises(AccessDenied):
        await connect(Coordinator(local.coordinator.hosts), 4.0)
    await local.stop()


async def test_a_folder_opens_to_the_credentials_it_was_first_used_with(tmp_path):
    here = "127.0.0.1"
    await (await LocalEtcd.start(tmp_path / "closed", digest=MINE, address=here)).stop()
    await (await LocalEtcd.start(tmp_path / "open", address=here)).stop()
    for folder, digest in (("closed", Digest("edl", "two")), ("closed", None), ("open", MINE)):
        with pytest.raises(ConfigError, match="was used with other credentials"):
            await LocalEtcd.start(tmp_path / folder, digest=digest, address=here)


async def test_many_calls_at_once_with_a_token_that_is_forgotten_are_all_answered(tmp_path, monkeypatch):
    """etcd forgets a user's tokens when the user's password is set, here to the same."""
    made = []
    original = EtcdConnection.call

    async def call(self, method, request, **how):
        if method is USER_ADD:
            made.append(request)
        return await original(self, method, request, **how)

    monkeypatch.setattr(EtcdConnection, "call", call)
    local = await LocalEtcd.start(tmp_path / "etcd", digest=MINE, address="127.0.0.1")
    root, mine = made
    store = await connect(local.coordinator, 10.0)
    await store.create("/a", b"1")
    async with connected(local, Digest(root.name, root.password)) as admin:
        for _ in range(3):
            await admin.call(CHANGE_PASSWORD, mine, timeout_s=5)
            reads = []
            for _ in range(40):
                reads.append(asyncio.ensure_future(store.read("/a")))
                await asyncio.sleep(0.0005)  # some begin while the token is renewed
            assert {node.value for node in await asyncio.gather(*reads)} == {b"1"}
    await store.close()
    await local.stop()


# --------------------------------------------------------------------------------------------- what stands in the way


async def test_a_missing_etcd_names_the_command_that_brings_it(tmp_path, monkeypatch):
    monkeypatch.delenv("EDL_ETCD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^[^\n]*apt-get install [^\n]*etcd-server[^\n]*$"):
        await LocalEtcd.start(tmp_path / "etcd")


async def test_an_etcd_that_does_not_work_is_told_in_its_own_words(tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.write_text('#!/bin/sh\necho \'{"level":"fatal","msg":"discovery failed","error":"no disk"}\' >&2\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("EDL_ETCD", str(broken))
    with pytest.raises(ConfigError, match=r"does not start: discovery failed: no disk \(all of it in "):
        await LocalEtcd.start(tmp_path / "etcd", digest=MINE, address="127.0.0.1")


async def test_variables_of_another_etcd_do_not_stop_ours(tmp_path, monkeypatch):
    """Each flag may be given as a variable, and one that is both is the server's end."""
    monkeypatch.setenv("ETCD_NAME", "another")
    local = await LocalEtcd.start(tmp_path / "etcd")
    await local.stop()


# ------------------------------------------------------------------------------------------------- the client's traps


async def test_a_wiped_server_is_joined_with_a_new_session(local, tmp_path):
    store = await connect(local.coordinator, 10.0)
    links = []
    store.watch_link(links.append)
    woken = asyncio.Event()
    store.watch("/a", woken.set)
    await store.create("/a")
    session = store.session
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    shutil.rmtree(tmp_path / "etcd" / "data")
    await local.restart()
    await until(lambda: links == [Link.SUSPENDED, Link.LOST, Link.CONNECTED])
    assert store.session != session
    assert await store.read("/a") is None
    woken.clear()
    await store.create("/a")
    async with asyncio.timeout(10):
        await woken.wait()
    await store.close()


async def test_a_server_that_is_wiped_before_a_new_session_began_tells_of_changes(local, tmp_path, monkeypatch):
    granting, original = asyncio.Event(), EtcdConnection.call

    async def call(self, method, request, **how):
        if method is LEASE_GRANT and not granting.is_set():
            raise StoreUnavailable("it grants no lease")
        return await original(self, method, request, **how)

    store = await connect(local.coordinator, 10.0)
    for number in range(20):
        await store.create(f"/x{number}")
    seen, woken = await newest_revision(local), asyncio.Event()
    store.watch("/a", woken.set)
    session = store.session
    monkeypatch.setattr(EtcdConnection, "call", call)
    await revoke(local, session)
    await until(lambda: store.link is Link.LOST)
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    shutil.rmtree(tmp_path / "etcd" / "data")
    await local.restart()
    granting.set()
    await until(lambda: store.link is Link.CONNECTED and store.session != session)
    assert await newest_revision(local) < seen
    await until(woken.is_set)
    woken.clear()
    await store.create("/a")
    async with asyncio.timeout(patient(10)):
        await woken.wait()
    await store.close()


async def revoke(local, session):
    async with connected(local) as client:
        await client.call(LEASE_REVOKE, LeaseRevokeRequest(session), timeout_s=5)


async def test_a_server_restored_from_a_backup_is_joined_with_a_new_session(local, tmp_path):
    """It has the lease of old, but not what was written since: no client may believe that it stands."""
    store = await connect(local.coordinator, 10.0)
    links = []
    store.watch_link(links.append)
    session = store.session
    data, backup = tmp_path / "etcd" / "data", tmp_path / "backup"
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    shutil.copytree(data, backup)
    await local.restart()
    await until(lambda: links[-1:] == [Link.CONNECTED])
    assert store.session == session
    await store.create("/since")
    local.signal(signal.SIGKILL)
    await local.wait_exit()
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    await local.restart()
    await until(lambda: links[-1:] == [Link.CONNECTED] and store.session != session)
    assert links[-3:] == [Link.SUSPENDED, Link.LOST, Link.CONNECTED]
    assert await store.read("/since") is None
    await store.close()


async def test_a_watch_whose_beginning_was_compacted_away_wakes_and_goes_on(local):
    store = await connect(local.coordinator, 10.0)
    seen = [await newest_revision(local)]
    watches = Watches(KeyLayout("/edl"), lambda: seen[0], lambda: None)
    for n in range(5):
        await store.create(f"/x{n}")
    seen[0], behind = await newest_revision(local), seen[0]
    await compact(local, seen[0])
    woken = asyncio.Event()
    async with connected(local) as client:
        watches.attach(store.session)
        stream = Overheard(client.stream(WATCH))
        serving = asyncio.create_task(watches.serve(stream))
        seen[0] = behind
        watch = watches.add("/a", woken.set)
        ids = {watch.number * 4 + slot for slot in (1, 2, 3)}  # the node's own key, its count, its children's removals
        each = {(number, compacted) for number in ids for compacted in (True, False)}
        await until(lambda: set(stream.ended) == each)  # also etcd's answers to our cancels
        await asyncio.sleep(0)  # a wake follows the answer
        assert woken.is_set()
        for change in (store.create("/a"), store.create("/a/b"), store.delete("/a/b")):
            woken.clear()
            await change
            async with asyncio.timeout(patient(10)):
                await woken.wait()
        assert len(stream.ended) == len(each)
        assert not serving.done()
        serving.cancel()
        await asyncio.wait({serving})
    await store.close()


class Overheard:
    """A stream of watches, and the ends of watches that its server has told of."""

    def __init__(self, stream):
        self.write, self.code, self.details = stream.write, stream.code, stream.details
        self.stream = stream
        self.ended = []

    async def read(self):
        answer = await self.stream.read()
        if answer.canceled:
            self.ended.append((answer.watch_id, bool(answer.compact_revision)))
        return answer


async def compact(local, revision):
    import grpc.aio

    async with grpc.aio.insecure_channel(f"127.0.0.1:{local.port}") as channel:
        number, varint = revision, bytearray()
        while number > 0x7F:
            varint.append(number & 0x7F | 0x80)
            number >>= 7
        await channel.unary_unary("/etcdserverpb.KV/Compact")(b"\x08" + bytes([*varint, number]))


async def test_a_session_that_is_closed_is_over_at_once(local):
    store, other = await connect(local.coordinator, 60.0), await connect(local.coordinator, 10.0)
    await store.create("/mine", ephemeral=True)
    gone = asyncio.Event()
    other.watch("/mine", gone.set)
    await other.read("/mine")
    await store.close()
    async with asyncio.timeout(patient(10)):  # not the 60 s of its lease
        await gone.wait()
    assert await other.read("/mine") is None
    await other.close()


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


async def test_a_silent_server_is_noticed_before_the_session_can_expire(local):
    store = await connect(local.coordinator, 4.0)
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


async def test_a_process_that_stood_still_trusts_its_link_no_more(local, monkeypatch):
    """It may have lost its session, and does not know yet: what it last heard is older than a session lasts."""
    store = await connect(local.coordinator, 10.0)
    links = []
    store.watch_link(links.append)
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 10.0)
    assert store.link is Link.SUSPENDED
    await until(lambda: links == [Link.SUSPENDED, Link.CONNECTED])
    await store.close()


async def test_a_write_of_a_session_that_is_over_is_refused_before_its_owner_hears_of_the_end(local, monkeypatch):
    """Its watches tell of nothing, and its next sign of life is far."""

    async def deaf(_watches, _stream):
        await asyncio.Event().wait()

    monkeypatch.setattr(Watches, "serve", deaf)
    store = await connect(local.coordinator, 60.0)
    await store.create("/a")
    await revoke(local, store.session)
    with pytest.raises(EdlError, match="is over"):
        await store.write("/a", b"late")
    assert store.link is Link.SUSPENDED
    await until(lambda: store.link is Link.CONNECTED)
    assert (await store.read("/a")).value == b""
    await store.close()


async def test_an_etcd_as_it_comes_takes_as_many_operations_as_a_transaction_may_have(local):
    """Each is several of etcd's, which takes 128 unless told otherwise."""
    store = await connect(local.coordinator, 10.0)
    await store.commit([Create("/many"), *(Create(f"/many/{n}") for n in range(MAX_OPS - 1))])
    assert len(await store.children("/many")) == MAX_OPS - 1
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
    assert await store.read("/a") is None  # the parent's session is unharmed
    await store.close()


async def test_enabled_without_us_is_not_our_business(local):
    """An etcd without passwords lets a job with a password in: its administrator decides."""
    store = await connect(Coordinator(local.coordinator.hosts, MINE), 4.0)
    assert await store.children("/") == ()
    await store.close()
