"""Whether a process listens: real sockets of this host, and an address from which no answer comes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from edl.daemon import roll_caller
from edl.daemon.roll_caller import PortProbe, refuses
from edl.protocol.record import Identity

HOST = "127.0.0.1"


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    """Has a port, which no other process can be given meanwhile."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        yield one


def daemon(worker: str, one: socket.socket) -> Identity:
    return Identity(worker, "host", HOST, 1, 2, port=one.getsockname()[1])


async def test_a_port_at_which_no_process_listens_refuses(bound: socket.socket) -> None:
    assert await refuses(HOST, bound.getsockname()[1])


async def test_a_process_that_is_stopped_still_takes_a_connection(bound: socket.socket) -> None:
    bound.listen()
    assert not await refuses(HOST, bound.getsockname()[1])


async def test_one_that_begins_to_listen_between_two_knocks_is_there(
    bound: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll_caller, "AGAIN_S", 0.5)
    asyncio.get_running_loop().call_later(0.2, bound.listen)
    assert not await refuses(HOST, bound.getsockname()[1])


async def test_a_host_that_does_not_answer_refuses_nothing(
    bound: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue of connections is full: what comes then is dropped, as by a link that is cut."""
    monkeypatch.setattr(roll_caller, "PATIENCE_S", 0.2)
    bound.listen(0)
    with socket.create_connection(bound.getsockname()):
        began = time.monotonic()
        assert not await refuses(HOST, bound.getsockname()[1])
        assert time.monotonic() - began < 5.0


async def test_those_that_refuse_are_told_of_until_they_are_not_looked_for(bound: socket.socket) -> None:
    told: list[tuple[Identity, ...]] = []
    heard = asyncio.Event()

    def tell(gone: tuple[Identity, ...]) -> None:
        told.append(gone)
        heard.set()

    silent, before = PortProbe(tell), asyncio.all_tasks()
    with socket.socket() as living:
        living.bind((HOST, 0))
        living.listen()
        gone, there = daemon("gone", bound), daemon("there", living)
        silent.look_for((gone, there, Identity("alone", "host", HOST, 1, 2)))
        for _ in range(2):
            heard.clear()
            async with asyncio.timeout(5.0):
                await heard.wait()
        silent.look_for(())
        async with asyncio.timeout(5.0):
            while asyncio.all_tasks() - before:  # noqa: ASYNC110 - it is about to end
                await asyncio.sleep(0.01)
    assert set(told) == {(gone,)}


async def test_no_word_comes_after_the_end(bound: socket.socket) -> None:
    told: list[tuple[Identity, ...]] = []
    silent = PortProbe(told.append)
    silent.look_for((daemon("gone", bound),))
    silent.close()
    await asyncio.sleep(0.3)
    assert told == []
