"""docs/security.md names each place where edl listens, with the bounds that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from edl.cluster.queue import submission
from edl.collectives import rendezvous
from edl.coordination import child_server, zookeeper_server
from edl.coordination.embedded import __main__ as embedded
from edl.coordination.embedded import journal
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.daemon.metrics import metrics_server as metrics
from edl.horovodrun import driver_requests
from edl.host import http_serving
from edl.launch import job_records
from edl.scheduler import cluster_processes, worker_folders, worker_wrapper
from edl.scheduler.web import web_server as web
from edl.transport import pipe, rpc, seal, state_stream
from tests.architecture.test_docs import rows, section

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
LISTENS = {"create_server", "start_server", "start_unix_server", "add_insecure_port", "add_secure_port", "bind"}
PROBES = {  # they let go of the port at once
    "edl/coordination/child_server.py",
    "edl/launch/doctor.py",
    "edl/scheduler/cluster_start.py",
}
SHARED = {"edl/host/http_serving.py"}  # listens for its callers

HTTP = f"{http_serving.CONNECTIONS} connections; a request's head has {http_serving.HEAD_BYTES >> 10} KiB"
LOG = f"{child_server.LOG_BYTES >> 20} MiB, and one copy"
RPC = f"{seal.MAX_BYTES >> 20} MiB; {rpc.CALLS_PER_CONNECTION} calls at once on a connection"
READERS = (
    f"{metrics.AT_ONCE} requests at once, of {metrics.REQUEST_BYTES >> 10} KiB, each within {metrics.REQUEST_S:g} s"
)
BODIES = f"{web.BODY_BYTES // 1_000_000} MB and comes within {web.BODY_S:g} s"
SOURCES = {  # where edl listens: how the row begins, and what its bound says
    "edl/transport/rpc.py": ("a daemon's RPC", f"{RPC}, {rpc.CALLS_AT_ONCE} in all"),
    "edl/collectives/rendezvous.py": ("a daemon's rendezvous", f"{rendezvous.MOST_CONNECTIONS} connections"),
    "edl/transport/state_stream.py": (
        "a trainer that has a state",
        f"{state_stream.MOST_CALLERS} connections, each {state_stream.GREETING_S:g} s",
    ),
    "edl/transport/pipe.py": ("a worker's private pipe", f"{pipe.MAX_BYTES >> 20} MiB"),
    "edl/cli/dashboard.py": ("the page of `edl dashboard`", f"{HTTP} and comes within {http_serving.ASK_S:g} s"),
    "edl/daemon/metrics/metrics_server.py": ("metrics, where", READERS),
    "edl/scheduler/web/web_server.py": (
        "the HTTP interface",
        f"{BODIES}; {web.STREAMS} logs followed, {web.WAITS} callers that wait",
    ),
    "edl/horovodrun/driver_requests.py": (
        "a stand-in's ear",
        f"{driver_requests._LONGEST >> 10} KiB and comes within {driver_requests._PATIENCE_S:g} s",
    ),
}


def row(beginning: str) -> list[str]:
    found = [cells for cells in rows(section(PAGE, "What listens where")) if cells[0].startswith(beginning)]
    assert len(found) == 1, f"docs/security.md has {len(found)} rows that begin with {beginning!r}"
    return found[0]


def listening() -> set[str]:
    """The modules that call what listens, or import what does it for them."""
    found = set()
    for path in (ROOT / "edl").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        names = {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in called}
        served = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "edl.host.http_serving"]
        if names & LISTENS or any(name.name == "listen" for node in served for name in node.names):
            found.add(str(path.relative_to(ROOT)))
    return found


def test_each_place_that_listens_has_a_row() -> None:
    assert listening() - PROBES - SHARED == set(SOURCES)


@pytest.mark.parametrize("source", SOURCES)
def test_the_bounds_of_a_row_are_the_codes(source: str) -> None:
    beginning, bound = SOURCES[source]
    assert bound in row(beginning)[-1]


def test_the_bounds_of_local_servers_are_the_codes(tmp_path: Path) -> None:
    heap = next(flag for flag in zookeeper_server._FLAGS if flag.startswith("-Xmx"))
    zookeeper, etcd = row("the ZooKeeper that `edl run` starts")[-1], row("the etcd that `edl run`")[-1]
    assert f"{heap.removeprefix('-Xmx').removesuffix('m')} MiB of memory" in zookeeper and LOG in zookeeper
    own = row("the embedded coordinator that `edl run`")[-1]
    assert f"{pipe.MAX_BYTES >> 20} MiB; its nodes hold {embedded.MAX_BYTES >> 20} MiB" in own
    quota = int(LocalEtcd(tmp_path, "127.0.0.1", 1)._flags["quota-backend-bytes"])
    assert f"{quota >> 30} GiB of data" in etcd


def test_the_bounds_of_folders_are_the_codes() -> None:
    found = {cells[0]: cells[-1] for cells in rows(section(PAGE, "Folders and files"))}
    assert f"the newest {job_records.KEEP} that are over" in found["`jobs/`"]
    assert f"{cluster_processes.LOG_BYTES // 1_000_000} MB of each process" in found["`cluster/logs/`"]
    own = found["`jobs/*/embedded/`"]
    assert f"{embedded.MAX_BYTES >> 20} MiB of nodes" in own and f"and {journal.SLACK_BYTES >> 20} MiB" in own
    assert f"{submission.ENVIRON_BYTES:,} bytes" in found["`cluster/environs/*`"]
    assert f"the newest {worker_folders.KEPT_CLAIMS} that are gone" in found["`cluster/nodes/*/workers/`"]
    assert f"{worker_wrapper.LAST_WORD_BYTES >> 10} KiB" in found["`cluster/nodes/*/workers/*/exit.json`"]
    assert all(
        LOG.replace("MiB,", "MiB of log,") in bound
        for name, bound in found.items()
        if re.search("keeper/|etcd/|embedded/`", name)
    )


def test_each_row_says_five_things() -> None:
    found = list(rows(section(PAGE, "What listens where")))
    assert len(found) >= len(SOURCES) and {len(cells) for cells in found} == {5}
    assert all(all(cells) for cells in found)
