"""Keras's models in two parts, taken over by another model, also in the middle of a traced step."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl.core.worker.worker_inputs import WHOLE, StatePortion
from edl.errors import RingBroken, UsageError
from edl.tensorflow.keras_optimizer import owners
from edl.tensorflow.kernels import Answer, kernels_for
from edl.tensorflow.tf_framework import TensorFlowFramework
from edl.trainer.registered_state import RegisteredState
from edl.trainer.state_handoff import StateHandoff

OWN = kernels_for([])
assert OWN is not None, "scripts/setup builds them"


def whole(contents: Any) -> memoryview:
    """As it comes, part by part."""
    found = bytearray()
    while len(found) < contents.size:
        found += contents.part(len(found))
    return memoryview(found)


class Seat:
    """`edl.trainer.framework_port.StepPort`, as far as an update asks."""

    def __init__(self) -> None:
        self.take: Any = lambda: None
        self.voided = False
        self.threads: list[int] = []

    def await_state(self) -> None:
        self.threads.append(threading.get_ident())
        take, self.take = self.take, lambda: None
        try:
            take()
        except RingBroken:
            self.voided = True


class Model(keras.Model):  # type: ignore[misc]
    """An average is part of it, and no optimizer knows it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm = keras.layers.Dense(width), keras.layers.BatchNormalization()
        self.last, self.average = keras.layers.Dense(1), keras.layers.Dense(1)
        self.average.build((None, width))
        self(tf.ones((1, 7)))

    def build(self, _: Any) -> None:
        """With the first call."""

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(self.norm(self.first(x), training=training))


class Worker:
    """A script's model, after some steps of its own."""

    def __init__(self, seed: int, steps: int, width: int = 300, *, build: bool = True, **kinds: Any) -> None:
        keras.utils.set_random_seed(seed)
        self.model = Model(width)
        adam = keras.optimizers.Adam(0.1 * (1 + seed), amsgrad=True, **kinds)
        self.seat, self.framework = Seat(), TensorFlowFramework()
        self.framework.wrap(self.seat, adam, self.model)  # type: ignore[arg-type]
        self.framework.ring.size = 1
        adam.__dict__["_edl"] = None  # nothing is averaged here
        self.optimizer = adam
        if build:
            self.optimizer.build(self.weights)
        self.ema = tf.Variable(float(seed))
        self.extras = RegisteredState(self.framework.sort)
        self.extras.add({"ema": self.ema, "losses": [0.5] * seed, "seen": np.ones(5)})
        self.step(steps)
        self.traced = tf.function(self.step_once)

    @property
    def weights(self) -> list[Any]:
        layers = (self.model.first, self.model.norm, self.model.last)
        return [one for layer in layers for one in layer.trainable_variables]

    def step_once(self, together: Any = list) -> None:
        self.update(together(self.gradients()))

    def gradients(self) -> list[Any]:
        inputs = tf.ones((4, 7)) + tf.range(4.0)[:, None]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(inputs, training=True) ** 2)
        found: list[Any] = tape.gradient(loss, [one.value for one in self.weights])
        return found

    def update(self, gradients: list[Any]) -> None:
        self.optimizer.apply(gradients, self.weights)
        average = self.model.average.kernel
        average.assign(0.5 * average + 0.5 * self.model.last.kernel)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.step_once()

    def step_in_graph(self) -> None:
        self.traced(lambda gradients: OWN.together(gradients, "beside"))

    @property
    def known(self) -> list[Any]:
        return [*self.model.weights, *self.optimizer.variables, self.ema]

    def state(self) -> list[bytes]:
        return [one.numpy().tobytes() for one in self.known]

    def take_early(self, root: Worker, portion: StatePortion = WHOLE) -> Any:
        mine, theirs = self.framework.apart, root.framework.apart
        assert mine is not None and theirs is not None
        parted = theirs.parted(portion)
        mine.expect()
        late = mine.take_early(parted.description, memoryview(bytearray(parted.early)))
        if portion.is_first or portion.is_last:
            tree, raw = root.extras.parted(theirs)
            self.extras.take(mine, 0, tree, memoryview(bytearray(raw)))
        came = whole(parted.late)
        assert late.unpack is not None
        late.unpack(lambda size: came[:size])
        return lambda: late.take(came)


@pytest.fixture
def root():
    return Worker(1, 2)


@pytest.mark.parametrize("kinds", [{}, {"use_ema": True}, {"weight_decay": 0.1}], ids=["adam", "ema", "decay"])
@pytest.mark.parametrize("portions", [[1, 1, 1], [1] * 9, [1, 4]], ids=["three", "more than there are", "the rest"])
def test_what_has_come_before_an_update_is_brought_forward_by_it(portions, kinds):
    """All of the state in as many portions as there are, or the rest of it at once."""
    root, newcomer, first, of = Worker(1, 2, **kinds), Worker(4, 1, **kinds), 0, sum(portions)
    for count in portions:
        portion = StatePortion(first, first + count, of)
        take = newcomer.take_early(root, portion)
        first += count
        averaged = root.gradients()
        newcomer.gradients()
        assert portion.first or newcomer.state() != root.state()
        take()
        for worker in (root, newcomer):
            worker.update(averaged)
    statistics = {id(one) for one in newcomer.model.norm.non_trainable_variables}
    for mine, theirs in zip(newcomer.known, root.known, strict=True):
        assert id(mine) in statistics or mine.numpy().tobytes() == theirs.numpy().tobytes(), mine.path


def test_portions_are_all_of_the_state(root):
    apart = root.framework.apart
    sizes = [apart.parted(StatePortion(number, number + 1, 3)).late.size for number in range(3)]
    assert sum(sizes) == apart.size() == apart.parted().late.size
    assert all(sizes)


def test_what_an_optimizer_keeps_goes_with_what_it_is_kept_of():
    """Also where one name is the beginning of another one's."""
    layers = [keras.layers.Dense(2, name=name) for name in ("a", "a_kernel", "b")]
    model = keras.Sequential([keras.Input((2,)), *layers])
    adam, other = keras.optimizers.Adam(), keras.optimizers.Adafactor()
    for optimizer in (adam, other):
        optimizer.build(model.trainable_variables)
    trained = list(model.trainable_variables)
    variables = [*trained, *adam.variables, *other.variables]
    found = owners([adam, other], [one.value for one in variables])
    assert found[: len(trained)] == list(range(len(trained)))
    by_path = {one.path: owner for one, owner in zip(variables, found, strict=True)}
    for number, layer in enumerate(("a", "a_kernel", "b")):
        for kind, slot in itertools.product(("kernel", "bias"), ("momentum", "velocity")):
            kept = next(one.path for one in adam.variables if one.path.endswith(f"_{layer}_{kind}_{slot}"))
            assert by_path[kept] == 2 * number + (kind == "bias"), kept
    assert by_path[adam.iterations.path] == by_path[other.iterations.path] == 0


def test_so_it_does_with_variables_that_are_not_of_keras():
    variables = [tf.Variable([1.0], name=name) for name in ("one", "two")]
    adam = keras.optimizers.Adam()
    adam.build(variables)
    found = owners([adam], [*variables, *(one.value for one in adam.variables)])
    by_path = dict(zip([one.path for one in adam.variables], found[2:], strict=True))
    assert found[:2] == [0, 1]
    assert [owner for path, owner in by_path.items() if "two" in path] == [1, 1]
    assert not any(owner for path, owner in by_path.items() if "two" not in path)


@pytest.fixture(autouse=True)
def nothing_asked():
    yield
    OWN.before_update.ask(None)


@pytest.mark.parametrize("rehearsed", [0, 1, 3])
def test_a_newcomer_is_equal_bit_for_bit_and_stays_so(root, rehearsed):
    newcomer = Worker(4, rehearsed)
    take = newcomer.take_early(root)
    norm, average = (lambda one: one.model.norm.moving_mean.numpy()), (lambda one: one.model.average.kernel.numpy())
    np.testing.assert_array_equal(norm(newcomer), norm(root))
    np.testing.assert_array_equal(average(newcomer), average(root))
    assert float(newcomer.optimizer.learning_rate) == float(root.optimizer.learning_rate)
    take()
    assert newcomer.state() == root.state()
    assert newcomer.extras.values["losses"] == [0.5]
    assert newcomer.framework.counts() == root.framework.counts()
    root.step()
    newcomer.step()
    assert newcomer.state() == root.state()


@pytest.mark.parametrize("traced", [False, True])
def test_one_that_has_rehearsed_takes_over_a_state_in_which_no_update_was_made(traced):
    """Its first update was for a part of what can be trained, as where only a head is tuned."""
    root, newcomer = Worker(1, 0, build=False), Worker(4, 0, build=False)
    newcomer.step_in_graph() if traced else newcomer.step()
    newcomer.take_early(root)()
    assert newcomer.state() == root.state()
    root.step()
    newcomer.step()
    assert newcomer.state() == root.state()


def test_an_optimizer_keeps_slots_for_all_that_can_be_trained_and_for_what_is_updated_besides():
    worker, scale = Worker(1, 0, build=False), keras.Variable(2.0)
    worker.optimizer.apply([tf.ones(())], [scale])
    kept = [id(one) for one in worker.optimizer._trainable_variables]
    assert kept == [*map(id, worker.model.trainable_variables), id(scale)]
    assert float(scale) != 2.0


def test_a_function_whose_first_update_makes_an_optimizers_variables_is_traced_once():
    """Else a newcomer would trace it again in its second step, while all others wait for it."""
    worker, traces = Worker(1, 0, build=False), []

    def step() -> None:
        traces.append(1)
        worker.step_once()

    traced = tf.function(step)
    for _ in range(3):
        traced()
    assert traces == [1]


def test_one_that_rehearses_its_entry_takes_over_its_own_state(root):
    """Once, and then its updates wait for nothing."""
    other = Worker(1, 2)
    assert root.framework.apart.given()
    StateHandoff(root.framework, root.extras).rehearse()
    assert root.state() == other.state()
    for one in (root, other):
        one.step()
        one.step_in_graph()
    assert root.state() == other.state()
    assert root.seat.threads == []


def test_a_model_without_variables_is_none_to_rehearse_with():
    worker, lazy = Worker(1, 2), keras.Sequential([keras.layers.Dense(3)])
    worker.framework.add_model(lazy)
    with pytest.raises(UsageError, match="no variables yet"):
        worker.framework.apart.parted()
    StateHandoff(worker.framework, worker.extras).rehearse()


def test_what_is_sent_stays_what_it_was_though_the_sender_goes_on(root):
    newcomer = Worker(4, 1)
    take = newcomer.take_early(root)
    before = root.state()
    root.step()
    assert root.state() != before
    take()
    assert newcomer.state() == before


def test_a_traced_step_of_a_newcomer_waits_for_the_state_and_updates_that(root):
    """Its forward pass saw another model: gradients come by the ring."""
    newcomer = Worker(4, 1)
    newcomer.step_in_graph()
    root.step_in_graph()  # traced, before it counts
    newcomer.seat.take = newcomer.take_early(root)

    nothing, slope = (
        tf.Variable(0.0),
        tf.Variable(1.0),
    )  # constants would be folded, and the forward pass not waited for

    def as_root(gradients: list[Any]) -> list[Any]:
        return OWN.together([one * nothing + slope for one in gradients], "beside")

    for one in (newcomer, root):
        one.traced(as_root)
    assert differing(newcomer, root) == {"moving_mean", "moving_variance"}, "of its forward pass, and put back later"
    assert newcomer.seat.threads, "the step has asked"
    assert not newcomer.seat.voided
    asked = len(newcomer.seat.threads)
    newcomer.traced(as_root)
    assert len(newcomer.seat.threads) == asked, "but for the first step none asks"


def differing(one: Worker, other: Worker) -> set[str]:
    states = zip(one.known, one.state(), other.state(), strict=True)
    return {variable.name for variable, mine, theirs in states if mine != theirs}


def test_a_step_whose_state_does_not_come_is_void_and_changes_nothing(root):
    newcomer = Worker(4, 1)
    newcomer.step_in_graph()
    newcomer.take_early(root)

    def lost() -> None:
        raise RingBroken("the sender is gone")

    newcomer.seat.take, before = lost, learned(newcomer)
    with pytest.raises(tf.errors.AbortedError) as raised:
        newcomer.step_in_graph()
    assert TensorFlowFramework().ring.is_failure(raised.value), "as when a collective fails"
    assert newcomer.seat.voided
    assert learned(newcomer) == before


def learned(worker: Worker) -> list[bytes]:
    return [one.numpy().tobytes() for one in (*worker.weights, *worker.optimizer.variables)]


def test_a_fault_of_ours_ends_the_script_and_not_the_ring(root, caplog):
    newcomer = Worker(4, 1)
    newcomer.step_in_graph()
    newcomer.take_early(root)

    def fails() -> None:
        raise UsageError("12 bytes have come for state of 13")

    newcomer.seat.take = fails
    with pytest.raises(tf.errors.InternalError, match="could not take over") as raised:
        newcomer.step_in_graph()
    assert not TensorFlowFramework().ring.is_failure(raised.value)
    assert "12 bytes have come for state of 13" in caplog.text


def test_a_state_that_comes_after_an_update_is_not_taken(root):
    newcomer = Worker(4, 1)
    take = newcomer.take_early(root)
    newcomer.step()
    with pytest.raises(RingBroken, match="an update was made before"):
        take()


def test_another_model_is_refused_before_anything_changes(root):
    for other in (Worker(2, 1, width=200), Worker(2, 1, use_ema=True)):
        before = other.state()
        with pytest.raises(UsageError, match="All workers must build the same model"):
            other.take_early(root)
        assert other.state() == before


def test_bytes_that_are_too_few_are_refused(root):
    apart, other = root.framework.apart, Worker(2, 1).framework.apart
    parted = apart.parted()
    other.expect()
    late = other.take_early(parted.description, memoryview(bytearray(parted.early)))
    came = whole(parted.late)[:-16]
    assert late.unpack is not None
    late.unpack(lambda size: came[:size])
    with pytest.raises(UsageError, match="bytes have come for state of"):
        late.take(came)


def test_a_state_is_given_only_where_all_updates_wait_for_it(root):
    assert root.framework.apart.given()
    root.framework._reducers[0].asks = False  # a function that was traced by TensorFlow's operations alone
    assert not root.framework.apart.given()
    taped, tracked, plain = Worker(1, 1), Worker(1, 1), Worker(1, 1)
    taped.framework.tape_reducer(taped.seat)  # type: ignore[arg-type]  # a script does what it likes with a tape's gradients
    assert not taped.framework.apart.given()
    tracked.framework.track_variables([tf.Variable(1.0)])
    assert not tracked.framework.apart.given()
    plain.framework.track(keras.optimizers.SGD())
    assert not plain.framework.apart.given()
    assert not TensorFlowFramework().apart.given()


def test_what_is_asked_is_asked_on_the_way_to_the_update():
    asked: list[bool] = []
    weight, slope = tf.Variable(1.0), tf.Variable(1.0)  # a constant would be folded

    @tf.function
    def step():
        [gradient] = OWN.together([slope.read_value()], "asked")
        weight.assign_sub(gradient)

    step()
    OWN.before_update.ask(lambda: Answer.GOES_ON if asked.append(float(weight.numpy()) == 0.0) is None else Answer.VOID)
    step()
    OWN.before_update.ask(None)
    step()
    assert asked == [True]
    assert float(weight.numpy()) == -2.0
