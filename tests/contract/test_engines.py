"""What every engine promises, on the embedded one: a worker starts once, leaves or is killed, and is found again.

Workers are real processes with real wardens. The corpus of failures is run through it as well.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from failures import FAILURES, Failure

from edl.cluster.queue.agent import WorkerFound
from edl.cluster.queue.causes import EndEvidence, classify
from edl.cluster.queue.entries import Submission, WorkerOrder, WorkerWish
from edl.launch.processes import marked
from edl.scheduler import local_engine
from edl.scheduler.engine import Start
from edl.scheduler.local_engine import LocalEngine, mark_of

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.integration
AT_ONCE = 12  # workers


class Played:
    """An engine, and the ends that it tells of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends: asyncio.Queue[tuple[str, EndEvidence]] = asyncio.Queue()
        self.engine = LocalEngine(folder / "node", folder / "jobs", self._ended)

    def _ended(self, worker: str, evidence: EndEvidence) -> None:
        self.ends.put_nowait((worker, evidence))

    async def start(self, worker: str, *command: str) -> int | None:
        path = os.environ["PATH"]
        order = WorkerOrder(worker, "j", 3, WorkerWish.RUN)
        asked = Submission("j", command, str(self.folder), "u", 0.0)
        return await self.engine.start(Start(order, asked, {"PATH": path, "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}))

    def processes(self, worker: str) -> list[int]:
        return marked(mark_of(self.folder / "node" / "workers" / worker))

    async def end(self) -> tuple[str, EndEvidence]:
        return await asyncio.wait_for(self.ends.get(), 30)

    async def printed(self, worker: str) -> None:
        log = self.folder / "jobs" / "j" / "logs" / f"{worker}.log"
        async with asyncio.timeout(30):
            while not (log.exists() and log.stat().st_size):  # noqa: ASYNC110 - a file does not tell
                await asyncio.sleep(0.02)


@pytest.fixture
async def played(tmp_path: Path) -> AsyncIterator[Played]:
    played = Played(tmp_path)
    assert await played.engine.find() == []
    yield played
    for folder in (tmp_path / "node" / "workers").iterdir():
        played.engine.end(folder.name, kill=True)
    await played.engine.close()


async def test_a_worker_runs_in_its_folder_and_its_end_is_told(played: Played) -> None:
    assert await played.start("j-1", "sh", "-c", "pwd; exit 3")
    assert await played.end() == ("j-1", EndEvidence(code=3, tail=f"{played.folder}\n"))


async def test_an_id_is_claimed_for_good(played: Played) -> None:
    await played.start("j-1", "true")
    await played.end()
    assert await played.start("j-1", "true") is None
    played.engine.forget("j-1")
    assert await played.start("j-1", "true") is None


async def test_who_is_asked_to_leave_hears_of_it_and_may_take_its_time(played: Played) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    await played.start("j-1", "sh", "-c", script)
    await played.printed("j-1")
    played.engine.end("j-1", kill=False)
    worker, evidence = await played.end()
    assert (worker, evidence.code) == ("j-1", 0)
    assert "bye\n" in evidence.tail  # its shell may say, too, that a child of it was terminated


async def test_who_is_killed_is_gone_with_all_that_it_has_started(played: Played) -> None:
    await played.start("j-1", "sh", "-c", "setsid sleep 100 & echo ready; wait")
    await played.printed("j-1")
    played.engine.end("j-1", kill=True)
    worker, evidence = await played.end()
    assert (worker, evidence.code) == ("j-1", None)  # its warden was killed, too
    assert played.processes("j-1") == []


async def test_another_engine_finds_what_the_first_has_started(played: Played) -> None:
    await played.start("lives", "sh", "-c", "echo ready; sleep 100")
    await played.start("ends", "sh", "-c", "exit 4")
    await played.printed("lives")
    assert (await played.end())[0] == "ends"
    await played.engine.close()
    again = Played(played.folder)
    found = {one.id: one for one in await again.engine.find()}
    assert found["ends"] == WorkerFound("ends", 3, found["ends"].pid, EndEvidence(code=4))
    assert (found["lives"].gone, found["lives"].device) == (None, 3)
    again.engine.forget("ends")
    again.engine.end("lives", kill=False)
    worker, evidence = await again.end()
    assert (worker, evidence.code) == ("lives", -signal.SIGTERM)
    assert [one.id for one in await Played(played.folder).engine.find()] == ["lives"]
    await again.engine.close()


async def test_a_worker_is_not_gone_while_a_process_of_its_own_lives(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.scheduler.local_engine.LINGER_S", 0.5)
    await played.start("j-1", "sh", "-c", "setsid sleep 100 & exit 0")
    worker, evidence = await played.end()
    assert (worker, evidence.code) == ("j-1", 0)
    assert played.processes("j-1") == []


async def test_what_lingers_is_killed_by_the_next_engine_too(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    await played.start("j-1", "sh", "-c", "setsid sleep 100 & echo ready; exit 3")
    folder = played.folder / "node" / "workers" / "j-1"
    async with asyncio.timeout(30):
        while not (folder / "exit.json").exists():  # noqa: ASYNC110 - a file does not tell
            await asyncio.sleep(0.02)
    await played.engine.close()
    assert played.processes("j-1")
    (folder / "warden").unlink()  # its agent had died before it wrote that down
    monkeypatch.setattr("edl.scheduler.local_engine.LINGER_S", 0.5)
    again = Played(played.folder)
    assert [one.gone for one in await again.engine.find()] == [None]
    worker, evidence = await again.end()
    assert (worker, evidence.code) == ("j-1", 3)
    assert again.processes("j-1") == []
    await again.engine.close()


async def test_workers_of_another_cluster_are_its_own(played: Played) -> None:
    other = Played(played.folder / "other")
    for one in (played, other):
        one.folder.mkdir(exist_ok=True)
        await one.start("j-1", "sh", "-c", "echo ready; sleep 100")
        await one.printed("j-1")
    other.engine.end("j-1", kill=True)
    assert (await other.end())[0] == "j-1"
    assert (len(played.processes("j-1")) > 1, other.processes("j-1")) == (True, [])
    await other.engine.close()


async def test_what_a_worker_is_given_is_not_left_lying_about(played: Played) -> None:
    await played.start("j-1", "true")
    await played.end()
    folder = played.folder / "node" / "workers" / "j-1"
    assert not (folder / "start.json").exists()
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}


async def test_failures_have_the_right_domain_and_the_right_retry_decision(played: Played) -> None:
    """95 % of them, as the issue asks; which ones are wrong is shown."""
    assert len(FAILURES) >= 30
    wrong = []
    for first in range(0, len(FAILURES), AT_ONCE):
        some = {f"f-{number}": failure for number, failure in enumerate(FAILURES[first : first + AT_ONCE], first)}
        await asyncio.gather(*(played.start(worker, *failure.command) for worker, failure in some.items()))
        await asyncio.gather(*(injected(played, worker, failure) for worker, failure in some.items()))
        for _ in some:
            worker, evidence = await played.end()
            cause, wanted = classify(evidence), some[worker]
            if cause is None or (cause.domain, cause.retry) != (wanted.domain, wanted.retry):
                wrong.append(f"{wanted.name}: {cause}, of {evidence}")
    assert len(wrong) <= 0.05 * len(FAILURES), wrong


async def injected(played: Played, worker: str, failure: Failure) -> None:
    """From outside, where it does not fail by itself."""
    if failure.killed_by:
        await played.printed(worker)
        for pid in [pid for pid in played.processes(worker) if is_script(pid)]:
            os.kill(pid, failure.killed_by)


def is_script(pid: int) -> bool:
    """And not its warden."""
    return b"time.sleep(60)" in Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_of_workers_that_are_gone_only_the_newest_folders_are_kept(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_engine, "KEPT_CLAIMS", 2)
    workers = played.folder / "node" / "workers"
    for number in range(6):
        (workers / f"j-{number}").mkdir(parents=True)
        if number != 1:  # of it the scheduler has not heard yet
            played.engine.forget(f"j-{number}")
            os.utime(workers / f"j-{number}" / "forgotten", (number, number))
    assert [found.id for found in await LocalEngine(played.folder / "node", played.folder, played._ended).find()] == [
        "j-1"
    ]
    assert sorted(one.name for one in workers.iterdir()) == ["j-1", "j-4", "j-5"]
