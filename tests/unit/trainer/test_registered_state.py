"""What `edl.register` takes, and what becomes of it at another worker."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from edl.errors import UsageError
from edl.protocol.assignment import Place
from edl.trainer.registered_state import STANDING, RegisteredState
from edl.trainer.value_tree import Arrays, Destination, Form, TensorPart, as_bytes


class Weight(np.ndarray[Any, Any]):
    """The tensors of a framework that these tests make up."""


class Net:
    """Its modules: tensors by name, changed in place."""

    def __init__(self, **tensors: Any) -> None:
        self.tensors = {name: tensor.view(Weight) for name, tensor in tensors.items()}


class Nets:
    """The sort of `Net`."""

    def is_of(self, form: Form) -> bool:
        return False

    def form(self, value: object) -> Form | None:
        return Arrays().form(value) if isinstance(value, Weight) else None

    def contents(self, value: Any) -> Any:
        return as_bytes(value)

    def place(self, form: Form, mine: object) -> Destination:
        return Destination(self.contents(mine), lambda: mine)

    def parts(self, value: object) -> Sequence[TensorPart] | None:
        if not isinstance(value, Net):
            return None
        return [TensorPart(name, tensor, name.startswith("mean")) for name, tensor in value.tensors.items()]


class Wire:
    """The framework and the ring of two workers, one after the other: what the root says is heard later."""

    def __init__(self) -> None:
        self.rank, self.heads, self.bodies = 0, list[bytes](), list[bytes]()

    @property
    def ring(self) -> Any:
        return self

    @property
    def place(self) -> Place:
        return Place(3, self.rank, 2, f"w{self.rank}")

    def broadcast(self, what: Any, root: int) -> Any:
        if isinstance(what, bytes):
            self.heads.append(what)
        elif what is None:
            return self.heads.pop(0)
        elif self.rank == root:
            self.bodies.append(b"".join(one.tobytes() for one in what))
        else:
            body = self.bodies.pop(0)
            assert len(body) == sum(one.nbytes for one in what)
            for one in what:
                one[...], body = np.frombuffer(body[: one.nbytes], np.uint8), body[one.nbytes :]
        return 0


def send(root: RegisteredState, newcomer: RegisteredState, statistics: bool = False) -> None:
    wire: Any = Wire()
    for wire.rank, extras in enumerate((root, newcomer)):
        if statistics:
            extras.synchronize_statistics(wire, 0)
        else:
            extras.synchronize(wire, 0, is_root=wire.rank == 0)
    assert not wire.heads
    assert not wire.bodies


def having(values: dict[str, Any]) -> RegisteredState:
    extras = RegisteredState(Nets())
    extras.add(values)
    return extras


def sent(there: Any, here: Any = None) -> Any:
    """What `here` becomes at a newcomer, when the root has `there`."""
    newcomer = having({"x": here})
    send(having({"x": there}), newcomer)
    return newcomer.values["x"]


class Point(NamedTuple):
    x: int
    y: Any


class Scheduler:
    """What has a state; with an array in it, as optimizers have."""

    def __init__(self, steps: int) -> None:
        self.steps, self.slot = steps, np.full(3, steps)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "slot": self.slot, "of": (self.steps, [None])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["steps"] < 0:
            raise ValueError("steps must not be negative")
        self.steps, self.slot = state["steps"], state["slot"]


NESTED = {
    "plain": [None, True, -3, 2**63, -(2**100), 1.5, float("inf"), "text", b"bytes"],
    ("a", 1): (1, (2, [3]), {"deep": ()}),
    3: {4, 5},
    "window": deque([1, 2], maxlen=4),
    "point": [Point(1, (2,))],
    "random": random.Random(3).getstate(),
    "generator": np.random.default_rng(3).bit_generator.state,
}


def test_nested_values_arrive_as_what_they_were() -> None:
    arrived = sent(NESTED)
    assert arrived == {**NESTED, "point": [(1, (2,))]}
    assert isinstance(arrived["window"], deque)
    for one, other in zip(arrived["plain"], NESTED["plain"], strict=True):
        assert type(one) is type(other)


def test_containers_stay_those_that_the_script_knows() -> None:
    here = {"list": [9], "ordered": OrderedDict(a=1), "counts": defaultdict(int), "window": deque([7], maxlen=2)}
    inner = dict(here)
    there = {"list": [1, [2]], "ordered": {"b": 2}, "counts": {"c": 3}, "window": [1, 2, 3], "set": {1}}
    arrived = sent({**there, "window": deque(there["window"])}, here)
    assert arrived is here
    assert all(here[name] is one for name, one in inner.items())
    assert here == {**there, "window": deque([2, 3], maxlen=2)}
    assert here["counts"]["never seen"] == 0


class Made(dict[str, Any]):
    """As a library's state is: its parts are made anew whenever one is asked for."""

    replaced = True

    def get(self, _name: str, _default: Any = None) -> Any:
        raise AssertionError("nothing is put into a part of it")


def test_a_value_that_is_replaced_whole_is_asked_for_no_part_of_it() -> None:
    here = Made(a=1, b=[2])
    assert sent({"a": 3, "b": [4]}, here) == {"a": 3, "b": [4]} and here == {"a": 1, "b": [2]}
    scheduler = Scheduler(3)
    assert having({"x": [scheduler]}).compared() and not having({"x": Made(a=scheduler)}).compared()


def test_a_named_tuple_stays_one() -> None:
    assert sent(Point(1, [2]), Point(0, [])) == Point(1, [2])
    assert isinstance(sent(Point(1, [2]), Point(0, [])), Point)


@pytest.mark.parametrize(
    "there",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.array(3.5),
        np.zeros((0, 4)),
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12)[::-2],
        np.array(["text", "é"]),
        np.array([1 + 2j], np.complex64),
        np.array(["2020-01-02"], "M8[D]"),
        np.array([(1, (2.0, 3.0))], [("a", ">i4"), ("b", "<f4", (2,))]),
        np.array([True, False]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_arrive_in_place_where_they_fit(there: Any) -> None:
    fresh = sent(there)
    assert fresh.dtype == there.dtype
    assert fresh.shape == there.shape
    assert np.array_equal(fresh, there)
    for here in (np.zeros(there.shape, there.dtype), np.zeros((*there.shape, 2), there.dtype)[..., 0]):
        assert sent(there, here) is here
        assert np.array_equal(here, there)


def test_arrays_that_do_not_fit_are_replaced() -> None:
    there = np.arange(4)
    fixed = np.zeros(4, np.int64)
    fixed.flags.writeable = False
    for here in (np.zeros(5, np.int64), np.zeros(4, np.int32), fixed, 7, None):
        arrived = sent(there, here)
        assert arrived is not here
        assert np.array_equal(arrived, there)
        arrived[0] = 1  # it can be written to
    fixed.flags.writeable = True
    there.flags.writeable = False
    assert np.array_equal(sent(there), there)


@pytest.mark.parametrize("number", [np.float32(0.1), np.int64(-3), np.bool_(True), np.datetime64("2020-01-02")])
def test_single_numbers_keep_their_type(number: Any) -> None:
    arrived = sent({"x": [number]})["x"][0]
    assert (type(arrived), arrived) == (type(number), number)


class OneListTwice:
    """Has a list in two places until its first step, and clears what it has as it loads: torch's SequentialLR is so."""

    def __init__(self) -> None:
        self.rate = [1.0]
        self.inner = {"rate": self.rate}

    def step(self) -> None:
        self.rate = [2.0]

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.rate, "inner": self.inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rate = state["rate"]
        self.inner.clear()
        self.inner.update(state["inner"])


def test_what_has_a_list_in_two_places_loads_both() -> None:
    there, here = OneListTwice(), OneListTwice()
    there.step()
    sent({"schedule": there}, {"schedule": here})
    assert (here.rate, here.inner) == ([2.0], {"rate": [1.0]})


def test_a_module_arrives_in_place() -> None:
    there, here = (Net(a=np.full(3, value), mean=np.full(2, value)) for value in (1.0, 2.0))
    kept = here.tensors["a"]
    assert sent([there], [here])[0] is here
    assert kept.tolist() == [1.0] * 3
    assert here.tensors["mean"].tolist() == [1.0] * 2


def test_statistics_travel_alone_where_the_rest_is_equal() -> None:
    there, here = (Net(a=np.full(3, value), mean=np.full(2, value)) for value in (1.0, 2.0))
    send(having({"ema": there}), having({"ema": here}), statistics=True)
    assert here.tensors["a"].tolist() == [2.0] * 3
    assert here.tensors["mean"].tolist() == [1.0] * 2


def test_what_has_a_state_loads_it() -> None:
    here = Scheduler(2)
    slot = here.slot
    assert sent({"s": Scheduler(5)}, {"s": here})["s"] is here
    assert here.state_dict() == {"steps": 5, "slot": slot, "of": (5, [None])}
    assert slot.tolist() == [5, 5, 5]


def test_nothing_changes_before_all_is_there() -> None:
    """A ring that breaks meanwhile leaves at most contents behind, of which the seat knows."""
    root, here = having({"a": [1], "b": np.ones(3)}), having({"a": [0], "b": np.zeros(2)})
    wire: Any = Wire()
    root.synchronize(wire, 0, is_root=True)
    wire.rank, wire.bodies = 1, []
    with pytest.raises(IndexError):
        here.synchronize(wire, 0, is_root=False)
    assert (here.values["a"], here.values["b"].tolist()) == ([0], [0, 0])


@pytest.mark.parametrize(
    ("there", "here", "complaint"),
    [
        (Net(w=np.ones(3)), Net(w=np.ones(4)), r"w \(<f8\[4\]\) here, w \(<f8\[3\]\) there"),
        (Net(w=np.ones(3)), Net(w=np.ones(3), v=np.ones(1)), r"2 tensors here, 1 there"),
        (Net(w=np.ones(3)), 3, r"a int here, a module there"),
        (Scheduler(1), None, r"nothing here, what has a state_dict\(\) there"),
    ],
)
def test_what_differs_is_named_once(there: Any, here: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=rf"^edl.register\(x=...\)\['a'\] is not what it is on rank 0: {complaint}$"):
        sent({"a": there}, {"a": here})


def test_a_state_that_is_not_loaded_is_told() -> None:
    with pytest.raises(UsageError, match=r"edl.register\(x=...\): load_state_dict\(\) failed: ValueError: steps must"):
        sent(Scheduler(-1), Scheduler(1))


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (object(), r"edl.register\(x=...\): a object cannot travel to a newcomer; numbers, text, .* can"),
        ([{"f": max}], r"edl.register\(x=...\)\[0\]\['f'\]: a builtin_function_or_method cannot travel"),
        (Scheduler, r"edl.register\(x=...\): a type cannot travel"),
        (np.array([object()]), r"edl.register\(x=...\): an array of dtype object cannot travel .* numbers or text"),
        (np.ma.masked_array([1], [True]), r"a masked array cannot travel .* \.data and its \.mask"),
        ({object(): 1}, r"a dict with a object as a key cannot travel"),
    ],
)
def test_what_cannot_travel_is_refused_in_one_short_line(value: Any, complaint: str) -> None:
    registered = RegisteredState().add({"x": 0})
    with pytest.raises(UsageError, match=complaint) as refusal:
        RegisteredState().add({"x": value})
    assert len(str(refusal.value)) < 250
    assert "\n" not in str(refusal.value)
    if not isinstance(value, (list, dict)):
        with pytest.raises(UsageError):
            registered.x = value
        assert registered.x == 0


def test_what_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="a list that contains itself cannot travel"):
        RegisteredState().add({"x": endless})


class Schedule:
    """It has a state."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


def test_modules_tensors_and_states_are_compared_in_one_order_and_plain_values_are_the_scripts_own() -> None:
    nets = {"z": Net(a=np.ones(1), mean=np.ones(3)), "b": Net(a=np.zeros(2))}
    schedule = Schedule(rate=0.5, at=[1, 2], moments=np.zeros(4))
    extras = having({"seen": 3, "schedule": schedule, "confusion": np.ones(2), "nets": nets, "log": ["a"]})
    other = having({"nets": dict(reversed(nets.items())), "seen": 4, "schedule": schedule})
    names = [name for name, _ in extras.compared()]
    assert names == [
        "edl.register(nets=...)['b'].a",
        "edl.register(nets=...)['z'].a",
        "edl.register(schedule=...).state_dict()['at'][0]",
        "edl.register(schedule=...).state_dict()['at'][1]",
        "edl.register(schedule=...).state_dict()['moments']",
        "edl.register(schedule=...).state_dict()['rate']",
    ]
    assert [name for name, _ in other.compared()] == names


def test_what_was_registered_as_a_plain_value_stays_the_scripts_own_whatever_is_in_its_place_later() -> None:
    extras = RegisteredState(Nets())
    registered = extras.add(
        {"best": 9e9, "kept": {"loss": None, "net": Net(a=np.ones(1))}, "late": {}, "means": np.ones(2)}
    )
    extras.add({"schedule": Schedule()})
    names = ["edl.register(kept=...)['net'].a"]
    assert [name for name, _ in extras.compared()] == names
    registered.best = registered.means = Net(b=np.ones(1))
    registered.kept["loss"] = registered.late["ema"] = Net(c=np.ones(1))
    registered.schedule.values["rate"] = 0.5
    more = ["edl.register(late=...)['ema'].c", "edl.register(schedule=...).state_dict()['rate']"]
    assert [name for name, _ in extras.compared()] == [*names, *more]


def test_where_a_script_stands_is_not_compared() -> None:
    """What a callback holds is in it, tensors too: a newcomer knows of it what it was told."""
    extras = having({STANDING: {"fit": {"best": Net(a=np.ones(3))}}, "ema": Schedule(rate=0.5)})
    assert [name for name, _ in extras.compared()] == ["edl.register(ema=...).state_dict()['rate']"]


def test_where_a_script_stands_is_put_into_nothing_that_a_callback_holds() -> None:
    """The best weights of Keras's EarlyStopping, say, which are another epoch's on the worker that is copied."""
    held = np.ones(3)
    extras = having({STANDING: {"best_weights": [held]}})
    put_back = extras.remember(FakeCopies())  # type: ignore[arg-type]
    extras.values[STANDING] = {"best_weights": [held + 1]}
    put_back()
    assert extras.values[STANDING]["best_weights"][0].tolist() == [1.0, 1.0, 1.0]
    assert extras.values[STANDING]["best_weights"][0] is not held


class FakeCopies:
    """Of a framework, what a copy of registered arrays needs."""

    def copied(self, contents: Any) -> list[Any]:
        return [one.copy() for one in contents]

    def fill(self, contents: Any, copies: Any) -> None:
        for one, copy in zip(contents, copies, strict=True):
            np.copyto(one, copy)
