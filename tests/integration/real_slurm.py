"""A real Slurm on this machine, for tests: munged, slurmctld, and a slurmd for each of its nodes.

Installed by apt where this is root and it is missing. Its ports are free ones and its files lie in a folder of the
test's, so that several may run beside each other.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

DAEMONS = ("munged", "slurmctld", "slurmd")
PACKAGES = ("slurm-wlm", "munge")
CONF = """
ClusterName=edl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmdTimeout=5
ReturnToService=2
KillWait=5
MpiDefault=none
GresTypes=gpu
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}{gres} State=UNKNOWN\n"
PARTITIONS = """
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace_s}
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9
"""


class RealSlurm:
    """The commands of a cluster of this machine, and its daemons."""

    def __init__(self, folder: Path, nodes: Sequence[str], stack: contextlib.ExitStack) -> None:
        self.folder, self.nodes = folder, nodes
        others = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
        self.environ = {**others, "SLURM_CONF": str(folder / "slurm.conf")}
        self._stack = stack
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __call__(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_up(self) -> bool:
        line = ["sinfo", "-h", "-N", "-p", "main", "-o", "%T"]
        done = subprocess.run(line, env=self.environ, capture_output=True, text=True, check=False)
        return done.stdout.split() == ["idle"] * len(self.nodes)

    def wait_up(self) -> None:
        until = time.monotonic() + 60
        while not self.is_up():
            assert time.monotonic() < until, self("sinfo", "-N", "-l")
            time.sleep(0.1)

    def shown(self, job: str, name: str) -> str:
        found = re.search(rf"\b{name}=(\S*)", self("scontrol", "show", "job", job))
        assert found is not None
        return found[1]

    def begin(self, name: str, *command: str) -> None:
        log = self._stack.enter_context((self.folder / f"{name}.out").open("ab"))
        process = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log)
        self._daemons[name] = process
        self._stack.callback(end, process)

    def begin_node(self, name: str) -> None:
        self.begin(f"slurmd-{name}", "slurmd", "-D", "-N", name, "-f", self.environ["SLURM_CONF"])

    def kill_node(self, name: str) -> None:
        """As if its power was cut: its daemon, and all that this has started."""
        daemon = self._daemons[f"slurmd-{name}"]
        for pid in [daemon.pid, *self.stepd(name)]:
            kill_tree(pid)
        daemon.wait()

    def stepd(self, name: str) -> list[int]:
        """The processes that watch over what runs on a node."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().decode(errors="replace").split("\0")
                ours = f"SLURM_CONF={self.environ['SLURM_CONF']}".encode()
                if words[0].startswith("slurmstepd: [") or words[0].endswith("slurmstepd"):
                    pid, environ = int(path.parent.name), (path.parent / "environ").read_bytes()
                    if ours in environ and f"spool-{name}" in open_files(pid):
                        found.append(pid)
        return found


def open_files(pid: int) -> str:
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(link.readlink()))
    with contextlib.suppress(OSError):
        links.append(str(Path(f"/proc/{pid}/cwd").readlink()))
    return "\n".join(links)


def kill_tree(pid: int) -> None:
    """The process and its descendants."""
    children = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += [int(child) for child in (task / "children").read_text().split()]
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in children:
        kill_tree(child)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def install() -> None:
    """Skips the test where that cannot be."""
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        line = ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES]
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(line, env=environ, capture_output=True, timeout=300, check=False)
        missing = [name for name in DAEMONS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed: apt-get install {' '.join(PACKAGES)}")
    if os.geteuid() != 0:
        pytest.skip("only root can run Slurm's daemons")


@contextlib.contextmanager
def real_slurm(folder: Path, nodes: Sequence[str], cpus: int, gpus: int = 0, grace_s: int = 0) -> Iterator[RealSlurm]:
    """Its daemons run, but need not be up yet. Made-up GPUs are files that are devices of another kind."""
    install()
    for name in ("state", "munge", *(f"spool-{node}" for node in nodes)):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)  # munged looks at the folder of its socket
    (folder / "munge").chmod(0o700)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    host, ports = socket.gethostname().partition(".")[0], free_ports(1 + len(nodes))
    text = CONF.format(host=host, folder=folder, port=ports[0])
    gres = f" Gres=gpu:{gpus}" if gpus else ""
    for name, port in zip(nodes, ports[1:], strict=True):
        text += NODE.format(name=name, host=host, port=port, cpus=cpus, gres=gres)
    (folder / "slurm.conf").write_text(text + PARTITIONS.format(grace_s=grace_s))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    devices = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")[:gpus]
    lines = [f"NodeName={name} Name=gpu File={device}\n" for name in nodes for device in devices]
    (folder / "gres.conf").write_text("".join(lines))
    munge = [f"--key-file={key}", f"--socket={folder}/munge.sock", f"--seed-file={folder}/munge/seed"]
    munge += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log"]
    with contextlib.ExitStack() as stack:
        found = RealSlurm(folder, nodes, stack)
        found.begin("munged", "munged", "--foreground", "--force", *munge)
        found.begin("slurmctld", "slurmctld", "-D", "-f", found.environ["SLURM_CONF"])
        for name in nodes:
            found.begin_node(name)
        yield found
