"""The coordinator's address and credentials, as values and as EDL_ variables.

Owns: reading and checking EDL_COORDINATOR*, and writing them for child processes. Does not own: connecting.

A password travels in the environment only, which other users cannot read: never on a command line, in a log or a repr.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edl.errors import ConfigError

ZOOKEEPER = "zookeeper"
ETCD = "etcd"
EMBEDDED = "embedded"

DEFAULT_PORT = 2181
DEFAULT_PORTS = {ZOOKEEPER: DEFAULT_PORT, ETCD: 2379}

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True, slots=True)
class Digest:
    """A user and password. In ZooKeeper they are an identity of its `digest` scheme, the only one that may use the
    job's nodes. In etcd they are one of its users, whose role says which keys it may use.
    """

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificates by which server and client authenticate each other."""

    cafile: str  # the only authority trusted: not the system's, which certify any host
    certfile: str | None = None  # this client's certificate, if the server asks for one
    keyfile: str | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class Coordinator:
    """A ZooKeeper or an etcd to connect to, or the embedded coordinator of a job of this machine."""

    # [zookeeper:// or etcd://][uid@]host:port[,host:port...][/chroot]; or etcd:///socket; or embedded:///socket
    hosts: str
    digest: Digest | None = None
    tls: Tls | None = None

    @property
    def kind(self) -> str:
        """Return ZOOKEEPER, ETCD or EMBEDDED."""
        return split_kind(self.hosts)[0]

    @property
    def servers(self) -> str:
        """Return the servers as host:port[,host:port...]."""
        return split_kind(self.hosts)[1].partition("/")[0].rpartition("@")[2]

    @property
    def user(self) -> int | None:
        """Return the only user whose process may be that server: the address of a ZooKeeper that edl started on this
        machine names its user. Raises ConfigError.
        """
        named = split_kind(self.hosts)[1].partition("/")[0].rpartition("@")[0]
        if not named:
            return None
        if not (named.isdecimal() and self.kind == ZOOKEEPER):
            raise ConfigError(f"not a coordinator: {self.hosts}; before @ stands the number of a ZooKeeper's user")
        return int(named)

    @property
    def socket(self) -> str:
        """Return the socket of a server that only one user of one machine can reach; empty for any other."""
        kind, rest = split_kind(self.hosts)
        if kind == EMBEDDED and not rest.startswith("/"):
            raise ConfigError(f"not a coordinator: {self.hosts}; an embedded one is named as embedded:///SOCKET")
        return rest if kind != ZOOKEEPER and rest.startswith("/") else ""

    @property
    def endpoints(self) -> tuple[tuple[str, int], ...]:
        """Return the servers as (host, port); (its path, 0) for a socket on this machine."""
        if self.socket:
            return ((self.socket, 0),)
        kind = self.kind
        return tuple(_endpoint(part, kind) for part in self.servers.split(","))

    @property
    def chroot(self) -> str:
        """Return the node under which all nodes of edl are; empty for the root."""
        if self.socket:
            return ""
        return "/".join(["", *filter(None, split_kind(self.hosts)[1].partition("/")[2].split("/"))])

    def environment(self) -> dict[str, str]:
        """Return the EDL_ variables from which a child's `from_environment` restores this value."""
        env = {"EDL_COORDINATOR": self.hosts}
        if self.digest:
            env["EDL_COORDINATOR_AUTH"] = f"{self.digest.user}:{self.digest.password}"
        if self.tls:
            env["EDL_COORDINATOR_TLS_CA"] = self.tls.cafile
            env["EDL_COORDINATOR_TLS_VERIFY_HOST"] = "1" if self.tls.check_hostname else "0"
            if self.tls.certfile and self.tls.keyfile:
                env["EDL_COORDINATOR_TLS_CERT"] = self.tls.certfile
                env["EDL_COORDINATOR_TLS_KEY"] = self.tls.keyfile
        return env


def from_environment(env: Mapping[str, str] = os.environ, *, hosts: str | None = None) -> Coordinator | None:
    """Return the coordinator that EDL_COORDINATOR*, or `hosts` and the other variables, name; None if no address is
    given.

    Raises `ConfigError`, which names the wrong variable.
    """
    hosts = hosts or env.get("EDL_COORDINATOR")
    if not hosts:
        return None
    coordinator = Coordinator(hosts.strip(), _digest(env), _tls(env))
    _ = coordinator.endpoints, coordinator.user  # raises now rather than at the first use
    return coordinator


def split_kind(hosts: str) -> tuple[str, str]:
    """Return the kind of coordinator, and the rest of the address. Raises `ConfigError` for an unknown kind."""
    scheme, separator, rest = hosts.partition("://")
    if not separator:
        return ZOOKEEPER, hosts
    if scheme not in {*DEFAULT_PORTS, EMBEDDED}:
        raise ConfigError(f"not a coordinator: {scheme}://; write HOST:PORT for a ZooKeeper, or etcd://HOST:PORT")
    return scheme, rest


def _endpoint(text: str, kind: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):  # no port, perhaps a bare [v6 address]
        host, port = text.strip(), str(DEFAULT_PORTS[kind])
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"not a coordinator: {text.strip()!r}; write [etcd://]HOST:PORT[,HOST:PORT...][/chroot]")
    return host, int(port)


def _digest(env: Mapping[str, str]) -> Digest | None:
    auth = env.get("EDL_COORDINATOR_AUTH")
    if not auth:
        return None
    user, colon, password = auth.partition(":")
    if not (user and colon and password):
        raise ConfigError("EDL_COORDINATOR_AUTH must be user:password")  # without the value: it may be the password
    return Digest(user, password)


def _tls(env: Mapping[str, str]) -> Tls | None:
    cafile, certfile, keyfile = (env.get(f"EDL_COORDINATOR_TLS_{name}") for name in ("CA", "CERT", "KEY"))
    if not (cafile or certfile or keyfile):
        return None
    if not cafile:
        raise ConfigError(
            "EDL_COORDINATOR_TLS_CA is missing: the certificate of the authority that signed the server's"
        )
    if bool(certfile) != bool(keyfile):
        raise ConfigError("EDL_COORDINATOR_TLS_CERT and EDL_COORDINATOR_TLS_KEY go together: one of them is missing")
    for name, file in (("CA", cafile), ("CERT", certfile), ("KEY", keyfile)):
        if file and not (Path(file).is_file() and os.access(file, os.R_OK)):
            raise ConfigError(f"EDL_COORDINATOR_TLS_{name}: cannot read {file}")
    return Tls(cafile, certfile or None, keyfile or None, _flag(env, "EDL_COORDINATOR_TLS_VERIFY_HOST", default=True))


def _flag(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    if text in _TRUE | _FALSE:
        return text in _TRUE
    if text:
        raise ConfigError(f"{name} must be 1 or 0, not {text!r}")
    return default
