"""Choice of the local coordinator that this machine can run, and its start.

Owns: the order of preference: ZooKeeper, then etcd if there is no Java, then the embedded coordinator. Does not own:
the servers (`zookeeper_server`, `etcd.etcd_server`, `embedded.embedded_server`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edl.coordination.child_server import ChildServer
from edl.coordination.coordinator_settings import EMBEDDED, ETCD, ZOOKEEPER, Digest
from edl.coordination.embedded.embedded_server import ONE_MACHINE, LocalEmbedded
from edl.coordination.etcd.etcd_program import INSTALL as INSTALL_ETCD
from edl.coordination.etcd.etcd_program import find_etcd
from edl.coordination.java import find_jars, find_java
from edl.coordination.local_place import LOOPBACK
from edl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LocalChoice:
    """The kind of coordinator (ZOOKEEPER, ETCD or EMBEDDED), and why it is not the usual kind."""

    kind: str
    because: str = ""


OWN = (
    "the local coordinator is edl's own, for jobs of this machine; a cluster, or workers of other hosts, need a "
    "ZooKeeper or an etcd"
)


def choose(wanted: str | None, env: Mapping[str, str] = os.environ, *, alone: bool = False) -> LocalChoice:
    """Choose a kind. `wanted` is the kind that was asked for. `alone` means that the coordinator serves jobs of this
    machine only, and at no port.

    Raises `ConfigError` with one line and the remedy.
    """
    if wanted == EMBEDDED:
        if not alone:
            raise ConfigError(f"--local-coordinator embedded: {ONE_MACHINE}")
        return LocalChoice(EMBEDDED, OWN)
    if wanted == ETCD:
        find_etcd(env)
        return LocalChoice(ETCD)
    try:
        find_java(env)
        find_jars(env)
        return LocalChoice(ZOOKEEPER)
    except ConfigError as error:
        if wanted == ZOOKEEPER or env.get("EDL_JAVA") or env.get("EDL_ZOOKEEPER_JARS"):
            raise  # explicit settings must be right
        return _instead(error, env, alone=alone)


def _instead(no_zookeeper: ConfigError, env: Mapping[str, str], *, alone: bool) -> LocalChoice:
    lacking = "no Java" if "needs Java" in str(no_zookeeper) else "no ZooKeeper"
    try:
        etcd = find_etcd(env)
    except ConfigError as error:
        if env.get("EDL_ETCD"):
            raise
        if alone:
            because = f"{lacking} and no etcd on this machine: {OWN}"
            return LocalChoice(EMBEDDED, because)
        raise ConfigError(f"{no_zookeeper}; or a local etcd: run `{INSTALL_ETCD}`") from error
    return LocalChoice(ETCD, f"{lacking} on this machine: the local coordinator is an etcd ({etcd})")


async def start_local(
    kind: str, folder: Path, *, port: int | None, digest: Digest | None, address: str = LOOPBACK
) -> ChildServer:
    """Start a coordinator of this kind in a subfolder named after the kind. Raises `ConfigError` with one line and the
    remedy.

    At the loopback address, an etcd listens on a socket that only this user can open, unless a port is given. The
    embedded coordinator listens on such a socket, and nowhere else.
    """
    server: type[ChildServer] = LocalEmbedded
    if kind == ETCD:
        from edl.coordination.etcd.etcd_server import LocalEtcd

        server = LocalEtcd
    elif kind == ZOOKEEPER:
        from edl.coordination.zookeeper_server import LocalServer

        server = LocalServer
    elsewhere = None if address == LOOPBACK else address
    return await server.start(folder / kind, port=port, digest=digest, address=elsewhere)
