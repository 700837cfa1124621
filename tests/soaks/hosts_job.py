"""The job of `hosts.py`: how its workers are started on hosts that have an sshd, and reading what they write down.

Owns: plain `horovodrun` with a discovery script, or, for comparison, processes over ssh with a ZooKeeper beside them.
Does not own: the hosts (`ssh_hosts`), nor what happens to them (`hosts`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edl.trainer.data.audit_files import read
from tests.soaks.partition_job import NotComeTrue, Server
from tests.soaks.ssh_hosts import SshHosts

JOB = "hosts"
INTERFACE = "eth0"
COOLDOWN_S = (2, 4)  # for how long horovodrun avoids a host on which a worker has failed


@dataclass(frozen=True)
class Options:
    """What is started, and with which time-outs."""

    np: int = 3
    most: int = 4
    step_s: float = 0.05
    session_s: float = 6.0
    step_timeout_s: float = 10.0


class Launch(Protocol):
    """Whatever starts workers where there are slots, and ends them where there are none any more."""

    def set_slots(self, slots: Mapping[str, int]) -> None:
        """So many workers on each host from now on; after a fault also those that are missing again."""

    def code(self) -> int | None:
        """How it ended, or None."""

    def signal(self, number: int) -> None:
        """To the launcher itself, and to nothing else."""

    def stop(self) -> None:
        """Whatever is left of it."""


def environment(folder: Path, options: Options) -> dict[str, str]:
    """Of whatever is started, on each host."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("EDL_", "HOROVOD_"))}
    return {
        **inherited,
        "EDL_JOB": JOB,
        "EDL_SESSION_TIMEOUT": f"{options.session_s:g}",
        "EDL_STEP_TIMEOUT": f"{options.step_timeout_s:g}",
        "EDL_AUDIT": str(folder / "audit"),
        "EDL_HOME": str(folder / "own" / "edl"),
        "XDG_RUNTIME_DIR": "/run",
        "TMPDIR": str(folder / "own"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")])),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def worker(folder: Path, options: Options) -> list[str]:
    return [sys.executable, "-m", "tests.soaks.hosts_worker", str(folder), "--step-time", str(options.step_s)]


class Horovodrun:
    """On the first host, elastic, with a discovery script that prints a file."""

    def __init__(self, folder: Path, hosts: SshHosts, options: Options, slots: Mapping[str, int]) -> None:
        self._hosts_file = folder / "slots"
        self.set_slots(slots)
        script = folder / "discover"
        script.write_text(f"#!/bin/sh\ncat '{self._hosts_file}'\n")
        script.chmod(0o755)
        command = [str(Path(sys.executable).with_name("horovodrun"))]
        command += ["-np", str(options.np), "--min-np", "1", "--max-np", str(options.most)]
        command += ["--network-interface", INTERFACE, "--ssh-identity-file", str(hosts.identity)]
        command += ["--host-discovery-script", str(script)]
        command += ["--blacklist-cooldown-range", *map(str, COOLDOWN_S)]
        first = next(iter(hosts.all.values()))
        with (folder / "launch.log").open("wb") as log:
            self._process = first.popen([*command, *worker(folder, options)], environment(folder, options), log)

    def set_slots(self, slots: Mapping[str, int]) -> None:
        working = self._hosts_file.with_suffix(".new")
        working.write_text("".join(f"{host}:{number}\n" for host, number in slots.items() if number))
        working.rename(self._hosts_file)

    def code(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int) -> None:
        below = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        os.kill(int(below.split()[0]), number)  # what nsenter runs

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class OverSsh:
    """Each worker started by hand, as from a second shell; on the first host a ZooKeeper that all are told of."""

    def __init__(self, folder: Path, hosts: SshHosts, options: Options, slots: Mapping[str, int]) -> None:
        self._folder, self._hosts = folder, hosts
        (folder / "secret").write_text(os.urandom(16).hex())
        (folder / "secret").chmod(0o600)
        self._first = next(iter(hosts.all.values()))
        self._server = Server(folder / "zookeeper", hosts.network.hosts[0])
        self._server.serve()
        self._environ = environment(folder, options) | {
            "EDL_COORDINATOR": f"{self._first.address}:2181",
            "EDL_SECRET_FILE": str(folder / "secret"),
            "EDL_NP": str(options.np),
            "EDL_MAX_NP": str(options.most),
            "EDL_NETWORK_INTERFACE": INTERFACE,
        }
        own = {name: value for name, value in self._environ.items() if os.environ.get(name) != value}
        words = ["cd", str(Path.cwd()), "&&", "exec", "env", *(f"{name}={value}" for name, value in own.items())]
        self._remote = " ".join([*words, *worker(folder, options)])
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {name: [] for name in hosts.all}
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._told: set[int] = set()
        self._log = (folder / "launch.log").open("ab")
        self.set_slots(slots)

    def set_slots(self, slots: Mapping[str, int]) -> None:
        for host, wanted in slots.items():
            living = [one for one in self._processes[host] if one.poll() is None and one not in self._leaving]
            for _ in range(wanted - len(living)):
                ssh = ["ssh", "-o", "StrictHostKeyChecking=no", "-i", str(self._hosts.identity), host, self._remote]
                self._processes[host].append(self._first.popen(ssh, self._environ, self._log))
            for process in living[wanted:]:
                self._leaving.append(process)
                pid = self._trainers(host)[-1]
                self._told.add(pid)
                os.kill(pid, signal.SIGTERM)

    def _trainers(self, host: str) -> list[int]:
        found = []
        for pid in self._hosts[host].pids():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if command[1:3] == [b"-m", b"tests.soaks.hosts_worker"] and pid not in self._told:
                    found.append(pid)
        return sorted(found)

    def code(self) -> int | None:
        codes = [process.poll() for processes in self._processes.values() for process in processes]
        if None in codes:
            return None
        return self._last_code()

    def signal(self, number: int) -> None:
        raise NotImplementedError("nothing but workers is started")

    def _last_code(self) -> int:
        last = (processes[-1].returncode for processes in self._processes.values() if processes)
        return next((code for code in last if code), 0)

    def stop(self) -> None:
        for processes in self._processes.values():
            for process in processes:
                process.kill()
                process.wait()
        self._server.signal(signal.SIGKILL)
        self._log.close()


LAUNCHES: dict[str, type[Horovodrun] | type[OverSsh]] = {"horovodrun": Horovodrun, "ssh": OverSsh}


class Written:
    """What a job has written down; nothing is asked over a connection."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "notes").mkdir()

    def newest(self) -> dict[str, dict[str, Any]]:
        """The last step of each worker that ever made one, by the name of its notes."""
        found = {}
        for path in (self.folder / "notes").glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 2000))
                lines = [line for line in file.read().split(b"\n")[:-1] if line.startswith(b"{")]
            steps = [line for line in lines if b'"kind": "step"' in line]
            if steps:
                found[path.stem] = json.loads(steps[-1])
        return found

    def notes(self) -> dict[str, list[dict[str, Any]]]:
        """All notes of each worker; one that was killed may have left half a line."""
        notes = {}
        for path in (self.folder / "notes").glob("*.jsonl"):
            notes[path.stem] = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        return notes

    def events(self) -> list[dict[str, Any]]:
        """Of all leaders, by the logs of their daemons."""
        found: list[dict[str, Any]] = []
        for path in self.folder.glob(f"hosts/*/edl/jobs/{JOB}/logs/*.daemon.log"):
            lines = path.read_text(errors="replace").split("\n")[:-1]
            told = [json.loads(line[at:]) for line in lines if (at := line.find('{"ts"')) >= 0]
            found += [event | {"log": path.parts[-6]} for event in told]
        return sorted(found, key=lambda event: event["ts"])

    def audits(self) -> list[Any]:
        return read(self.folder / "audit")

    def finish(self) -> None:
        """Let the job end with the epoch after the next."""
        done = [note["done"] for notes in self.notes().values() for note in notes if note["kind"] == "epoch"]
        working = self.folder / "epochs.new"
        working.write_text(str(max(done, default=0) + 2))
        working.rename(self.folder / "epochs")

    def story(self) -> str:
        """For when something is not as it must be."""
        logs = [self.folder / "launch.log", *self.folder.glob(f"hosts/*/edl/jobs/{JOB}/logs/*")]
        logs += self.folder.glob("hosts/*/edl/*.log")
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-4000:]}" for path in logs if path.is_file())


__all__ = ["INTERFACE", "JOB", "LAUNCHES", "Launch", "NotComeTrue", "Options", "Written"]
