"""The sums of `edl.core.worker.digest` by numpy; `_digest.c` is the same in C."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

HALF: Final = 32  # bits
MASK: Final = 2**64 - 1
AT_ONCE: Final = 8  # rows whose upper halves are worked out at a time, within the caches

Words = NDArray[np.uint64]


def sums_of_rows(contents: NDArray[np.uint8], of_words: Words, of_halves: Words, /) -> bytes:
    """Return for each row, as long as the weights, the sum of its words and of their upper halves, each times its
    weight, in 8 bytes; then the bytes that do not fill a word.
    """
    end, chunk = contents.size // 8 * 8, AT_ONCE * of_words.size
    words = contents[:end].view(np.uint64)
    found = [_of_chunk(words[begin : begin + chunk], of_words, of_halves) for begin in range(0, words.size, chunk)]
    return b"".join([*found, contents[end:].tobytes()])


def _of_chunk(words: Words, of_words: Words, of_halves: Words) -> bytes:
    row, halves = of_words.size, words >> np.uint64(HALF)
    whole = words.size // row * row
    found = words[:whole].reshape(-1, row) @ of_words + halves[:whole].reshape(-1, row) @ of_halves
    return found.tobytes() + _of_part(words[whole:], halves[whole:], of_words, of_halves)


def _of_part(words: Words, halves: Words, of_words: Words, of_halves: Words) -> bytes:
    if not words.size:
        return b""
    found = int(words @ of_words[: words.size]) + int(halves @ of_halves[: words.size])
    return (found & MASK).to_bytes(8, "little")
