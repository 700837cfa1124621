"""One worker of an Accelerator's job writes, and who takes its place goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.logging import MultiProcessAdapter, get_logger
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.tracking import GeneralTracker
from accelerate.utils import ProjectConfiguration

from edl.accelerate import accelerator as subject
from edl.accelerate import shared_loader
from edl.torch.loop_collectives import LoopCollectives
from edl.torch.shared_batches import unpacked_values


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
        self.rehearses = False
        self.seating = SimpleNamespace(check_alone=lambda _: None)  # its workers have one process each

    def rank(self) -> int:
        return self.number

    def local_rank(self) -> int:
        return self.number

    def rehearsing(self) -> bool:
        return self.rehearses

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


@pytest.fixture
def made(seat: SeatOfRank, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def meet(_: object) -> None:
        pytest.fail("the others are in their gradients, and do not come")

    monkeypatch.setattr(LoopCollectives, "meet", meet)
    return lambda **settings: subject.EdlAccelerator(cpu=True, **settings)


def test_what_is_decorated_runs_on_the_worker_that_is_the_main_one_at_the_moment(
    seat: SeatOfRank, made: Callable[..., Any]
) -> None:
    accelerator = made()
    for decorate in (accelerator.on_main_process, accelerator.on_local_main_process):
        called = decorate(lambda value: value)
        seat.number = 1
        assert called(3) is None
        seat.number = 0
        assert called(3) == 3


def test_what_is_decorated_for_one_rank_runs_there_alone(seat: SeatOfRank, made: Callable[..., Any]) -> None:
    accelerator = made()
    where = [
        (accelerator.on_last_process, 1),
        (accelerator.on_process(process_index=1), 1),
        (accelerator.on_local_process(local_process_index=1), 1),
        (accelerator.on_process, 0),
    ]
    for decorate, rank in where:
        called = decorate(lambda value: value)
        seat.rehearses = False
        for seat.number in (0, 1):
            assert called(3) == (3 if seat.number == rank else None)
        seat.number, seat.rehearses = rank, True
        assert called(3) is None


def test_who_takes_the_place_of_the_main_process_goes_on_with_its_trackers(
    seat: SeatOfRank, made: Callable[..., Any]
) -> None:
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


def test_prepared_loaders_are_among_those_of_accelerate(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which marks them as prepared, and lets them go with `free_memory()`."""
    accelerator = made()
    monkeypatch.setattr(subject, "converted", lambda *_, **__: SimpleNamespace(loader=None))
    loaders = [torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(3))) for _ in range(2)]
    prepared = [*accelerator.prepare(*loaders)]
    assert accelerator._dataloaders == prepared
    assert [*accelerator.prepare(*prepared)] == prepared, "they are prepared but once"


@pytest.mark.parametrize("stands", [False, True])
def test_where_the_others_evaluate_a_newcomer_that_has_not_yet_asks_as_they_do(
    seat: SeatOfRank, monkeypatch: pytest.MonkeyPatch, stands: bool
) -> None:
    """Between two passes: by an evaluation, which it is told of if it has missed it. In a step no worker is asked."""

    class Batches:
        between, in_step = stands, not stands

        def __init__(self, *_: Any) -> None: ...

    told: list[Any] = []

    def evaluate_shared(work: Any) -> list[bytes]:
        told.append(unpacked_values(work.found()))
        return [work.found()] * 2

    seat.evaluate_shared = evaluate_shared  # type: ignore[attr-defined]
    monkeypatch.setattr(shared_loader, "seat", seat)
    monkeypatch.setattr(seat, "size", lambda: 1)  # else it would ask the ring
    monkeypatch.setattr(subject, "converted", lambda *_, **__: None)
    monkeypatch.setattr(subject, "ElasticBatches", Batches)
    accelerator: Any = subject.EdlAccelerator(cpu=True)
    accelerator.prepare(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(3))))
    accelerator.wait_for_everyone()
    gathered = accelerator.gather(torch.tensor([1.0, 2.0]))
    assert gathered.tolist() == ([1.0, 2.0] * 2 if stands else [1.0, 2.0])
    assert float(accelerator.reduce(torch.tensor(3.0))) == (6.0 if stands else 3.0)
    assert len(told) == (3 if stands else 0)


def test_nobody_waits_where_the_main_process_saves_and_its_successor_counts_on(
    seat: SeatOfRank, made: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "framework", SimpleNamespace(track=lambda _: None))
    settings = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True)
    accelerator = made(project_config=settings)
    accelerator.prepare(torch.nn.Linear(1, 1))
    seat.number = 1
    assert accelerator.save_state() is None and not (tmp_path / "checkpoints").exists()
    seat.number = 0
    accelerator.save_state()
    settings.iteration = 0  # as of a worker that has not saved
    accelerator.save_state()
    assert sorted(one.name for one in (tmp_path / "checkpoints").iterdir()) == ["checkpoint_0", "checkpoint_1"]


@pytest.mark.usefixtures("kept_logger")
def test_a_logger_of_before_speaks_for_the_rank_of_the_moment(
    seat: SeatOfRank, caplog: pytest.LogCaptureFixture
) -> None:
    logger = get_logger("a script's", log_level="INFO")
    subject.EdlAccelerator(cpu=True)
    for number in (1, 0, 1):
        seat.number = number
        logger.info("by one")
        logger.info("by all", main_process_only=False)
    assert [record.getMessage() for record in caplog.records] == [
        "[RANK 1] by all",
        "[RANK 0] by one",
        "[RANK 0] by all",
        "[RANK 1] by all",
    ]
    assert {record.filename for record in caplog.records} == {"test_who_writes.py"}


@pytest.fixture
def kept_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate's class is as it was after the test."""
    for name in ("_should_log", "process"):
        monkeypatch.setattr(MultiProcessAdapter, name, vars(MultiProcessAdapter)[name])
