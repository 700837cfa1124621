"""`edl prove --hosts` on hosts that are network namespaces, each entered by what stands in for ssh."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pace import patient

from tests.soaks.partition_net import Host, Network, why_not
from tests.soaks.wired_net import WiredNetwork, why_no_wires

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=f"there are no hosts: {why_not()}"),
]
NAMES = ("alpha", "beta", "gamma")
# As ssh does: a host, and a line for its shell. A host has a folder of temporary files of its own.
ENTER = """#!/bin/sh
name=$(grep "^$1 " {table} | cut -d' ' -f2)
[ -n "$name" ] || {{ echo "enter: Could not resolve hostname $1" >&2; exit 255; }}
mkdir -p {folder}/tmp-$1
exec ip netns exec "$name" unshare --uts sh -c 'hostname "$0"; export TMPDIR="$1"; eval "$2"' \\
    "$(echo "$1" | tr . -)" {folder}/tmp-$1 "$2"
"""


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network(NAMES) if why_no_wires() else WiredNetwork(NAMES)
    try:
        network.open()
        yield network
    finally:
        network.close()


class Proving:
    """`edl prove`, typed on the first host."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.hosts, self.folder = network.hosts, folder
        self.out = folder / "out"
        self.out.mkdir()
        (folder / "tmp").mkdir()
        (folder / "table").write_text("".join(f"{one.address} {one.namespace}\n" for one in network.hosts))
        self._enter = folder / "enter"
        self._enter.write_text(ENTER.format(table=shlex.quote(str(folder / "table")), folder=shlex.quote(str(folder))))
        self._enter.chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("EDL_", "HOROVOD_"))}
        self.environ = {**clean, "TMPDIR": str(folder / "tmp"), "EDL_HOME": str(folder / "home")}

    def begin(self, *flags: str, hosts: str = "") -> subprocess.Popen[str]:
        named = hosts or ",".join(f"{host.address}:1" for host in self.hosts)
        line = [sys.executable, "-m", "edl", "prove", "--quick", "--hosts", named, "--ssh", str(self._enter)]
        return subprocess.Popen(
            self.hosts[0].command(*line, "--output", str(self.out), *flags),
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def left(self) -> list[str]:
        """What is left of it: temporary files, and processes on any host."""
        files = [str(path) for folder in self.folder.glob("tmp*") for path in folder.iterdir()]
        return files + [f"{host.name}: {pid}" for host in self.hosts for pid in host.pids()]

    def trains(self) -> bool:
        return any(path.stat().st_size for path in self.folder.glob("tmp-*/*/*.jsonl"))


@pytest.fixture
def proving(network: Network, tmp_path: Path) -> Proving:
    return Proving(network, tmp_path)


def wait(true, what: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + patient(240.0)
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def told_by_hosts(proving: Proving, host: Host) -> list[int]:
    """Processes of workers there."""
    found = []
    for pid in host.pids():
        words = Path(f"/proc/{pid}/cmdline").read_bytes() if Path(f"/proc/{pid}").exists() else b""
        if b"edl.proof.proof_worker" in words:
            found.append(pid)
    return found


@pytest.mark.soak  # two minutes; what it tries of each host, and how it ends, is tested below and in tests/unit/proof
def test_three_hosts_hold_and_the_report_names_them(proving: Proving) -> None:
    process = proving.begin()
    stdout, stderr = process.communicate(timeout=patient(600))
    assert process.returncode == 0, stderr + stdout
    [file] = proving.out.glob("edl-proof-*.json")
    found = json.loads(file.read_text())
    assert found["holds"] and found["workers"] == 2 and found["horovod"] is None
    assert [one["name"] for one in found["hosts"]] == [host.address for host in proving.hosts]
    assert all(one["clock_error_ms"] < 50 and one["machine"]["cores"] for one in found["hosts"])
    assert [(one["before"], one["after"]) for one in found["resizes"]] == [(2, 3), (3, 2)] * 2
    assert [one["steps_lost"] for one in found["kills"]] == [0]
    assert found["kills"][0]["whole_ms"] > found["kills"][0]["first_ms"] > 0
    assert found["outcome"]["exit_code"] == 0 and found["outcome"]["trained"] > 0
    assert found["outcome"]["lost"] == found["outcome"]["repeated"] == found["outcome"]["wrong"] == 0
    assert found["outcome"]["states_compared"] > 4
    assert len(found["turns"]["edl_ms"]) == len(found["turns"]["torchrun_ms"]) == 2
    assert 0 < found["written_mb"] < 1000
    page = file.with_suffix(".html").read_text()
    assert "3 hosts (1 + 1 + 1 workers at most)" in page and "host 10.77.0.3" in page
    assert proving.left() == []


@pytest.mark.soak  # on one machine: test_prove.py
def test_ctrl_c_ends_all_on_each_host(proving: Proving) -> None:
    process = proving.begin()
    wait(proving.trains, "a worker trains", process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=patient(120))
    assert process.returncode == 1 and said.endswith("edl: interrupted\n")
    assert proving.left() == [] and not list(proving.out.iterdir())


@pytest.mark.soak  # how each host learns that it is over: the test above
def test_a_killed_prove_leaves_no_process_on_any_host(proving: Proving) -> None:
    process = proving.begin()
    wait(proving.trains, "a worker trains", process)
    process.kill()
    process.communicate(timeout=patient(60))
    deadline = time.monotonic() + patient(60)
    while any(host.pids() for host in proving.hosts):
        assert time.monotonic() < deadline, proving.left()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "hosts", "line", "code"),
    [
        ((), "10.77.0.1:1,10.77.0.99:2", "--hosts 10.77.0.99: the connection to host 10.77.0.99 ended with exit", 2),
        ((), "10.77.0.1:1,10.77.0.2:1", "--hosts 10.77.0.1:1,10.77.0.2:1: must have slots for 3 workers", 2),
        (("-np", "3"), "", "-np 3: --hosts has 3 slots, of which one is for a worker that joins and leaves", 2),
        (("--device", "cuda"), "", "--device cuda: PyTorch finds 0 GPUs on 10.77.0.1 for 1 workers", 2),
    ],
)
def test_what_cannot_be_tried_on_hosts_is_said_in_one_line(proving: Proving, flags, hosts, line, code) -> None:
    process = proving.begin(*flags, hosts=hosts)
    _, said = process.communicate(timeout=patient(120))
    assert (process.returncode, said.count("\n")) == (code, 1) and said.startswith(f"edl: {line}"), said
    assert proving.left() == []
