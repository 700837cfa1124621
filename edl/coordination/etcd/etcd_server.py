"""The local coordinator as an etcd, which lives as long as the launcher that started it.

Owns: its folder (private, locked), where it listens, and that only the job may read or write in it. Does not own: its
life (`local_life`) and its process (`server_process`), the nodes that the job keeps there, nor the decision to start
it.

For one machine it listens on a socket in a folder of mode 0700: other users cannot even connect. A password would give
less protection, for etcd lets any client that reaches its port ask for leases, compact, and raise alarms.

If workers of other hosts must connect, it listens at an address. The password is set before that, in a first start on
the socket: a stranger who had opened a watch before the password was set could read everything afterwards.
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from edl.coordination.child_server import LOOPBACK
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.etcd.etcd_connection import EtcdConnection
from edl.coordination.etcd.etcd_layout import DEFAULT_PREFIX, KeyLayout
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
from edl.coordination.etcd.etcd_process import EtcdProcess
from edl.coordination.local_life import LocalLife, serve, started
from edl.coordination.local_place import lock_folder, private_folder
from edl.coordination.store import AccessDenied
from edl.errors import ConfigError, EdlError

_ASK_S = 10.0
_ROLE = "edl"


class LocalEtcd(LocalLife[EtcdProcess]):
    """A standalone server for one job, with the guarantees of `edl.coordination.zookeeper_server.LocalServer`."""

    def __init__(self, lock: int, process: EtcdProcess, digest: Digest | None) -> None:
        super().__init__(lock, process)
        self._digest = digest

    @classmethod
    async def start(
        cls, folder: Path, *, port: int | None = None, digest: Digest | None = None, address: str | None = None
    ) -> LocalEtcd:
        """Start a server in `folder`, which is created, and wait until it serves: a few tenths of a second.

        Without a port and an address it listens on a socket that only this user can open. With one of them, a folder
        that was used before keeps its data, and must be given the same `digest`.

        Raises `ConfigError` with one line and the remedy: no etcd, the port or the folder in use.
        """
        folder = private_folder(folder)
        lock = await lock_folder(folder, "etcd")
        try:
            if port is None and address is None:
                return cls(lock, await started(_alone(folder, LOOPBACK, lock, 0)), None)
            if digest is not None and not (folder / "data").exists():
                await _close(folder, lock, digest)
            address = address or LOOPBACK
            process = await serve(functools.partial(_alone, folder, address, lock), address, port)
            server = cls(lock, process, digest)
            try:
                await server._check_open()
            except BaseException as error:
                await process.stop()
                if isinstance(error, AccessDenied):
                    raise ConfigError(f"{folder} was used with other credentials: use another folder") from error
                raise
        except BaseException:
            os.close(lock)
            raise
        return server

    @property
    def coordinator(self) -> Coordinator:
        """The settings of a connection."""
        if not self._process.port:
            return Coordinator(f"etcd://{self._process.socket}")
        return Coordinator(f"etcd://{self._process.address}:{self._process.port}", self._digest)

    async def _check_open(self) -> None:
        """Check that the server accepts the job's credentials. Raises AccessDenied."""
        first, end = KeyLayout(DEFAULT_PREFIX).all()
        look = RequestOp(request_range=RangeRequest(first, end, count_only=True))
        connection = EtcdConnection((self._process.address, self._process.port), self.coordinator, patience_s=_ASK_S)
        try:
            await connection.open()
            await connection.call(TXN, TxnRequest(success=(look,)), timeout_s=_ASK_S)
            if self._digest is not None and not connection.known:
                raise AccessDenied(DEFAULT_PREFIX)  # the folder was used without credentials
        finally:
            await connection.close()


def _alone(folder: Path, address: str, lock: int, port: int) -> EtcdProcess:
    return EtcdProcess(folder, folder / "data", address, port, keep_open=[lock])


async def _close(folder: Path, lock: int, digest: Digest) -> None:
    """Make the data of a server that has one user, who may write to the job's keys, while no other user can reach it.

    No process knows the password of its root. An interrupted attempt leaves no folder that passes for such a server's
    data.
    """
    unfinished = folder / "data.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    process = EtcdProcess(folder, unfinished, LOOPBACK, 0, keep_open=[lock])
    connection = EtcdConnection((str(process.socket), 0), Coordinator(""), patience_s=_ASK_S)
    try:
        await started(process)
        await connection.open()
        for method, request in _closing(digest):
            await connection.call(method, request, timeout_s=_ASK_S)
    except EdlError as error:
        raise (
            error
            if isinstance(error, ConfigError)
            else ConfigError(f"the local etcd cannot be closed to others: {error}; {process.last_words()}")
        ) from error
    finally:
        await connection.close()
        await process.stop()
        process.forget()
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
