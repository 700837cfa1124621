"""Folder of a cluster on this machine: its configuration, its locks, its jobs' logs.

Owns: the files below EDL_HOME/cluster, private to the user, and which process of the cluster lives. Does not own: the
queue, which is in the coordinator (`edl.scheduler.queue_store`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from edl.config.settings import check_home
from edl.coordination.coordinator_settings import Coordinator, from_environment
from edl.errors import ConfigError, UsageError
from edl.file_lock import is_held, open_lock, take
from edl.host.credentials import with_secret

ASKING_S = 0.5  # a process that only asks for the pid holds the lock for a moment
OWN = "EDL_CLUSTER_OWN"  # a variable


class NodeGiven(msgspec.Struct, frozen=True):
    name: str
    devices: tuple[int, ...]


class HttpGiven(msgspec.Struct, frozen=True):
    address: str
    port: int
    certificate: str = ""  # files, as PEM; without them it is plain HTTP
    key: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"


class KubernetesGiven(msgspec.Struct, frozen=True):
    url: str
    account: str  # a folder with `token` and `ca.crt`; empty: a kubeconfig says who asks
    namespace: str
    template: dict[str, Any]  # the Pod that each worker's is made from
    kubeconfig: str = ""  # a file
    context: str = ""  # of the kubeconfig; empty: its current one


class ClusterConfig(msgspec.Struct, frozen=True):
    """Settings that `edl cluster start` was given."""

    nodes: tuple[NodeGiven, ...]
    policy: str
    parameters: dict[str, str]
    quotas: dict[str, int]
    coordinator: str  # [etcd://]HOST:PORT[,…][/chroot], or etcd:///SOCKET
    own_coordinator: bool
    schedulers: int
    session_timeout_s: float
    started: float
    credentials: dict[str, str] = {}  # EDL_COORDINATOR_…: who opens a coordinator that is not its own
    engine: str = "local"
    ray: str = ""  # HOST:PORT of the Ray that its workers are actors of
    http: HttpGiven | None = None
    kubernetes: KubernetesGiven | None = None
    log_level: str = "info"
    priorities: dict[str, int] = {}  # user -> the highest that its token may ask for; 0 for all others


class ClusterHome:
    """The cluster of one EDL_HOME."""

    def __init__(self, home: Path, own: str | None = None) -> None:
        """`own`: if several machines share `home`, a folder of this machine for its processes' locks and logs."""
        self.home, self.own = home, own
        self.folder = home / "cluster"
        self.run = Path(own or self.folder) / "run"
        self.logs = Path(own or self.folder) / "logs"
        self.environs = self.folder / "environs"
        self.secret = self.folder / "secret"
        self.ending = self.run / "ending"  # there: no process begins anything any more
        self.opening = self.run / "opening"  # there: the coordinator comes up, and no other process begins yet

    def check(self) -> None:
        """Raises ConfigError where another user has made the folder. A volume of several machines is not checked."""
        if self.own is None:
            check_home(self.home, self.folder, self.secret)

    def make(self) -> None:
        """Raises ConfigError."""
        self.check()
        try:
            below = (self.folder / "jobs", self.folder / "nodes", self.environs, self.run, self.logs)
            for folder in (self.home, self.folder, *below):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"EDL_HOME={self.home}: cannot keep a cluster there: {error.strerror}") from None

    def node(self, name: str) -> Path:
        return self.folder / "nodes" / name

    def job_logs(self, job: str) -> Path:
        return self.folder / "jobs" / job / "logs"

    def checkpoints(self, job: str) -> Path:
        return self.folder / "jobs" / job / "checkpoints"

    def remains_of(self, job: str) -> Path | None:
        """Return a folder that a job of that name has made: its logs and checkpoints, or a worker's, which claims its
        id.
        """
        if (folder := self.folder / "jobs" / job).exists():
            return folder
        workers = self.folder.glob(f"nodes/*/workers/{job}-*")
        return next((one for one in workers if one.name[len(job) + 1 :].isdecimal()), None)

    @property
    def identity(self) -> str:
        """Identity among all clusters, also those of other machines whose folders have the same path."""
        return hashlib.sha256(b"cluster " + self.secret.read_bytes().strip()).hexdigest()

    # ------------------------------------------------------------------------------------------------ configuration

    def write(self, config: ClusterConfig) -> None:
        put(self.folder / "cluster.json", msgspec.json.format(msgspec.json.encode(config)))

    def read(self) -> ClusterConfig | None:
        try:
            return msgspec.json.decode((self.folder / "cluster.json").read_bytes(), type=ClusterConfig)
        except (OSError, msgspec.MsgspecError):
            return None

    def config(self) -> ClusterConfig:
        """Raises UsageError where there is no cluster, ConfigError."""
        self.check()
        found = self.read()
        if found is None:
            raise UsageError(f"there is no cluster in EDL_HOME={self.home}: start one by `edl cluster start`")
        return found

    def coordinator(self) -> Coordinator:
        """Return the coordinator with its credentials: those given, or those that follow from the secret. Raises
        UsageError, ConfigError.
        """
        config = self.config()
        found = from_environment(config.credentials, hosts=config.coordinator)
        assert found is not None
        return with_secret(found, self.secret.read_bytes().strip())

    # ------------------------------------------------------------------------------------------------------ processes

    @contextlib.contextmanager
    def lived(self, name: str) -> Iterator[bool]:
        """Hold the name until the context ends or this process dies; yield False where another process has the name."""
        file = open_lock(self.run / f"{name}.lock")
        try:
            if not take(file, ASKING_S):
                yield False
                return
            os.ftruncate(file, 0)
            os.write(file, str(os.getpid()).encode())
            yield True
        finally:
            os.close(file)

    def pid(self, name: str) -> int | None:
        """Return the pid of the process that holds the name; None: no process does; 0: the process is so new that it
        has not written its pid.
        """
        path = self.run / f"{name}.lock"
        if not is_held(path):
            return None
        text = path.read_bytes()
        return int(text) if text.isdigit() else 0

    def names(self) -> list[str]:
        """Return the names of all processes that the cluster ever had, also of those that have ended."""
        return sorted(path.stem for path in self.run.glob("*.lock"))

    def living(self) -> dict[str, int]:
        return {name: pid for name in self.names() if (pid := self.pid(name)) is not None}


def put_once(path: Path, content: bytes) -> None:
    """Write a file unless it exists: of several machines that begin together, one writes it for all."""
    if path.exists():
        return
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    put(new, content)
    with contextlib.suppress(FileExistsError):
        os.link(new, path)
    new.unlink()


def put(path: Path, content: bytes) -> None:
    """Write the whole file or nothing, for this user only. Raises OSError."""
    working = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")  # a folder may be several machines'
    try:
        with open(working, "wb", opener=_private) as file:  # which writes until all is written, or raises
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        working.rename(path)
    except OSError:
        working.unlink(missing_ok=True)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
