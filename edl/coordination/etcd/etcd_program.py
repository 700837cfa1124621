"""Find the etcd program, and say how much history it keeps and where its socket may lie, without running it.

Launches that start no etcd import this module, too. Does not own: running an etcd (`etcd_server`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from edl.errors import ConfigError

_LONGEST = 100  # bytes of a socket's name, of which the kernel allows 108

INSTALL = "apt-get install -y --no-install-recommends etcd-server"

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
        f"a local etcd needs the program etcd and there is none: run `{INSTALL}`, or name one in EDL_ETCD, or name a "
        "running etcd by --coordinator etcd://HOST:PORT"
    )


def lasting_socket(folder: Path) -> Path | None:
    """Return the socket on which successive servers in this folder listen; None if the kernel does not allow such a
    long name.
    """
    socket = folder / "client:1"
    return socket if len(str(socket).encode()) <= _LONGEST else None
