"""The committed steps in the page: the same in Python and in C."""

from __future__ import annotations

import importlib
import importlib.util
from array import array
from typing import Any

import pytest

from edl.core.worker.next_move import NEVER
from edl.transport import shared_page as python
from edl.transport.shared_page import SharedPage

NATIVE = "edl.transport._count"


@pytest.fixture(params=["python", "native"])
def kind(request: pytest.FixtureRequest) -> type[python.StepCounter]:
    if request.param == "python":
        return python.StepCounter
    if importlib.util.find_spec(NATIVE) is None:
        pytest.skip("edl was installed without a compiler")
    return importlib.import_module(NATIVE).Count


@pytest.fixture
def words() -> memoryview:
    """A step of 0, and no attention asked for."""
    return memoryview(array("q", [0, NEVER]))


@pytest.fixture
def count(kind: type[python.StepCounter], words: memoryview) -> python.StepCounter:
    return kind(words[:1], words[1:])


def test_the_first_mini_batch_is_not_usual(count: python.StepCounter, words: memoryview) -> None:
    assert count.usual_until == 0
    assert not count.advance()
    assert list(words) == [0, NEVER]


def test_usual_mini_batches_are_counted_in_the_page(count: python.StepCounter, words: memoryview) -> None:
    count.usual_until = NEVER
    assert [count.advance() for _ in range(3)] == [True] * 3
    assert count.step == words[0] == 3


def test_an_unusual_one_is_left_to_others(count: python.StepCounter, words: memoryview) -> None:
    count.usual_until = 3
    assert [count.advance() for _ in range(4)] == [True, True, False, False]
    assert count.step == words[0] == 2


def test_so_is_one_at_which_the_daemon_asks_for_attention(count: python.StepCounter, words: memoryview) -> None:
    count.usual_until = NEVER
    words[1] = 3
    assert [count.advance() for _ in range(4)] == [True, True, False, False]
    words[1] = 0
    assert not count.advance()
    words[1] = NEVER
    assert count.advance()
    assert count.step == words[0] == 3


def test_it_goes_on_from_the_step_that_a_ring_agreed_on(count: python.StepCounter, words: memoryview) -> None:
    count.usual_until = 2**40 + 2
    count.step = 2**40
    assert [count.advance(), count.advance()] == [True, False]
    assert count.step == words[0] == 2**40 + 1


def test_a_step_is_a_number_that_fits(count: python.StepCounter, words: memoryview) -> None:
    for wrong, error in ((1.5, TypeError), ("1", TypeError), (2**63, (ValueError, OverflowError))):
        with pytest.raises(error):
            count.step = wrong  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        del count.step
    assert words[0] == 0


def test_a_page_stays_mapped_while_it_is_counted_in(kind: type[python.StepCounter]) -> None:
    page = SharedPage.unshared()
    count: Any = kind(page._words[8:9], page._words[16:17])
    with pytest.raises(BufferError):
        page.close()
    count.step = 5
    del count
    page.close()  # nothing is held any more


def test_the_page_takes_the_native_one_where_there_is_one() -> None:
    native = importlib.util.find_spec(NATIVE) is not None
    assert type(SharedPage.unshared().count()).__module__ == (NATIVE if native else python.__name__)


WRONG = [
    ((), TypeError),
    ((bytearray(8),), TypeError),
    ((1, bytearray(8)), TypeError),
    ((bytearray(8), None), TypeError),
    ((bytes(8), bytearray(8)), BufferError),
    ((bytearray(8), bytearray(16)), ValueError),
    ((memoryview(bytearray(16))[1:9], bytearray(8)), ValueError),
    ((memoryview(bytearray(16))[::2], bytearray(8)), BufferError),
]


@pytest.mark.parametrize(("arguments", "error"), WRONG)
def test_native_code_looks_at_what_it_is_given(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    native = pytest.importorskip(NATIVE)
    with pytest.raises(error):
        native.Count(*arguments)
    with pytest.raises(TypeError):
        native.Count(bytearray(8), bytearray(8), more=1)
    count = native.Count(bytearray(8), bytearray(8))
    for wrong in (1.5, "1", None):
        with pytest.raises(TypeError):
            count.usual_until = wrong
    with pytest.raises(TypeError):
        del count.usual_until
