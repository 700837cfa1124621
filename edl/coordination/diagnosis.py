"""Why a coordinator cannot be reached, in one line with the remedy; kazoo itself only says that time is up.

Owns: looking at each server address as a person would, with a plain connection. Does not own: connecting for real.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from edl.coordination.kazoo_client import aside, tls_context
from edl.coordination.settings import Coordinator, Tls

_PROBE_S = 1.5


async def explain(settings: Coordinator) -> str:
    """One line about every server of the list. Takes a few seconds at most and raises nothing."""
    looks = [
        aside(lambda host=host, port=port: _look(host, port, settings.tls), timeout_s=4 * _PROBE_S)  # type: ignore[misc]
        for host, port in settings.endpoints
    ]
    findings = await asyncio.gather(*looks)
    story = "; ".join(
        f"{host}:{port} {finding or 'takes too long to be looked up'}"
        for (host, port), finding in zip(settings.endpoints, findings, strict=True)
    )
    return f"cannot use the coordinator {settings.hosts}: {story}"


def _look(host: str, port: int, tls: Tls | None) -> str:
    try:
        with socket.create_connection((host, port), _PROBE_S) as connection:
            return _ask(connection) if tls is None else _shake_hands(connection, host, tls)
    except socket.gaierror as error:
        return f"has a host name that does not resolve ({error.strerror}): check the spelling"
    except ConnectionRefusedError:
        return "refuses the connection: nothing listens there; check the port, and that ZooKeeper runs"
    except TimeoutError:
        return "does not answer: check the address, and for a firewall in between"
    except OSError as error:
        return f"cannot be reached ({error.strerror or error})"


def _shake_hands(connection: socket.socket, host: str, tls: Tls) -> str:
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
            return _ask(secure)
        except ssl.SSLError as error:  # with TLS 1.3 a server judges the client's certificate after the handshake
            return _wants_other_client(error)


def _wants_other_client(error: OSError) -> str:
    return (
        f"ends the TLS connection ({error}): it may want a certificate of the client, or another one than "
        "EDL_COORDINATOR_TLS_CERT"
    )


def _ask(connection: socket.socket) -> str:
    connection.settimeout(_PROBE_S)
    connection.sendall(b"srvr")
    try:
        answer = connection.recv(4096)
    except (TimeoutError, ConnectionResetError):
        answer = b""
    if b"not currently serving" in answer:
        return "is a ZooKeeper server without a quorum: start the others of its ensemble"
    if b"Mode: " in answer or b"not in the whitelist" in answer:
        return "is a ZooKeeper server and answers, but grants no session in time: try again, or see its log"
    if answer.startswith(b"\x15\x03"):
        return "speaks TLS: set EDL_COORDINATOR_TLS_CA to the certificate of its authority"
    if answer:
        return f"is no ZooKeeper server (it says {answer[:20]!r}): check the port"
    return "accepts the connection but says nothing: it is no ZooKeeper server, hangs, or wants TLS"
