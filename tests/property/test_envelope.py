"""No byte of a sealed message can change unnoticed, and no message is taken twice."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edl.errors import PeerError
from edl.transport.call_errors import Reason
from edl.transport.seal import Reply, Request, Seal
from edl.transport.service import ReplayGuard

SEAL = Seal(b"a secret of the job")
OTHER = Seal(b"a secret of another job")

numbers = st.integers(0, 2**63 - 1)
requests = st.builds(Request, st.text(), numbers, st.text(), st.text(), st.binary(), numbers, st.binary())
replies = st.builds(Reply, st.text(), numbers, st.none() | st.sampled_from(Reason), st.text(), st.binary())


def flipped(wire: bytes, data: st.DataObject) -> bytes:
    position = data.draw(st.integers(0, len(wire) - 1))
    mask = data.draw(st.integers(1, 255))
    return wire[:position] + bytes([wire[position] ^ mask]) + wire[position + 1 :]


@given(requests)
def test_a_request_comes_out_as_it_went_in(request: Request) -> None:
    assert SEAL.open_request(SEAL.seal_request(request)) == request


@given(requests, replies)
def test_a_reply_comes_out_as_it_went_in(request: Request, reply: Reply) -> None:
    wire = SEAL.seal_request(request)
    assert SEAL.open_reply(SEAL.seal_reply(reply, wire), wire) == reply


@given(requests, st.data())
def test_a_request_changed_in_any_byte_is_not_taken(request: Request, data: st.DataObject) -> None:
    with pytest.raises(PeerError):
        SEAL.open_request(flipped(SEAL.seal_request(request), data))


@given(requests, replies, st.data())
def test_a_reply_changed_in_any_byte_is_not_taken(request: Request, reply: Reply, data: st.DataObject) -> None:
    wire = SEAL.seal_request(request)
    with pytest.raises(PeerError):
        SEAL.open_reply(flipped(SEAL.seal_reply(reply, wire), data), wire)


@given(requests, st.binary(max_size=40), st.data())
def test_a_request_cut_short_or_made_longer_is_not_taken(request: Request, more: bytes, data: st.DataObject) -> None:
    wire = SEAL.seal_request(request)
    changed = wire[: data.draw(st.integers(0, len(wire)))] + more
    assume(changed != wire)
    with pytest.raises(PeerError):
        SEAL.open_request(changed)


@given(st.binary())
def test_noise_is_not_taken(noise: bytes) -> None:
    with pytest.raises(PeerError):
        SEAL.open_request(noise)


@given(requests)
def test_another_secret_opens_nothing(request: Request) -> None:
    with pytest.raises(PeerError):
        OTHER.open_request(SEAL.seal_request(request))


@given(requests, requests, replies)
def test_a_reply_belongs_to_one_request(one: Request, another: Request, reply: Reply) -> None:
    assume(one != another)
    answer = SEAL.seal_reply(reply, SEAL.seal_request(one))
    with pytest.raises(PeerError):
        SEAL.open_reply(answer, SEAL.seal_request(another))


@given(requests)
def test_a_request_cannot_pass_for_a_reply(request: Request) -> None:
    wire = SEAL.seal_request(request)
    with pytest.raises(PeerError):
        SEAL.open_reply(wire, wire)


class NaiveGuard:
    """Remembers everything for ever."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.seen: dict[bytes, set[int]] = {}

    def admit(self, boot: bytes, number: int) -> bool:
        seen = self.seen.setdefault(boot, set())
        fresh = number > 0 and number not in seen and number > max(seen, default=0) - self.window
        if fresh:
            seen.add(number)
        return fresh


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(-2, 40)), max_size=60), st.integers(1, 20))
def test_the_guard_of_bounded_memory_says_what_one_that_remembers_all_says(
    messages: list[tuple[bytes, int]], window: int
) -> None:
    guard, naive = ReplayGuard(window), NaiveGuard(window)
    assert [guard.admit(*message) for message in messages] == [naive.admit(*message) for message in messages]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), max_size=40))
def test_a_number_is_taken_once_while_its_sender_is_remembered(messages: list[tuple[int, int]]) -> None:
    guard = ReplayGuard(window=8, boots=7)
    taken = [message for message in messages if guard.admit(bytes([message[0]]), message[1])]
    assert len(taken) == len(set(taken))
