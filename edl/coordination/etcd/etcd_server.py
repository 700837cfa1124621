"""The local coordinator as an etcd, which lives as long as the launcher that started it.

Owns: its command line and environment, the check that it serves, where it listens, and that only the job may read or
write in it. Does not own: its life (`child_server`), the nodes that the job keeps there, nor the decision to start it.

For one machine it listens on a socket in a folder of mode 0700: other users cannot even connect. A password would give
less protection, for etcd lets any client that reaches its port ask for leases, compact, and raise alarms.

If workers of other hosts must connect, it listens at an address. The password is set before that, in a first start on
the socket: a stranger who had opened a watch before the password was set could read everything afterwards.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from edl.coordination.child_server import LOOPBACK, ChildServer, serve, started
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.etcd.etcd_connection import EtcdConnection
from edl.coordination.etcd.etcd_messages import (
    AUTH_ENABLE,
    READ_WRITE,
    ROLE_ADD,
    ROLE_GRANT,
    TXN,
    USER_ADD,
    USER_GRANT,
    Empty,
    Method,
    Permission,
    RangeRequest,
    RequestOp,
    RoleAddRequest,
    RoleGrantPermissionRequest,
    TxnRequest,
    UserAddRequest,
    UserGrantRoleRequest,
)
from edl.coordination.etcd.etcd_transactions import DEFAULT_PREFIX, KeyLayout
from edl.coordination.local_coordinator import HISTORY, find_etcd, lasting_socket
from edl.coordination.store import AccessDenied
from edl.errors import ConfigError, EdlError

_FLAGS = {
    "name": "edl",
    # A single server waits for no heartbeat of others, so it can elect itself quickly.
    "heartbeat-interval": "20",
    "election-timeout": "200",
    # Peers need no password. To keep others out, the peer address is a socket in the server's own folder.
    "listen-peer-urls": "unix://peer:1",
    "initial-advertise-peer-urls": f"http://{LOOPBACK}:2",
    "initial-cluster": f"edl=http://{LOOPBACK}:2",
    "logger": "zap",
    "log-outputs": "stderr",
    "bcrypt-cost": "4",  # the password is 256 random bits: no attacker tries them all, and each connection shows it
    **HISTORY,
    "quota-backend-bytes": str(8 << 30),
    "enable-grpc-gateway": "false",
    "enable-v2": "false",
}

_ASK_S = 10.0
_ROLE = "edl"


class LocalEtcd(ChildServer):
    """An etcd server: a standalone one for one job, unless `flags` name others."""

    name = "etcd"

    def __init__(
        self,
        folder: Path,
        address: str,
        port: int,
        *,
        lock: int | None = None,
        digest: Digest | None = None,
        flags: Mapping[str, str] | None = None,
    ) -> None:
        """Listen, with port 0, on a socket in a private folder (`socket`), which no other user can reach."""
        super().__init__(folder, address, port, lock)
        self._digest = digest
        self._sockets = _for_sockets(folder)
        client = f"http://{address}:{port}" if port else "unix://client:1"
        self._flags = {
            **_FLAGS,
            "initial-cluster-token": secrets.token_hex(8),
            "data-dir": str(folder / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": f"http://{address}:{port or 1}",
            **(flags or {}),
        }

    @classmethod
    async def _start_in(
        cls, folder: Path, lock: int, port: int | None, digest: Digest | None, address: str | None
    ) -> Self:
        """Without a port and an address the server listens on a socket that only this user can open."""
        if port is None and address is None:
            return await started(cls(folder, LOOPBACK, 0, lock=lock))
        if digest is not None and not (folder / "data").exists():
            await _close(folder, lock, digest)
        address = address or LOOPBACK
        make = functools.partial(cls, folder, address, lock=lock, digest=digest)
        server = await serve(make, address, port)
        try:
            await server._check_open()
        except BaseException as error:
            await server.end()
            if isinstance(error, AccessDenied):
                raise ConfigError(f"{folder} was used with other credentials: use another folder") from error
            raise
        return server

    @property
    def coordinator(self) -> Coordinator:
        if not self.port:
            return Coordinator(f"etcd://{self.socket}")
        return Coordinator(f"etcd://{self.address}:{self.port}", self._digest)

    async def _check_open(self) -> None:
        """Check that the server accepts the job's credentials. Raises AccessDenied."""
        first, end = KeyLayout(DEFAULT_PREFIX).all()
        look = RequestOp(request_range=RangeRequest(first, end, count_only=True))
        connection = EtcdConnection((self.address, self.port), self.coordinator, patience_s=_ASK_S)
        try:
            await connection.open()
            await connection.call(TXN, TxnRequest(success=(look,)), timeout_s=_ASK_S)
            if self._digest is not None and not connection.known:
                raise AccessDenied(DEFAULT_PREFIX)  # the folder was used without credentials
        finally:
            await connection.close()

    @property
    def socket(self) -> Path:
        return self._sockets / "client:1"

    @property
    def _workplace(self) -> Path:
        return self._sockets

    def forget(self) -> None:
        """Remove its sockets, and its files outside of its folder. Call it after the server's end."""
        self.socket.unlink(missing_ok=True)
        if self._sockets != self._folder:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def spawn(self) -> None:
        self.socket.unlink(missing_ok=True)  # etcd does not replace the socket of a killed server
        super().spawn()

    def last_words(self) -> str:
        said = [words for line in self._log_text().splitlines() if (words := _telling(line))]
        return f"{(said or ['its log is empty'])[-1]} (all of it in {self.log})"

    def found_port_taken(self) -> bool:
        return "address already in use" in self._log_text()

    async def _serves(self) -> bool:
        """Look into the log, where the server says so once it has a leader. A server whose port is taken never gets so
        far.
        """
        return "serving client traffic" in self._log_text()

    def _command(self) -> list[str]:
        return [str(find_etcd()), *(f"--{flag}={value}" for flag, value in self._flags.items())]

    def _environment(self) -> Mapping[str, str]:
        """Leave out etcd's variables: a setting that is given as a flag and as a variable ends the server."""
        return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


async def _close(folder: Path, lock: int, digest: Digest) -> None:
    """Make the data of a server that has one user, who may write to the job's keys, while no other user can reach it.

    No process knows the password of its root. An interrupted attempt leaves no folder that passes for such a server's
    data.
    """
    unfinished = folder / "data.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    server = LocalEtcd(folder, LOOPBACK, 0, lock=lock, flags={"data-dir": str(unfinished)})
    connection = EtcdConnection((str(server.socket), 0), Coordinator(""), patience_s=_ASK_S)
    try:
        await started(server)
        await connection.open()
        for method, request in _closing(digest):
            await connection.call(method, request, timeout_s=_ASK_S)
    except EdlError as error:
        raise (
            error
            if isinstance(error, ConfigError)
            else ConfigError(f"the local etcd cannot be closed to others: {error}; {server.last_words()}")
        ) from error
    finally:
        await connection.close()
        await server.end()
    unfinished.rename(folder / "data")


def _closing(digest: Digest) -> tuple[tuple[Method[Any, Empty], Any], ...]:
    """Return the calls after which a server accepts one user only."""
    first, end = KeyLayout(DEFAULT_PREFIX).all()
    return (
        (ROLE_ADD, RoleAddRequest("root")),
        (USER_ADD, UserAddRequest("root", secrets.token_hex(32))),
        (USER_GRANT, UserGrantRoleRequest("root", "root")),
        (ROLE_ADD, RoleAddRequest(_ROLE)),
        (ROLE_GRANT, RoleGrantPermissionRequest(_ROLE, Permission(READ_WRITE, first, end))),
        (USER_ADD, UserAddRequest(digest.user, digest.password)),
        (USER_GRANT, UserGrantRoleRequest(digest.user, _ROLE)),
        (AUTH_ENABLE, Empty()),
    )


def _for_sockets(folder: Path) -> Path:
    """Return the server's folder, or another private folder if the name of a socket in it would be too long."""
    if lasting_socket(folder) is not None:
        return folder
    return Path(tempfile.mkdtemp(prefix="edl-etcd-"))


def _telling(line: str) -> str:
    """Return message and error of a log line; the line as it is if it is no JSON."""
    try:
        said = json.loads(line)
    except ValueError:
        return line.strip()
    if not isinstance(said, dict):
        return line.strip()
    return ": ".join(str(said[key]) for key in ("msg", "error") if said.get(key))
