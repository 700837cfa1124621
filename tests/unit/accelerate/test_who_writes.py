"""One worker of an Accelerator's job writes, and who takes its place goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.tracking import GeneralTracker
from accelerate.utils import ProjectConfiguration

from edl.accelerate import accelerator as subject


class ListTracker(GeneralTracker):  # type: ignore[misc]
    name = "list"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    @property
    def tracker(self) -> Any:
        return self.found

    def store_init_configuration(self, values: Any) -> None:
        self.found.append(values)

    def log(self, values: Any, step: int | None = None, **_: Any) -> None:
        self.found.append(values)


class SeatOfRank:
    """A worker of a job of two."""

    began = True

    def __init__(self) -> None:
        self.number = 0

    def rank(self) -> int:
        return self.number

    def rehearsing(self) -> bool:
        return False

    def size(self) -> int:
        return 2

    def register(self, **_: Any) -> None:
        pass


@pytest.fixture
def seat(monkeypatch: pytest.MonkeyPatch) -> Iterator[SeatOfRank]:
    one = SeatOfRank()
    monkeypatch.setattr(subject, "seat", one)
    for name in ("WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield one
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def made(**settings: Any) -> Any:
    one: Any = subject.EdlAccelerator(cpu=True, **settings)
    one._words.meet = lambda: pytest.fail("the others are in their gradients, and do not come")
    return one


def test_what_is_decorated_runs_on_the_worker_that_is_the_main_one_at_the_moment(seat: SeatOfRank) -> None:
    accelerator = made()
    for decorate in (accelerator.on_main_process, accelerator.on_local_main_process):
        called = decorate(lambda value: value)
        seat.number = 1
        assert called(3) is None
        seat.number = 0
        assert called(3) == 3


def test_who_takes_the_place_of_the_main_process_goes_on_with_its_trackers(seat: SeatOfRank) -> None:
    tracker = ListTracker()
    accelerator = made(log_with=tracker)
    seat.number = 1
    accelerator.init_trackers("digits", {"rate": 0.1})
    accelerator.log({"loss": 2.0})
    assert tracker.found == []
    seat.number = 0
    accelerator.log({"loss": 1.0})
    accelerator.log({"loss": 0.5})
    assert tracker.found == [{"rate": 0.1}, {"loss": 1.0}, {"loss": 0.5}]


def test_nobody_waits_where_the_main_process_saves_and_its_successor_counts_on(
    seat: SeatOfRank, tmp_path: Path
) -> None:
    settings = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True)
    accelerator = made(project_config=settings)
    accelerator._models.append(torch.nn.Linear(1, 1))
    seat.number = 1
    assert accelerator.save_state() is None and not (tmp_path / "checkpoints").exists()
    seat.number = 0
    accelerator.save_state()
    settings.iteration = 0  # as of a worker that has not saved
    accelerator.save_state()
    assert sorted(one.name for one in (tmp_path / "checkpoints").iterdir()) == ["checkpoint_0", "checkpoint_1"]
