"""When a daemon is not forked, though there is a process for it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from edl.host import daemon_process
from edl.host.daemon_process import Forker, environ_of, fork_daemon


class Connection(NamedTuple):
    forker: Forker
    descriptor: int
    asked: list[bytes]


@pytest.fixture
def connection() -> Iterator[Connection]:
    """The other end answers each request as a process does that forks."""
    ours, its = socket.socketpair()
    asked = list[bytes]()

    def answer() -> None:
        while True:
            kind, descriptors, _, _ = socket.recv_fds(its, 1, 4)
            if not kind:
                return
            asked.append(kind)
            with socket.socket(fileno=descriptors[-1]) as asker:
                asker.sendall(b"5\n")
                assert asker.recv(1)
            for descriptor in descriptors[:-1]:
                os.close(descriptor)

    thread = threading.Thread(target=answer)
    thread.start()
    yield Connection(Forker(ours.fileno()), ours.fileno(), asked)
    its.shutdown(socket.SHUT_RDWR)
    thread.join()
    ours.close()
    its.close()


def start(connection: Connection, folder: Path, **changed: str) -> int:
    return connection.forker.fork(["--trainer", "1"], environ_of({**os.environ, **changed}), folder / "log")


def test_one_is_forked_in_an_environment_of_its_own(connection: Connection, tmp_path: Path) -> None:
    assert start(connection, tmp_path, EDL_WORKER_ID="w1", OMP_NUM_THREADS="7") == 5
    assert connection.asked == [b"f"]


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONWARNINGS", "GRPC_TRACE", "LD_PRELOAD", "LC_ALL", "TZ"])
def test_one_starts_anew_where_the_script_has_changed_what_a_process_reads_as_it_begins(
    connection: Connection, tmp_path: Path, name: str
) -> None:
    assert start(connection, tmp_path, **{name: "changed"}) == 0
    assert not connection.asked


def test_one_starts_anew_where_the_script_has_closed_the_connection_or_put_another_in_its_place(
    connection: Connection, tmp_path: Path
) -> None:
    kept = os.dup(connection.descriptor)
    other, its = socket.socketpair()
    with other, its:
        its.setblocking(False)
        os.dup2(other.fileno(), connection.descriptor)
        assert start(connection, tmp_path) == 0
        with pytest.raises(BlockingIOError):
            its.recv(1)
    os.close(connection.descriptor)
    assert start(connection, tmp_path) == 0
    os.dup2(kept, connection.descriptor)
    os.close(kept)
    assert start(connection, tmp_path) == 5


def test_one_starts_anew_where_the_process_is_gone(tmp_path: Path) -> None:
    ours, its = socket.socketpair()
    with ours:
        its.close()
        assert start(Connection(Forker(ours.fileno()), 0, []), tmp_path) == 0


def test_one_starts_anew_in_a_worker_that_was_not_forked(tmp_path: Path) -> None:
    assert daemon_process.forker is None
    assert fork_daemon([], os.environ, tmp_path / "log") == 0
