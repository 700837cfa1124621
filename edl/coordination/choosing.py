"""Which local coordinator this machine can have, and starting it.

Owns: that ZooKeeper comes first, and etcd where there is no Java. Does not own: the servers (`server`, `etcd.server`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edl.coordination.child_server import LOOPBACK
from edl.coordination.etcd.server_process import INSTALL as INSTALL_ETCD
from edl.coordination.etcd.server_process import find_etcd
from edl.coordination.java import find_jars, find_java
from edl.coordination.settings import ETCD, ZOOKEEPER, Coordinator, Digest
from edl.errors import ConfigError


class LocalCoordinator(Protocol):
    """A server that lives as long as the launcher that started it."""

    @property
    def coordinator(self) -> Coordinator: ...

    @property
    def pid(self) -> int: ...

    async def wait_exit(self) -> int: ...

    async def restart(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalChoice:
    """ZOOKEEPER or ETCD, and why it is not the usual one."""

    kind: str
    because: str = ""


def choose(wanted: str | None, env: Mapping[str, str] = os.environ) -> LocalChoice:
    """`wanted`: the one that was asked for. Raises `ConfigError` with one line and the remedy."""
    if wanted == ETCD:
        find_etcd(env)
        return LocalChoice(ETCD)
    try:
        find_java(env)
        find_jars(env)
        return LocalChoice(ZOOKEEPER)
    except ConfigError as error:
        if wanted == ZOOKEEPER or env.get("EDL_JAVA") or env.get("EDL_ZOOKEEPER_JARS"):
            raise  # what was named must be right
        return _etcd_instead(error, env)


def _etcd_instead(no_zookeeper: ConfigError, env: Mapping[str, str]) -> LocalChoice:
    try:
        etcd = find_etcd(env)
    except ConfigError as error:
        if env.get("EDL_ETCD"):
            raise
        raise ConfigError(f"{no_zookeeper}; or a local etcd: run `{INSTALL_ETCD}`") from error
    lacking = "no Java" if "needs Java" in str(no_zookeeper) else "no ZooKeeper"
    return LocalChoice(ETCD, f"{lacking} on this machine: the local coordinator is an etcd ({etcd})")


async def start_local(
    kind: str, folder: Path, *, port: int | None, digest: Digest | None, address: str = LOOPBACK
) -> LocalCoordinator:
    """Start one in a folder of that name. Raises `ConfigError` with one line and the remedy.

    At the loopback address, an etcd listens on a socket that only this user can open, unless a port is given.
    """
    if kind == ETCD:
        from edl.coordination.etcd.server import LocalEtcd

        elsewhere = None if address == LOOPBACK else address
        return await LocalEtcd.start(folder / ETCD, port=port, digest=digest, address=elsewhere)
    from edl.coordination.server import LocalServer

    return await LocalServer.start(folder / ZOOKEEPER, port=port, digest=digest, address=address)
