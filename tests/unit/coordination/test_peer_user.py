"""The kernel knows whose process has taken a connection, by whichever family of addresses it came."""

from __future__ import annotations

import os
import socket

import pytest

from edl.coordination.dialing import ForeignServer, check_server

NOT_US = 1 + os.geteuid()
FAMILIES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


@pytest.mark.parametrize(("family", "address"), FAMILIES)
def test_a_server_of_the_user_is_let_through_and_no_other(family: socket.AddressFamily, address: str) -> None:
    if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with (
        socket.create_server((address, 0), family=family) as ear,
        socket.create_connection(ear.getsockname()[:2]) as us,
    ):
        with pytest.raises(TimeoutError):
            check_server(us, os.geteuid(), 0.0)  # nobody has taken it
        taken, _ = ear.accept()
        with taken:
            check_server(us, os.geteuid(), 0.0)
            if os.geteuid() == 0:  # whose servers all take
                os.fchown(taken.fileno(), 65534, 65534)
                with pytest.raises(ForeignServer, match="uid 65534"):
                    check_server(us, NOT_US, 0.0)
                check_server(us, 65534, 0.0)
            else:
                with pytest.raises(ForeignServer):
                    check_server(us, NOT_US, 0.0)
