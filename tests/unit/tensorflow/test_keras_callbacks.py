"""Learning rates of Horovod's callbacks, by the samples trained; and what such a callback cannot do here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("horovod.tensorflow")

from edl.errors import UsageError
from edl.tensorflow import keras_callbacks
from edl.tensorflow.keras_callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)


class FakeTrainer:
    """Of four workers."""

    shards: Any = None
    scheduled: Any = None

    @property
    def rates(self) -> FakeTrainer:
        return self

    def size(self) -> int:
        return 4

    def schedule_rate(self, schedule: Any, epochs: int) -> None:
        assert self.scheduled is None
        self.scheduled = schedule


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> FakeTrainer:
    trainer = FakeTrainer()
    monkeypatch.setattr(keras_callbacks, "trainer", trainer)
    monkeypatch.setattr(keras_callbacks, "_rates", [])
    return trainer


def begin(*callbacks: Any, epochs: int = 10) -> Any:
    """As Keras does before `fit`; the optimizer."""
    optimizer = SimpleNamespace(learning_rate=9.0)
    for callback in callbacks:
        callback.set_model(SimpleNamespace(optimizer=optimizer))
        callback.set_params({"epochs": epochs})
    return optimizer


def test_a_warm_up_goes_to_the_rate_in_a_straight_line(trainer: FakeTrainer) -> None:
    optimizer = begin(LearningRateWarmupCallback(0.4, warmup_epochs=2))
    assert optimizer.learning_rate == 0.4
    rates = [0.4 * trainer.scheduled(epoch / 10) for epoch in (0, 1, 2, 9.9)]
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.4])


def test_of_several_the_last_that_has_begun_counts(trainer: FakeTrainer) -> None:
    begin(
        LearningRateWarmupCallback(0.4, warmup_epochs=2),
        LearningRateScheduleCallback(0.4, multiplier=0.1, start_epoch=4, end_epoch=6),
        LearningRateScheduleCallback(0.4, multiplier=lambda epoch: epoch, start_epoch=8, staircase=False),
    )
    rates = {epoch: trainer.scheduled(epoch / 10) for epoch in (3, 4.5, 5.5, 7, 8.5, 10)}
    assert rates == pytest.approx({3: 1.0, 4.5: 1.0, 5.5: 0.1, 7: 0.1, 8.5: 8.5, 10: 10.0})


def test_a_second_fit_of_the_same_epochs_goes_on_and_another_is_refused(trainer: FakeTrainer) -> None:
    callback = LearningRateWarmupCallback(0.4)
    begin(callback)
    begin(callback)
    with pytest.raises(UsageError, match=r"fit\(\) for 3 epochs after one for 10"):
        begin(callback, epochs=3)


def test_values_that_count_are_the_same_on_all_workers(trainer: FakeTrainer) -> None:
    """A newcomer's own number of a batch is another: the value that it was given goes on."""
    state = SimpleNamespace(batch=17, epoch=0)
    batches, epochs = UpdateBatchStateCallback(state), UpdateEpochStateCallback(state)
    epochs.on_epoch_begin(3)
    batches.on_train_batch_begin(0)
    assert (state.batch, state.epoch) == (18, 3)
    batches.on_epoch_end(3)
    epochs.on_epoch_end(3)
    assert (state.batch, state.epoch) == (0, 4)


def test_what_cannot_be_right_is_refused(trainer: FakeTrainer) -> None:
    with pytest.raises(UsageError, match=r"BroadcastGlobalVariablesCallback\(1\)"):
        BroadcastGlobalVariablesCallback(1)
    with pytest.raises(UsageError, match="local_variables"):
        BroadcastGlobalVariablesCallback(0, local_variables=[object()])
    with pytest.raises(UsageError, match="initial_lr=None"):
        LearningRateScheduleCallback(None, 0.1)
    averaging = MetricAverageCallback()
    with pytest.raises(UsageError, match="elastic_dataset"):
        averaging.on_epoch_end(0)
    trainer.shards = object()
    averaging.on_epoch_end(0)
