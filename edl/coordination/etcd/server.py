"""The local coordinator as an etcd: it lives as long as the launcher that started it.

Owns: its folder (private, locked), where it listens, and that only the job may read or write in it. Does not own: the
process (`server_process`), what the job keeps there, nor the decision to have one.

For one machine it listens on a socket in a folder of mode 0700: other users cannot even connect. That is more than a
password gives, for etcd lets anybody who reaches its port ask for leases, compact, and raise alarms.

Where workers of other hosts must come in, it listens at an address, and a password is switched on before it ever does:
it starts first on the socket. A stranger who had opened a watch before that moment would go on to see all.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from pathlib import Path
from typing import Any

from edl.coordination.child_server import LOOPBACK
from edl.coordination.etcd.connection import EtcdConnection
from edl.coordination.etcd.layout import DEFAULT_PREFIX, KeyLayout
from edl.coordination.etcd.messages import (
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
from edl.coordination.etcd.server_process import EtcdProcess
from edl.coordination.local_place import check_free, free_port, lock_folder, private_folder
from edl.coordination.settings import Coordinator, Digest
from edl.coordination.store import AccessDenied
from edl.errors import ConfigError, EdlError

_START_S = 60.0
_ASK_S = 10.0
_TRIES = 5
_ROLE = "edl"


class LocalEtcd:
    """A standalone server for one job, as `edl.coordination.server.LocalServer` is, with the same promises."""

    def __init__(self, lock: int, process: EtcdProcess, digest: Digest | None) -> None:
        self._lock = lock
        self._process = process
        self._digest = digest

    @classmethod
    async def start(
        cls, folder: Path, *, port: int | None = None, digest: Digest | None = None, address: str | None = None
    ) -> LocalEtcd:
        """Start one in `folder`, which is created, and wait until it serves: a few tenths of a second.

        Without a port and an address it listens on a socket that only this user can open. With one of them, a folder
        that was used before keeps its data, and must be given the same `digest`.
        Raises `ConfigError` with one line and the remedy: no etcd, the port or the folder in use.
        """
        folder = private_folder(folder)
        lock = await lock_folder(folder, "etcd")
        try:
            if port is None and address is None:
                return cls(
                    lock, await _started(EtcdProcess(folder, folder / "data", LOOPBACK, 0, keep_open=[lock])), None
                )
            if digest is not None and not (folder / "data").exists():
                await _close(folder, lock, digest)
            process = await _serve(folder, address or LOOPBACK, port, lock)
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
        """How to connect."""
        if not self._process.port:
            return Coordinator(f"etcd://{self._process.socket}")
        return Coordinator(f"etcd://{self._process.address}:{self._process.port}", self._digest)

    @property
    def port(self) -> int:
        return self._process.port

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> Path:
        return self._process.log

    async def wait_exit(self) -> int:
        """Its exit status, once it ended for whatever reason; `restart` brings it back with all its data."""
        return await self._process.wait_exit()

    async def restart(self) -> None:
        """Start again on the same port and folder, after `wait_exit`. Sessions and data go on."""
        self._process.spawn()
        if not await self._process.wait_ready(_START_S):
            raise ConfigError(f"the local etcd does not start again: {self._process.last_words()}")

    def signal(self, number: int) -> None:
        """Send the server a signal; for tests of what the job survives."""
        self._process.signal(number)

    async def stop(self) -> None:
        """End it and let go of the folder. Fine when it ended already, and twice."""
        await self._process.stop()
        self._process.forget()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def _check_open(self) -> None:
        """Let us in, it must. Raises AccessDenied."""
        first, end = KeyLayout(DEFAULT_PREFIX).all()
        look = RequestOp(request_range=RangeRequest(first, end, count_only=True))
        connection = EtcdConnection((self._process.address, self._process.port), self.coordinator, patience_s=_ASK_S)
        try:
            await connection.open()
            await connection.call(TXN, TxnRequest(success=(look,)), timeout_s=_ASK_S)
            if self._digest is not None and not connection.known:
                raise AccessDenied(DEFAULT_PREFIX)  # it was used without any
        finally:
            await connection.close()


async def _close(folder: Path, lock: int, digest: Digest) -> None:
    """A fresh server that knows one user, who may write to the job's keys; where no other can reach it.

    Nobody knows the password of its root. An attempt that breaks off leaves nothing that is taken for such a server.
    """
    unfinished = folder / "data.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    process = EtcdProcess(folder, unfinished, LOOPBACK, 0, keep_open=[lock])
    connection = EtcdConnection((str(process.socket), 0), Coordinator(""), patience_s=_ASK_S)
    try:
        process.spawn()
        if not await process.wait_ready(_START_S):
            raise ConfigError(f"the local etcd does not start: {process.last_words()}")
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
    """What makes a server let in one user only."""
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


async def _serve(folder: Path, address: str, port: int | None, lock: int) -> EtcdProcess:
    """A server that serves. A port found free may be gone a moment later, so a few are tried; a given one is not."""
    if port is not None:
        check_free(address, port)
    words = ""
    for _ in range(_TRIES if port is None else 1):
        process = EtcdProcess(folder, folder / "data", address, port or free_port(address), keep_open=[lock])
        if await _becomes_ready(process):
            return process
        words = process.last_words()
        process.forget()
        if not process.found_port_taken():
            break
    raise ConfigError(f"the local etcd does not start: {words}")


async def _started(process: EtcdProcess) -> EtcdProcess:
    if not await _becomes_ready(process):
        raise ConfigError(f"the local etcd does not start: {process.last_words()}")
    return process


async def _becomes_ready(process: EtcdProcess) -> bool:
    process.spawn()
    try:
        return await process.wait_ready(_START_S)
    except BaseException:
        process.signal(signal.SIGKILL)  # Ctrl-C in between, for example
        await process.wait_exit()
        raise
