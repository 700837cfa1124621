"""Who begins a job that horovodrun has started, and that all others find it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edl.config import Settings
from edl.horovodrun import find_coordinator
from edl.horovodrun.find_coordinator import WayToMeeting
from edl.host.horovodrun_env import HorovodrunEnv

DRIVER = "10.0.0.1"


class Board:
    """The driver's store."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    async def get(self, scope: str, key: str) -> bytes | None:
        return self.values.get(f"{scope}/{key}")

    async def put(self, scope: str, key: str, value: bytes) -> None:
        self.values[f"{scope}/{key}"] = value


@pytest.fixture(autouse=True)
def founded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By which interface's host the coordinator was started; each interface here is a host's own."""
    begun: list[str] = []

    async def start_keeper(settings: Settings, interface: str, command: list[str]) -> str:
        begun.append(interface)
        await asyncio.sleep(0.05)
        return f"{interface}:2181"

    monkeypatch.setattr(find_coordinator, "start_keeper", start_keeper)
    monkeypatch.setattr(find_coordinator, "address_of", lambda interface: f"10.0.0.{interface}")
    monkeypatch.setattr(find_coordinator, "LOOK_S", 0.01)
    return begun


async def attend(board: Board, folder: Path, *hosts: int, first_s: float = 0.0) -> list[str | None]:
    """A stand-in for each rank, on these hosts; the coordinator that each has been told of."""
    file = folder / "secret"
    file.write_text("secret")

    async def one(rank: int, host: int) -> str | None:
        await asyncio.sleep(first_s if rank == 0 else 0.03 * rank)
        slot = hosts[:rank].count(host)
        about = HorovodrunEnv(
            host=f"h{host}",
            slot=slot,
            rank=rank,
            size=len(hosts),
            slots=hosts.count(host),
            driver=DRIVER,
            port=1,
            interface=str(host),
            elastic=True,
        )
        settings = Settings(job="j", secret_file=file, home=folder)
        found = await WayToMeeting(about, settings, board, folder).attend([], lambda _: None)  # type: ignore[arg-type]
        return found.coordinator

    return await asyncio.gather(*(one(rank, host) for rank, host in enumerate(hosts)))


@pytest.mark.parametrize("first_s", [0.0, 0.3])
async def test_the_job_begins_at_the_driver_whichever_worker_has_rank_0(
    founded: list[str], tmp_path: Path, first_s: float
):
    assert await attend(Board(), tmp_path, 2, 3, 1, 1, first_s=first_s) == ["1:2181"] * 4
    assert founded == ["1"]


async def test_without_a_worker_at_the_driver_the_first_one_begins(founded: list[str], tmp_path: Path):
    assert await attend(Board(), tmp_path, 3, 2, 2) == ["3:2181"] * 3
    assert founded == ["3"]


async def test_a_newcomer_learns_how_often_the_driver_has_counted(tmp_path: Path):
    board, file = Board(), tmp_path / "secret"
    file.write_text("secret")
    about = HorovodrunEnv(
        host="h1", slot=0, rank=0, size=1, slots=1, driver=DRIVER, port=1, interface="1", elastic=True
    )
    settings = Settings(job="j", secret_file=file, home=tmp_path)
    first, newcomer = (WayToMeeting(about, settings, board, tmp_path) for _ in range(2))  # type: ignore[arg-type]
    await first.attend([], lambda _: None)
    board.values.clear()  # as the driver does
    await first.renew(3)
    await first.renew(2)
    await newcomer.attend([], lambda _: None)
    assert (first.recounts, newcomer.recounts) == (0, 3)


async def test_who_does_not_come_is_not_waited_for_without_end(founded: list[str], tmp_path: Path, monkeypatch):
    monkeypatch.setattr(find_coordinator, "ALL_S", 0.1)
    board = Board()
    about = HorovodrunEnv(
        host="h2", slot=0, rank=0, size=2, slots=1, driver=DRIVER, port=1, interface="2", elastic=True
    )
    file = tmp_path / "secret"
    file.write_text("secret")
    settings = Settings(job="j", secret_file=file, home=tmp_path)
    await WayToMeeting(about, settings, board, tmp_path).attend([], lambda _: None)  # type: ignore[arg-type]
    assert founded == ["2"]
