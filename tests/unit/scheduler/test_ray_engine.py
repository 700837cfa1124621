"""What follows from what Ray says of workers and nodes: ends, causes, what is told to leave. Ray itself is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from edl.cluster.queue.agent_machine import WorkerFound
from edl.cluster.queue.end_causes import EndEvidence, classify
from edl.cluster.queue.queue_entries import Submission, WorkerOrder, WorkerWish
from edl.errors import EdlError
from edl.scheduler import engine_registry, ray_engine
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome, NodeGiven
from edl.scheduler.cluster_start import stop, strays
from edl.scheduler.ray_cluster import RayCluster, RayError, RayNode, group_name
from edl.scheduler.ray_engine import LOST, RayEngine
from edl.scheduler.worker_engine import Start
from edl.scheduler.worker_folders import WorkerFolders

N1 = RayNode("n1", "a1", "here", 4, 0)


class PlayedRay:
    """In place of `RayCluster`: of all engines of one test."""

    def __init__(self) -> None:
        self.there: dict[str, set[str]] = {}  # by group: workers with an actor
        self.has = [N1]
        self.said: list[tuple[object, ...]] = []
        self.broken = ""
        self.holds = True
        self.when_asked: Callable[[], None] = lambda: None
        self.number = 7

    def of(self, name: str, _address: str) -> PlayedGroup:
        return PlayedGroup(self, name)


class PlayedGroup:
    def __init__(self, ray: PlayedRay, name: str) -> None:
        self.ray, self.name = ray, name
        self._there = ray.there.setdefault(name, set())

    def connect(self, *, anew: bool = False) -> None:
        self._answer()
        self.ray.said.append(("connect", anew))

    def _answer(self) -> None:
        if self.ray.broken:
            raise RayError(self.ray.broken)

    def nodes(self) -> list[RayNode]:
        self._answer()
        return list(self.ray.has)

    def hold(self, node: RayNode, slots: int) -> bool:
        self.ray.said.append(("hold", node.id, slots))
        return self.ray.holds

    def give_back(self) -> bool:
        self._answer()
        self.ray.said.append(("give back", self.name))
        return not self._there

    def start(self, worker: str, *_: object) -> int:
        self._there.add(worker)
        self._answer()
        return self.ray.number

    def workers(self) -> set[str]:
        self._answer()
        found = set(self._there)
        self.ray.when_asked()
        return found

    def why(self, worker: str) -> str:
        return ""

    def drop(self, worker: str) -> None:
        self.ray.said.append(("drop", worker))

    def ask(self, worker: str) -> None:
        self.ray.said.append(("ask", worker))

    def kill(self, worker: str, *, begun: bool) -> None:
        self._answer()
        self.ray.said.append(("kill", worker, begun))
        self._there.discard(worker)


def test_the_played_one_has_the_methods_of_the_real_one() -> None:
    ours = {name for name in vars(PlayedGroup) if not name.startswith("_")}
    assert ours <= set(vars(RayCluster))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> PlayedRay:
    ray = PlayedRay()
    monkeypatch.setattr(ray_engine, "RayCluster", ray.of)
    for name in ("LOOK_S", "ASK_S", "AGAIN_S"):
        monkeypatch.setattr(ray_engine, name, 0.01)
    return ray


class HeardEngine:
    """One engine of n1, with what it has told."""

    def __init__(self, ray: PlayedRay, folder: Path) -> None:
        self.ray, self.folder = ray, folder
        self.ends: list[tuple[str, EndEvidence]] = []
        self.folders = WorkerFolders(folder / "n1", folder / "jobs")
        self.engine = RayEngine("n1", 4, self.folders, lambda *end: self.ends.append(end), "head:6379")
        self.there = ray.there[group_name(self.folders.workers)]

    def began(self) -> None:
        """As its warden says."""
        (self.folders["j-1"] / "start.json").unlink()

    def exits(self, code: int) -> None:
        (self.folders["j-1"] / "exit.json").write_text(f'{{"code": {code}}}')

    async def end(self) -> EndEvidence:
        await until(lambda: bool(self.ends))
        [(worker, evidence)] = self.ends
        assert worker == "j-1"
        return evidence


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a list does not tell
            await asyncio.sleep(0.005)


ORDER = Start(
    WorkerOrder("j-1", "j", 2, WorkerWish.RUN),
    Submission("j", ("true",), "/", "ann", 0.0, np=1, min_np=1, max_np=1),
    {},
)


@pytest.fixture
async def heard(ray: PlayedRay, tmp_path: Path) -> AsyncIterator[HeardEngine]:
    heard = HeardEngine(ray, tmp_path)
    assert await heard.engine.find() == []
    yield heard
    await heard.engine.close()


async def test_a_worker_ends_when_ray_has_no_actor_of_it(heard: HeardEngine) -> None:
    assert await heard.engine.start(ORDER) == 7
    heard.began()
    heard.exits(4)
    heard.ray.said.clear()
    await until(lambda: len(heard.ray.said) > 3)  # asked again and again
    assert heard.ends == []  # its device is not free yet
    heard.there.clear()
    assert await heard.end() == EndEvidence(code=4)
    assert ("drop", "j-1") in heard.ray.said


async def test_a_node_that_is_lost_between_two_questions_has_taken_its_worker(heard: HeardEngine) -> None:
    await heard.engine.start(ORDER)
    heard.began()
    heard.there.clear()
    heard.ray.when_asked = heard.ray.has.clear
    assert await heard.end() == EndEvidence(taken=LOST)
    assert not heard.engine.takes_workers
    cause = classify(EndEvidence(taken=LOST))
    assert cause is not None
    assert cause.retry


async def test_one_whose_end_was_written_down_was_not_taken(heard: HeardEngine) -> None:
    await heard.engine.start(ORDER)
    heard.began()
    heard.exits(0)
    heard.there.clear()
    heard.ray.has.clear()
    assert await heard.end() == EndEvidence(code=0)


async def test_a_node_that_is_back_holds_its_slots_first(heard: HeardEngine) -> None:
    heard.ray.has.clear()
    await until(lambda: not heard.engine.takes_workers)
    heard.ray.holds = False
    heard.ray.has.append(msgspec.structs.replace(N1, id="a2"))
    await until(lambda: ("hold", "a2", 4) in heard.ray.said)
    assert not heard.engine.takes_workers
    with pytest.raises(RayError, match="Ray has no node n1 with 4 slots for this cluster"):
        await heard.engine.start(ORDER)
    assert heard.folders.kept() == []  # nothing is claimed
    heard.ray.holds = True
    await until(lambda: heard.engine.takes_workers)


async def test_an_actor_that_never_began_is_no_failure_of_the_command(heard: HeardEngine) -> None:
    await heard.engine.start(ORDER)
    heard.there.clear()
    assert await heard.end() == EndEvidence(refused="Ray could not start it", unserved=True)
    assert not (heard.folders["j-1"] / "start.json").exists()  # a warden that comes late starts nothing


@pytest.mark.parametrize(("begun", "said"), [(True, ("ask", "j-1")), (False, ("kill", "j-1", False))])
async def test_who_is_to_leave_before_it_begins_never_begins(
    heard: HeardEngine, begun: bool, said: tuple[object, ...]
) -> None:
    await heard.engine.start(ORDER)
    if begun:
        heard.began()
    heard.engine.end("j-1", kill=False)
    await until(lambda: said in heard.ray.said)
    assert not (heard.folders["j-1"] / "start.json").exists()


async def test_who_runs_and_is_to_be_killed_is_killed_with_all_that_is_its_own(heard: HeardEngine) -> None:
    await heard.engine.start(ORDER)
    heard.began()
    heard.engine.end("j-1", kill=True)
    await until(lambda: ("kill", "j-1", True) in heard.ray.said)


async def test_where_ray_fails_at_the_start_the_worker_never_begins(heard: HeardEngine) -> None:
    heard.ray.broken = "no room"
    with pytest.raises(RayError, match="no room"):
        await heard.engine.start(ORDER)
    assert not (heard.folders["j-1"] / "start.json").exists()


async def test_no_end_is_told_while_ray_does_not_answer(heard: HeardEngine) -> None:
    await heard.engine.start(ORDER)
    heard.began()
    heard.ray.broken = "away"
    heard.there.clear()
    await until(lambda: not heard.engine.takes_workers)
    assert heard.ends == []
    heard.ray.broken = ""
    await heard.end()
    assert ("connect", True) in heard.ray.said


async def test_what_was_claimed_and_has_no_actor_is_found_gone(heard: HeardEngine) -> None:
    assert heard.folders.claim(ORDER) is not None
    again = HeardEngine(heard.ray, heard.folder)
    gone = EndEvidence(refused="Ray could not start it", unserved=True)
    assert await again.engine.find() == [WorkerFound("j-1", (2,), 0, gone)]
    assert not (heard.folders["j-1"] / "start.json").exists()
    await again.engine.close()


async def test_what_waits_in_ray_does_not_outlive_its_cluster(ray: PlayedRay, tmp_path: Path) -> None:
    home = ClusterHome(tmp_path / "home")
    home.make()
    nodes = (NodeGiven("n1", (0,)),)
    home.write(ClusterConfig(nodes, "fifo", {}, {}, "127.0.0.1:1", False, 1, 10.0, 0.0, engine="ray", ray="h:1"))
    folders = WorkerFolders(home.node("n1"), tmp_path / "jobs")
    folders.claim(ORDER)
    group = group_name(folders.workers)
    ray.there[group] = {"j-1", "of-another-life"}
    assert strays(home) == [folders["j-1"]]
    with pytest.raises(EdlError, match=r"1 of its workers do \(j-1\)"):
        await stop(home, kill=False, say=print)
    await stop(home, kill=True, say=print)
    assert ("kill", "j-1", False) in ray.said
    assert ray.said[-1] == ("give back", group)
    ray.broken = "no Ray answers at h:1"  # ended before its cluster
    assert strays(home) == []
    assert "given back by `edl cluster stop`" in engine_registry.give_back(home)
