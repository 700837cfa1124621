"""Hosts with an sshd: those of `partition_net`, each with processes, files and a host name of its own.

Owns: what a host is beyond its network: namespaces of processes and mounts, /etc/hosts, an sshd with throw-away keys,
a folder that the others do not see; that a host can be killed and started again. Does not own: the network, nor what
runs there. Needs root, iproute2, util-linux, openssh-server and openssh-client.

`<folder>/own` is a different folder on each host under one path, since horovodrun hands one environment to all; from
outside it is `<folder>/hosts/<name>`. All the rest of the file system is shared.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.soaks.partition_net import NAMESPACES, Host, Network, why_not

SSHD = "/usr/sbin/sshd"
PROGRAMS = {SSHD: "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "nsenter": "util-linux"}
START_S = 10.0

# The first process of a host: the kernel ends all others with it. A shell, because it reaps the processes it adopts.
BOOT = """
set -e
hostname "$2"
mount --make-rprivate /
mount --bind "$1/hosts/$2" "$1/own"
mount --bind "$1/etc-hosts" /etc/hosts
mount --bind "$1/ssh_config" /etc/ssh/ssh_config
mount --bind "$1/shadow" /etc/shadow
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
[ ! -d "$HOME/.ssh" ] || mount -t tmpfs tmpfs "$HOME/.ssh"
"$3" -D -e -f "$1/sshd_config" 2>>"$1/own/sshd.log" &
touch "$1/own/up"
while :; do sleep 3600; done
"""


def why_no_ssh_hosts() -> str:
    """Why there can be none here; empty if there can."""
    missing = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if missing:
        return f"{', '.join(sorted(missing))} must be installed (apt-get install)"
    return why_not()


class SshHost:
    """One host. `start` after the network is open; what runs there ends with it, or with this process."""

    def __init__(self, folder: Path, host: Host) -> None:
        self.name, self.address = host.name, host.address
        self._folder, self._host = folder, host
        self.own = folder / "hosts" / host.name
        self._machine: subprocess.Popen[bytes] | None = None
        self._first = 0

    def start(self) -> None:
        (self.own / "up").unlink(missing_ok=True)
        with (self.own / "boot.log").open("ab") as log:
            boot = ["sh", "-c", BOOT, "sh", str(self._folder), self.name, SSHD]
            alone = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *boot]
            self._machine = subprocess.Popen(
                ["ip", "netns", "exec", self._host.namespace, "setpriv", "--pdeathsig", "KILL", *alone],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while not (self.own / "up").exists():
            if self._machine.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"host {self.name} does not start: {(self.own / 'boot.log').read_text()}")
            time.sleep(0.02)
        children = Path(f"/proc/{self._machine.pid}/task/{self._machine.pid}/children").read_text()
        self._first = int(children.split()[0])

    def kill(self) -> None:
        """All its processes at once, as kill -9 does; its end of each connection is closed by the kernel."""
        if self._machine is not None:
            os.kill(self._first, signal.SIGKILL)
            self._machine.wait()
            self._machine = None

    def pids(self) -> list[int]:
        """Of all that runs there, but what makes it a host."""
        machinery = {self._first, self._machine.pid} if self._machine else set()
        return [pid for pid in self._host.pids() if pid not in machinery]

    def command(self, *arguments: str) -> list[str]:
        """Run it there, without ssh."""
        enter = ["nsenter", "--target", str(self._first), "--net", "--uts", "--mount", "--pid"]
        return [*enter, "--wd=" + str(Path.cwd()), *arguments]

    def popen(self, arguments: Sequence[str], environ: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments), env=dict(environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def output(self, *arguments: str) -> str:
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False).stdout


class SshHosts:
    """Hosts that reach each other by name and by ssh, without a password."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self.network = Network(names)
        self.all = {host.name: SshHost(folder, host) for host in self.network.hosts}

    @property
    def identity(self) -> Path:
        """The key that opens all of them."""
        return self._folder / "user_key"

    def __getitem__(self, name: str) -> SshHost:
        return self.all[name]

    def open(self) -> None:
        self._write()
        self.network.open()
        for host in self.all.values():
            host.start()

    def close(self) -> None:
        for host in self.all.values():
            host.kill()
        self.network.close()

    def _write(self) -> None:
        folder = self._folder
        (folder / "own").mkdir()
        for host in self.all.values():
            host.own.mkdir(parents=True)
        names = [f"{host.address} {host.name}\n" for host in self.all.values()]
        (folder / "etc-hosts").write_text("127.0.0.1 localhost\n" + "".join(names))
        for key in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        (folder / "authorized_keys").write_bytes((folder / "user_key.pub").read_bytes())
        (folder / "shadow").write_text(_unlocked(Path("/etc/shadow").read_text()))
        (folder / "shadow").chmod(0o640)
        settings = {
            "Port": 22,
            "HostKey": folder / "host_key",
            "AuthorizedKeysFile": folder / "authorized_keys",
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "UsePAM": "no",
            "StrictModes": "no",
            "PidFile": "none",
            "MaxStartups": 100,
        }
        (folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        # What a user would write into ~/.ssh/config, so that a host that is cut off is given up after some seconds.
        client = {
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "ConnectTimeout": 5,
            "ServerAliveInterval": 3,
            "ServerAliveCountMax": 3,
        }
        lines = "".join(f"    {name} {value}\n" for name, value in client.items())
        (folder / "ssh_config").write_text(f"Host *\n{lines}")


def _unlocked(shadow: str) -> str:
    """For sshd, a '!' before a password means a locked account, which no key opens."""
    lines = [line.split(":") for line in shadow.splitlines()]
    return "".join(":".join([line[0], "*" if line[0] == "root" else line[1], *line[2:]]) + "\n" for line in lines)


def left_over() -> list[str]:
    """Namespaces of this process's hosts that are still there."""
    return [path.name for path in NAMESPACES.glob(f"edl{os.getpid()}-*")] if NAMESPACES.exists() else []
