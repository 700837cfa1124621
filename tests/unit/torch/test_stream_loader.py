"""`edl.torch.loader` over streams: what is one, and what a DataLoader's own arguments mean for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from edl.errors import UsageError
from edl.sources.streams.elastic_stream import ElasticStream
from edl.torch.loader import ElasticDataLoader, stream_of


class Plain(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


class Placed(Plain):
    """As torchdata's."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state_dict: dict[str, int]) -> None: ...


def test_what_tells_its_place_is_a_stream():
    stream = ElasticStream(lambda shard: [1], shards=2)
    assert stream_of(stream) is stream
    found = stream_of(Placed())
    assert found is not None
    assert [*found] == [*range(9)]
    assert stream_of([1, 2]) is None


@pytest.mark.parametrize(
    ("dataset", "loading", "told"),
    [
        (Plain(), {}, r"is a Plain, which cannot tell its place.*give it state_dict\(\) and load_state_dict\(\)"),
        (Placed(), {"sampler": [1]}, "edl chooses the samples"),
        (Placed(), {"drop_last": True}, "nothing is dropped"),
        (Placed(), {"timeout": 5}, "--step-timeout"),
        (Placed(), {"batch_size": None}, "say how many items of the stream make a step of one worker"),
        (Placed(), {"worker_init_fn": print}, "a stream gives the same items whichever process reads them"),
    ],
)
def test_what_a_stream_cannot_be_is_one_line(dataset: Any, loading: dict[str, Any], told: str):
    with pytest.raises(UsageError, match=told) as error:
        ElasticDataLoader(dataset, **{"batch_size": 4, **loading})
    assert "\n" not in str(error.value)
