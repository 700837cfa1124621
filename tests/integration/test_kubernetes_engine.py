"""Workers as Pods of a made-up Kubernetes that cuts, forgets, refuses, evicts and loses nodes. What every engine
promises is in tests/contract/test_engines.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from fake_kubernetes import TEMPLATE, FakeKubernetes, fake_kubernetes

from edl.cluster.queue.agent_machine import WorkerFound
from edl.cluster.queue.end_causes import EndEvidence, classify
from edl.cluster.queue.queue_entries import Submission, WorkerOrder, WorkerWish
from edl.launch.job_processes import marked
from edl.scheduler.kubernetes import kubernetes_engine as module
from edl.scheduler.kubernetes import reconciling
from edl.scheduler.kubernetes.kubernetes_engine import KubernetesEngine, left_of
from edl.scheduler.worker_engine import Start
from edl.scheduler.worker_folders import WorkerFolders, mark_of

pytestmark = pytest.mark.integration
READY = "echo ready; while [ ! -e go ]; do sleep 0.02; done; echo bye"
LEAVES = f"trap 'echo asked; exit 0' TERM; {READY}"


class PodsPlayed:
    """An engine on one node of it."""

    def __init__(self, pods: FakeKubernetes, node: str, folder: Path, image: str = "training:1") -> None:
        self.pods, self.node, self.folder = pods, node, folder
        self.ends: asyncio.Queue[tuple[str, EndEvidence]] = asyncio.Queue()
        self.folders = WorkerFolders(folder / "node", folder / "jobs")
        template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "containers": [{"name": "worker", "image": image}]}}
        told = lambda worker, evidence: self.ends.put_nowait((worker, evidence))  # noqa: E731
        self.engine = KubernetesEngine(node, pods.given(template), self.folders, told)

    async def start(self, worker: str, script: str = READY) -> None:
        asked = Submission("j", ("sh", "-c", script), str(self.folder), "u", 0.0)
        order = WorkerOrder(worker, "j", 0, WorkerWish.RUN)
        assert await self.engine.start(Start(order, asked, {"PATH": os.environ["PATH"]})) is not None

    async def runs(self, worker: str, script: str = READY) -> None:
        await self.start(worker, script)
        log = self.folder / "jobs" / "j" / "logs" / f"{worker}.log"
        await until(lambda: log.exists() and "ready" in log.read_text())

    async def end(self) -> tuple[str, EndEvidence]:
        return await asyncio.wait_for(self.ends.get(), 20)

    async def cause(self) -> tuple[str, str]:
        """Its code, and what is known of it."""
        _, evidence = await self.end()
        cause = classify(evidence)
        assert cause is not None, evidence
        return cause.code, cause.root

    def go(self) -> None:
        (self.folder / "go").touch()

    def processes(self, worker: str) -> list[int]:
        return marked(mark_of(self.folders[worker]))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a file does not tell
            await asyncio.sleep(0.02)


@pytest.fixture
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeKubernetes]:
    with fake_kubernetes(tmp_path_factory.mktemp("kubernetes")) as found:
        found.add_node("n1")
        yield found


@pytest.fixture
async def played(pods: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PodsPlayed]:
    for name in ("AGAIN_S", "LOOK_S", "NODE_S"):
        monkeypatch.setattr(module, name, 0.1)
    played = PodsPlayed(pods, "n1", tmp_path)
    assert await played.engine.find() == []
    yield played
    await played.engine.close()


async def test_cut_watches_and_a_forgotten_history_lose_no_end(played: PodsPlayed, pods: FakeKubernetes) -> None:
    await played.runs("j-1")
    pods.cut()
    lists = pods.count("GET", "/pods?labelSelector")
    pods.forget_history()
    played.go()
    worker, evidence = await played.end()
    assert (worker, evidence.code) == ("j-1", 0)
    await until(lambda: pods.count("GET", "/pods?labelSelector") > lists)


async def test_an_end_that_no_watch_told_of_is_seen_in_the_next_list(played: PodsPlayed, pods: FakeKubernetes) -> None:
    await played.runs("j-1")
    pods.fail("GET", "watch=1", 500, times=1000)
    pods.cut()
    played.go()
    await until(lambda: pods.pod("j-1")["status"]["phase"] == "Succeeded")
    pods.remove(pods.pod("j-1")["metadata"]["name"])
    pods.forget_history()
    pods.faults = []
    assert (await played.end())[0] == "j-1"


async def test_a_pod_whose_making_was_not_answered_is_made_once(played: PodsPlayed, pods: FakeKubernetes) -> None:
    pods.fail("POST", "/pods", 0, times=1, after=True)
    pods.fail("GET", "watch=1", 500, times=3)
    await played.runs("j-1")
    assert pods.there().count("j-1") == 1
    played.go()
    assert (await played.end())[1].code == 0


async def test_a_conflict_over_a_quota_is_tried_again(played: PodsPlayed, pods: FakeKubernetes) -> None:
    told = 'Operation cannot be fulfilled on resourcequotas "gpus": please apply your changes to the latest version'
    pods.fail("POST", "/pods", 409, times=2, reason=told)
    await played.runs("j-1", LEAVES)
    pods.fail("DELETE", "/pods", 409, times=2, reason="the object has been modified")
    played.engine.end("j-1", kill=False)
    assert (await played.end())[1].code == 0
    assert pods.count("DELETE") == 3


async def test_watches_that_expire_at_once_are_asked_for_ever_more_slowly(
    played: PodsPlayed, pods: FakeKubernetes
) -> None:
    pods.fail("GET", "watch=1", 410, times=10**9)
    pods.cut()
    await played.runs("j-1")
    before, lists = pods.count("GET", "watch=1"), pods.count("GET", "/pods?labelSelector")
    played.go()
    assert (await played.end())[1].code == 0  # the lists tell of it
    assert pods.count("GET", "/pods?labelSelector") > lists
    assert pods.count("GET", "watch=1") - before < 20


async def test_while_kubernetes_does_not_answer_nothing_is_lost(played: PodsPlayed, pods: FakeKubernetes) -> None:
    pods.fail("POST", "/pods", 500, times=2)
    pods.fail("DELETE", "/pods", 503, times=2)
    await played.runs("j-1", LEAVES)
    pods.down = True
    pods.cut()
    played.engine.end("j-1", kill=False)
    await until(lambda: pods.count("DELETE"))  # and was not answered
    pods.down = False
    worker, evidence = await played.end()
    assert (worker, evidence.code, evidence.tail.count("asked")) == ("j-1", 0, 1)


async def test_a_slow_server_is_waited_for(played: PodsPlayed, pods: FakeKubernetes) -> None:
    pods.slow_s = 0.2
    await played.runs("j-1")
    played.go()
    assert (await played.end())[1].code == 0


async def test_one_that_may_not_be_made_ends_with_kubernetes_reason(played: PodsPlayed, pods: FakeKubernetes) -> None:
    pods.fail("POST", "/pods", 403, reason="exceeded quota: gpus")
    await played.start("j-1")
    assert await played.cause() == ("host-limits", "exceeded quota: gpus")
    assert not (played.folders["j-1"] / "start.json").exists()


async def test_a_pod_that_waits_for_room_is_found_and_can_be_ended(played: PodsPlayed, pods: FakeKubernetes) -> None:
    pods.hold(played.node)
    await played.start("j-1")
    await until(lambda: "j-1" in pods.there())
    await played.engine.close()
    again = PodsPlayed(pods, played.node, played.folder)
    assert await again.engine.find() == [WorkerFound("j-1", (0,), 0, None)]
    again.engine.end("j-1", kill=False)
    worker, evidence = await again.end()
    assert (worker, evidence.code) == ("j-1", None)
    assert "j-1" not in pods.there()
    pods.hold(played.node, held=False)
    assert again.processes("j-1") == []
    await again.engine.close()


async def test_an_image_that_is_not_there_ends_the_worker(
    pods: FakeKubernetes, played: PodsPlayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciling, "STUCK_S", 0.3)
    other = PodsPlayed(pods, played.node, played.folder, image="missing:1")
    assert await other.engine.find() == []
    await other.start("j-1")
    code, root = await other.cause()
    assert (code, root) == ("host-limits", "ImagePullBackOff: Back-off pulling image missing:1")
    assert "j-1" not in pods.there()
    await other.engine.close()


async def test_who_is_preempted_is_told_and_may_leave(played: PodsPlayed, pods: FakeKubernetes) -> None:
    await played.runs("j-1", LEAVES)
    pods.disrupt("j-1", "PreemptionByScheduler")
    assert await played.cause() == ("taken", "Kubernetes has preempted it")
    assert "asked" in (played.folder / "jobs" / "j" / "logs" / "j-1.log").read_text()


async def test_who_is_deleted_by_others_has_not_failed(played: PodsPlayed, pods: FakeKubernetes) -> None:
    await played.runs("j-1", LEAVES)
    pods.end(pods.pod("j-1")["metadata"]["name"], 20)
    assert await played.cause() == ("taken", "it was deleted in Kubernetes")


async def test_who_is_evicted_for_want_of_memory_has_not_failed(played: PodsPlayed, pods: FakeKubernetes) -> None:
    await played.runs("j-1")
    pods.evict_for_resources("j-1")
    assert await played.cause() == ("taken", "its node has evicted it")


async def test_a_container_beyond_its_memory_is_starved(played: PodsPlayed, pods: FakeKubernetes) -> None:
    await played.runs("j-1")
    pods.starve("j-1")
    assert await played.cause() == ("out-of-memory", "SIGKILL")


async def test_a_worker_of_a_lost_node_is_not_gone_before_the_node_says_so(
    played: PodsPlayed, pods: FakeKubernetes
) -> None:
    await played.runs("j-1")
    pods.lose_node(played.node)
    await until(lambda: not played.engine.takes_workers)
    await until(lambda: "deletionTimestamp" in pods.pod("j-1")["metadata"])
    played.engine.end("j-1", kill=True)
    await until(lambda: pods.deleted[-1][1] == reconciling.KILL_GRACE_S)
    assert played.ends.empty()
    assert all(grace for _, grace in pods.deleted)  # 0 would free the slot of a process that may run on
    pods.bring_back(played.node)
    assert (await played.cause())[0] == "taken"
    await until(lambda: played.engine.takes_workers)


async def test_a_node_that_is_closed_takes_no_workers_and_keeps_those_it_has(
    played: PodsPlayed, pods: FakeKubernetes
) -> None:
    await played.runs("j-1")
    pods.close_node(played.node)
    await until(lambda: not played.engine.takes_workers)
    played.go()
    assert (await played.end())[1].code == 0
    pods.close_node(played.node, closed=False)
    await until(lambda: played.engine.takes_workers)


async def test_pods_of_workers_that_were_heard_of_are_removed(played: PodsPlayed, pods: FakeKubernetes) -> None:
    for worker in ("j-1", "j-2"):
        await played.start(worker, "exit 0")
        await played.end()
    played.engine.forget("j-1")
    await until(lambda: pods.there() == ["j-2"])
    await played.engine.close()
    played.folders.forget("j-2")  # and its agent died before it could say so
    again = PodsPlayed(pods, played.node, played.folder)
    assert await again.engine.find() == []
    await until(lambda: pods.there() == [])
    await again.engine.close()


async def test_what_is_left_of_a_cluster_without_agents_is_found_and_killed(
    played: PodsPlayed, pods: FakeKubernetes
) -> None:
    await played.runs("j-1")
    await played.start("j-2", "exit 0")
    await played.end()
    await played.engine.close()
    folders = [played.folders[worker] for worker in ("j-1", "j-2")]
    left = await asyncio.to_thread(left_of, pods.given(), "", folders)
    assert list(left) == folders[:1]
    await asyncio.to_thread(left[folders[0]])
    await until(lambda: not played.processes("j-1"))
