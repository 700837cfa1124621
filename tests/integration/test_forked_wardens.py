"""An agent's later workers of a job are forked with their wardens, and are what new ones would be."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pace import patient
from test_forked_newcomers import stack
from test_forked_worker import BESIDE, SCRIPT

from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.queue_entries import Submission, WorkerOrder, WorkerWish
from edl.file_lock import is_held
from edl.launch.child_worker import search_path
from edl.scheduler.local_engine import LocalEngine
from edl.scheduler.worker_engine import Start
from edl.scheduler.worker_folders import lives, script_of
from edl.scheduler.worker_wrapper import status

pytestmark = pytest.mark.integration

WORKER = f"""{SCRIPT}
    from pathlib import Path

    from edl.host.memory_folders import make_folder
    from edl.host.imported_modules import tell_imported

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    tell_imported(make_folder())
    while True:
        time.sleep(0.01)
"""


class Node:
    """An engine with workers of one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends = dict[str, EndEvidence]()
        self.engine = LocalEngine(folder / "node", folder / "jobs", self.ends.__setitem__)

    async def start(self, worker: str, **environ: str) -> Path:
        """Return the worker's folder, once its script has told what it is."""
        asked = Submission("j", ("python", "script.py"), str(self.folder), "u", 0.0)
        kept = {"PATH": search_path(os.environ), "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", "")}
        given = {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "5"}
        start = Start(
            WorkerOrder(worker, "j", 0, WorkerWish.RUN), asked, {**given, "EDL_WARM_STARTS": "eager", **environ}
        )
        pid = await self.engine.start(start)
        assert pid
        await until(lambda: "]}\n" in self.printed(worker))
        return self.folder / "node" / "workers" / worker

    def printed(self, worker: str) -> str:
        path = self.folder / "jobs" / "j" / "logs" / f"{worker}.log"
        return path.read_text() if path.exists() else ""

    def told(self, worker: str) -> dict[str, Any]:
        """Of itself, without what differs between any two workers."""
        lines = re.sub(rf"(?<!gw)\b{worker}\b", "W", self.printed(worker)).splitlines()
        found: dict[str, Any] = next(json.loads(line) for line in lines if line.startswith("{"))
        found["parents"].pop()
        return found

    async def ended(self, worker: str) -> EndEvidence:
        await until(lambda: worker in self.ends)
        return self.ends[worker]

    def warm(self) -> list[int]:
        """The process that its workers are forked from."""
        return [pid for pid in children() if b"warm_process.py\0workers" in shown(pid)]

    async def wait_warm(self) -> int:
        jobs = self.engine._warm._jobs
        await until(lambda: jobs["j"].forks.words.startswith("on: "))
        [pid] = self.warm()
        return pid


def children() -> list[int]:
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in found]


def shown(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")


def warden_of(folder: Path) -> int:
    return int((folder / "warden").read_text().split()[0])


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(patient(60)):
        while not true():  # noqa: ASYNC110 - of other processes nothing tells but looking
            await asyncio.sleep(0.02)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    (tmp_path / "script.py").write_text(WORKER)
    (tmp_path / "beside_it.py").write_text(BESIDE)
    (tmp_path / "jobs").mkdir()
    node = Node(tmp_path)
    yield node
    for folder in (tmp_path / "node" / "workers").iterdir():
        if lives(folder):
            node.engine.end(folder.name, kill=True)
            await node.ended(folder.name)
    await node.engine.close()
    assert not node.warm()


async def test_a_later_worker_is_forked_and_is_what_a_new_one_would_be(node: Node) -> None:
    first = script_of(await node.start("w1"))
    warm = await node.wait_warm()
    folder = await node.start("w2", ANOTHER="1")
    forked = script_of(folder)
    assert stack(forked) == stack(warm) != stack(first)
    warden = warden_of(folder)
    assert status(forked)[1] == str(warden), "its parent is its warden"
    assert status(warden)[1] != str(os.getpid()), "which is no child of the agent"
    anew, told = node.told("w1"), node.told("w2")
    told["environ"].pop("ANOTHER")
    told["shown environ"].remove("ANOTHER=1")
    told["files"].remove("socket")  # by which it asks for its daemon
    assert told == anew
    assert shown(warden) == shown(warden_of(node.folder / "node" / "workers" / "w1")).replace(b"/w1", b"/w2")

    os.kill(warm, signal.SIGKILL)
    await until(lambda: warm not in node.warm())  # another one may be there by now: w1 lives
    node.engine.end("w2", kill=False)
    assert (await node.ended("w2")).code == 7
    assert not lives(folder)
    assert not is_held(folder / "life")


async def test_a_forked_worker_dies_with_its_warden_and_frees_its_folder(node: Node) -> None:
    await node.start("w1")
    await node.wait_warm()
    folder = await node.start("w2")
    node.engine.end("w1", kill=True)
    await node.ended("w1")
    await node.engine.close()  # so that no agent kills what it finds
    os.kill(warden_of(folder), signal.SIGKILL)
    await until(lambda: not lives(folder))
    assert not is_held(folder / "life")


async def test_one_that_is_killed_is_told_of_and_its_job_keeps_the_process_until_the_last_is_gone(node: Node) -> None:
    await node.start("w1")
    warm = await node.wait_warm()
    folder = await node.start("w2")
    os.kill(script_of(folder), signal.SIGKILL)
    assert (await node.ended("w2")).code == -9
    assert node.warm() == [warm]
    node.engine.end("w1", kill=True)
    await node.ended("w1")
    assert not node.warm()


async def test_one_that_cannot_become_what_a_new_one_would_be_is_started_anew_by_its_warden(node: Node) -> None:
    await node.start("w1")
    warm = await node.wait_warm()
    folder = await node.start("w2", LONG="x" * 20_000)  # than there is room for
    assert stack(warden_of(folder)) == stack(warm) != stack(script_of(folder))
    assert node.told("w2")["environ"].pop("LONG") == "x" * 20_000


async def test_it_is_started_anew_where_the_job_says_so(node: Node) -> None:
    await node.start("w1", EDL_WARM_STARTS="off")
    assert node.engine._warm._jobs["j"].forks.words == "off: --warm-starts off"
