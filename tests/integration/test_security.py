"""Who gets in: digest credentials and TLS against a real server, and the one line that says why not."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from edl.coordination import zookeeper
from edl.coordination.child_server import free_port
from edl.coordination.coordinator_settings import Coordinator, Digest, Tls
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.coordination.store import AccessDenied, Check, Create, connect
from edl.coordination.zookeeper_server import LocalServer, base_config
from edl.errors import ConfigError

pytestmark = pytest.mark.integration

MINE = Digest("edl", "s3cret-of-the-job")


async def refused(settings, *, connect_timeout_s=1.5):
    """The line that a failed connect says."""
    with pytest.raises(ConfigError) as caught:
        await zookeeper.connect(settings, 4.0, connect_timeout_s=connect_timeout_s)
    line = str(caught.value)
    assert "\n" not in line
    return line


# -------------------------------------------------------------------------------------------------------- digest


@pytest.fixture
async def protected(tmp_path):
    server = await LocalServer.start(tmp_path / "zk", digest=MINE)
    yield server
    await server.stop()


async def test_who_knows_the_password_gets_in(protected):
    async with opened(protected.coordinator) as store:
        await store.create("/jobs/x", b"plan")
        await store.commit([Create("/jobs/x/y"), Check("/jobs/x")])
        assert (await store.read("/jobs/x")).value == b"plan"


async def test_who_has_no_credentials_is_cut_off_and_told_what_to_set(protected):
    line = await refused(Coordinator(protected.coordinator.hosts))
    assert "EDL_COORDINATOR_AUTH" in line


async def test_a_stranger_can_neither_read_nor_write_nor_settle_beside_us(protected):
    async with opened(protected.coordinator) as store:
        await store.create("/jobs/x", b"plan")
    stranger = Coordinator(protected.coordinator.hosts, Digest("edl", "guessed"))
    async with opened(stranger) as store:
        for call in (
            store.read("/jobs/x"),
            store.children("/"),
            store.children("/jobs"),
            store.write("/jobs/x", b"mine now"),
            store.create("/mine"),
            store.create("/jobs/mine"),
            store.delete("/jobs/x"),
            store.commit([Create("/mine")]),
        ):
            with pytest.raises(AccessDenied, match="EDL_COORDINATOR_AUTH"):
                await call


async def test_the_password_shows_nowhere(protected, caplog):
    caplog.set_level(1)
    async with opened(protected.coordinator) as store:
        await store.create("/a")
    assert any(record.name == "edl.coordination.kazoo" for record in caplog.records)
    seen = [
        caplog.text,
        repr(protected.coordinator),
        *readable(Path(f"/proc/{protected.pid}"), "cmdline", "environ"),
        *readable(protected.log.parent, "zoo.cfg", "zookeeper.log"),
    ]
    assert not [text for text in seen if MINE.password in text]


def readable(folder, *names):
    return [(folder / name).read_text(errors="replace") for name in names]


async def test_the_credentials_are_replayed_for_the_session_that_follows_an_expired_one(protected):
    async with opened(protected.coordinator) as store:
        await store.create("/a")
        first, links = store.session, asyncio.Queue()
        store.watch_link(links.put_nowait)
        await asyncio.to_thread(end_session, store, protected.port)
        async with asyncio.timeout(20):
            while store.session == first:
                await links.get()
        assert await store.read("/a") is not None


def end_session(store, port):
    client = store._client
    thief = KazooClient(f"127.0.0.1:{port}", client_id=client.client_id, auth_data=client.auth_data)
    thief.start()
    thief.stop()
    thief.close()


# ----------------------------------------------------------------------------------------------------------- TLS


class Certificates:
    """An authority and what it certified, as PEM files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self.ca = str(folder / f"{name}-ca.pem")
        self._ca_key = str(folder / f"{name}-ca.key")
        openssl("req", "-x509", *KEY, "-keyout", self._ca_key, "-out", self.ca, "-subj", f"/CN={name} authority")

    def certify(self, subject: str, *extensions: str) -> tuple[str, str]:
        """Certificate and key."""
        stem = self._folder / f"{self._name}-{subject}"
        request, certificate, key = (f"{stem}.{ending}" for ending in ("csr", "pem", "key"))
        openssl("req", *KEY, "-keyout", key, "-out", request, "-subj", f"/CN={subject}")
        signing = ["-req", "-in", request, "-CA", self.ca, "-CAkey", self._ca_key, "-CAcreateserial"]
        if extensions:
            Path(f"{stem}.ext").write_text("\n".join(extensions))
            signing += ["-extfile", f"{stem}.ext"]
        openssl("x509", *signing, "-days", "2", "-out", certificate)
        return certificate, key


KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.fixture(scope="module")
def client_files(ours):
    return ours.certify("client")


@pytest.fixture(scope="module")
def secure(ours, tmp_path_factory):
    """A server that speaks TLS on one port, wants a client's certificate there, and speaks plainly on another."""
    folder = tmp_path_factory.mktemp("secure")
    certificate, key = ours.certify("server", "subjectAltName=IP:127.0.0.1")
    (folder / "server.pem").write_text(Path(key).read_text() + Path(certificate).read_text())
    config = base_config(folder, free_port()) | {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(free_port()),
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": str(folder / "server.pem"),
        "ssl.trustStore.location": ours.ca,
        "ssl.clientAuth": "need",
    }
    server = LocalServer(folder, config)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        server.spawn()
        assert runner.run(server.wait_ready(60))
        yield int(config["secureClientPort"]), server.port
        runner.run(server.stop())


async def test_tls_with_certificates_on_both_sides(secure, ours, client_files):
    settings = Coordinator(f"127.0.0.1:{secure[0]}/tls", MINE, Tls(ours.ca, *client_files))
    async with opened(settings) as store:
        woken = asyncio.Event()
        store.watch("/a", woken.set)
        await store.create("/a", b"x" * 100_000)
        async with asyncio.timeout(10):
            await woken.wait()
        assert len((await store.read("/a")).value) == 100_000
        await asyncio.gather(*(store.create(f"/a/{n}") for n in range(100)))
        assert len(await store.children("/a")) == 100


async def test_a_client_without_a_certificate_is_refused_and_told(secure, ours):
    line = await refused(Coordinator(f"127.0.0.1:{secure[0]}", None, Tls(ours.ca)))
    assert "may want a certificate of the client" in line


async def test_a_foreign_clients_certificate_is_refused_and_told(secure, ours, theirs):
    line = await refused(Coordinator(f"127.0.0.1:{secure[0]}", None, Tls(ours.ca, *theirs.certify("stranger"))))
    assert "EDL_COORDINATOR_TLS_CERT" in line


async def test_a_server_of_another_authority_is_not_trusted(secure, theirs, client_files):
    line = await refused(Coordinator(f"127.0.0.1:{secure[0]}", None, Tls(theirs.ca, *client_files)))
    assert "certificate that does not hold" in line
    assert "EDL_COORDINATOR_TLS_CA" in line


async def test_the_host_name_counts_unless_told_otherwise(secure, ours, client_files):
    named = Coordinator(f"localhost:{secure[0]}", None, Tls(ours.ca, *client_files))
    assert "names the host" in await refused(named)
    unchecked = Coordinator(named.hosts, None, Tls(ours.ca, client_files[0], client_files[1], check_hostname=False))
    async with opened(unchecked) as store:
        assert await store.children("/")


@pytest.mark.slow
async def test_plain_on_a_tls_port_is_told(secure):
    line = await refused(Coordinator(f"127.0.0.1:{secure[0]}"))
    assert "wants TLS" in line or "speaks TLS" in line


async def test_tls_on_a_plain_port_is_told(secure, ours):
    line = await refused(Coordinator(f"127.0.0.1:{secure[1]}", None, Tls(ours.ca)))
    assert "does not speak TLS" in line


async def test_files_that_are_no_certificates_are_told(tmp_path):
    (tmp_path / "ca.pem").write_text("not a certificate")
    line = await refused(Coordinator("127.0.0.1:1", None, Tls(str(tmp_path / "ca.pem"))))
    assert "EDL_COORDINATOR_TLS_" in line


# ---------------------------------------------------------------------------------------------- why there is no way in


async def test_a_port_without_a_listener_is_told():
    port = free_port()
    line = await refused(Coordinator(f"127.0.0.1:{port}"))
    assert f"127.0.0.1:{port} refuses the connection" in line


async def test_a_host_that_does_not_exist_is_told():
    assert "does not resolve" in await refused(Coordinator("no-such-host.invalid:2181"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "accepts the connection but says nothing"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no ZooKeeper server"),
        (b"This ZooKeeper instance is not currently serving requests\n", "without a quorum"),
    ],
)
async def test_something_else_that_listens_is_told(answer, told):
    hosts = []

    async def serve(reader, writer):
        hosts.append(writer)
        if answer is not None:
            await reader.read(4)
            writer.write(answer)
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, family=socket.AF_INET)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        line = await refused(Coordinator(f"127.0.0.1:{port}"))
        assert told in line
        assert f"127.0.0.1:{port}" in line
        for writer in hosts:
            writer.transport.abort()


async def test_nothing_but_that_one_line_is_said(capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger("edl"), "propagate", False)  # as in a program that configures no logging
    await refused(Coordinator(f"127.0.0.1:{free_port()}"))
    assert capfd.readouterr() == ("", "")


async def test_every_server_of_a_list_is_told_of():
    ports = free_port(), free_port()
    line = await refused(Coordinator(f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/edl"))
    assert re.findall(r"127\.0\.0\.1:(\d+) refuses", line) == list(map(str, ports))


class opened:  # noqa: N801 - reads as a function
    """A store for the length of a block."""

    def __init__(self, settings):
        self._settings = settings

    async def __aenter__(self):
        self._store = await zookeeper.connect(self._settings, 20.0)  # a machine may stand still for some seconds
        return self._store

    async def __aexit__(self, *_):
        await self._store.close()


# ---------------------------------------------------------------------------------------------------------- etcd, TLS


@pytest.fixture(scope="module")
def secure_etcd(ours, tmp_path_factory):
    """An etcd that speaks TLS only, and wants a client's certificate."""
    folder = tmp_path_factory.mktemp("secure-etcd")
    certificate, key = ours.certify("etcd", "subjectAltName=IP:127.0.0.1")
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    flags = {
        "listen-client-urls": url, "advertise-client-urls": url, "cert-file": certificate, "key-file": key,
        "trusted-ca-file": ours.ca, "client-cert-auth": "true",
    }  # fmt: skip
    server = LocalEtcd(folder, "127.0.0.1", port, flags=flags)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        server.spawn()
        assert runner.run(server.wait_ready(60))
        yield server.port
        runner.run(server.stop())


async def test_etcd_over_tls_with_certificates_on_both_sides(secure_etcd, ours, client_files):
    settings = Coordinator(f"etcd://127.0.0.1:{secure_etcd}/tls", None, Tls(ours.ca, *client_files))
    store = await connect(settings, 4.0)
    woken = asyncio.Event()
    store.watch("/a", woken.set)
    await store.create("/a", b"x" * 100_000)
    async with asyncio.timeout(10):
        await woken.wait()
    assert len((await store.read("/a")).value) == 100_000
    await store.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"certfile": None, "keyfile": None}, "may want a certificate of the client"),
        ({"cafile": "theirs"}, "certificate that does not hold"),
        ({}, "names the host"),  # as localhost
    ],
    ids=["no certificate", "another authority", "another name"],
)
async def test_etcd_refused_over_tls_is_told(secure_etcd, ours, theirs, client_files, change, told):
    given = {"cafile": ours.ca, "certfile": client_files[0], "keyfile": client_files[1]} | change
    if change.get("cafile"):
        given["cafile"] = theirs.ca
    host = "127.0.0.1" if change else "localhost"
    with pytest.raises(ConfigError) as caught:
        await connect(Coordinator(f"etcd://{host}:{secure_etcd}", None, Tls(**given)), 4.0, connect_timeout_s=1.0)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_the_host_name_of_an_etcd_need_not_count(secure_etcd, ours, theirs, client_files):
    hosts = f"etcd://localhost:{secure_etcd}"
    store = await connect(
        Coordinator(hosts, None, Tls(ours.ca, client_files[0], client_files[1], check_hostname=False)), 4.0
    )
    assert await store.children("/nothing") == ()
    await store.close()
    wrong = Tls(theirs.ca, client_files[0], client_files[1], check_hostname=False)
    with pytest.raises(ConfigError):  # but the authority does
        await connect(Coordinator(hosts, None, wrong), 4.0, connect_timeout_s=1.0)


@pytest.mark.slow
async def test_plain_on_the_tls_port_of_an_etcd_is_told(secure_etcd):
    with pytest.raises(ConfigError) as caught:
        await connect(Coordinator(f"etcd://127.0.0.1:{secure_etcd}"), 4.0, connect_timeout_s=1.0)
    assert "TLS" in str(caught.value)


async def test_files_that_are_no_certificates_are_told_for_an_etcd_too(tmp_path):
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(ConfigError, match="EDL_COORDINATOR_TLS_"):
        await connect(Coordinator("etcd://127.0.0.1:1", None, Tls(str(tmp_path / "ca.pem"))), 4.0)
