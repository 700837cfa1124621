"""Fingerprints of torch's tensors: as those of the same bytes anywhere, and of all that training goes on by."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from edl.core.worker.digest import ROW, rows
from edl.torch import torch_fingerprints as module
from edl.torch.torch_fingerprints import STRETCH, cut, device_rows, fingerprints, fingerprints_begun


@pytest.mark.parametrize("size", [1, 8, 12, 8 * ROW, 8 * ROW + 3, 8 * STRETCH + 8 * ROW + 9])
def test_on_a_device_the_sums_are_the_same(size: int) -> None:
    data = np.frombuffer(np.random.default_rng(size).bytes(size + 1), np.uint8).copy()
    tensor = torch.from_numpy(data)[1:]  # not on the border of a word
    found = device_rows(tensor).numpy().tobytes() + b"of the next one"
    assert cut(found, size) == (rows(data[1:]), b"of the next one")


def test_every_kind_of_tensor_has_one() -> None:
    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.complex64]
    leaves = [("t", torch.ones(3, 2).to(kind)) for kind in kinds]
    leaves += [
        ("scalar", torch.tensor(3.0)),
        ("empty", torch.empty(0)),
        ("parameter", torch.nn.Parameter(torch.ones(2))),
    ]
    found = fingerprints(leaves)
    assert len({one.digest for one in found}) == len(leaves)


def test_how_a_tensor_lies_does_not_count() -> None:
    """A newcomer's momentum may lie otherwise than that of the worker it has it from."""
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    last = image.to(memory_format=torch.channels_last)
    assert last.stride() != image.stride()
    assert fingerprints([("x", image)]) == fingerprints([("x", last)])


def test_what_cannot_be_compared_is_left_out() -> None:
    found = fingerprints([("a", object()), ("b", np.float64(0.5)), ("c", torch.eye(2).to_sparse()), ("d", 0.5)])
    assert [one.name for one in found] == ["b", "d"]
    assert found[0].digest == found[1].digest  # numbers of numpy travel as plain ones


def test_what_is_read_beside_is_the_same_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    still = [("lr", 0.1), ("weight", torch.arange(64.0)), ("x", object()), ("state of weight", torch.ones(64))]
    rest = [("ema", torch.zeros(64)), ("number", 7)]
    assert fingerprints_begun(still, rest) is None, "it is small"
    monkeypatch.setattr(module, "LONG_BYTES", 512)
    may_read = threading.Event()
    read: list[list[str]] = []

    def noted(leaves: Iterable[tuple[str, Any]]) -> Any:
        leaves = list(leaves)
        if threading.current_thread() is not threading.main_thread():
            assert may_read.wait(20.0)
        read.append([name for name, _ in leaves])
        return fingerprints(leaves)

    monkeypatch.setattr(module, "fingerprints", noted)
    begun = fingerprints_begun(still, rest)
    assert begun is not None
    assert read == [["lr", "x", "ema", "number"]]  # by then all that a script may change
    threading.Timer(0.1, may_read.set).start()
    assert sorted(begun(), key=str) == sorted(fingerprints([*still, *rest]), key=str)
    assert read[1:] == [["weight", "state of weight"]]


def test_what_fails_beside_is_raised_where_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_BYTES", 1)
    monkeypatch.setattr("edl.core.worker.digest.rows", lambda contents: (_ for _ in ()).throw(MemoryError("no room")))
    begun = fingerprints_begun([("weight", torch.ones(1))], [])
    assert begun is not None
    with pytest.raises(MemoryError, match="no room"):
        begun()
