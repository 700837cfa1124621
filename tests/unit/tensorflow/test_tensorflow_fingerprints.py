"""Fingerprints of TensorFlow's variables that are looked at while the script computes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from edl.tensorflow import tf_tensors as module
from edl.tensorflow.tf_tensors import fingerprints, fingerprints_begun

WAIT_S = 20.0


@pytest.fixture
def may_look(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """All variables count as large, and the thread waits for this."""
    found = threading.Event()

    def waits(leaves: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            assert found.wait(WAIT_S)
        return fingerprints(leaves)

    monkeypatch.setattr(module, "LONG_BYTES", 1)
    monkeypatch.setattr(module, "fingerprints", waits)
    return found


def by_name(found: Any) -> Any:
    return sorted((one.name, one.digest) for one in found)


def state() -> list[tuple[str, Any]]:
    weight, slot = tf.Variable(tf.range(64.0)), tf.Variable(tf.ones((8, 8)))
    return [("weight", weight), ("rate", 0.1), ("slot", slot), ("own", np.arange(3)), ("x", object())]


def test_small_ones_are_not_worth_a_thread() -> None:
    growing = tf.Variable(tf.zeros(3), shape=tf.TensorShape(None))
    assert fingerprints_begun([*state(), ("growing", growing), ("words", tf.Variable(["a", "b"]))]) is None


def test_one_without_a_shape_of_its_own_is_looked_at_too(may_look: threading.Event) -> None:
    leaves = [
        *state(),
        ("growing", tf.Variable(tf.zeros(3), shape=tf.TensorShape(None))),
        ("words", tf.Variable(["a"])),
    ]
    may_look.set()
    begun = fingerprints_begun(leaves)
    assert begun is not None
    assert by_name(begun()) == by_name(fingerprints(leaves))


@pytest.mark.parametrize("traced", [False, True])
def test_an_update_that_comes_first_is_not_seen(may_look: threading.Event, traced: bool) -> None:
    leaves = state()
    weight, slot = leaves[0][1], leaves[2][1]

    def update() -> None:
        weight.assign_sub(tf.ones(64))
        slot.assign(tf.zeros((8, 8)))
        tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=1.0, delta=tf.ones(64))

    before = by_name(fingerprints(leaves))
    begun = fingerprints_begun(leaves)
    assert begun is not None
    (tf.function(update) if traced else update)()
    leaves[3][1][:] = 0  # what may change where it lies is looked at before
    may_look.set()
    assert by_name(begun()) == before
    assert by_name(fingerprints(leaves)) != before
    np.testing.assert_array_equal(weight, np.arange(64.0) - 2)


def test_a_row_that_is_changed_by_itself_is_not_seen(may_look: threading.Event) -> None:
    leaves = state()
    before = by_name(fingerprints(leaves))
    begun = fingerprints_begun(leaves)
    assert begun is not None
    leaves[2][1].scatter_sub(tf.IndexedSlices(tf.ones((1, 8)), tf.constant([3])))
    may_look.set()
    assert by_name(begun()) == before
