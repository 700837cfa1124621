"""`edl.tensorflow.Optimizer` in a ring of one: it stays the optimizer it was, and says what is wrong with a call."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent / "adapters"))


from seat import FakeTrainer

from edl.errors import RingBroken, UsageError
from edl.protocol.ring import solo

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def framework() -> Iterator[Any]:
    from edl.tensorflow.framework import TensorFlowFramework

    framework = TensorFlowFramework()
    framework.ring.enter(solo("w0"), 60.0)
    yield framework
    framework.ring.leave()


class Job:
    """A model, its optimizer, a trainer."""

    def __init__(self, framework: Any, wrapped: bool = True, optimizer: Any = None) -> None:
        from edl.tensorflow.callback import ElasticFit, PassesWanted

        keras.utils.set_random_seed(0)
        self.trainer = FakeTrainer()
        self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        self.optimizer = optimizer or keras.optimizers.SGD(0.1, momentum=0.9)
        self.callback = ElasticFit(self.trainer, framework.ring, PassesWanted())
        if wrapped:
            framework.wrap(self.trainer, self.optimizer, self.model)

    def step(self) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(tf.ones((2, 3)))))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def fit(self, **compiled: Any) -> None:
        self.model.compile(optimizer=self.optimizer, loss="mse", **compiled)
        self.model.fit(tf.ones((4, 3)), tf.ones((4, 1)), batch_size=2, verbose=0, callbacks=[self.callback])

    def weights(self) -> list[Any]:
        return [weight.tolist() for weight in self.model.get_weights()]


def test_it_stays_the_optimizer_it_was(framework: Any) -> None:
    ours, plain = Job(framework), Job(framework, wrapped=False)
    assert isinstance(ours.optimizer, keras.optimizers.SGD)
    for _ in range(3):
        ours.step()
        plain.step()
    assert ours.weights() == plain.weights()
    assert ours.trainer.before == 3
    assert ours.optimizer.get_config() | {"name": ""} == plain.optimizer.get_config() | {"name": ""}  # numbered


def test_a_saved_model_knows_the_plain_optimizer(framework: Any, tmp_path: Path) -> None:
    job = Job(framework)
    job.fit()
    job.model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.SGD
    assert int(loaded.optimizer.iterations) == 2
    assert [weight.tolist() for weight in loaded.get_weights()] == job.weights()


def test_fit_tells_of_each_batch(framework: Any) -> None:
    job = Job(framework)
    job.fit()
    job.fit()
    assert (job.trainer.begun, job.trainer.ended) == (4, 4)


def test_the_noise_is_not_measured_in_graphs_of_tensorflow_1(framework: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(UsageError, match=r"graphs of TensorFlow 1: take edl\.scale_rate"):
        framework.measure_noise()


def test_hyper_parameters_that_a_void_mini_batch_changes_are_put_back(framework: Any) -> None:
    job = Job(framework)
    job.step()
    framework.keep_hyper_parameters()
    job.optimizer.learning_rate.assign(7.0)
    framework.put_back()
    assert float(job.optimizer.learning_rate) == pytest.approx(0.1)
    job.optimizer.learning_rate.assign(7.0)
    framework.put_back()  # nothing is left to be
    assert float(job.optimizer.learning_rate) == 7.0


class Passes:
    """Data that ends, as a generator of edl's does, after other numbers of batches in each pass."""

    def __init__(self, trainer: FakeTrainer, *lengths: int) -> None:
        self.trainer = trainer
        self.lengths = list(lengths)

    def __call__(self) -> Iterator[tuple[Any, Any]]:
        for _ in range(self.lengths.pop(0)):
            yield [1.0, 1.0, 1.0], [1.0]
        assert self.trainer.epochs_done is not None
        self.trainer.epochs_done += 1

    def dataset(self) -> Any:
        signature = tf.TensorSpec([3]), tf.TensorSpec([1])
        return tf.data.Dataset.from_generator(self, output_signature=signature).batch(1)


@pytest.mark.filterwarnings("ignore:.*input ran out of data")  # said by Keras at the end of any pass of unknown length
def test_fit_makes_whole_passes_whatever_their_lengths(framework: Any) -> None:
    """Keras alone takes the length of the first for that of all, and trains 2 + 3 + 3."""
    job = Job(framework)
    job.trainer.epochs_done = 0
    job.model.compile(optimizer=job.optimizer, loss="mse")
    job.model.fit(Passes(job.trainer, 2, 5, 3).dataset(), epochs=3, shuffle=False, verbose=0, callbacks=[job.callback])
    assert job.trainer.ended == 10


@pytest.mark.filterwarnings("ignore:.*input ran out of data")
def test_a_newcomers_fit_ends_with_the_job(framework: Any) -> None:
    job = Job(framework)
    job.trainer.epochs_done = 7  # as soon as it sits in the ring
    job.model.compile(optimizer=job.optimizer, loss="mse")
    passes = Passes(job.trainer, 1, 2, 2, 2, 2)
    job.model.fit(passes.dataset(), epochs=9, shuffle=False, verbose=0, callbacks=[job.callback])
    assert (job.trainer.ended, job.trainer.epochs_done) == (3, 9)
    job.model.fit(passes.dataset(), epochs=2, shuffle=False, verbose=0, callbacks=[job.callback])
    assert (job.trainer.ended, job.trainer.epochs_done) == (7, 11)


def test_a_rehearsal_leaves_nothing_in_the_metrics(framework: Any) -> None:
    job = Job(framework)
    job.trainer.rehearses = True
    job.fit()
    assert float(job.model.metrics[0].count) == 2  # samples of the second of two batches


@pytest.mark.filterwarnings("ignore:.*input ran out of data")
def test_fit_and_its_callbacks_never_hear_of_a_step_without_samples(framework: Any) -> None:
    job = Job(framework)
    job.trainer.without_samples = {1, 3, 4}  # of six
    seen: list[int] = []
    counting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(job.trainer.ended))
    job.model.compile(optimizer=job.optimizer, loss="mse", metrics=["mae"])
    rows = tf.data.Dataset.from_tensor_slices((tf.ones((6, 3)), tf.ones((6, 1)))).batch(1)
    callbacks = [job.callback, counting]
    job.model.fit(rows, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
    assert job.trainer.ended == 6
    assert seen == [2, 5, 6]
    assert int(job.optimizer.iterations) == 3
    assert float(job.model.metrics[0].count) == 3


def test_a_tape_averages_once_and_what_comes_between_acts_on_the_average(framework: Any) -> None:
    """In a ring of one the share alone shows how often: a fourth of the samples make a fourth of the gradient."""
    from edl.tensorflow.tape import AveragingTape

    variable, optimizer, trainer = tf.Variable([3.0, 4.0]), keras.optimizers.SGD(1.0), FakeTrainer()
    framework.wrap(trainer, optimizer, None)

    def step(clip: float) -> Any:
        with AveragingTape(framework.tape_reducer(trainer), persistent=True, watch_accessed_variables=True) as tape:
            other = tf.constant(2.0)
            tape.watch(other)
            loss = tf.reduce_sum(variable * variable) * other
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, [variable]), clip)
        optimizer.apply_gradients(zip(gradients, [variable], strict=True))
        return norm, tape.gradient(loss, {"a": variable, "b": other})

    framework.set_weight(0.25)
    try:
        for train in (step, tf.function(step)):
            variable.assign([3.0, 4.0])
            norm, gradients = train(1e9)
            assert float(norm) == 5.0
            assert variable.numpy().tolist() == [0.0, 0.0]
            assert gradients["b"].numpy() == 25.0, "only of variables"
            variable.assign([3.0, 4.0])
            train(1.0)
            np.testing.assert_allclose(variable.numpy(), [3.0 - 0.6, 4.0 - 0.8], rtol=1e-6)
        with tf.GradientTape() as plain:
            loss = tf.reduce_sum(variable)
        variable.assign([3.0, 4.0])
        trainer.ended += 1
        optimizer.apply_gradients(zip(plain.gradient(loss, [variable]), [variable], strict=True))
        assert variable.numpy().tolist() == [2.75, 3.75], "another tape's gradients are averaged as ever"
    finally:
        framework.set_weight(1.0)


def test_a_step_without_samples_changes_nothing_eagerly(framework: Any) -> None:
    job = Job(framework)
    job.step()
    before, iterations = job.weights(), int(job.optimizer.iterations)
    framework.applied()
    for number in (1, 2):
        updates = framework.updates()
        framework.set_weight(0.0, weightless=True)
        job.step()
        assert framework.updates() != updates, "a training function would wait for the end of this mini-batch"
        framework.set_weight(1.0)
        assert (job.weights(), int(job.optimizer.iterations)) == (before, iterations)
        assert framework.applied() == 0.0, number
    job.step()
    assert framework.applied() == 1.0


def test_a_void_step_changes_nothing(framework: Any) -> None:
    job = Job(framework)
    job.step()
    before, iterations = job.weights(), int(job.optimizer.iterations)
    job.trainer.void(RingBroken("a peer is gone"))
    job.step()
    assert (job.weights(), int(job.optimizer.iterations)) == (before, iterations)
    job.trainer.take_error()
    job.step()
    assert job.weights() != before


def test_variables_without_gradient_stay_without(framework: Any) -> None:
    job = Job(framework)
    job.optimizer.build(job.model.trainable_variables)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        job.optimizer.apply_gradients(
            [(tf.ones((3, 1)), job.model.trainable_variables[0]), (None, job.model.trainable_variables[1])]
        )
    assert job.trainer.before == 1


def test_sparse_gradients_are_averaged_in_every_way(framework: Any) -> None:
    """An embedding; in a ring of one the values must come out as they went in."""
    table = tf.Variable(tf.ones((5, 2)))
    optimizer = keras.optimizers.SGD(1.0)
    framework.wrap(FakeTrainer(), optimizer, None)

    def step(rows: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows))
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer.apply_gradients([(gradient, table)])

    step(tf.constant([1]))
    tf.function(step)(tf.constant([3]))
    assert table.numpy()[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("compiled", "complaint"),
    [
        ({"steps_per_execution": 2}, r"steps_per_execution=2"),
        ({"jit_compile": True}, r"jit_compile"),
    ],
)
def test_fit_refuses_what_cannot_work(framework: Any, compiled: dict[str, Any], complaint: str) -> None:
    job = Job(framework)
    job.model.supports_jit = True  # as a script could that insists
    with pytest.raises(UsageError, match=complaint):
        job.fit(**compiled)


def test_fit_refuses_a_loss_scale_around_the_wrapper(framework: Any) -> None:
    job = Job(framework)
    job.optimizer = keras.optimizers.LossScaleOptimizer(job.optimizer)
    with pytest.raises(UsageError, match="the other way"):
        job.fit()


def test_fit_refuses_a_plain_optimizer(framework: Any) -> None:
    with pytest.raises(UsageError, match="nothing is averaged"):
        Job(framework, wrapped=False).fit()


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_end_of_the_data_is_no_iteration(framework: Any) -> None:
    """Keras's own count goes on there, in a race: workers would come to differ."""
    job = Job(framework)
    job.model.compile(optimizer=job.optimizer, loss="mse")

    def rows() -> Iterator[tuple[list[float], list[float]]]:
        for _ in range(3):
            yield [1.0, 1.0, 1.0], [1.0]
        time.sleep(0.02)  # as when the last samples of an epoch are waited for

    signature = (tf.TensorSpec([3], tf.float32), tf.TensorSpec([1], tf.float32))
    data = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(1)
    job.model.fit(data, epochs=10, shuffle=False, verbose=0, callbacks=[job.callback])
    assert int(job.optimizer.iterations.numpy()) == 3 * 10


def test_a_loss_scale_inside_works(framework: Any) -> None:
    job = Job(framework, optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    before = job.weights()
    job.fit()
    assert job.weights() != before


def test_a_wrong_call_says_so(framework: Any) -> None:
    job = Job(framework)
    with pytest.raises(UsageError, match="wrapped already"):
        framework.wrap(job.trainer, job.optimizer, None)
    with pytest.raises(UsageError, match=r"not a object"):
        framework.wrap(job.trainer, object(), None)
    with pytest.raises(UsageError, match=r"model must be a Keras model or a tf.Module, not a str"):
        framework.wrap(job.trainer, keras.optimizers.SGD(0.1), "model")
