"""Diagnosis of an unreachable coordinator, in one line with the remedy; kazoo and gRPC only report a time-out.

Owns: probing each server address with a plain connection, as a person would. Does not own: the connection for use.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from pathlib import Path

from edl.coordination.coordinator_settings import ETCD, Coordinator, Tls
from edl.coordination.dialing import check_server, run_in_thread, tls_context

_PROBE_S = 1.5

_SRVR = b"srvr"
_HEALTH = b"GET /health HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n"
_SPEAKS_TLS = "speaks TLS: set EDL_COORDINATOR_TLS_CA to the certificate of its authority"


async def explain(settings: Coordinator) -> str:
    """Return one line about every server of the list. It takes a few seconds at most and raises nothing."""
    looks = [
        run_in_thread(functools.partial(_look_at, host, port, settings), timeout_s=4 * _PROBE_S)
        for host, port in settings.endpoints
    ]
    findings = await asyncio.gather(*looks)
    story = "; ".join(
        f"{f'{host}:{port}' if port else host} {finding or 'takes too long to be looked up'}"
        for (host, port), finding in zip(settings.endpoints, findings, strict=True)
    )
    return f"cannot use the coordinator {settings.hosts}: {story}"


def _look_at(host: str, port: int, settings: Coordinator) -> str:
    if settings.socket:
        there = Path(settings.socket).exists()
        return "does not answer" if there else "is gone, and with it the `edl run` that had started it"
    return _look(host, port, settings)


def _look(host: str, port: int, settings: Coordinator) -> str:
    tls, kind = settings.tls, settings.kind
    try:
        with socket.create_connection((host, port), _PROBE_S) as connection:
            if settings.user is not None:
                check_server(connection, settings.user, _PROBE_S)
            if tls is not None:
                return _shake_hands(connection, host, tls, kind)
            finding = _ask(connection, kind)
        return _is_of_the_other_kind(host, port, kind) or finding
    except socket.gaierror as error:
        return f"has a host name that does not resolve ({error.strerror}): check the spelling"
    except ConnectionRefusedError:
        name = "etcd" if kind == ETCD else "ZooKeeper"
        return f"refuses the connection: nothing listens there; check the port, and that {name} runs"
    except TimeoutError:
        return "does not answer: check the address, and for a firewall in between"
    except OSError as error:
        return f"cannot be reached ({error.strerror or error})"


def _shake_hands(connection: socket.socket, host: str, tls: Tls, kind: str) -> str:
    try:
        secure = tls_context(tls).wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        return (
            f"shows a certificate that does not hold ({error.verify_message}): check EDL_COORDINATOR_TLS_CA, and that "
            "the certificate names the host as EDL_COORDINATOR does"
        )
    except OSError as error:
        if "ALERT" in (getattr(error, "reason", None) or ""):
            return _wants_other_client(error)
        return f"does not speak TLS ({error}): use the server's secure port, or unset EDL_COORDINATOR_TLS_CA"
    with secure:
        try:
            return _ask(secure, kind)
        except ssl.SSLError as error:  # with TLS 1.3 a server judges the client's certificate after the handshake
            return _wants_other_client(error)


def _wants_other_client(error: OSError) -> str:
    return (
        f"ends the TLS connection ({error}): it may want a certificate of the client, or another one than "
        "EDL_COORDINATOR_TLS_CERT"
    )


def _ask(connection: socket.socket, kind: str) -> str:
    return _ask_etcd(connection) if kind == ETCD else _ask_zookeeper(connection)


def _said(connection: socket.socket, question: bytes) -> bytes:
    connection.settimeout(_PROBE_S)
    connection.sendall(question)
    try:
        return connection.recv(4096)
    except (TimeoutError, ConnectionResetError):
        return b""


def _is_of_the_other_kind(host: str, port: int, kind: str) -> str:
    try:
        with socket.create_connection((host, port), _PROBE_S) as connection:
            if kind == ETCD:
                found = b"Mode: " in _said(connection, _SRVR)
                return "is a ZooKeeper server: name it as HOST:PORT, without etcd://" if found else ""
            found = b'"health"' in _said(connection, _HEALTH)
            return f"is an etcd: name it as etcd://{host}:{port}" if found else ""
    except OSError:
        return ""


def _ask_etcd(connection: socket.socket) -> str:
    answer = _said(connection, _HEALTH)
    if b'"health":"true"' in answer:
        return "is an etcd and answers, but grants no session in time: try again, or see its log"
    if b'"health"' in answer:
        return "is an etcd without a leader, or unwell: start the others of its cluster, and see its log"
    if answer.startswith(b"\x15\x03"):
        return _SPEAKS_TLS
    if answer:
        return f"is no etcd (it says {answer[:20]!r}): check the port"
    return "accepts the connection but says nothing: it is no etcd, hangs, or wants TLS"


def _ask_zookeeper(connection: socket.socket) -> str:
    answer = _said(connection, _SRVR)
    if b"not currently serving" in answer:
        return "is a ZooKeeper server that is starting, or without a quorum: start the others of its ensemble"
    if b"Mode: " in answer or b"not in the whitelist" in answer:
        return "is a ZooKeeper server and answers, but grants no session in time: try again, or see its log"
    if answer.startswith(b"\x15\x03"):
        return _SPEAKS_TLS
    if answer:
        return f"is no ZooKeeper server (it says {answer[:20]!r}): check the port"
    return "accepts the connection but says nothing: it is no ZooKeeper server, hangs, or wants TLS"
