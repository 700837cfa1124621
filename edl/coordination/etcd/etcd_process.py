"""An etcd server as a child process.

Owns: where the program is, its command line and environment, and the check that it serves. Does not own: the choice of
port and folder (`server`), nor its life as a process (`child_server`).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl.coordination.child_server import LOOPBACK, ChildServer
from edl.errors import ConfigError

_LONGEST = 100  # bytes of a socket's name, of which the kernel allows 108

INSTALL = "apt-get install -y --no-install-recommends etcd-server"

_SOLE = {
    # A single server waits for no heartbeat of others, so it can elect itself quickly.
    "heartbeat-interval": "20",
    "election-timeout": "200",
    # Peers need no password. To keep others out, the peer address is a socket in the server's own folder.
    "listen-peer-urls": "unix://peer:1",
    "initial-advertise-peer-urls": f"http://{LOOPBACK}:2",
    "initial-cluster": f"edl=http://{LOOPBACK}:2",
}

HISTORY = {  # how much history an etcd keeps
    "auto-compaction-mode": "periodic",
    "auto-compaction-retention": "1m",  # without it every version of every record is kept, until there is no more room
    "snapshot-count": "1000",  # else 100,000 writes stay in memory
}

_BASE = {
    "name": "edl",
    "logger": "zap",
    "log-outputs": "stderr",
    "bcrypt-cost": "4",  # the password is 256 random bits: no attacker tries them all, and each connection shows it
    **HISTORY,
    "quota-backend-bytes": str(8 << 30),
    "enable-grpc-gateway": "false",
    "enable-v2": "false",
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


class EtcdProcess(ChildServer):
    """An etcd server, alone or in a cluster."""

    name = "etcd"

    def __init__(
        self,
        folder: Path,
        data: Path,
        address: str,
        port: int,
        *,
        keep_open: Sequence[int] = (),
        peers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the server. With port 0 it listens on a socket in a private folder (`socket`), which no other user
        can reach.
        """
        super().__init__(folder, address, port, keep_open=keep_open)
        self._sockets = _for_sockets(folder)
        client = f"http://{address}:{port}" if port else "unix://client:1"
        self._flags = {
            **_BASE,
            **(_SOLE | {"initial-cluster-token": secrets.token_hex(8)} if peers is None else peers),
            "data-dir": str(data),
            "listen-client-urls": client,
            "advertise-client-urls": f"http://{address}:{port or 1}",
        }

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


def lasting_socket(folder: Path) -> Path | None:
    """Return the socket on which successive servers in this folder listen; None if the kernel does not allow such a
    long name.
    """
    socket = folder / "client:1"
    return socket if len(str(socket).encode()) <= _LONGEST else None


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
