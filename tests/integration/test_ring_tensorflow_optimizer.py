"""`edl.tensorflow.Optimizer` in a ring of one: it stays the optimizer it was, and says what is wrong with a call."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent / "adapters"))


from seat import FakeTrainer

from edl.errors import RingBroken, UsageError
from edl.protocol.assignment import solo
from edl.tensorflow.fit_position import FitStanding
from edl.tensorflow.keras_fit import ElasticFit, Fits
from edl.tensorflow.keras_validation import EpochTold
from edl.trainer.data.epoch_cursor import PassSoFar

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def framework() -> Iterator[Any]:
    from edl.tensorflow.tf_framework import TensorFlowFramework

    framework = TensorFlowFramework()
    framework.ring.enter(solo("w0"), 60.0)
    yield framework
    framework.ring.leave()


class Job:
    """A model, its optimizer, a trainer."""

    def __init__(self, framework: Any, wrapped: bool = True, optimizer: Any = None) -> None:
        keras.utils.set_random_seed(0)
        self.trainer = FakeTrainer()
        self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        self.optimizer = optimizer or keras.optimizers.SGD(0.1, momentum=0.9)
        self.callback = ElasticFit(self.trainer, framework.ring, Fits(), self.trainer.notify_batch_end)
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

    def __init__(self, *lengths: int, epochs: int | None = None) -> None:
        self.lengths = list(lengths)
        self.epochs = epochs
        self.epochs_done = 0
        self.expected: list[int] = []

    def by_epochs(self) -> None:
        """Each iteration is a pass anyway."""

    def expect(self, epoch: int) -> None:
        self.expected.append(epoch)

    def leave(self) -> None:
        """No pipeline of these waits."""

    def __call__(self) -> Iterator[tuple[Any, Any]]:
        for _ in range(self.lengths.pop(0)):
            yield [1.0, 1.0, 1.0], [1.0]
        self.epochs_done += 1

    def dataset(self) -> Any:
        signature = tf.TensorSpec([3]), tf.TensorSpec([1])
        return tf.data.Dataset.from_generator(self, output_signature=signature).batch(1)


class Hearing(keras.callbacks.Callback):  # type: ignore[misc]
    """The numbers of epochs, and their metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        self.logs: list[dict[str, Any]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.begun.append(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logs.append(dict(logs))


def fit_passes(job: Job, passes: Passes, **arguments: Any) -> Hearing:
    job.trainer.shards = passes
    job.model.compile(optimizer=job.optimizer, loss="mse")
    hearing = Hearing()
    callbacks = [hearing, *arguments.pop("callbacks", ()), job.callback]
    job.model.fit(passes.dataset(), shuffle=False, verbose=0, callbacks=callbacks, **arguments)
    return hearing


def test_fit_makes_whole_passes_whatever_their_lengths(framework: Any) -> None:
    """Keras alone takes the length of the first for that of all, and trains 2 + 3 + 3."""
    job, passes = Job(framework), Passes(2, 5, 3)
    hearing = fit_passes(job, passes, epochs=3)
    assert (job.trainer.ended, hearing.begun, passes.expected) == (10, [0, 1, 2], [0, 1, 2])


def test_a_second_fit_goes_on_with_the_jobs_passes(framework: Any) -> None:
    job, passes = Job(framework), Passes(2, 2, 2, 2)
    fit_passes(job, passes, epochs=3, initial_epoch=1)
    hearing = fit_passes(job, passes, epochs=2)
    assert (hearing.begun, passes.expected) == ([0, 1], [0, 1, 2, 3])


def test_a_newcomer_begins_in_the_epoch_of_the_others(framework: Any) -> None:
    """Its first mini-batches are a rehearsal, before any epoch; then it has what their callbacks have counted."""
    job, passes = Job(framework), Passes(9, 1, 2)
    job.trainer.rehearsals.add(2)
    stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=3)
    counts = {
        "0.EarlyStopping": {"wait": 2, "best": 0.0, "best_epoch": 4},
        "1.History": {"epoch": [5, 6], "history": {}},
    }
    job.trainer.standing.fit = FitStanding(1, 7, 20, counts).told()
    hearing = fit_passes(job, passes, epochs=9, callbacks=[stopping])
    assert (hearing.begun, passes.expected) == ([7], [27])
    assert (stopping.wait, stopping.stopped_epoch) == (3, 7)
    assert job.model.history.epoch == [5, 6, 7]
    assert job.trainer.ended == 2 + 1


def test_a_newcomer_passes_over_a_fit_that_is_over(framework: Any) -> None:
    job, passes = Job(framework), Passes(9, 1, 1)
    job.trainer.rehearsals.add(2)
    job.trainer.standing.fit = FitStanding(2, 1, 5).told()
    assert fit_passes(job, passes, epochs=9).begun == []
    assert fit_passes(job, passes, epochs=3).begun == [1, 2]
    assert passes.expected == [6, 7]


def test_an_epoch_of_which_nothing_is_left_has_the_metrics_of_the_others(framework: Any, monkeypatch: Any) -> None:
    """A worker that comes in with its last step."""
    job, passes = Job(framework), Passes(2, 0)
    alone = job.trainer.evaluate_shared

    def with_another(work: Any) -> tuple[bytes, ...]:
        another = EpochTold(np.array([6.0, 2.0]).tobytes(), b"")  # the loss: a total and a count
        return (*alone(work), msgspec.msgpack.encode(another))

    monkeypatch.setattr(job.trainer, "evaluate_shared", with_another)
    job.trainer.rehearsals.add(2)
    hearing = fit_passes(job, passes, epochs=1)
    assert [float(logs["loss"]) for logs in hearing.logs] == [3.0]


def test_a_job_that_goes_on_after_the_last_step_of_an_epoch_ends_that_epoch_first(framework: Any) -> None:
    """With the metrics that all had, though this worker has made no step yet."""
    job, passes = Job(framework), Passes(0, 1)
    job.trainer.standing.tell(70, [], at_end=True, so_far=PassSoFar())
    job.trainer.standing.fit = FitStanding(1, 4, 0, {}, np.array([6.0, 2.0]).tobytes(), 70).told()
    hearing = fit_passes(job, passes, epochs=6)
    assert hearing.begun == [4, 5]
    assert float(hearing.logs[0]["loss"]) == 3.0
    assert float(hearing.logs[1]["loss"]) != 3.0


def fit_written(job: Job, passes: Passes, *writing: Any, epochs: int) -> None:
    job.trainer.shards = passes
    job.model.compile(optimizer=job.optimizer, loss="mse")
    job.model.fit(passes.dataset(), shuffle=False, verbose=0, epochs=epochs, callbacks=[job.callback, *writing])


@pytest.mark.parametrize("over", [False, True])
def test_a_newcomer_leaves_what_the_job_has_written(framework: Any, tmp_path: Path, over: bool) -> None:
    """In its ring of one it has rank 0. Once it has it among the others it goes on with their files."""
    job, passes, log = Job(framework), Passes(0, 1) if over else Passes(9, 1), tmp_path / "log.csv"
    log.write_text("epoch,loss\n0,2.5\n")
    job.trainer.rehearsals.add(2)
    job.trainer.standing.fit = FitStanding(1, 1, 0).told()
    board = keras.callbacks.TensorBoard(tmp_path / "board")
    fit_written(job, passes, keras.callbacks.CSVLogger(log), board, epochs=2)
    lines = log.read_text().splitlines()
    assert lines[:2] == ["epoch,loss", "0,2.5"]
    assert [line.split(",")[0] for line in lines[2:]] == ([] if over else ["1"])
    assert bool(list(tmp_path.rglob("events.out.*"))) is not over


def test_a_job_of_one_worker_writes(framework: Any, tmp_path: Path) -> None:
    job, log = Job(framework), tmp_path / "log.csv"
    log.write_text("of another job\n")
    fit_written(job, Passes(1, 1), keras.callbacks.CSVLogger(log), epochs=2)
    assert [line.split(",")[0] for line in log.read_text().splitlines()] == ["epoch", "0", "1"]


def test_a_worker_that_loses_rank_0_leaves_the_events_that_it_has_written(
    framework: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """And one that never had it leaves none."""
    job = Job(framework)
    monkeypatch.setattr(job.trainer, "rank", lambda: int(job.trainer.ended >= 2))
    fit_written(job, Passes(1, 1, 1), keras.callbacks.TensorBoard(tmp_path / "first"), epochs=3)
    assert list(tmp_path.rglob("first/train/events.out.*"))
    again = keras.callbacks.TensorBoard(tmp_path / "first")
    fit_written(job, Passes(1), again, epochs=1)
    assert list(tmp_path.rglob("first/train/events.out.*")), "of its first fit"
    other = Job(framework)
    monkeypatch.setattr(other.trainer, "rank", lambda: 1)
    fit_written(other, Passes(1), keras.callbacks.TensorBoard(tmp_path / "other"), epochs=1)
    assert not list(tmp_path.rglob("other/train/events.out.*"))


def test_validation_counts_each_batch_once(framework: Any) -> None:
    job, passes = Job(framework), Passes(2, 2)
    rows = tf.reshape(tf.range(30.0), (10, 3))
    hearing = fit_passes(job, passes, epochs=2, validation_data=(rows, tf.ones((10, 1))), validation_batch_size=3)
    plain = job.model.evaluate(rows, tf.ones((10, 1)), batch_size=3, verbose=0)
    assert hearing.logs[-1]["val_loss"] == pytest.approx(plain, rel=1e-6)
    assert type(job.model).evaluate.__get__(job.model) == job.model.evaluate, "Keras's own again"


# soak: who evaluates what: tests/unit/trainer/test_shared_evaluation.py; a real job's validation: test_keras_epochs.py
@pytest.mark.soak
def test_a_share_of_a_validation_is_some_of_its_batches(framework: Any, monkeypatch: Any) -> None:
    """Two workers' shares together are the whole; one that breaks off has counted nothing."""
    job, passes = Job(framework), Passes(2)
    rows, wanted, found = tf.reshape(tf.range(30.0), (10, 3)), tf.ones((10, 1)), []

    def in_two(work: Any) -> tuple[bytes, ...]:
        if not work.units:
            return (work.found(),)
        job.trainer.given_up = True
        assert work.compute(range(0, work.units, 2), lambda: True) == ()
        assert work.found() == b""
        job.trainer.given_up = False
        even = list(range(0, work.units, 2))
        assert work.compute(even, lambda: True) == even
        found.append(np.frombuffer(work.found(), np.float64))
        work.compute(range(1, work.units, 2), lambda: True)
        return (work.found(),)

    monkeypatch.setattr(job.trainer, "evaluate_shared", in_two)
    hearing = fit_passes(job, passes, epochs=1, validation_data=(rows, wanted), validation_batch_size=3)
    assert found[0][1] == 6, "rows of batches 0 and 2 of four"
    plain = job.model.evaluate(rows, wanted, batch_size=3, verbose=0)
    assert hearing.logs[-1]["val_loss"] == pytest.approx(plain, rel=1e-6)


@contextlib.contextmanager
def refused(complaint: str) -> Iterator[None]:
    """By one line."""
    with pytest.raises(UsageError, match=complaint) as found:
        yield
    assert "\n" not in str(found.value)


def test_a_pass_is_an_epoch_also_where_the_generator_knows_how_many(framework: Any) -> None:
    job = Job(framework)
    assert fit_passes(job, Passes(2, 2, epochs=2), epochs=2).begun == [0, 1]
    assert fit_passes(job, Passes(4, epochs=2), epochs=1).begun == [0], "all of them are one, as it ever was"
    with refused(r"fit\(epochs=3\) over elastic_shard_generator\(epochs=2\)"):
        fit_passes(job, Passes(2, epochs=2), epochs=3)


def test_callbacks_that_would_harm_are_refused(framework: Any, tmp_path: Path) -> None:
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with refused("edl run --checkpoint"):
        fit_passes(Job(framework), Passes(1), epochs=1, callbacks=[backup])
    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    with refused("before CSVLogger"):
        fit_passes(Job(framework), Passes(1), epochs=1, callbacks=[logger])
    logger.csv_file.close()


def test_a_rehearsal_leaves_nothing_in_the_metrics(framework: Any) -> None:
    job = Job(framework)
    job.trainer.rehearsals.add(1)
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
    from edl.tensorflow.tf_reducer import AveragingTape

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
    with refused(complaint):
        job.fit(**compiled)


def test_fit_refuses_a_loss_scale_around_the_wrapper(framework: Any) -> None:
    job = Job(framework)
    job.optimizer = keras.optimizers.LossScaleOptimizer(job.optimizer)
    with refused("the other way"):
        job.fit()


def test_fit_wraps_a_plain_optimizer(framework: Any) -> None:
    """As `edl.KerasCallback()` has it; what Keras has chosen XLA for by itself is chosen anew."""
    job = Job(framework, wrapped=False)
    job.callback = ElasticFit(
        job.trainer,
        framework.ring,
        Fits(),
        job.trainer.notify_batch_end,
        lambda model: framework.wrap_compiled(job.trainer, model),
    )
    before = job.weights()
    job.fit()
    job.fit()
    assert job.weights() != before
    assert (job.trainer.ended, job.model.jit_compile) == (4, False)
    assert job.trainer.before > job.trainer.ended, "all four are averaged, and what is traced asks once more"


def test_fit_refuses_a_plain_optimizer(framework: Any) -> None:
    with refused("nothing is averaged"):
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
