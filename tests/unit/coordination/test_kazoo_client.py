"""How kazoo waits, once it is tamed: what TLS holds is not waited for."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.kazoo_client import make_client


@pytest.fixture
def spoken(tmp_path: Path) -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    """A server's and a client's end of one connection that speaks TLS."""
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    line += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*line, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    asking = ssl.create_default_context(cafile=certificate)
    with ExitStack() as ends:
        ours, theirs = map(ends.enter_context, socket.socketpair())
        server = ends.enter_context(serving.wrap_socket(theirs, server_side=True, do_handshake_on_connect=False))
        greeting = threading.Thread(target=server.do_handshake)
        greeting.start()
        client = ends.enter_context(asking.wrap_socket(ours, server_hostname="localhost"))
        greeting.join()
        yield server, client


def test_the_second_answer_of_one_record_is_there_at_once(spoken: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    server, client = spoken
    handler = make_client(Coordinator("127.0.0.1:1"), 4.0).handler
    asked, asking = socket.socketpair()
    with asked, asking:
        server.sendall(b"firstsecond")
        assert client.recv(5) == b"first"
        assert handler.select([client, asked], [], [], 30.0) == ([client], [], [])
        asking.send(b"!")
        assert handler.select([client, asked], [], [], 30.0)[0] == [client, asked], "our requests do not wait for it"
        assert client.recv(6) == b"second"
        assert handler.select([client, asked], [], [], 30.0)[0] == [asked]
