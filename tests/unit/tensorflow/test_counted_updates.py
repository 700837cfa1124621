"""In which mini-batches a Keras optimizer made an update: by a traced step, eagerly, or not at all."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from edl.tensorflow import keras_optimizer
from edl.tensorflow.keras_optimizer import CountedUpdates
from edl.tensorflow.kernels import kernels_for
from edl.trainer.updates_due import IN_A_ROW

OWN = kernels_for([])
assert OWN is not None, "scripts/setup builds them"

NUMBERS = iter(range(100, 200))


class Job:
    """One optimizer whose updates were due in each of the mini-batches before."""

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self.optimizer, self.prefix, self.step = optimizer, f"edl_{next(NUMBERS)}", 0
        optimizer.build([keras.Variable(tf.ones(2))])
        self.updates = CountedUpdates()
        self.updates.add(optimizer, self.prefix)

    def traced(self) -> None:
        OWN.together([tf.ones(1)], self.prefix)
        self.optimizer.iterations.assign_add(1)

    def eager(self) -> None:
        self.optimizer.iterations.assign_add(1)

    def end(self) -> tuple[int, ...]:
        self.step += 1
        return self.updates.missing(self.step)

    def train(self, update) -> None:
        for _ in range(IN_A_ROW + 1):
            update()
            assert self.end() == ()


@pytest.fixture(params=["plain", "scaled"])
def job(request):
    plain = keras.optimizers.SGD(0.1)
    return Job(plain if request.param == "plain" else keras.optimizers.LossScaleOptimizer(plain))


@pytest.mark.parametrize("how", ["traced", "eager"])
def test_a_mini_batch_without_the_update_that_was_due_is_found(job, how):
    job.train(getattr(job, how))
    assert job.end() == (0,)


@pytest.mark.parametrize(("first", "then"), [("traced", "eager"), ("eager", "traced")])
def test_an_update_counts_whether_it_is_traced_or_not(job, first, then):
    job.train(getattr(job, first))
    getattr(job, then)()
    assert job.end() == ()
    assert job.end() == (0,)


def test_what_another_worker_sends_is_no_update(job):
    job.train(job.traced)
    job.optimizer.iterations.assign_add(1000)
    job.updates.begin_ring()
    assert job.updates.made_after(0) == 0


def test_no_variable_is_read_in_a_traced_step(monkeypatch):
    job = Job(keras.optimizers.SGD(0.1))
    monkeypatch.setattr(keras_optimizer, "counts", None)
    job.train(job.traced)


def test_the_averages_of_another_optimizer_are_no_update_of_this_one(job):
    job.train(job.traced)
    OWN.together([tf.ones(1)], f"edl_{next(NUMBERS)}")
    assert job.end() == (0,)
