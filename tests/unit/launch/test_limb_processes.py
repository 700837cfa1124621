"""The processes of one worker end together, and the worker's exit status is that of the first one that ends badly."""

from __future__ import annotations

import asyncio
import fcntl
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl.launch.child_worker import NOTICED_S, LimbProcesses

NO_MARK = Path("/nowhere/held")


class Limb:
    """As `edl.launch.child_worker.Worker`."""

    slot = 4

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.signals: list[int] = []
        self.end: Callable[[int, int], None] = lambda _slot, _code: None

    def when_exited(self, tell: Callable[[int, int], None]) -> None:
        self.end = tell

    def signal(self, signum: int) -> None:
        self.signals.append(signum)


def watched(count: int, mark: Path = NO_MARK) -> tuple[list[Any], list[tuple[int, int]]]:
    limbs: list[Any] = [Limb(100 + number) for number in range(count)]
    worker, told = LimbProcesses(limbs, mark), []
    worker.when_exited(lambda slot, code: told.append((slot, code)))
    assert (worker.slot, worker.pid, worker.pids) == (4, 100, [100 + number for number in range(count)])
    return limbs, told


def test_a_worker_has_ended_once_all_its_processes_have() -> None:
    limbs, told = watched(3)
    for limb in limbs:
        assert told == []
        limb.end(4, 0)
    assert told == [(4, 0)]
    assert not any(limb.signals for limb in limbs)


async def test_a_process_that_ends_badly_ends_the_others_and_its_status_is_the_worker_s() -> None:
    limbs, told = watched(3)
    limbs[0].end(4, 0)
    limbs[1].end(4, 3)
    await asyncio.sleep(2 * NOTICED_S)
    assert limbs[2].signals == [signal.SIGKILL]
    limbs[2].end(4, -signal.SIGKILL)
    assert told == [(4, 3)]


async def test_processes_that_the_daemon_holds_are_its_to_end(tmp_path: Path) -> None:
    mark = tmp_path / "held"
    limbs, told = watched(2, mark)
    with mark.open("w") as daemon:
        fcntl.flock(daemon, fcntl.LOCK_EX)
        limbs[1].end(4, -signal.SIGKILL)
        await asyncio.sleep(3 * NOTICED_S)
        assert limbs[0].signals == []
    await asyncio.sleep(2 * NOTICED_S)
    assert limbs[0].signals == [signal.SIGKILL]
    limbs[0].end(4, -signal.SIGKILL)
    assert told == [(4, -signal.SIGKILL)]
