"""A submission from the side of who submits: once, under a name that is new, with no more than is the owner's."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.cluster.queue.queue_entries import Submission
from edl.coordination.memory_store import MemoryServer
from edl.errors import ConfigError, StoreUnavailable, UsageError
from edl.scheduler import cluster_client as client_module
from edl.scheduler.cluster_client import ClusterClient
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome
from edl.scheduler.environ_files import handed_on
from edl.scheduler.queue_store import QueueStore

ASKED = Submission("a", ("train",), "/", "ann", 1.0)


class LosesAnswers(QueueStore):
    """The first submission is carried out, and its client does not hear of it."""

    lost = 0

    async def submit(self, asked: Submission, environ: object) -> None:
        await super().submit(asked, {})
        self.lost += 1
        raise StoreUnavailable("gone")


async def client_of(folder: Path, kind: type[QueueStore] = QueueStore) -> ClusterClient:
    queue = kind(MemoryServer().connect())
    await queue.prepare()
    return ClusterClient(ClusterHome(folder), ClusterConfig((), "fifo", {}, {}, "h:1", False, 1, 1.0, 0.0), queue)


async def test_a_submission_whose_answer_is_lost_is_submitted_once(tmp_path: Path) -> None:
    client = await client_of(tmp_path, LosesAnswers)
    await client.submit(ASKED, {})
    assert (await client.queue.names(), getattr(client.queue, "lost", 0)) == (("a",), 1)
    other = Submission("a", ("train",), "/", "bob", 2.0)
    with pytest.raises(UsageError, match="there is a job a already"):
        await client.submit(other, {})


async def test_a_coordinator_that_stays_away_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await client_of(tmp_path)

    async def away(*_: object) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(client.queue, "submit", away)
    monkeypatch.setattr(client_module, "PATIENCE_S", 0.0)
    with pytest.raises(StoreUnavailable, match="`edl queue` shows whether job a was submitted"):
        await client.submit(ASKED, {})


@pytest.mark.parametrize("left", ["jobs/a/checkpoints", "nodes/n/workers/a-12"])
async def test_what_a_forgotten_job_has_left_does_not_become_anothers(tmp_path: Path, left: str) -> None:
    client = await client_of(tmp_path)
    (client.home.folder / "nodes/n/workers/a-b-1").mkdir(parents=True)
    (client.home.folder / left).mkdir(parents=True)
    with pytest.raises(UsageError, match=r"is left of a job a .* give this one another name by --name"):
        await client.submit(ASKED, {})
    await client.submit(Submission("b", ("train",), "/", "ann", 1.0), {})
    assert await client.queue.names() == ("b",)


@pytest.mark.parametrize(
    "name",
    ["EDL_NUM_PROC", "EDL_NP", "EDL_MIN_NUM_PROC", "EDL_MAX_NP", "EDL_RESUME_FROM", "EDL_LIFE", "EDL_BATCH_SIZE",
     "EDL_STAND_IN", "EDL_SLOT", "EDL_COORDINATOR", "EDL_COORDINATOR_AUTH", "EDL_COORDINATOR_TLS_CA", "EDL_SECRET_FILE",
     "EDL_HOME", "EDL_WORKER_ID", "EDL_LAUNCH", "EDL_USER"],
)  # fmt: skip
def test_what_a_life_gets_of_the_cluster_is_not_its_owners_to_give(name: str) -> None:
    assert handed_on({name: "4", "EDL_RING": "gloo", "HOME": "/h"}) == {"EDL_RING": "gloo", "HOME": "/h"}


@pytest.mark.parametrize("pair", [("ODD", "a\udcff"), ("ODD", "\udc80")])
def test_a_variable_that_is_no_text_is_named(pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="the variable ODD is not UTF-8: unset it"):
        handed_on(dict([pair]))
