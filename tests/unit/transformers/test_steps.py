"""Where the epochs of Hugging Face's Trainer begin in a life that goes on from an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from edl.torch.loop_steps import STANDS, StepEnd
from edl.transformers.hf_loop import TrainerSteps, UpdatePlan

OF_ONE_EPOCH = 2  # steps


class Shards:
    """Of a script that asks for one epoch more with each iteration. `trained`: epochs of an earlier life."""

    def __init__(self, trained: int) -> None:
        self.trained = trained
        self.epochs_done = 0
        self.newest = 0  # the epoch of the newest batch

    def __iter__(self) -> Iterator[str]:
        epoch = self.epochs_done
        for step in range(OF_ONE_EPOCH if epoch >= self.trained else 0):
            self.newest = epoch
            yield f"epoch {epoch}, step {step}"
        self.epochs_done = max(epoch + 1, self.trained)


class Loader:
    def __init__(self, trained: int) -> None:
        self.shards = Shards(trained)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shards)


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> TrainerSteps:
    """From the end of the second epoch, before what follows it."""
    loader: Any = SimpleNamespace(loader=Loader(trained=2))
    shards = loader.loader.shards
    seat: Any = SimpleNamespace(
        committed=0, generation=lambda: 1, epoch=lambda: shards.newest, before_reduce=lambda: None
    )
    plan = UpdatePlan(updates=40, workers=1, epochs=20.0, by_epochs=True)
    steps = TrainerSteps(SimpleNamespace(), seat, loader, plan)

    def take(found: Mapping[str, Any]) -> None:
        travels = steps.travels
        travels.ended, travels.open_pass = StepEnd.COUNTED, found["epoch"]
        travels.epoch, travels.epochs_done = found["epoch"], found["epochs_done"]

    monkeypatch.setattr(steps.travels, "take", take)
    steps.registered = SimpleNamespace(loop={"epoch": 1, "epochs_done": 1, STANDS: True})
    return steps


def epoch_of(steps: TrainerSteps, number: int) -> list[str]:
    """As the Trainer's loop makes it."""
    steps.travels.epoch = number
    steps.begin_epoch()
    found = []
    while (parts := steps.next()) is not None:
        found.append(str(parts))
    steps.travels.epochs_done = steps.travels.epoch + 1
    return found


def test_what_follows_an_epoch_comes_first_where_a_life_was_saved_at_its_end(resumed: TrainerSteps) -> None:
    assert epoch_of(resumed, 0) == []
    assert resumed.between
    assert resumed.travels.epoch == 1  # whose evaluation and saving come now
    assert resumed.travels.epochs_done == 2


def test_the_epoch_after_it_is_the_next_one_that_is_trained(resumed: TrainerSteps) -> None:
    epoch_of(resumed, 0)
    for number in (2, 3):
        assert epoch_of(resumed, number) == [f"epoch {number}, step {step}" for step in range(OF_ONE_EPOCH)]
