"""Which process of a cluster lives, and what may begin."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import socket
from pathlib import Path

import msgspec
import pytest

from edl.cluster.queue.queue_entries import Submission, WorkerOrder, WorkerWish
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.local_coordinator import LocalChoice
from edl.errors import ConfigError
from edl.host.credentials import digest_of
from edl.scheduler import cluster_processes, cluster_start
from edl.scheduler.agent_process import worker_environ
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome, NodeGiven


@pytest.fixture
def home(tmp_path: Path) -> ClusterHome:
    home = ClusterHome(tmp_path)
    home.make()
    return home


def test_who_only_asks_for_a_process_is_not_taken_for_it(home: ClusterHome) -> None:
    with home.lived("keeper") as ours:
        assert ours
        assert home.pid("keeper") == os.getpid()
    asks = os.open(home.run / "keeper.lock", os.O_RDWR)
    try:
        fcntl.flock(asks, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as pid() does, for a moment
        assert home.pid("keeper") is None
    finally:
        os.close(asks)


def test_a_process_that_was_spawned_before_the_cluster_was_told_to_end_does_not_begin(
    home: ClusterHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[ClusterHome] = []

    async def keep(home: ClusterHome) -> None:
        begun.append(home)

    monkeypatch.setattr(cluster_processes, "keep", keep)
    home.ending.write_bytes(b"")
    assert cluster_processes.main("keeper", "", home) == 0
    assert begun == []
    home.ending.unlink()
    assert cluster_processes.main("keeper", "", home) == 0
    assert begun == [home]


def _config(coordinator: str, *, own: bool = True, **credentials: str) -> ClusterConfig:
    return ClusterConfig((), "fifo", {}, {}, coordinator, own, 2, 10.0, 0.0, credentials)


def test_a_queue_stays_in_the_kind_of_coordinator_that_holds_it(
    home: ClusterHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def choose(wanted: str | None) -> LocalChoice:
        asked.append(wanted)
        return LocalChoice(wanted or "zookeeper")

    monkeypatch.setattr(cluster_start, "choose", choose)
    assert re.fullmatch(rf"{os.geteuid()}@127\.0\.0\.1:\d+", cluster_start.own_coordinator(home, None))
    first = cluster_start.own_coordinator(home, "etcd")
    home.write(_config(first))
    assert cluster_start.own_coordinator(home, None) == cluster_start.own_coordinator(home, "etcd") == first
    assert asked == [None, "etcd", "etcd", "etcd"]
    with pytest.raises(ConfigError, match=r"--local-coordinator zookeeper: the queue of EDL_HOME=.* lies in its etcd"):
        cluster_start.own_coordinator(home, "zookeeper")
    home.write(_config("127.0.0.1:23456"))
    assert cluster_start.own_coordinator(home, "zookeeper") == f"{os.geteuid()}@127.0.0.1:23456"


def test_where_the_name_of_a_socket_would_be_too_long_an_etcd_has_a_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_start, "choose", lambda _: LocalChoice("etcd"))
    long = ClusterHome(tmp_path / ("x" * 100))
    long.make()
    found = cluster_start.own_coordinator(long, "etcd")
    assert re.fullmatch(r"etcd://127\.0\.0\.1:\d+", found)
    long.write(_config(found))
    assert cluster_start.own_coordinator(long, None) == found
    with socket.create_server(("127.0.0.1", int(found.rpartition(":")[2]))):
        assert cluster_start.own_coordinator(long, None) != found


def test_a_coordinator_of_others_is_opened_by_their_user_and_its_own_by_the_secret(home: ClusterHome) -> None:
    home.secret.write_bytes(b"s" * 32)
    home.write(_config("127.0.0.1:23456"))
    assert home.coordinator() == Coordinator("127.0.0.1:23456", digest_of(b"s" * 32))
    home.write(_config("zk.example:2181/edl", own=False, EDL_COORDINATOR_AUTH="ann:word"))
    assert home.coordinator() == Coordinator("zk.example:2181/edl", Digest("ann", "word"))
    asked, order = Submission("a", ("train",), "/", "ann", 0.0), WorkerOrder("a-1", "a", 0, WorkerWish.RUN)
    given = worker_environ({}, asked, order, home)
    assert (given["EDL_COORDINATOR"], given["EDL_COORDINATOR_AUTH"]) == ("zk.example:2181/edl", "ann:word")
    assert (given["EDL_PROCESSES"], given["CUDA_VISIBLE_DEVICES"]) == ("1", "0")
    asked, order = (
        msgspec.structs.replace(asked, processes=2),
        WorkerOrder("a-1", "a", 2, WorkerWish.RUN, further=(5,)),
    )
    given = worker_environ({"EDL_PROCESSES": "7"}, asked, order, home)
    assert (given["EDL_PROCESSES"], given["CUDA_VISIBLE_DEVICES"]) == ("2", "2,5")
    assert (home.folder / "cluster.json").stat().st_mode & 0o777 == 0o600


async def test_nobody_begins_before_the_nodes_were_found_right(
    home: ClusterHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawned: list[str] = []
    looked, begun = asyncio.Event(), asyncio.Event()

    def spawn(_: ClusterHome, name: str) -> int:
        spawned.append(name)
        begun.set()
        return 1

    monkeypatch.setattr(cluster_processes, "spawn", spawn)
    monkeypatch.setattr(cluster_processes, "LOOK_S", 0.01)
    asked: list[str] = []

    def pid(_: ClusterHome, name: str) -> None:
        asked.append(name)
        if len(asked) == 10:  # of three: each has been looked at more than once
            looked.set()

    monkeypatch.setattr(ClusterHome, "pid", pid)
    config = _config("127.0.0.1:2181", own=False)
    home.write(msgspec.structs.replace(config, nodes=(NodeGiven("localhost", (0,)),)))
    home.opening.write_bytes(b"")
    keeping = asyncio.create_task(cluster_processes.keep(home))
    await asyncio.wait_for(looked.wait(), 10)
    assert spawned == []
    home.opening.unlink()
    await asyncio.wait_for(begun.wait(), 10)
    keeping.cancel()
    await asyncio.wait({keeping})
    assert spawned[0] == "scheduler-1"
