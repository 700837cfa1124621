"""64-bit digests of what must be equal on all workers (I15): the arithmetic, the same wherever it is done.

Owns: the weights, the digest of bytes in memory, of plain values and of a name with its contents. Does not own: what is
digested (the adapters), nor tensors that lie on a device (`edl.torch.torch_fingerprints` does the same sums there).

Bytes are read as words of 64 bits, `ROW` of them a row; the digest of a row is the sum of each word times an odd weight
of its position, and of its upper half times another one, modulo 2**64. So one flipped bit always changes it, and two
changes undo each other as seldom as chance has it: without the upper half twice, two flipped signs would always do.
It takes its time from memory: no copy of the bytes is made, and no table of them kept.

The sums are worked out in C (`_digest.c`) where edl was installed with a compiler, else by numpy (`sums_of_rows`),
which takes five times as long.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edl.core.worker.divergence_finder import STEPS, UPDATES
from edl.protocol.divergence_report import Fingerprint

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


try:
    from edl.core.worker._digest import sums_of_rows
except ImportError:
    from edl.core.worker.digest import sums_of_rows

ROW: Final = 4096  # words
SKETCHED: Final = 32  # so many fingerprints of a sketch stand for one thing each; as many more for all that follows
LONGEST: Final = 40  # characters of a value that people are told


def _weights(first: int) -> NDArray[np.uint64]:
    """Return odd numbers that look random: splitmix64, which is the same in every version of every library."""
    with np.errstate(over="ignore"):
        state = (np.arange(ROW, dtype=np.uint64) + np.uint64(first)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (state ^ (state >> np.uint64(31))) | np.uint64(1)


OF_WORDS: Final = _weights(1)
OF_HALVES: Final = _weights(1 + ROW)


def rows(contents: NDArray[np.uint8]) -> bytes:
    """Return the digest of each row of some contiguous bytes, and what is left of less than a word."""
    return sums_of_rows(contents, OF_WORDS, OF_HALVES)


def fingerprint(name: str, form: str, contents: bytes) -> Fingerprint:
    """Return an array's fingerprint from its type and shape, and its rows' digests. The name does not count."""
    return Fingerprint(name, _short(form.encode(), contents))


def fingerprint_of_array(name: str, array: NDArray[Any]) -> Fingerprint:
    contents = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return fingerprint(name, f"{array.dtype.str}{array.shape}", rows(contents))


def fingerprint_of_value(name: str, value: object) -> Fingerprint | None:
    """Return the fingerprint of None, a truth value, a number, text or bytes; None for any other value."""
    text = str(value)  # of a number of numpy's, which has fewer digits than the number of Python's that it becomes
    value = value.item() if isinstance(value, np.generic) else value  # which it is for a worker that has got it
    contents = _bytes_of(value)
    if contents is None:
        return None
    return Fingerprint(name, _short(type(value).__name__.encode(), contents), text if len(text) <= LONGEST else "")


def _bytes_of(value: object) -> bytes | None:
    match value:
        case None:
            return b""
        case float():
            return struct.pack("<d", value)  # nan is nan, and 0.0 is not -0.0
        case bool() | int() | str():
            return str(value).encode()
        case bytes() | bytearray():
            return bytes(value)
        case _:  # what is no plain value
            return None


def of_all(fingerprints: Sequence[Fingerprint]) -> int:
    return _short(b"", np.array([one.digest for one in fingerprints], np.uint64).tobytes())


def final(step: int, fingerprints: Sequence[Fingerprint], updates: int = 0) -> tuple[Fingerprint, ...]:
    """Return what a worker tells of its state at its script's end, after so many steps. `updates`: made since the last
    one, as by a script that adds gradients up over mini-batches.
    """
    counts = (fingerprint_of_value(STEPS, step), fingerprint_of_value(UPDATES, updates))
    return (*(one for one in counts if one is not None), *sketch(fingerprints))


def sketch(fingerprints: Sequence[Fingerprint]) -> tuple[Fingerprint, ...]:
    """Return a few fingerprints that differ where many do: the first, mostly hyper-parameters, and one per stretch."""
    first, rest = fingerprints[:SKETCHED], fingerprints[SKETCHED:]
    size = -(-len(rest) // SKETCHED) or 1
    return (*first, *(_together(rest[begin : begin + size]) for begin in range(0, len(rest), size)))


def _together(stretch: Sequence[Fingerprint]) -> Fingerprint:
    if len(stretch) == 1:
        return stretch[0]
    return Fingerprint(f"one of {stretch[0].name} to {stretch[-1].name}", of_all(stretch))


def leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the leaves of nested dicts, lists and tuples, each with its path.

    The order in which a dict was filled does not matter: a newcomer that received the dict's contents may have another
    order.
    """
    if isinstance(value, Mapping):
        items = sorted(((f"{path}[{key!r}]", item) for key, item in value.items()), key=lambda pair: pair[0])
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        return [(path, value)]
    return [leaf for inner, item in items for leaf in leaves(item, inner)]


def _short(form: bytes, contents: bytes) -> int:
    hashed = hashlib.blake2b(len(form).to_bytes(8, "little") + form, digest_size=8)
    hashed.update(contents)
    return int.from_bytes(hashed.digest(), "little")
