"""A port that takes no more connections, by both ways in which a kernel can be told so."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from edl.collectives import sockets
from edl.errors import RingBroken

NOT_ANSWERED_S = 0.2  # a connection to this machine takes microseconds

Pair = tuple[socket.socket, socket.socket, socket.socket]


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"])
def standing(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """What listens, and both ends of a connection to it."""
    family, address = request.param
    with socket.create_server((address, 0), family=family) as ear, socket.socket(family) as far:
        far.connect(ear.getsockname()[:2])
        near, _ = ear.accept()
        with near:
            yield ear, near, far


def refuse(_: socket.socket) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("way", ["filter", "signatures"])
def test_what_stands_goes_on_and_a_stranger_is_not_answered(
    standing: Pair, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ear, near, far = standing
    if way == "signatures":
        monkeypatch.setattr(sockets, "_filter_out", refuse)
    assert sockets.seal({ear.getsockname()[:2]}) == 1
    far.send(b"there")
    assert near.recv(9) == b"there"
    near.send(b"back")
    assert far.recv(9) == b"back"
    with socket.socket(ear.family) as stranger:
        stranger.settimeout(NOT_ANSWERED_S)
        with pytest.raises(TimeoutError):
            stranger.connect(ear.getsockname()[:2])


def test_others_sockets_stay_open(standing: Pair) -> None:
    ear, *_ = standing
    with socket.create_server(("127.0.0.1", 0)) as another:
        assert sockets.seal({another.getsockname()[:2]}) == 1
    with socket.create_connection(ear.getsockname()[:2], timeout=5):
        pass


def test_a_kernel_that_knows_neither_way_forms_no_ring(standing: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_filter_out", refuse)
    monkeypatch.setattr(sockets, "TCP_MD5SIG_EXT", 9999)
    told = r"neither a filter \(Operation not permitted; root may set one\) nor signatures of TCP \(.*not available\)"
    with pytest.raises(RingBroken, match=told):
        sockets.seal({standing[0].getsockname()[:2]})


@pytest.fixture
def known(standing: Pair) -> sockets.Connections:
    """Of a ring of two, as the one knows it that listens."""
    ear, *_ = standing
    connections = sockets.Connections()
    connections.know(ear.getsockname()[:2], own=True)
    return connections


@pytest.mark.parametrize("settled", [False, True])
def test_what_the_other_side_has_ended_does_not_live(standing: Pair, known: sockets.Connections, settled: bool) -> None:
    _, near, far = standing
    if settled:
        known.settle()
    assert (known.living(), known.end()) == (1, 1)
    assert far.recv(9) == b""
    assert known.living() == 1, "more may come from there"
    far.shutdown(socket.SHUT_WR)
    assert near.recv(9) == b""
    assert known.living() == 0


def test_what_the_library_has_closed_does_not_live_whatever_it_has_left_unread(
    standing: Pair, known: sockets.Connections
) -> None:
    ear, near, far = standing
    known.settle()
    far.send(b"unread")
    assert known.living() == 1
    number = near.fileno()
    near.close()
    assert known.living() == 0
    descriptors = len(list(sockets.DESCRIPTORS.iterdir()))
    os.dup2(ear.fileno(), number)  # another one has that number now
    try:
        assert (known.living(), known.cut()) == (0, 0)
        assert len(list(sockets.DESCRIPTORS.iterdir())) == descriptors + 1
    finally:
        os.close(number)


def test_once_all_stand_they_are_not_looked_for_again(
    standing: Pair, known: sockets.Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.settle()
    monkeypatch.setattr(sockets, "_listed", lambda: pytest.fail("it looks through all descriptors"))
    assert (known.living(), known.cut()) == (1, 1)
    assert standing[2].recv(9) == b""
    assert known.living() == 0


def test_a_default_time_out_of_the_script_holds_for_its_own_sockets(standing: Pair, known: sockets.Connections) -> None:
    """It would let each look wait so long, and make what some library of the script's reads from not wait at all."""
    _, near, far = standing
    socket.setdefaulttimeout(NOT_ANSWERED_S)
    try:
        assert known.living() == 1
        known.settle()
        assert known.living() == 1
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(near.fileno()) and os.get_blocking(far.fileno())
