"""A port that takes no more connections, by both ways in which a kernel can be told so."""

from __future__ import annotations

import errno
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
