"""Shuffle 0..total-1 by (seed, epoch) without storing the shuffle: which sample stands at a position.

Owns: the shuffle, equal on all machines and in all versions (golden values are pinned in its test). It is for training,
not for secrets. Does not own: which worker trains which positions (`edl.core.data.sample_ledger`).

Few samples are sorted by a keyed 64-bit hash of their number. Many go through a Feistel network on pairs (left, right)
with left < ROWS and right < COLUMNS: each round adds to one side a keyed hash of the other, modulo that side's size,
which any round can take back; so the whole is a bijection of ROWS * COLUMNS numbers (Black and Rogaway, "Ciphers with
arbitrary finite domains", 2002). That is barely more than `total`; a number beyond walks on until it is inside.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from edl.protocol.data_nouns import DataSpec, Range

SORTED_BELOW = 4096  # so many are shuffled perfectly and kept: 32 KiB; a network is a poor shuffle of few
ROUNDS = 6
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # odd, near 2**64 / golden ratio: the increment of splitmix64

Words = NDArray[np.uint64]


def samples_at(spec: DataSpec, part: Range) -> NDArray[np.int64]:
    """Return the ids of the samples at the positions of `part`, in order."""
    if spec.shards:  # of a stream, a place in all epochs
        return np.arange(part.start, part.stop, dtype=np.int64) + part.epoch * spec.total
    if not spec.shuffle:
        return np.arange(part.start, part.stop, dtype=np.int64)
    if spec.total < SORTED_BELOW:
        return _sorted_by_hash(spec.total, spec.seed, part.epoch)[part.start : part.stop].copy()
    positions = np.arange(part.start, part.stop, dtype=np.uint64)
    return _through_network(spec.total, _round_keys(spec.seed, part.epoch), positions).astype(np.int64)


@lru_cache(maxsize=8)
def _sorted_by_hash(total: int, seed: int, epoch: int) -> NDArray[np.int64]:
    hashes = _mixed(np.arange(total, dtype=np.uint64) ^ np.uint64(_round_keys(seed, epoch)[0]))
    return np.argsort(hashes).astype(np.int64)  # `_mixed` is a bijection: no two hashes are equal


def _through_network(total: int, keys: tuple[int, ...], numbers: Words) -> Words:
    rows = isqrt(total - 1) + 1
    columns = -(-total // rows)
    numbers = _one_pass(rows, columns, keys, numbers)
    while (outside := np.flatnonzero(numbers >= np.uint64(total))).size:
        numbers[outside] = _one_pass(rows, columns, keys, numbers[outside])
    return numbers


def _one_pass(rows: int, columns: int, keys: tuple[int, ...], numbers: Words) -> Words:
    left: Words = numbers // np.uint64(columns)
    right: Words = numbers % np.uint64(columns)
    for even, odd in zip(keys[0::2], keys[1::2], strict=True):
        left = (left + _below(rows, even, right)) % np.uint64(rows)
        right = (right + _below(columns, odd, left)) % np.uint64(columns)
    return left * np.uint64(columns) + right


def _below(bound: int, key: int, words: Words) -> Words:
    """Return a keyed hash of each word, spread over 0..bound-1; `bound` is at most 2**32."""
    return ((_mixed(words ^ np.uint64(key)) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)


def _mixed(words: Words) -> Words:
    """Apply the finalizer of splitmix64 to arrays: a bijection of 64-bit words in which each bit depends on all."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    state = 0
    for word in (seed & MASK, (seed >> 64) & MASK, epoch & MASK):
        state = _mixed_int(state ^ word)
    return tuple(_mixed_int(state + number * GOLDEN) for number in range(1, ROUNDS + 1))


def _mixed_int(word: int) -> int:
    """Return `_mixed` of one word after an increment, so that zero is as good a seed as any."""
    word = (word + GOLDEN) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)
