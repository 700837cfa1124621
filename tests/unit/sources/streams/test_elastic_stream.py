"""`edl.sources.streams.elastic_stream`: what may be a shard, and what all workers must say alike."""

from __future__ import annotations

from multiprocessing import Pipe
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


class Unlike(Counting):
    def __init__(self, shard: int) -> None:
        super().__init__(shard)
        self.open = iter(one for one in ())  # as a file that is open: no copy can be made of it


class Living(Counting):
    """An iterable that gives its own state away, and goes on changing it."""

    def __init__(self, shard: int) -> None:
        self.state = {"next": 0}

    def __iter__(self):
        while self.state["next"] < 200:
            self.state["next"] += 1
            yield self.state["next"] - 1

    def state_dict(self):
        return self.state

    def load_state_dict(self, state_dict):
        self.state = state_dict


class Telling(Counting):
    """An iterable that tells its place as it was told to."""

    def __init__(self, place: Any) -> None:
        super().__init__(0)
        self.place = place

    def state_dict(self):
        return self.place


class Late(Counting):
    """An iterable that counts a record once the next one is asked for."""

    def __iter__(self):
        while self.next < self.length:
            yield self.next
            self.next += 1


class Restarting(Counting):
    """An iterator that begins anew with each loop."""

    def __iter__(self):
        self.next = 0
        return self

    def __next__(self):
        if self.next == self.length:
            raise StopIteration
        self.next += 1
        return self.next


class Forgetting(Counting):
    def load_state_dict(self, state_dict):
        pass


class Anew(Counting):
    """An iterable that begins anew where it is set to the place behind its last record."""

    def load_state_dict(self, state_dict):
        self.next = state_dict["next"] % self.length


class Node:
    """An iterator that tells its place and is set to one as the nodes of torchdata.nodes are."""

    def __init__(self, shard: int, length: int = 200) -> None:
        self.shard, self.length, self.next = shard, length, -1

    def __iter__(self):
        return self

    def __next__(self):
        self.state_dict()
        if self.next == self.length:
            raise StopIteration
        self.next += 1
        return self.shard * 1000 + self.next - 1

    def reset(self, initial_state=None):
        self.next = 0 if initial_state is None else initial_state["next"]

    def state_dict(self):
        if self.next < 0:
            self.reset()
        return self.get_state()

    def get_state(self):
        return {"next": self.next}


class Loader(Counting):
    """What goes round a node there: it begins anew where it was at the end, and is not set to a place twice."""

    def __init__(self, shard: int) -> None:
        self.root = Node(shard)

    def __iter__(self):
        raise NotImplementedError

    def state_dict(self):
        raise NotImplementedError

    def load_state_dict(self, state_dict):
        raise NotImplementedError


class Unread(Counting):
    """An iterable whose storage is away for now."""

    def __iter__(self):
        raise OSError("away")


SAME = Counting(0)


def of(*names: str) -> ElasticStream:
    return ElasticStream(lambda shard: [1], shards=list(names))


def forever(shards: int) -> ElasticStream:
    return ElasticStream(lambda shard: range(10**9), shards=shards, endless=True)


@pytest.mark.parametrize("make", [lambda one: one.shuffle(100), lambda one: one.batch(50)])
def test_a_state_that_is_changed_later_is_still_the_place(make):
    stream = make(ElasticStream(Living, shards=1))
    flow = [*stream.items(0)]
    at = [number for number, one in enumerate(flow) if type(one) is Barrier]
    assert at
    for number in at:
        behind = [one for one in flow[number:] if type(one) is not Barrier]
        assert [one for one in stream.items(0, flow[number].parts) if type(one) is not Barrier] == behind


def test_a_mixture_with_an_endless_stream_is_endless():
    assert ElasticStream.mix({"a": (of("a"), 1), "b": (forever(1), 1)}).endless
    assert not ElasticStream.mix({"a": (of("a"), 1)}).endless


def through_a_pipe(stream: ElasticStream) -> Any:
    ours, theirs = Pipe()
    ours.send(stream)
    return theirs.recv()


def test_a_stream_may_go_to_another_process_where_its_functions_may(tmp_path):
    (tmp_path / "a.txt").write_text("x\n")
    for stream in (ElasticStream(tmp_path), ElasticStream(Counting, shards=[1]), ElasticStream(Counting(3))):
        there = through_a_pipe(ElasticStream.mix({"a": (stream, 1)}).map(str))
        assert [*there] == [str(one) for one in stream]


def test_an_iterable_goes_on_by_its_own_state():
    stream = ElasticStream(Counting, shards=3)
    assert [*stream] == [shard * 1000 + number for shard in range(3) for number in range(200)]
    places = [one.parts for one in stream.items(1) if type(one) is Barrier]
    assert places == [({"next": number},) for number in (64, 128, 192)]
    assert next(stream.items(1, places[1])) == 1128


@pytest.mark.parametrize("make", [Node, Loader, lambda shard: Node(shard, 192), lambda shard: Anew(shard, 192)])
def test_a_shard_goes_on_from_each_of_its_places(make):
    stream = ElasticStream(make, shards=2)
    stream.check()
    flow = [*stream.items(1)]
    places = [number for number, one in enumerate(flow) if type(one) is Barrier]
    assert len(places) >= 2
    for number in places:
        behind = [one for one in flow[number:] if type(one) is not Barrier]
        assert [one for one in stream.items(1, flow[number].parts) if type(one) is not Barrier] == behind


def test_shards_may_have_names():
    stream = ElasticStream(lambda name: [name.upper()], shards=["a", "b"])
    assert (stream.names, [*stream]) == (("a", "b"), ["A", "B"])


def test_a_single_iterable_is_one_shard():
    for stream in (ElasticStream(Node(0, 70)), ElasticStream(Counting(0, 70))):
        assert [*zip(stream.items(0), stream.items(0), strict=True)][-2:] == [(68, 68), (69, 69)]  # two epochs at once
        assert [len([*stream]), len([*stream])] == [70, 70]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ElasticStream(lambda shard: iter([1]), shards=2).check(), "cannot tell its place.*state_dict"),
        (
            lambda: ElasticStream(lambda _: Telling({"at": (1, 2)}), shards=1).check(),
            "lists and dicts alone: .*\\(1, 2",
        ),
        (lambda: ElasticStream(lambda _: Telling({"at": {1}}), shards=1).check(), "may have numbers, text, bytes"),
        (lambda: ElasticStream(lambda _: Telling(object()), shards=1).check(), "may have .*mixing to .shuffle"),
        (
            lambda: ElasticStream(lambda _: Telling([0] * 20_000), shards=1).check(),
            "has 20003 bytes, and may have 16384",
        ),
        (lambda: ElasticStream(lambda _: SAME, shards=2).check(), "gives the same Counting each time.*in each call"),
        *(
            (
                lambda one=one: ElasticStream(one, shards=1).check(),
                "from the place .* after 2 records, another one reads",
            )
            for one in (Late, Restarting, Forgetting)
        ),
        (lambda: ElasticStream(iter([1])), "cannot tell its place.*give a sequence"),
        (lambda: ElasticStream(lambda shard: [1]), "say how many shards there are"),
        (lambda: ElasticStream(lambda shard: [1], shards=0), "shards is 0: it must be a whole number, at least 1"),
        (lambda: ElasticStream(lambda shard: [1], shards=[]), "there is no shard"),
        (lambda: ElasticStream(lambda shard: [1], shards=1, unreadable=cast("Any", "no")), 'it is "fail" or "skip"'),
        (lambda: ElasticStream(7), "source is a function that returns the records of a shard"),
        (lambda: ElasticStream(lambda shard: [1], shards=1).pack(0), "length is 0"),
        (lambda: ElasticStream.mix({}), "give {"),
        (lambda: ElasticStream([]), "there is no shard: check where the list of files comes from"),
        (lambda: ElasticStream(lambda shard: [1], shards=cast("Any", 2.0)), "shards is 2.0: it must be a whole number"),
        (lambda: ElasticStream(lambda shard: [1], shards="ab"), "shards is 'ab': it must be a whole number"),
        (lambda: of("a").map(cast("Any", None)), "map\\(None\\): give a function of a record"),
        (lambda: of("a").filter(cast("Any", "x")), "filter\\('x'\\): give a function of a record"),
        (lambda: of("a").pack(4, eos=cast("Any", "</s>")), "eos=...\\) is '</s>': it must be a whole number$"),
        (lambda: of("a").pack(4, pad=cast("Any", 0.5)), "pad=...\\) is 0.5: it must be a whole number$"),
        (lambda: ElasticStream.mix(cast("Any", [of("a")])), "give {"),
        (lambda: ElasticStream.mix({"a": (of("a"), float("nan"))}), "'a' is to be \\(a stream, a weight above 0\\)"),
        (lambda: ElasticStream.mix({"a": (of("a"), float("inf"))}), "'a' is to be \\(a stream, a weight above 0\\)"),
        (lambda: ElasticStream.mix({"a": (of("a"), 1), "b": (forever(2), 1)}), "'b' has more than 1 shards"),
        (lambda: [*ElasticStream(Unlike(0))], "cannot be copied .*give a function that makes it"),
        (lambda: ElasticStream.mix(cast("Any", {"a": 3})), "'a' is to be \\(a stream, a weight above 0\\)"),
    ],
)
def test_what_is_wrong_is_one_line(make, told):
    with pytest.raises(UsageError, match=told) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("make", [Counting, Living, Unread, lambda shard: Counting(shard, 0), lambda _: Counting(0, 2)])
def test_a_place_that_is_right_or_cannot_be_tried_yet_is_taken(make):
    ElasticStream(make, shards=1).check()


def test_workers_that_say_something_else_are_told_apart():
    streams = [of("a"), of("b"), of("a").shuffle(3), of("a").shuffle(3, 1), of("a").pack(4), of("a").pack(4, eos=1)]
    streams += [of("a").map(abs), of("a").filter(abs), ElasticStream.mix({"x": (of("a"), 1)})]
    assert len({one.fingerprint for one in streams}) == len(streams)
    assert of("/here/a").fingerprint == of("/there/a").fingerprint
    assert of("/here/x/a", "/here/y/a").fingerprint == of("/there/x/a", "/there/y/a").fingerprint
    assert of("/here/x/a", "/here/y/a").fingerprint != of("/here/y/a", "/here/x/a").fingerprint


def test_tokens_of_an_item():
    stream = ElasticStream(lambda shard: [[1]], shards=1)
    assert [stream.unit, stream.pack(512).unit, stream.pack(512).batch(4).unit] == [1, 512, 2048]
    assert stream.pack(16).pack(4).unit == 4
    assert ElasticStream.mix({"a": (stream.pack(8), 1)}).unit == 8


def test_what_pack_leaves_out_is_told_once(caplog):
    records = [{"input_ids": [1, 2], "attention_mask": [1, 1], "label": 3}] * 5
    assert len([*ElasticStream(lambda shard: records, shards=2).pack(4)]) == 6
    assert [one.message for one in caplog.records] == [
        ".pack() keeps 'input_ids' alone of a record, and leaves out: attention_mask, label"
    ]
