"""Digests of arrays: whatever differs in one bit has another, wherever they are worked out."""

from __future__ import annotations

import math
import random
import struct

import numpy as np
import pytest

from edl.core.worker import digest
from edl.core.worker.digest import ROW, fingerprint_of_array, fingerprint_of_value, leaves, of_all, rows
from edl.protocol.divergence_report import Fingerprint

SIZES = (1, 3, 8, 20, 8 * ROW, 8 * ROW + 12, 8 * 9 * ROW + 8 * 5 + 1)  # bytes: parts of a word, of a row, of a chunk


def contents(size: int) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(size).bytes(size), np.uint8).copy()


def plainly(data: bytes) -> bytes:
    """The same digests, as the module's docstring has them."""

    def weights(first: int) -> list[int]:
        found = []
        for index in range(first, first + ROW):
            state = index * 0x9E3779B97F4A7C15 % 2**64
            state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
            found.append((state ^ (state >> 31)) | 1)
        return found

    of_words, of_halves = weights(1), weights(1 + ROW)
    words = [word for (word,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8])]
    sums = [
        sum(w * a + (w >> 32) * b for w, a, b in zip(words[at : at + ROW], of_words, of_halves, strict=False))
        for at in range(0, len(words), ROW)
    ]
    return b"".join((one % 2**64).to_bytes(8, "little") for one in sums) + data[len(words) * 8 :]


@pytest.mark.parametrize("size", SIZES)
def test_they_are_the_same_sums_on_every_machine(size: int) -> None:
    data = contents(size)
    assert rows(data) == plainly(data.tobytes())
    assert digest.sums_of_rows(data, digest.OF_WORDS, digest.OF_HALVES) == rows(data), "without a compiler"


@pytest.mark.parametrize("size", SIZES)
def test_a_flipped_bit_changes_them(size: int) -> None:
    data, source = contents(size), random.Random(size)
    before = fingerprint_of_array("x", data)
    for place in {0, size - 1, *(source.randrange(size) for _ in range(20))}:
        flipped = data.copy()
        flipped[place] ^= 1 << source.randrange(8)
        assert fingerprint_of_array("x", flipped) != before


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.int32, np.float16])
def test_signs_that_are_all_turned_do_not_undo_each_other(kind: type) -> None:
    """Modulo 2**64, the changes of two highest bits would, with any weights."""
    values = np.arange(1, 2 * ROW + 1).astype(kind)
    assert fingerprint_of_array("x", values) != fingerprint_of_array("x", -values)


def test_order_form_and_kind_of_zero_count() -> None:
    values = np.arange(6, dtype=np.float32)
    others: list[np.ndarray] = [
        values[::-1],
        values.reshape(2, 3),
        values.view(np.int32),
        values.astype(np.float64),
        np.append(values, np.float32(0)),
    ]
    digests = {fingerprint_of_array("x", other).digest for other in (values, *others)}
    assert len(digests) == 1 + len(others)
    zeros, negative = np.zeros(3, np.float32), -np.zeros(3, np.float32)
    assert fingerprint_of_array("x", zeros) != fingerprint_of_array("x", negative)


def test_nan_is_equal_to_the_same_nan() -> None:
    assert fingerprint_of_value("x", math.nan) == fingerprint_of_value("x", float("nan"))
    assert fingerprint_of_array("x", np.full(3, np.nan)) == fingerprint_of_array("x", np.full(3, np.nan))
    assert fingerprint_of_value("x", 0.0) != fingerprint_of_value("x", -0.0)


def test_an_array_that_does_not_lie_in_one_piece_has_the_digest_of_its_elements() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert fingerprint_of_array("x", values.T) == fingerprint_of_array("x", values.T.copy())


def test_plain_values_count_with_their_kind() -> None:
    values = [None, True, 1, 1.0, "1", b"1", "True", "", b""]
    digests = {found.digest for value in values if (found := fingerprint_of_value("x", value)) is not None}
    assert len(digests) == len(values)
    assert fingerprint_of_value("x", object()) is None


def test_the_order_in_which_a_dict_was_filled_does_not_count() -> None:
    one = {"b": [1, {"y": 2, "x": 3}], "a": (4,), 7: 5}
    other = {7: 5, "a": [4], "b": (1, {"x": 3, "y": 2})}
    assert leaves(one, "s") == leaves(other, "s")
    assert leaves(one, "s")[0] == ("s['a'][0]", 4)


def test_all_together_have_one_that_depends_on_each_and_on_their_order() -> None:
    some = [Fingerprint("a", 1), Fingerprint("b", 2)]
    assert of_all(some) == of_all([Fingerprint("x", 1), Fingerprint("y", 2)])  # names may be numbered otherwise
    assert len({of_all(some), of_all(some[::-1]), of_all(some[:1]), of_all([])}) == 4
