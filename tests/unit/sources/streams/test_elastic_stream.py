"""`edl.sources.streams.elastic_stream`: what may be a shard, and what all workers must say alike."""

from __future__ import annotations

from typing import Any, cast

import pytest

from edl.errors import UsageError
from edl.sources.streams.elastic_stream import ElasticStream
from edl.sources.streams.stream_operators import Barrier


class Counting:
    """An iterable that tells its place, as Hugging Face's and torchdata's do."""

    def __init__(self, shard: int, length: int = 200) -> None:
        self.shard, self.length, self.next = shard, length, 0

    def __iter__(self):
        while self.next < self.length:
            self.next += 1
            yield self.shard * 1000 + self.next - 1

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state_dict):
        self.next = state_dict["next"]


def test_an_iterable_goes_on_by_its_own_state():
    stream = ElasticStream(Counting, shards=3)
    assert [*stream] == [shard * 1000 + number for shard in range(3) for number in range(200)]
    places = [one.parts for one in stream.items(1) if type(one) is Barrier]
    assert places == [({"next": number},) for number in (64, 128, 192)]
    assert next(stream.items(1, places[1])) == 1128


def test_shards_may_have_names():
    stream = ElasticStream(lambda name: [name.upper()], shards=["a", "b"])
    assert (stream.names, [*stream]) == (("a", "b"), ["A", "B"])


def test_a_single_iterable_is_one_shard():
    stream = ElasticStream(Counting(0, 70))
    assert [len([*stream]), len([*stream])] == [70, 70]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ElasticStream(lambda shard: iter([1]), shards=2).check(), "cannot tell its place.*state_dict"),
        (lambda: ElasticStream(iter([1])), "cannot tell its place.*give a sequence"),
        (lambda: ElasticStream(lambda shard: [1]), "say how many shards there are"),
        (lambda: ElasticStream(lambda shard: [1], shards=0), "shards is 0: it must be a whole number, at least 1"),
        (lambda: ElasticStream(lambda shard: [1], shards=[]), "there is no shard"),
        (lambda: ElasticStream(lambda shard: [1], shards=1, unreadable=cast("Any", "no")), 'it is "fail" or "skip"'),
        (lambda: ElasticStream(7), "source is a function that returns the records of a shard"),
        (lambda: ElasticStream(lambda shard: [1], shards=1).pack(0), "length is 0"),
        (lambda: ElasticStream.mix({}), "give {"),
        (lambda: ElasticStream.mix(cast("Any", {"a": 3})), "'a' is to be \\(a stream, a weight above 0\\)"),
    ],
)
def test_what_is_wrong_is_one_line(make, told):
    with pytest.raises(UsageError, match=told) as error:
        make()
    assert "\n" not in str(error.value)


def test_workers_that_say_something_else_are_told_apart():
    def of(*names: str) -> ElasticStream:
        return ElasticStream(lambda shard: [1], shards=list(names))

    streams = [of("a"), of("b"), of("a").shuffle(3), of("a").shuffle(3, 1), of("a").pack(4), of("a").pack(4, eos=1)]
    streams += [of("a").map(abs), of("a").filter(abs), ElasticStream.mix({"x": (of("a"), 1)})]
    assert len({one.fingerprint for one in streams}) == len(streams)
    assert of("/here/a").fingerprint == of("/there/a").fingerprint


def test_tokens_of_an_item():
    stream = ElasticStream(lambda shard: [[1]], shards=1)
    assert [stream.unit, stream.pack(512).unit, stream.pack(512).batch(4).unit] == [1, 512, 2048]
    assert ElasticStream.mix({"a": (stream.pack(8), 1)}).unit == 8
