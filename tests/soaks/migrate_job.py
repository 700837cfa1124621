"""The job of `migrate.py`: a ZooKeeper on one host, two workers on the next, and `edl run -np 0` that waits on a third.

Owns: how they are started, and reading what they write down. Does not own: the hosts (`wired_net`), nor when the job
is moved.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.soaks.migrate_worker import ENOUGH, SAMPLES
from tests.soaks.partition_job import NotComeTrue, Server
from tests.soaks.partition_net import Host
from tests.soaks.wired_net import WiredNetwork

JOB = "moved"
SERVER, OLD, NEW = "keeper", "alpha", "beta"
LOOK_S = 0.05
EDL = (sys.executable, "-c", "import sys; from horovod_edl import main; sys.exit(main())")


class MovedJob:
    """A context: its processes and hosts are gone with it."""

    def __init__(
        self,
        folder: Path,
        mb: int = 0,
        *flags: str,
        names: Sequence[str] = (SERVER, OLD, NEW),
        worker: Sequence[str] = (),
    ) -> None:
        """`names`: of the hosts; the first has the ZooKeeper. `worker`: another script than that of `migrate.py`."""
        self.folder = folder
        self._network = WiredNetwork(names)
        self.hosts = {host.name: host for host in self._network.hosts}
        self._flags = flags
        self._worker = worker or (sys.executable, "-m", "tests.soaks.migrate_worker", str(folder), "--mb", str(mb))
        (folder / "secret").write_text(os.urandom(16).hex())
        (folder / "secret").chmod(0o600)
        self._server = Server(folder / "zookeeper", self.hosts[names[0]])
        self._coordinator = f"{self.hosts[names[0]].address}:{self._server.port}"
        self.launches: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> MovedJob:
        try:
            self._network.open()
            self._server.serve()
        except BaseException:
            self._network.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run(self._server.stop())
        self._network.close()
        for launch in self.launches.values():
            launch.wait()

    def run(self, host: str, workers: int) -> None:
        """`edl run` there."""
        line = (*EDL, "run", "-np", str(workers), "--audit", str(self.folder / "audit"), *self._flags, *self._worker)
        with (self.folder / f"{host}.log").open("wb") as log:
            self.launches[host] = subprocess.Popen(
                self.hosts[host].command(*line),
                env=self._environ(host),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def edl(self, *words: str, host: str = SERVER) -> subprocess.CompletedProcess[str]:
        """`edl`, on a host that has no worker."""
        return self.run_there(*EDL, *words, host=host)

    def run_there(self, *command: str, host: str = SERVER) -> subprocess.CompletedProcess[str]:
        """Another command."""
        return subprocess.run(
            self.hosts[host].command(*command),
            env=self._environ(host),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=600,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        found = self.edl("status", JOB, "--json")
        return json.loads(found.stdout) if found.returncode == 0 else {}

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.edl("events", JOB, "--json").stdout.splitlines()]

    def steps(self) -> list[tuple[float, int, int, str]]:
        """When a first worker was through with each step, the step, the ring's size and the worker's host; in order."""
        first: dict[int, tuple[float, int, int, str]] = {}
        for path in self.folder.glob("*.steps"):
            for line in path.read_text().split("\n")[:-1]:
                note = json.loads(line)
                one = (note["at"], note["step"], note["size"], path.stem.rpartition("-")[2])
                first[note["step"]] = min(one, first.get(note["step"], one))
        return sorted(first.values())

    def wait(self, what: str, is_so: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            ended = [host for host, launch in self.launches.items() if launch.poll() not in (None, 0)]
            if ended or time.monotonic() > deadline:
                raise NotComeTrue(
                    f"{what}: {'edl run has failed on ' + ended[0] if ended else 'in vain'}\n{self.story()}"
                )
            time.sleep(LOOK_S)

    def finish(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """After an epoch or two more; what `edl data verify` says of all samples."""
        epochs = max(step for _, step, *_ in self.steps()) * 2 * 8 // SAMPLES + 3
        working = self.folder / f"{ENOUGH}.new"
        working.write_text(str(epochs))
        working.rename(self.folder / ENOUGH)
        self.wait("the end", lambda: all(one.poll() is not None for one in self.launches.values()), timeout_s)
        return json.loads(self.edl("data", "verify", str(self.folder / "audit"), "--json").stdout)

    def story(self) -> str:
        logs = [*self.folder.glob("*.log"), *self.folder.glob("home-*/jobs/*/logs/*.log")]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs)

    def _environ(self, host: str) -> dict[str, str]:
        run = self.folder / f"run-{host}"
        run.mkdir(mode=0o700, exist_ok=True)
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("EDL_")},
            "EDL_JOB": JOB,
            "EDL_COORDINATOR": self._coordinator,
            "EDL_SECRET_FILE": str(self.folder / "secret"),
            "EDL_HOME": str(self.folder / f"home-{host}"),
            "XDG_RUNTIME_DIR": str(run),
            "CUDA_VISIBLE_DEVICES": "",
        }

    @property
    def old(self) -> Host:
        return self.hosts[OLD]
