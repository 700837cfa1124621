"""The processes of one trainer, as their daemon holds them."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edl.core.worker.next_move import NEVER
from edl.daemon.limb_seats import LimbSeat, LimbSeats
from edl.host.host_processes import halted, holding_mark, is_locked, wait_exit
from edl.protocol import trainer_messages as say
from edl.protocol.leader_messages import Phase, ScriptPlace
from edl.transport.shared_page import SharedPage

TRAINS = say.TrainerStatus(phase=Phase.TRAINING, generation=2, began=0)


class Trainer:
    """Two processes that sleep, with the pages of a worker's limbs, and their daemon."""

    def __init__(self, folder: Path) -> None:
        self.processes = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
        self.folders = [folder / str(limb) for limb in range(2)]
        for one in self.folders:
            one.mkdir()
        self.pages = [SharedPage.create(one / "page") for one in self.folders]
        self.exited: list[LimbSeat] = []
        self.seen = asyncio.Event()
        self.seats = LimbSeats(2, self.processes[0].pid, self.folders[0], self.exit, folder / "meeting")
        self.sent: list[list[Any]] = [[], []]
        self.connections: list[Any] = [
            SimpleNamespace(pid=process.pid, send=sent.append)
            for process, sent in zip(self.processes, self.sent, strict=True)
        ]

    def exit(self, seat: LimbSeat) -> None:
        self.exited.append(seat)
        self.seen.set()

    def greet(self, limb: int, status: say.TrainerStatus = TRAINS) -> None:
        self.seats.greet(
            self.connections[limb], say.Hello(status, False, limb, str(self.folders[limb]) if limb else "")
        )


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    found = Trainer(tmp_path)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()


def in_loop(act: Any) -> None:
    asyncio.run(act())


def test_it_is_complete_once_all_have_said_hello(trainer: Trainer) -> None:
    async def act() -> None:
        trainer.greet(0)
        assert not trainer.seats.complete
        trainer.greet(1)
        assert trainer.seats.complete
        trainer.seats.hung_up(trainer.connections[1])
        assert not trainer.seats.complete
        trainer.seats.close()

    in_loop(act)


def test_a_step_counts_where_all_have_applied_it_and_orders_go_to_all(trainer: Trainer) -> None:
    async def act() -> None:
        trainer.greet(0)
        trainer.greet(1)
        trainer.pages[0].count().step, trainer.pages[1].count().step = 8, 7
        assert trainer.seats.step == 7
        assert [page.attention_step for page in trainer.pages] == [NEVER, NEVER]
        trainer.seats.send(say.Noted())
        trainer.seats.promise()
        trainer.seats.attend(9)
        assert trainer.sent == [[say.Noted()], [say.Noted()]]
        assert [(page.flags, page.attention_step) for page in trainer.pages] == [(1, 9), (1, 9)]
        trainer.seats.take(trainer.connections[1], msgspec.structs.replace(TRAINS, generation=1))
        assert trainer.seats.status.generation == 1
        trainer.seats.close()

    in_loop(act)


def test_the_death_of_one_is_the_death_of_all(trainer: Trainer) -> None:
    async def act() -> None:
        trainer.seats.watch_first()
        trainer.greet(0)
        trainer.greet(1)
        trainer.processes[1].kill()
        await wait_exit(trainer.processes[1].pid)
        await asyncio.wait_for(trainer.seen.wait(), 20)
        (dead,) = trainer.exited
        assert dead.pid == trainer.processes[1].pid
        assert trainer.seats.end_with(dead, holds=False)
        await wait_exit(trainer.processes[0].pid)
        trainer.seats.close()

    in_loop(act)


def test_the_good_end_of_one_leaves_the_others_to_theirs(trainer: Trainer) -> None:
    async def act() -> None:
        trainer.greet(0)
        trainer.greet(1, msgspec.structs.replace(TRAINS, phase=Phase.DONE))
        seats = {one.pid: one for one in trainer.seats._seats.values()}
        assert not trainer.seats.end_with(seats[trainer.processes[1].pid], holds=False)
        assert trainer.processes[0].poll() is None
        assert trainer.seats.end_with(seats[trainer.processes[0].pid], holds=False)
        trainer.seats.close()

    in_loop(act)


async def test_the_files_of_a_copy_are_found_in_the_folder_of_each_process(trainer: Trainer) -> None:
    for limb in range(2):
        trainer.greet(limb, msgspec.structs.replace(TRAINS, copied=say.CopiedPart(1, ("about", "bytes"))))
    assert trainer.seats.status.copied.files == tuple(
        str(folder / name) for folder in trainer.folders for name in ("about", "bytes")
    )


def test_each_process_is_seen_by_its_pid_its_state_and_its_step(trainer: Trainer) -> None:
    async def act() -> None:
        trainer.greet(0)
        trainer.greet(1, say.TrainerStatus(phase=Phase.READY))

    in_loop(act)
    trainer.pages[0].count().step = 7
    one, other = trainer.seats.seen()
    assert (one.pid, one.state, one.step) == (trainer.processes[0].pid, "training", 7)
    assert (other.pid, other.state, other.step) == (trainer.processes[1].pid, "ready", 0)


async def test_it_is_told_where_each_process_stands_where_they_stand_apart(trainer: Trainer) -> None:
    for limb, place in enumerate(("train.py:28 (<module>)", "train.py:37 (<module>)")):
        trainer.pages[limb].count().step = 31
        trainer.greet(limb, msgspec.structs.replace(TRAINS, whereabouts=ScriptPlace(32, place)))
    apart = "train.py:28 (<module>) in process 0, train.py:37 (<module>) in process 1"
    assert trainer.seats.status.whereabouts == ScriptPlace(32, apart)
    first, other = (seat.status for _, seat in sorted(trainer.seats._seats.items()))
    failed = msgspec.structs.replace(first, phase=Phase.FAILED, reason="RuntimeError: Timed out")
    trainer.seats.take(trainer.connections[0], failed)
    assert trainer.seats.status.reason == f"RuntimeError: Timed out (at {apart})"
    trainer.pages[1].count().step = 32  # what it has told is of the step before
    assert trainer.seats.status.reason == "RuntimeError: Timed out"
    trainer.pages[1].count().step = 31
    trainer.seats.take(trainer.connections[1], msgspec.structs.replace(other, whereabouts=first.whereabouts))
    assert trainer.seats.status == failed


def test_a_process_alone_stands_where_it_says(tmp_path: Path) -> None:
    sleeping = subprocess.Popen(["sleep", "60"])
    try:
        SharedPage.create(tmp_path / "page")
        seats = LimbSeats(1, sleeping.pid, tmp_path, lambda _: None)
        stands: Any = SimpleNamespace(pid=sleeping.pid)
        seats.greet(stands, say.Hello(msgspec.structs.replace(TRAINS, whereabouts=ScriptPlace(1, "train.py:28"))))
        assert seats.status.whereabouts == ScriptPlace(1, "train.py:28")
    finally:
        sleeping.kill()
        sleeping.wait()


async def _is(so: Callable[[], bool]) -> None:
    """Wait until a signal has done its work."""
    until = time.monotonic() + 20
    while not so():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


def test_what_is_left_of_a_worker_is_held_copies_and_is_let_go(trainer: Trainer, tmp_path: Path) -> None:
    async def act() -> None:
        seats, mark, other = trainer.seats, holding_mark(tmp_path / "meeting"), trainer.processes[0]
        seats.watch_first()
        trainer.greet(0)
        trainer.greet(1)
        trainer.pages[0].count().step, trainer.pages[1].count().step = 8, 7
        trainer.processes[1].kill()
        await asyncio.wait_for(trainer.seen.wait(), 20)
        assert seats.end_with(trainer.exited[0], holds=True)
        assert [*seats.held] == [0]
        assert [(one.state, one.step) for one in seats.seen()] == [("held", 8), ("gone", 7)]
        await _is(lambda: bool(halted(other.pid)))
        assert is_locked(mark)
        order = say.GaveUp("in the place of orders")
        assert not seats.copy_held(order, (0, 1))
        await _is(lambda: bool(halted(other.pid)))
        assert seats.copy_held(order, (0,))
        assert trainer.sent[0] == [order]
        await _is(lambda: not halted(other.pid))
        copied = say.CopiedPart(3, ("about", "bytes"))
        seats.take(trainer.connections[0], msgspec.structs.replace(TRAINS, copied=copied))
        assert seats.status.copied.files == tuple(str(trainer.folders[0] / name) for name in copied.files)
        seats.stop_held()
        await _is(lambda: bool(halted(other.pid)))
        seats.free_held()
        await wait_exit(other.pid)
        assert not mark.exists()
        assert not seats.held
        seats.close()

    in_loop(act)


def test_nothing_is_held_of_a_worker_whose_script_has_failed(trainer: Trainer) -> None:
    async def act() -> None:
        trainer.seats.watch_first()
        trainer.greet(0)
        trainer.greet(1, msgspec.structs.replace(TRAINS, phase=Phase.FAILED, reason="ValueError"))
        trainer.processes[1].kill()
        await asyncio.wait_for(trainer.seen.wait(), 20)
        assert trainer.seats.end_with(trainer.exited[0], holds=True)
        assert not trainer.seats.held
        await wait_exit(trainer.processes[0].pid)
        trainer.seats.close()

    in_loop(act)
