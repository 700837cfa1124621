"""A cluster reached from its own machine: its coordinator may be away for a while, and comes back."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from edl.cluster.queue.submission import JobWish
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Store
from edl.errors import ConfigError, NoSuchJob
from edl.scheduler import cluster_client
from edl.scheduler.cluster_access import ClusterHere
from edl.scheduler.cluster_client import PATIENCE_S
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome

AWAY_S = PATIENCE_S - 5
Asked = Callable[[ClusterHere], object]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterHere:
    """Its coordinator begins to answer `AWAY_S` after it is asked."""

    async def answer_late(_: object, __: float, *, connect_timeout_s: float = 10.0) -> Store:
        if connect_timeout_s < AWAY_S:
            raise ConfigError(f"does not answer (tried for {connect_timeout_s:g} s)")
        return MemoryServer().connect()

    monkeypatch.setattr(cluster_client, "connect", answer_late)
    home = ClusterHome(tmp_path)
    home.folder.mkdir(parents=True)
    home.write(ClusterConfig((), "fifo", {}, {}, "h:1", False, 1, 1.0, 0.0))
    home.secret.write_text("secret")
    return ClusterHere(home, heed=lambda: None)


@pytest.mark.parametrize(
    "asked",
    [
        lambda cluster: cluster.wait("a", None, str),
        lambda cluster: cluster.logs("a", None, str, follow=True),
    ],
    ids=["wait", "logs"],
)
def test_what_waits_for_a_job_waits_for_its_coordinator_too(cluster: ClusterHere, asked: Asked) -> None:
    with pytest.raises(NoSuchJob):
        asked(cluster)


def test_a_submission_waits_for_the_coordinator(cluster: ClusterHere) -> None:
    wish = JobWish("a", ("train",), "/", user="ann")
    with pytest.raises(ConfigError, match="the cluster has 0 devices"):
        cluster.submit(wish)


def test_what_only_looks_says_soon_that_the_coordinator_does_not_answer(cluster: ClusterHere) -> None:
    with pytest.raises(ConfigError, match=re.escape("(tried for 10 s)")):
        cluster.jobs()
