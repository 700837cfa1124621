"""Operators of streams against naive twins: what a list of all records gives, and what each place goes on with."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.sources.streams import elastic_stream
from edl.sources.streams.elastic_stream import ElasticStream
from edl.sources.streams.stream_operators import Barrier, contents_check

Twin = Callable[[list[Any], int], list[Any]]


def drawn(seed: int) -> tuple[ElasticStream, Callable[[int], list[Any]]]:
    """Draw a stream, and what a list of all records of a shard gives."""
    chance = random.Random(seed)
    corpus = [
        [[chance.randrange(1000) for _ in range(chance.choice((0, 1, 3, 40)))] for _ in range(chance.randint(0, 60))]
        for _ in range(3)
    ]
    stream, twins = ElasticStream(lambda shard: corpus[shard], shards=3, at_once=2), list[Twin]()
    for _ in range(chance.randint(0, 3)):
        kind = chance.choice(("map", "filter", "shuffle", "pack"))
        if kind == "map":
            stream = stream.map(doubled)
            twins.append(lambda records, _: [doubled(one) for one in records])
        elif kind == "filter":
            stream = stream.filter(odd)
            twins.append(lambda records, _: [one for one in records if odd(one)])
        elif kind == "shuffle":
            block, seeded = chance.randint(1, 9), chance.randint(0, 5)
            stream = stream.shuffle(block, seeded)
            twins.append(partial(shuffled, block=block, seed=seeded))
        else:
            length, eos = chance.randint(1, 30), chance.choice((None, 7))
            stream = stream.pack(length, eos=eos)
            twins.append(partial(packed, length=length, eos=eos))
    if chance.random() < 0.5:
        size = chance.randint(1, 5)
        stream = stream.batch(size)
        twins.append(partial(batched, size=size))

    def naive(shard: int) -> list[Any]:
        records: list[Any] = corpus[shard]
        for twin in twins:
            records = twin(records, shard)
        return records

    return stream, naive


def doubled(record: Any) -> Any:
    return np.asarray(record, np.int64) * 2


def odd(record: Any) -> bool:
    return bool(np.asarray(record, np.int64).sum() % 3)


def shuffled(records: list[Any], shard: int, block: int, seed: int) -> list[Any]:
    found = []
    for number, first in enumerate(range(0, len(records), block)):
        piece = records[first : first + block]
        random.Random(f"{seed} {shard} {number}").shuffle(piece)
        found += piece
    return found


def batched(records: list[Any], _: int, size: int) -> list[Any]:
    return [records[first : first + size] for first in range(0, len(records), size)]


def packed(records: list[Any], _: int, length: int, eos: int | None) -> list[Any]:
    tokens = [int(token) for record in records for token in [*record, *([] if eos is None else [eos])]]
    tokens += [eos or 0] * (-len(tokens) % length)
    return [tokens[first : first + length] for first in range(0, len(tokens), length)]


def plain(item: Any) -> Any:
    return (
        item.tolist()
        if isinstance(item, np.ndarray)
        else [plain(one) for one in item]
        if isinstance(item, list)
        else item
    )


def told(barrier: Barrier) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(barrier.parts))


def followed(flow: Iterator[Any]) -> tuple[list[Any], list[tuple[int, Any]]]:
    items, barriers = list[Any](), list[tuple[int, Any]]()
    for one in flow:
        if type(one) is Barrier:
            barriers.append((len(items), told(one)))
        else:
            items.append(plain(one))
    return items, barriers


@given(st.integers(0, 10**9), st.integers(1, 6))
@settings(deadline=None)
def test_each_place_goes_on_as_if_nothing_had_been(seed: int, every: int) -> None:
    stream, naive = drawn(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elastic_stream, "BLOCK", every)
        for shard in range(3):
            items, barriers = followed(stream.items(shard))
            assert items == plain(naive(shard))
            for index, place in barriers:
                goes_on(stream, shard, place, items[index:])


def goes_on(stream: ElasticStream, shard: int, place: Any, items: list[Any]) -> None:
    """From a place, and from each place that is found on the way from there."""
    found, barriers = followed(stream.items(shard, place))
    assert found == items, place
    for index, further in barriers:
        assert followed(stream.items(shard, further))[0] == items[index:], (place, further)


@given(st.integers(0, 10**9), st.integers(1, 6))
@settings(deadline=None)
def test_a_mixture_goes_on_at_each_place(seed: int, every: int) -> None:
    chance = random.Random(seed)
    streams = {name: (drawn(seed + number)[0], chance.choice((1, 1, 2, 9))) for number, name in enumerate("abc")}
    mixed = ElasticStream.mix(streams)
    if chance.random() < 0.5:
        mixed = mixed.shuffle(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elastic_stream, "BLOCK", every)
        there: list[Any] = []
        for shard in range(3):
            items, barriers = followed(mixed.items(shard))
            there += items
            for index, place in barriers:
                goes_on(mixed, shard, place, items[index:])
        assert sorted(map(repr, there)) == sorted(repr(plain(one)) for stream, _ in streams.values() for one in stream)


def test_a_mixture_keeps_its_proportion_at_each_place() -> None:
    web = ElasticStream(lambda _: [b"web"] * 9000, shards=2)
    code = ElasticStream(lambda _: [b"code"] * 1000, shards=4)
    mixed = [*ElasticStream.mix({"web": (web, 9), "code": (code, 1)}).items(0)]
    order = [one for one in mixed if type(one) is not Barrier]
    for first in range(0, 9000, 37):
        assert abs(order[first : first + 1000].count(b"code") - 100) <= 1


@pytest.mark.parametrize("boundaries", [False, True])
def test_packed_documents_keep_their_boundaries(boundaries: bool) -> None:
    documents = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11]]
    stream = ElasticStream(lambda _: documents, shards=1).pack(4, eos=0, pad=99, boundaries=boundaries)
    items = [*stream]
    if not boundaries:
        assert [one.tolist() for one in items] == [[1, 2, 3, 0], [4, 0, 5, 6], [7, 8, 9, 10], [11, 0, 99, 99]]
        return
    assert [one["document_ids"].tolist() for one in items] == [[0] * 4, [0, 0, 1, 1], [0] * 4, [0, 0, -1, -1]]
    assert [one["position_ids"].tolist() for one in items] == [[0, 1, 2, 3], [0, 1, 0, 1], [0, 1, 2, 3], [0, 1, 0, 0]]


def test_what_is_no_document_is_told() -> None:
    with pytest.raises(UsageError, match=r"a record is a str and no list of tokens: make one of it by \.map"):
        [*ElasticStream(lambda _: ["a text"], shards=1).pack(4)]
    with pytest.raises(UsageError, match=r"has no 'input_ids', it has \['text'\]: say key="):
        [*ElasticStream(lambda _: [{"text": "a"}], shards=1).pack(4)]


@given(st.recursive(st.integers() | st.text() | st.binary() | st.booleans(), st.lists, max_leaves=5))
def test_equal_contents_have_equal_checks(item: Any) -> None:
    assert contents_check(item) == contents_check(item if not isinstance(item, list) else [*item])
    assert contents_check({"a": item, "b": 1}) != contents_check({"a": item, "b": 2})


def test_arrays_of_objects_and_tensors_without_an_array_have_checks() -> None:
    torch = pytest.importorskip("torch")
    ones, others = (np.array(["".join(["a", str(number)]), None], dtype=object) for number in (1, 2))
    assert contents_check(ones) == contents_check(copy.deepcopy(ones)) != contents_check(others)
    half = torch.ones(3, dtype=torch.bfloat16)
    assert contents_check(half) == contents_check(half.clone()) != contents_check(2 * half)
    contents_check(torch.eye(3).to_sparse())


def test_other_contents_have_other_checks() -> None:
    items = [np.arange(9), np.arange(1, 10), b"ab", b"ba", "x", {"a": 1}, {"b": 1}, [1, 2], [2, 1], 5, None]
    assert len({contents_check(item) for item in items}) == len(items)
