"""Whether there are two copies of Horovod's library: without Horovod, and without a library."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from edl.collectives import horovod_libraries
from edl.collectives.horovod_libraries import COPIES, HOROVODS, OTHER_WAYS, HorovodPython

NAMES = [b"HorovodAllreduce", b"HorovodSize"]
LIBRARY = b"\0HorovodAllreduce\0HorovodAllreduceOp\0_ZN7HorovodAllreduceE\0HorovodSize\0the HorovodSize of it\0"


class Call:
    """A function of a library."""

    restype: Any = None

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, *_: Any) -> Any:
        return self.answer


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[bytes]]:
    """What copies of a library have in them: of one with these contents, and turns of this edl or of another."""
    monkeypatch.setattr(horovod_libraries, "turns_of", lambda _: tmp_path)
    calls = SimpleNamespace(horovod_is_initialized=lambda: False)
    native: Any = SimpleNamespace(path="libhorovod.so", calls=calls)
    operations = SimpleNamespace(tf=SimpleNamespace(__version__="2"))

    def found(contents: bytes, **more: Any) -> list[bytes]:
        names = Call(b" ".join(NAMES))
        turns = SimpleNamespace(
            _name="_turns.so", edl_operations=names, edl_take_turns=Call(len(NAMES)), edl_turn_to=Call(None), **more
        )
        copies: list[bytes] = []
        monkeypatch.setattr(ctypes, "CDLL", lambda _: turns)
        monkeypatch.setattr(horovod_libraries, "copy_of", lambda _, rename: copies.append(rename(contents)))
        assert len(horovod_libraries.of_tensorflow(operations, native)) == len(COPIES)
        return copies

    return found


def test_operations_of_a_copy_have_names_of_their_own(renamed: Callable[..., list[bytes]]) -> None:
    contents = LIBRARY + b"HorovodAllreduce\0"
    for prefix, copy in zip(COPIES, renamed(contents, edl_allreduce=None), strict=True):
        new = prefix.encode()
        assert copy == contents.replace(b"\0HorovodAllreduce\0", b"\0" + new + b"Allreduce\0").replace(
            b"\0HorovodSize\0", b"\0" + new + b"Size\0"
        )


@pytest.mark.parametrize(
    "contents",
    [
        b"\0HorovodAllreduce\0",  # the other one may be anywhere
        LIBRARY + b"the tail of it is HorovodSize\0",  # which the compiler may have taken for the name itself
        LIBRARY + b"XHorovodSize\0",
    ],
)
def test_a_library_whose_names_are_elsewhere_is_not_copied(
    contents: bytes, renamed: Callable[..., list[bytes]]
) -> None:
    with pytest.raises(ImportError, match="not where they are expected"):
        renamed(contents, edl_allreduce=None)


def test_what_was_built_for_an_edl_before_this_one_is_not_used(renamed: Callable[..., list[bytes]]) -> None:
    """Its worker could not go through the names of a ring, and all others would wait for that."""
    with pytest.raises(ImportError, match=r"^_turns.so is of another edl than this: scripts/setup builds it$"):
        renamed(LIBRARY)


def test_names_stay_as_long_as_they_are() -> None:
    assert {len(prefix) for prefix in COPIES} == {len(HOROVODS)}
    assert not any(prefix.startswith(HOROVODS) for prefix in COPIES)


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """A Horovod of nothing but its basics."""
    built = {f"horovod_{way}_built": lambda: False for way in OTHER_WAYS}
    calls = SimpleNamespace(_name="no library", **built)
    basics = SimpleNamespace(MPI_LIB_CTYPES=calls)
    name = f"horovod_of_{request.node.name}"
    for module, content in ((name, {}), (f"{name}.mpi_ops", {"_basics": basics})):
        made = ModuleType(module)
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, module, made)
    guard = SimpleNamespace(active=True, whole=True)
    monkeypatch.setattr(horovod_libraries, "Guard", lambda path: guard)
    monkeypatch.setattr(horovod_libraries, "PAIRS", {name: lambda operations, native: [native, native]})
    return SimpleNamespace(name=name, basics=basics, calls=calls, guard=guard)


def test_there_are_two_of_a_horovod_that_has_gloo_alone(monkeypatch: pytest.MonkeyPatch, horovod: Any) -> None:
    pair = [SimpleNamespace(native=SimpleNamespace(calls=calls)) for calls in ("first", "second")]
    monkeypatch.setattr(horovod_libraries, "PAIRS", {horovod.name: lambda operations, native: pair})
    assert HorovodPython(horovod.name).libraries == pair
    assert horovod.basics.MPI_LIB_CTYPES == "first"


def test_there_is_one_of_a_horovod_that_has_more(caplog: pytest.LogCaptureFixture, horovod: Any) -> None:
    horovod.calls.horovod_nccl_built = lambda: True
    with caplog.at_level(logging.DEBUG, "edl"):
        (library,) = HorovodPython(horovod.name).libraries
    assert library.native.path == "no library"
    assert "no ring is formed beside one that stands: Horovod was built with nccl" in caplog.text


@pytest.mark.parametrize(("way", "number"), [("nccl", 2), ("cuda", 2), ("mpi", 1)])
def test_there_are_two_of_a_horovod_with_what_was_tried_for_its_framework(
    monkeypatch: pytest.MonkeyPatch, horovod: Any, way: str, number: int
) -> None:
    monkeypatch.setattr(horovod_libraries, "TRIED", {horovod.name: horovod_libraries.TRIED["horovod.torch"]})
    pair = [SimpleNamespace(native=SimpleNamespace(calls=calls)) for calls in ("first", "second")]
    monkeypatch.setattr(horovod_libraries, "PAIRS", {horovod.name: lambda operations, native: pair})
    setattr(horovod.calls, f"horovod_{way}_built", lambda: True)
    assert len(HorovodPython(horovod.name).libraries) == number


def test_there_is_one_where_it_is_not_guarded(caplog: pytest.LogCaptureFixture, horovod: Any) -> None:
    horovod.guard.active = horovod.guard.whole = False
    with caplog.at_level(logging.DEBUG, "edl"):
        assert len(HorovodPython(horovod.name).libraries) == 1
    assert "no guard around Horovod" in caplog.text
