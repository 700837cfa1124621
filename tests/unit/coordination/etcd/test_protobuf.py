"""The codec of etcd's messages against Google's, and what is no message at all."""

from __future__ import annotations

import contextlib
import dataclasses
from importlib import import_module
from typing import get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.coordination.etcd import etcd_messages
from edl.coordination.etcd.etcd_messages import (
    Compare,
    KeyValue,
    RequestOp,
    TxnRequest,
    WatchCreateRequest,
    WatchResponse,
)
from edl.coordination.etcd.protobuf import decode, encode
from edl.errors import PeerError
from examples import examples

pytest.importorskip("google.protobuf", reason="comes with TensorFlow")

MESSAGES = [
    one
    for one in vars(etcd_messages).values()
    if isinstance(one, type) and dataclasses.is_dataclass(one) and one is not etcd_messages.Method
]
INT64 = st.integers(-(2**63), 2**63 - 1)
PLAIN = {int: INT64, bool: st.booleans(), bytes: st.binary(max_size=40), str: st.text(max_size=10)}
TYPES = {int: 3, bool: 8, bytes: 12, str: 9}  # as descriptor.proto numbers them


def kind_of(hint):
    (kind,) = [kind for kind in (get_args(hint) or (hint,)) if kind not in {type(None), Ellipsis}]
    return kind, getattr(hint, "__origin__", None) is tuple


def drawn(message):
    """A strategy for values of a message; none is left at what it is by default for certain."""
    fields = {}
    for name, hint in get_type_hints(message).items():
        kind, many = kind_of(hint)
        one = PLAIN[kind] if kind in PLAIN else drawn(kind)
        fields[name] = st.lists(one, max_size=3).map(tuple) if many else one
    return st.builds(message, **fields)


@pytest.fixture(scope="module")
def google():
    """Classes that Google's library makes of the same names and numbers."""
    names = ("descriptor_pb2", "descriptor_pool", "message_factory")
    descriptor_pb2, descriptor_pool, message_factory = (import_module(f"google.protobuf.{name}") for name in names)
    file = descriptor_pb2.FileDescriptorProto(name="etcd.proto", package="x", syntax="proto3")
    for message in MESSAGES:
        described = file.message_type.add(name=message.__name__)
        hints = get_type_hints(message)
        for field in dataclasses.fields(message):
            kind, many = kind_of(hints[field.name])
            entry = described.field.add(name=field.name, number=field.metadata["number"], label=3 if many else 1)
            entry.type = TYPES.get(kind, 11)
            if kind not in TYPES:
                entry.type_name = f".x.{kind.__name__}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return lambda message: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"x.{message.__name__}"))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_what_we_write_google_reads_and_the_other_way_round(google, message):
    theirs = google(message)

    @settings(max_examples=examples(25))
    @given(drawn(message))
    def check(value):
        written = encode(value)
        read = theirs.FromString(written)
        assert decode(message, read.SerializeToString()) == decode(message, written) == value

    check()


def test_what_is_left_at_its_default_takes_no_room():
    assert encode(KeyValue()) == b""
    assert encode(RequestOp(request_range=etcd_messages.RangeRequest())) == b"\x0a\x00"  # but it is there


def test_a_filter_of_number_zero_is_told():
    assert decode(WatchCreateRequest, encode(WatchCreateRequest(filters=(0,)))).filters == (0,)


def test_fields_of_a_newer_server_are_passed_over():
    newer = (
        encode(KeyValue(b"key", version=3))
        + b"\xa2\x06\x03abc"
        + b"\xa8\x06\x05"
        + b"\xad\x06abcd"
        + b"\xa1\x06"
        + b"8" * 8
    )
    assert decode(KeyValue, newer) == KeyValue(b"key", version=3)


@pytest.mark.parametrize(
    "garbage", [b"\x0a", b"\x0a\x05abc", b"\x0b", b"\x10" + b"\xff" * 10, b"\x08\x01", b"\xff" * 3], ids=repr
)
def test_garbage_is_the_peers_fault(garbage):
    with pytest.raises(PeerError, match="is no KeyValue"):
        decode(KeyValue, garbage)


@given(st.binary(max_size=60))
def test_nothing_that_arrives_breaks_the_reader(data):
    for message in (WatchResponse, TxnRequest, Compare):
        with contextlib.suppress(PeerError):
            decode(message, data)
