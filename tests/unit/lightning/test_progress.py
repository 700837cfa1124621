"""Lightning's counters are those of steps that count, also while one is under way."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest

from edl.lightning.lightning_state import Counters


@pytest.fixture
def loop() -> Any:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    return trainer.fit_loop


def make_batch(loop: Any) -> None:
    loop.epoch_loop.batch_progress.increment_ready()
    loop.epoch_loop.batch_progress.increment_completed()
    loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.increment_completed()
    loop.epoch_loop._batches_that_stepped += 1
    loop.epoch_loop.batch_progress.is_last_batch = True


def test_a_step_that_does_not_count_leaves_no_trace(loop: Any) -> None:
    counters = Counters(loop)
    before = counters.read()
    counters.begin()
    make_batch(loop)
    assert counters.read() == before  # what travels meanwhile
    counters.end(counted=False)
    assert counters.read() == before and counters.batches == 0 and loop.epoch_loop.global_step == 0


def test_a_step_that_counts_stays_and_can_be_given_to_another(loop: Any) -> None:
    counters = Counters(loop)
    counters.begin()
    make_batch(loop)
    counters.end(counted=True)
    assert (counters.batches, loop.epoch_loop.global_step) == (1, 1)
    other = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False).fit_loop
    Counters(other).put(counters.read())
    assert other.epoch_loop.global_step == 1
    assert other.epoch_loop.batch_progress == loop.epoch_loop.batch_progress
    assert other.epoch_loop._batches_that_stepped == 1


def test_a_worker_that_made_fewer_batches_of_a_step_counts_as_many(loop: Any) -> None:
    counters = Counters(loop)
    make_batch(loop)
    counters.begin()
    make_batch(loop)
    counters.end(counted=True, batches=4)
    assert counters.batches == 5 and loop.epoch_loop.batch_progress.total.completed == 5
    assert loop.epoch_loop.global_step == 2
