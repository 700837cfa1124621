"""A real Ray on this machine, for tests: nodes with names of their own, the first of them its head.

Each node is a process that Ray's own command has started. Its ports are free ones, and its files lie in a folder of the
test's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from real_slurm import end, free_ports, kill_tree

COMMAND = Path(sys.executable).with_name("ray")
SCRIPTS = Path(__file__).parents[2] / "scripts"

TOKEN = secrets.token_hex(32)  # Ray keeps the first that it is told for as long as a process lives: one for all of ours


class RealRay:
    """Its nodes. It takes no client without its token."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, cpus: int, gpus: int) -> None:
        self.folder, self._stack, self._cpus, self._gpus = folder, stack, cpus, gpus
        port, client_port = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        others = {name: value for name, value in os.environ.items() if not name.startswith(("EDL_", "RAY_"))}
        quick = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "10"}
        busy = {"RAY_raylet_start_wait_time_s": "120", "RAY_enable_worker_prestart": "0"}
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        self.told = {"RAY_ADDRESS": self.address, **token}  # for who comes to it
        self.environ = {**others, **quick, **busy, **quiet, **self.told}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.flags: dict[str, list[str]] = {}  # of `ray start`, by node
        self._head = [f"--port={port}", "--include-dashboard=false", f"--ray-client-server-port={client_port}"]

    def begin_head(self, name: str) -> None:
        self._begin(name, "--head", *self._head, f"--temp-dir={self.folder}")

    def begin_node(self, name: str) -> None:
        self._begin(name, f"--address={self.address}")

    def wait_up(self, name: str) -> None:
        log, until = self.folder / f"{name}.out", time.monotonic() + 240
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)

    def kill_node(self, name: str) -> None:
        """As if its power was cut."""
        kill_tree(self._nodes[name].pid)
        self._nodes[name].wait()

    def _begin(self, name: str, *flags: str) -> None:
        log = self._stack.enter_context((self.folder / f"{name}.out").open("ab"))
        common = [
            f"--node-name={name}",
            f"--num-cpus={self._cpus}",
            f"--num-gpus={self._gpus}",
            "--object-store-memory=80000000",
        ]
        ends_with_us = ["setpriv", "--pdeathsig", "TERM", "--"]
        self.flags[name] = [*common, *flags]
        command = [*ends_with_us, str(COMMAND), "start", "--block", *self.flags[name]]
        process = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log, start_new_session=True)
        self._nodes[name] = process
        self._stack.callback(end, process)


def install() -> None:
    """Into this virtual environment: set-up leaves its 240 MB to who runs this. Skips the test where that cannot be."""
    if importlib.util.find_spec("ray") is None and sys.prefix != sys.base_prefix:
        sys.stderr.write(f"installing Ray into {sys.prefix}\n")
        line = [str(SCRIPTS / "uv"), "pip", "install", "--quiet", "--python", sys.executable]
        line += ["--constraint", str(SCRIPTS / "lock.txt"), "ray"]
        subprocess.run(line, timeout=600, check=False)
        importlib.invalidate_caches()
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'horovod-edl[ray]'")


@contextlib.contextmanager
def real_ray(nodes: Sequence[str], cpus: int, gpus: int = 0) -> Iterator[RealRay]:
    install()
    folder = Path(tempfile.mkdtemp(prefix="edl-ray-"))  # paths of sockets must be short
    try:
        with contextlib.ExitStack() as stack:
            ray = RealRay(folder, stack, cpus, gpus)
            ray.begin_head(nodes[0])
            ray.wait_up(nodes[0])  # a node that finds no head looks again only after a long while
            for name in nodes[1:]:
                ray.begin_node(name)
                ray.wait_up(name)
            yield ray
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def leave_ray() -> None:
    """This process is connected to no Ray any more. Harmless where it was to none."""
    import ray

    ray.shutdown()
