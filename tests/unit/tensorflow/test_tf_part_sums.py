"""`edl.tensorflow.tf_part_sums`: gradients of parts, added up by any number of workers, have the same bits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import random_seed
from tensorflow.python.ops import stateful_random_ops

from edl.errors import RingBroken, UsageError
from edl.tensorflow.tf_part_sums import GivenGradients, TensorFlowPartSums, Weight
from edl.tensorflow.tf_random_states import SeededNumbers
from edl.tensorflow.tf_reducer import Averaged, Reducer
from edl.trainer.virtual_steps import Scales

VIRTUAL = 6


class Seat:
    virtual = VIRTUAL

    def __init__(self) -> None:
        self.voided = ""

    def step(self) -> int:
        return 1

    def before_reduce(self) -> None: ...

    def waited(self, nanoseconds: int) -> None: ...

    def await_state(self) -> None: ...

    def void(self, error: BaseException) -> None:
        self.voided = str(error)


class SumRing:
    """A ring of threads. `breaks`: no sum comes to its end."""

    def __init__(self, size: int, breaks: bool = False) -> None:
        self.size, self.breaks = size, breaks
        self.reduces = False
        self._barrier = threading.Barrier(size, timeout=20)
        self._lock = threading.Lock()
        self._here: list[Any] = []

    def _all(self, mine: Any) -> list[Any]:
        with self._lock:
            self._here.append(mine)
        self._barrier.wait()
        found = list(self._here)
        if self._barrier.wait() == 0:
            self._here.clear()
        self._barrier.wait()
        return found

    def sum(self, values: Any, _name: str) -> Any:
        if self.breaks:
            raise RingBroken("a peer is gone")
        return np.sum(self._all(values.copy()), axis=0, dtype=np.int32)

    def largest(self, values: Sequence[int]) -> list[int]:
        return [max(one) for one in zip(*self._all(list(values)), strict=True)]

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        yield

    def is_failure(self, error: BaseException) -> bool:
        return isinstance(error, RingBroken)


class Member:
    """A worker with a weight, a bias, and two statistics: a mean, and a count."""

    def __init__(self, ring: SumRing) -> None:
        self.trained = [tf.Variable(tf.ones((3, 2)), name="kernel"), tf.Variable(tf.zeros(2), name="bias")]
        self.mean, self.count = tf.Variable([0.5]), tf.Variable(7)
        self.seat, self.scales = Seat(), Scales()
        shared = SimpleNamespace(weightless=False)
        self.reducer = Reducer(self.seat, ring, shared, None, Averaged(), 0)  # type: ignore[arg-type]
        weights = [Weight(str(number), one, False) for number, one in enumerate(self.trained)]
        weights += [Weight("2", self.mean, True), Weight("3", self.count, True)]
        begin: Callable[[int], None] = lambda seed: None  # noqa: E731
        self.sums = TensorFlowPartSums(self.seat, ring, [self.reducer], lambda: weights, begin, ring.sum)  # type: ignore[arg-type]

    def step(self, parts: Sequence[int], give: Callable[[int], list[Any]]) -> list[Any]:
        again = True
        while again:
            self.sums.begin(self.scales, VIRTUAL)
            for part in parts:
                self.sums.begin_part(part)
                self.sums.given.add(give(part), self.trained, 1)
                self.mean.assign_add([0.1 * part])
                self.count.assign_add(1)
                self.sums.take(1.0, digest=False)
            again = self.sums.reduce(VIRTUAL)
        return self.sums.summed(self.trained)


def gradients_of(part: int) -> list[Any]:
    drawn = np.random.default_rng(part)
    return [tf.constant(drawn.standard_normal(shape).astype(np.float32) * 10.0**part) for shape in ((3, 2), (2,))]


def run(size: int, give: Callable[[int], list[Any]] = gradients_of, steps: int = 2, breaks: bool = False) -> list[Any]:
    ring = SumRing(size, breaks)
    members = [Member(ring) for _ in range(size)]
    found: dict[int, Any] = {}

    def train(rank: int) -> None:
        member = members[rank]
        parts = range(rank * VIRTUAL // size, (rank + 1) * VIRTUAL // size)
        gradients = [member.step(parts, give) for _ in range(steps)][-1]
        values = [None if one is None else one.numpy() for one in (*gradients, member.mean, member.count)]
        found[rank] = [*values, member.seat.voided, sorted(member.scales.exponents.items())]

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(size)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    first = found[0]
    assert len(found) == size
    assert all(str(found[rank]) == str(first) for rank in range(size))
    return list(first)


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    return run(1)


@pytest.mark.parametrize("size", [2, 3, 6])
def test_any_number_of_workers_gives_the_same_bits(alone: list[Any], size: int) -> None:
    found = run(size)
    assert [np.asarray(one).tobytes() for one in found[:4]] == [np.asarray(one).tobytes() for one in alone[:4]]
    assert found[4:] == alone[4:]


def test_the_sum_is_the_mean_of_what_parts_gave(alone: list[Any]) -> None:
    expected = np.mean([gradients_of(part)[0].numpy() for part in range(VIRTUAL)], axis=0)
    assert np.allclose(alone[0], expected, atol=2.0**-18 * 10.0**5)
    assert alone[2] == pytest.approx([0.5 + 2 * 0.25], abs=1e-5)  # the mean move, twice
    assert alone[3] == 9  # each part counts one, from the step's start
    assert not alone[4]


@pytest.mark.parametrize(("value", "shown"), [(np.nan, np.isnan), (np.inf, np.isinf)])
def test_what_is_not_finite_anywhere_arrives_as_such(value: float, shown: Callable[[Any], Any]) -> None:
    def give(part: int) -> list[Any]:
        return [tf.fill((3, 2), value if part == 4 else 1.0), tf.ones(2)]

    found = run(2, give)
    assert shown(found[0]).all()
    assert found[1].tolist() == [1.0, 1.0]


def test_a_variable_without_a_gradient_anywhere_has_none() -> None:
    assert run(2, lambda part: [tf.ones((3, 2)), None])[1] is None


def test_a_gradient_of_some_parts_is_zero_in_the_others() -> None:
    found = run(3, lambda part: [tf.ones((3, 2)), tf.fill((2,), 3.0) if part == 1 else None])
    assert found[1].tolist() == [0.5, 0.5]


def test_parts_weigh_as_much_as_they_have_samples() -> None:
    member = Member(SumRing(1))
    again = True
    while again:
        member.sums.begin(member.scales, VIRTUAL)
        for part, weight in ((0, 1.5), (1, 4.5), (2, 0.0)):  # the last are stand-ins
            member.sums.begin_part(part)
            value = float(part + 1) if weight else np.nan  # stand-ins may be anything
            member.sums.given.add([tf.fill((3, 2), value), tf.ones(2)], member.trained, 1)
            member.sums.take(weight, digest=False)
        again = member.sums.reduce(VIRTUAL)
    assert member.sums.summed(member.trained)[0].numpy() == pytest.approx((1.5 * 1 + 4.5 * 2) / VIRTUAL)
    before = member.sums._total.copy()
    member.sums.begin(member.scales, VIRTUAL)
    member.sums.begin_part(0)
    member.sums.given.add(gradients_of(0), member.trained, 1)
    member.sums.take(0.0, digest=False)
    member.sums.reduce(VIRTUAL)  # in another worker's sum nothing of the step before may be
    assert before[:8].any()
    assert not member.sums._total[:8].any()


def test_a_ring_that_breaks_voids_the_step() -> None:
    member = Member(SumRing(1))
    member.step(range(VIRTUAL), gradients_of)
    member.sums._ring, member.sums._add_up = (broken := SumRing(2, breaks=True)), broken.sum  # type: ignore[assignment]
    gradients = member.step(range(3), gradients_of)
    assert "a peer is gone" in member.seat.voided
    assert not any(one.numpy().any() for one in gradients)
    assert member.reducer.average(gradients, member.trained) is None


@pytest.mark.parametrize(
    ("gradient", "told"),
    [
        (tf.IndexedSlices(tf.ones((1, 2)), [0], (3, 2)), "has a sparse gradient"),
        (tf.ones((3, 2), tf.float64), "has a float64 gradient"),
    ],
)
def test_what_cannot_be_added_up_is_refused(gradient: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Member(SumRing(1)).step([0], lambda _: [gradient, None])


def test_what_a_script_forgets_is_told() -> None:
    member = Member(SumRing(1))
    with pytest.raises(UsageError, match=r"call edl\.add_gradients"):
        member.step([0], lambda _: [None, None])
    with pytest.raises(UsageError, match=r"apply edl\.summed_gradients"):
        member.reducer.average(gradients_of(0), member.trained)
    with pytest.raises(UsageError, match=r"take a tf\.GradientTape"):
        member.reducer.average_of_tape(gradients_of(0), member.trained)
    member.sums.given.add([tf.ones(1)], [tf.Variable([1.0])], 1)
    with pytest.raises(UsageError, match="give its model"):
        member.sums.take(1.0, digest=False)
    with pytest.raises(UsageError, match="2 gradients of 1 variables"):
        GivenGradients().add(gradients_of(0), member.trained[:1], 1)
    with pytest.raises(UsageError, match=r"inside of a tf\.function"):
        tf.function(lambda: GivenGradients().add(gradients_of(0), member.trained, 1), autograph=False)()
    with pytest.raises(UsageError, match="not the same in each step"):
        tf.function(lambda: member.sums.begin(member.scales, VIRTUAL), autograph=False)()


def test_an_update_in_a_function_asks_whether_the_step_is_summed() -> None:
    member = Member(SumRing(1))
    update = tf.function(lambda gradients: member.reducer.average(gradients, member.trained), autograph=False)
    with pytest.raises(tf.errors.OpError, match=r"apply edl\.summed_gradients"):
        update(gradients_of(0))
    gradients = member.step(range(VIRTUAL), gradients_of)
    assert update(gradients)[0].numpy().tolist() == gradients[0].numpy().tolist()
    member.seat.voided = "a peer is gone"
    with pytest.raises(tf.errors.OpError, match="Horovod's ring has broken: this step is void"):
        update(gradients)


def test_without_virtual_workers_gradients_of_parts_add_up_in_their_own_step() -> None:
    given, variable = GivenGradients(), tf.Variable([1.0])
    given.add([tf.constant([5.0])], [variable], 1)
    for part in (1.0, 2.0):
        given.add([tf.constant([part])], [variable], 2)
    [total] = given.take().values()
    assert total.numpy().tolist() == [3.0]
    assert not given.take()


# --------------------------------------------------------------------------------------------------- random numbers


@pytest.fixture
def seeded() -> Iterator[SeededNumbers]:
    before, generator = random_seed.get_seed, stateful_random_ops.global_generator
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.5), keras.layers.Dropout(0.5)])
    numbers = SeededNumbers(lambda: [model])
    numbers.model = model  # type: ignore[attr-defined]
    yield numbers
    random_seed.get_seed, stateful_random_ops.global_generator = before, generator


def draws(numbers: Any, seed: int) -> list[bytes]:
    numbers.begin_with(seed)
    traced = tf.function(lambda: numbers.model(tf.ones((1, 8)), training=True))
    found = [tf.random.normal([2]), tf.random.uniform([2], seed=5), keras.random.normal([2]), traced()]
    found += [numbers.model(tf.ones((1, 8)), training=True), tf.random.get_global_generator().normal([2])]
    return [np.asarray(one).tobytes() for one in found]


def test_numbers_follow_from_the_seed_though_it_comes_again(seeded: SeededNumbers) -> None:
    tf.random.get_global_generator()
    keras.random.normal([2])
    first, other = draws(seeded, 11), draws(seeded, 12)
    assert all(one != two for one, two in zip(first, other, strict=True))
    assert draws(seeded, 11) == first
    assert draws(seeded, 12) == other


def test_layers_draw_different_numbers_by_one_seed(seeded: SeededNumbers) -> None:
    seeded.begin_with(11)
    states = [layer.seed_generator.state.numpy().tolist() for layer in seeded.model.layers]  # type: ignore[attr-defined]
    assert states[0] != states[1]


def test_functions_whose_numbers_depend_on_the_past_are_refused(seeded: SeededNumbers) -> None:
    with pytest.raises(UsageError, match="draws random numbers by an operation"):
        tf.function(lambda: tf.random.normal([2]), autograph=False)()
