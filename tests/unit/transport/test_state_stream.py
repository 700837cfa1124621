"""A state on its way from one trainer to others: handed on in a chain, whole or not at all, and to no stranger."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from edl.transport.state_stream import (
    MAGIC,
    MOST_CALLERS,
    StateReceiver,
    StateSender,
    StreamBroken,
    address_of,
    number_of,
)

KEY, OTHER = b"k" * 32, b"o" * 32
BYTES = os.urandom(3_000_001)
PATIENCE_S = 20.0


class Parts:
    """Comes part by part; the later ones wait until they may."""

    def __init__(self, *, whole: bool = True, until: int = len(BYTES)) -> None:
        self.size = len(BYTES)
        self.may_go_on = threading.Event()
        self._whole, self._until = whole, until

    def part(self, begin: int) -> memoryview:
        if begin >= self._until:
            assert self.may_go_on.wait(PATIENCE_S)
        end = self._until if begin < self._until else self.size
        return memoryview(BYTES)[begin : min(begin + 65_536, end)]

    def whole(self) -> bool:
        return self._whole


@pytest.fixture
def givers() -> Iterator[list[StateSender]]:
    found: list[StateSender] = []
    yield found
    for one in found:
        one.close()


def giver(givers: list[StateSender], key: bytes = KEY, timeout_s: float = PATIENCE_S) -> StateSender:
    givers.append(StateSender("127.0.0.1", key, 7, timeout_s))
    return givers[-1]


def taker(
    givers: list[StateSender], root: StateSender, key: bytes = KEY, generation: int = 7, timeout_s: float = PATIENCE_S
) -> StateReceiver:
    """Which hands on what it gets."""
    own = giver(givers)
    taking = StateReceiver(root.number, key, generation, own.number, timeout_s)
    head = taking.begin()
    own.give(head, taking)
    assert head == b"head"
    return taking


def test_an_address_is_a_number() -> None:
    assert address_of(number_of(("10.1.2.3", 65_535))) == ("10.1.2.3", 65_535)
    assert number_of(("255.255.255.255", 65_535)) < 2**53


def test_three_newcomers_are_fed_in_a_chain(givers: list[StateSender]) -> None:
    root, parts = giver(givers), Parts(until=100_000)
    root.give(b"head", parts)
    newcomers = [taker(givers, root) for _ in range(3)]  # each head is here before the rest has come
    assert not root.wait_given(3, 0.01)
    parts.may_go_on.set()
    for one in newcomers:
        assert one.wait_whole(PATIENCE_S) == BYTES
    assert root.wait_given(3, PATIENCE_S)
    assert [one.asked for one in givers] == [True, True, True, False], "each has handed it to one other"
    assert givers[1].wait_given(1, PATIENCE_S)
    assert givers[2].wait_given(1, PATIENCE_S)


def test_what_was_given_is_let_go_of(givers: list[StateSender]) -> None:
    """TensorFlow would copy what is still looked at, as it makes the update that is waited for."""
    root, parts = giver(givers), Parts()
    root.give(b"head", parts)
    kept = weakref.ref(parts)
    del parts
    taking = taker(givers, root)
    assert root.wait_given(1, PATIENCE_S)
    assert kept() is None
    assert bytes(taking.wait_whole(PATIENCE_S)) == BYTES
    assert bytes(taker(givers, root).wait_whole(PATIENCE_S)) == BYTES, "who comes later gets it from the first"


def test_who_comes_before_there_is_anything_waits(givers: list[StateSender]) -> None:
    root = giver(givers)
    threading.Timer(0.1, root.give, (b"head", Parts())).start()
    assert taker(givers, root).wait_whole(PATIENCE_S) == BYTES


def test_one_that_was_waited_for_longer_than_a_greeting_takes(
    givers: list[StateSender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer comes as soon as its ring is planned, and the others after a step that may be far ahead."""
    monkeypatch.setattr("edl.transport.state_stream.GREETING_S", 0.1)
    root = giver(givers)
    threading.Timer(0.3, root.give, (b"head", Parts())).start()
    assert taker(givers, root).wait_whole(PATIENCE_S) == BYTES


def test_several_follow_each_other_each_by_its_number(givers: list[StateSender]) -> None:
    """A newcomer may ask for the next one before it is there; for one of before it comes too late."""
    root, here = giver(givers), giver(givers).number
    first, ahead, late = (StateReceiver(root.number, KEY, 7, here, PATIENCE_S, number) for number in (0, 3, 0))
    root.give(b"first", Parts())
    assert first.begin() == b"first"
    assert first.wait_whole(PATIENCE_S) == BYTES
    assert root.wait_given(1, PATIENCE_S)
    heads: list[bytes] = []
    asking = threading.Thread(target=lambda: heads.append(ahead.begin()))
    asking.start()
    assert not root.wait_given(2, 0.2)
    root.give(b"third", Parts(), 3)
    asking.join(PATIENCE_S)
    assert heads == [b"third"]
    assert ahead.wait_whole(PATIENCE_S) == BYTES
    assert root.wait_given(1, PATIENCE_S)
    with pytest.raises(StreamBroken):
        late.begin()


def test_a_state_that_was_changed_meanwhile_is_not_taken(givers: list[StateSender]) -> None:
    root = giver(givers)
    root.give(b"head", Parts(whole=False))
    newcomers = [taker(givers, root) for _ in range(2)]
    for one in newcomers:
        with pytest.raises(StreamBroken, match="changed while it was sent"):
            one.wait_whole(PATIENCE_S)


def test_a_sender_that_goes_in_the_middle_frees_all_who_wait(givers: list[StateSender]) -> None:
    root, parts = giver(givers), Parts(until=1_000_000)
    root.give(b"head", parts)
    newcomers = [taker(givers, root) for _ in range(2)]
    root.close()
    for one in newcomers:
        with pytest.raises(StreamBroken):
            one.wait_whole(PATIENCE_S)
    parts.may_go_on.set()


def test_a_newcomer_that_goes_in_the_middle_is_not_waited_for(givers: list[StateSender]) -> None:
    root, parts = giver(givers), Parts(until=1_000_000)
    root.give(b"head", parts)
    newcomer = taker(givers, root)
    newcomer.give_up("it dies")
    parts.may_go_on.set()
    assert not root.wait_given(1, PATIENCE_S)
    with pytest.raises(StreamBroken, match="it dies"):
        newcomer.wait_whole(PATIENCE_S)


class ReadToTheEnd(socket.socket):
    """As if the thread that reads were always the quicker one: it takes all that has come before the close."""

    def shutdown(self, how: int) -> None:
        super().shutdown(how)
        while self.recv(1 << 20):
            pass


def test_one_that_gives_up_frees_a_sender_that_waits_for_room() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as sender,
    ):
        accepted, _ = listening.accept()
        newcomer = StateReceiver(0, KEY, 7, 0, PATIENCE_S)
        newcomer._connection = ReadToTheEnd(fileno=accepted.detach())
        sender.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sender.sendall(bytes(1 << 26))
        newcomer.give_up("it dies")
        sender.settimeout(5)
        with pytest.raises(ConnectionError):
            sender.sendall(BYTES)


def test_what_does_not_come_is_waited_for_no_longer_than_that(givers: list[StateSender]) -> None:
    root, parts = giver(givers), Parts(until=1_000_000)
    root.give(b"head", parts)
    with pytest.raises(StreamBroken, match=r"within 0\.05 s"):
        taker(givers, root).wait_whole(0.05)
    assert not root.wait_given(1, 0.05)
    parts.may_go_on.set()


@pytest.mark.parametrize(("key", "generation"), [(OTHER, 7), (KEY, 8)], ids=["of another job", "of another ring"])
def test_a_stranger_is_given_nothing(givers: list[StateSender], key: bytes, generation: int) -> None:
    root = giver(givers)
    root.give(b"head", Parts())
    with pytest.raises(StreamBroken):
        taker(givers, root, key, generation)
    assert not root.asked
    assert taker(givers, root).wait_whole(PATIENCE_S) == BYTES


def test_a_newcomer_waits_for_what_is_not_there_yet_however_long_a_step_of_its_source_takes(
    givers: list[StateSender],
) -> None:
    timeout_s, step_s = 0.5, 1.0  # the greeting, too, has to come within the time-out
    root = giver(givers, timeout_s=timeout_s)
    begun = time.monotonic()
    threading.Timer(step_s, root.give, [b"head", Parts()]).start()
    assert taker(givers, root, timeout_s=timeout_s).wait_whole(PATIENCE_S) == BYTES
    assert time.monotonic() - begun >= step_s


def test_a_newcomer_takes_nothing_from_a_stranger(givers: list[StateSender]) -> None:
    with pytest.raises(StreamBroken, match="not of this ring"):
        taker(givers, giver(givers, OTHER))


def test_strangers_that_say_nothing_keep_no_member_out(givers: list[StateSender]) -> None:
    root = giver(givers, timeout_s=0.2)
    root.give(b"head", Parts())
    strangers = [socket.create_connection(address_of(root.number)) for _ in range(MOST_CALLERS)]
    for one in strangers[::2]:
        one.sendall(MAGIC + os.urandom(40))
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert taker(givers, root).wait_whole(PATIENCE_S) == BYTES
            break
        except StreamBroken:
            assert time.monotonic() < deadline
    for one in strangers:
        one.close()


def test_a_sender_that_is_not_there(givers: list[StateSender]) -> None:
    gone = giver(givers)
    gone.close()
    with pytest.raises(StreamBroken, match="ConnectionRefusedError"):
        taker(givers, gone)


def test_one_whose_source_was_at_its_own_port_does_not_wait_for_itself(givers: list[StateSender]) -> None:
    own = giver(givers)  # where a sender that is gone had listened
    with pytest.raises(StreamBroken, match="another has it"):
        StateReceiver(own.number, KEY, 7, own.number, PATIENCE_S).begin()
