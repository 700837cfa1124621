"""The private socket, with a real trainer's side in a thread and a real daemon's side on the loop."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edl.errors import ConfigError
from edl.transport import pipe
from edl.transport.call_errors import PipeClosed
from edl.transport.pipe import Connection, LoopClient, PipeClient, PipeServer, private_folder


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    number: int
    payload: bytes = b""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    number: int
    payload: bytes = b""


class Daemon:
    """The loop's side: remembers what it was told, and lets tests wait for it."""

    def __init__(self, path: Path) -> None:
        self.messages: list[Any] = []
        self.connections: list[Connection] = []
        self.gone: list[Connection] = []
        self.echo = False
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.server = PipeServer(path, Ping | Pong, self.on_message, self.on_gone)

    def on_message(self, connection: Connection, message: Any) -> None:
        if connection not in self.connections:
            self.connections.append(connection)
        self.messages.append(message)
        if self.echo:
            connection.send(Pong(message.number))
        self._notify()

    def on_gone(self, connection: Connection) -> None:
        self.gone.append(connection)
        self._notify()

    def _notify(self) -> None:
        task = asyncio.create_task(self._notify_all())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify_all(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(condition), 10)


class Trainer:
    """The thread's side."""

    def __init__(self, path: Path) -> None:
        self.messages: list[Any] = []
        self.changed = threading.Condition()
        self.gone = threading.Event()
        self.client = PipeClient(path, Ping | Pong, self.on_message, self.gone.set)

    def on_message(self, message: Any) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def wait_messages(self, number: int) -> list[Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.messages) >= number, 10)
        return self.messages

    async def connected(self) -> Trainer:
        await asyncio.to_thread(self.client.connect, 10)
        return self


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return private_folder(tmp_path / "worker") / "pipe"


@pytest.fixture
async def daemon(path: Path) -> AsyncIterator[Daemon]:
    daemon = Daemon(path)
    await daemon.server.start()
    yield daemon
    await daemon.server.stop()


@pytest.fixture
async def trainer(daemon: Daemon, path: Path) -> AsyncIterator[Trainer]:
    trainer = await Trainer(path).connected()
    yield trainer
    await asyncio.to_thread(trainer.client.close)


# ------------------------------------------------------------------------------------------------------- messages


async def test_messages_go_both_ways_in_order(daemon: Daemon, trainer: Trainer) -> None:
    daemon.echo = True
    for number in range(100):
        trainer.client.send(Ping(number))
    pongs = await asyncio.to_thread(trainer.wait_messages, 100)
    assert pongs == [Pong(number) for number in range(100)]
    assert daemon.messages == [Ping(number) for number in range(100)]


async def test_a_large_message_arrives_whole(daemon: Daemon, trainer: Trainer) -> None:
    large = Ping(1, os.urandom(8 << 20))
    await asyncio.to_thread(trainer.client.send, large)
    await daemon.wait_until(lambda: daemon.messages == [large])
    daemon.connections[0].send(Pong(2, large.payload))
    assert await asyncio.to_thread(trainer.wait_messages, 1) == [Pong(2, large.payload)]


async def test_many_threads_may_send(daemon: Daemon, trainer: Trainer) -> None:
    def send_some(first: int) -> None:
        for number in range(first, first + 50):
            trainer.client.send(Ping(number, bytes(5000)))

    await asyncio.gather(*(asyncio.to_thread(send_some, first) for first in range(0, 400, 50)))
    await daemon.wait_until(lambda: len(daemon.messages) == 400)
    assert {message.number for message in daemon.messages} == set(range(400))


async def test_a_message_too_large_is_a_mistake_of_the_sender(daemon: Daemon, trainer: Trainer) -> None:
    with pytest.raises(ValueError, match="at most"):
        trainer.client.send(Ping(1, bytes(pipe.MAX_BYTES)))
    trainer.client.send(Ping(2))
    await daemon.wait_until(lambda: daemon.messages == [Ping(2)])


async def test_each_side_knows_the_process_at_the_other(daemon: Daemon, trainer: Trainer) -> None:
    trainer.client.send(Ping(1))
    await daemon.wait_until(lambda: len(daemon.messages) == 1)
    assert daemon.connections[0].pid == os.getpid()
    assert trainer.client.daemon_pid == os.getpid()


# ------------------------------------------------------------------------------------------------------- endings


async def test_the_daemon_knows_at_once_that_a_trainer_closed(daemon: Daemon, trainer: Trainer) -> None:
    trainer.client.send(Ping(1))
    await asyncio.to_thread(trainer.client.close)
    await daemon.wait_until(lambda: len(daemon.gone) == 1)
    assert daemon.messages == [Ping(1)]
    assert not trainer.gone.is_set()  # it was its own wish


async def test_the_trainer_knows_at_once_that_the_daemon_stopped(daemon: Daemon, trainer: Trainer) -> None:
    trainer.client.send(Ping(1))
    await daemon.wait_until(lambda: len(daemon.messages) == 1)
    daemon.connections[0].send(Pong(9))
    await daemon.server.stop()
    assert await asyncio.to_thread(trainer.gone.wait, 10)
    assert trainer.messages == [Pong(9)]  # what was sent before came through
    assert len(daemon.gone) == 1
    with pytest.raises(PipeClosed):
        trainer.client.send(Ping(2))


async def test_the_daemon_knows_at_once_that_a_trainer_was_killed(daemon: Daemon, path: Path) -> None:
    program = """
import sys, msgspec, time
from edl.transport.pipe import PipeClient
class Ping(msgspec.Struct, tag="ping"):
    number: int
client = PipeClient(sys.argv[1], Ping, print, print)
client.connect(10)
client.send(Ping(1))
time.sleep(60)
"""
    trainer = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(path))
    await daemon.wait_until(lambda: len(daemon.messages) == 1)
    assert daemon.connections[0].pid == trainer.pid
    trainer.kill()
    killed = time.monotonic()
    await daemon.wait_until(lambda: len(daemon.gone) == 1)
    assert time.monotonic() - killed < 5
    await trainer.wait()


async def test_a_forked_child_of_the_trainer_does_not_keep_the_pipe_open(daemon: Daemon, path: Path) -> None:
    """A data loader forks; when the trainer dies, its children may live on for a while."""
    program = """
import os, sys, msgspec, time
from edl.transport.call_errors import PipeClosed
from edl.transport.pipe import PipeClient
class Ping(msgspec.Struct, tag="ping"):
    number: int
client = PipeClient(sys.argv[1], Ping, print, print)
client.connect(10)
child = os.fork()
if child == 0:
    try:
        client.send(Ping(0))
    except PipeClosed:
        sys.stdin.read()
    os._exit(0)
client.send(Ping(child))
os.kill(os.getpid(), 9)
"""
    trainer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), stdin=asyncio.subprocess.PIPE
    )
    await daemon.wait_until(lambda: len(daemon.gone) == 1)
    (told,) = daemon.messages
    os.kill(told.number, 0)  # the child is still there, and said nothing
    assert trainer.stdin is not None
    trainer.stdin.close()
    await trainer.wait()


async def test_a_callback_may_close_the_client(daemon: Daemon, path: Path) -> None:
    closed = threading.Event()

    def close(_: Any) -> None:
        client.close()
        closed.set()

    client = PipeClient(path, Ping | Pong, close, closed.set)
    await asyncio.to_thread(client.connect, 10)
    client.send(Ping(1))
    await daemon.wait_until(lambda: len(daemon.messages) == 1)
    daemon.connections[0].send(Pong(1))
    daemon.connections[0].send(Pong(2))
    assert await asyncio.to_thread(closed.wait, 10)
    await daemon.wait_until(lambda: len(daemon.gone) == 1)


async def test_sending_to_one_who_is_gone_is_harmless_for_the_daemon(daemon: Daemon, trainer: Trainer) -> None:
    trainer.client.send(Ping(1))
    await daemon.wait_until(lambda: len(daemon.messages) == 1)
    await asyncio.to_thread(trainer.client.close)
    await daemon.wait_until(lambda: len(daemon.gone) == 1)
    daemon.connections[0].send(Pong(1))
    daemon.connections[0].close()


async def test_a_trainer_that_does_not_read_is_given_up(daemon: Daemon, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.connect(str(path))
        deaf.sendall(pipe._frame(Ping(1)))
        await daemon.wait_until(lambda: len(daemon.messages) == 1)
        for number in range(20):
            daemon.connections[0].send(Pong(number, bytes(8 << 20)))
        await daemon.wait_until(lambda: len(daemon.gone) == 1)


# ------------------------------------------------------------------------------------------------------ strangers


@pytest.mark.parametrize(
    "noise",
    [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x01\x01", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["huge", "no msgpack", "no message", "http"],
)
async def test_noise_ends_the_connection(daemon: Daemon, path: Path, noise: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(path))
        stranger.sendall(noise)
        await daemon.wait_until(lambda: len(daemon.gone) == 1)
    assert daemon.messages == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_is_turned_away() -> None:
    """Even where the user has opened the folder."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "pipe"
        daemon = Daemon(path)
        await daemon.server.start()
        _open_to_all(path)
        await _knock_as_a_stranger(path)
        assert daemon.connections == []
        assert daemon.gone == []
        await daemon.server.stop()


def _open_to_all(path: Path) -> None:
    path.chmod(0o666)
    path.parent.chmod(0o755)


async def _knock_as_a_stranger(path: Path) -> None:
    # It becomes another user by itself: the interpreter may lie where no other user may look.
    program = """
import os, socket, sys
knocking = socket.socket(socket.AF_UNIX)
os.setuid(65534)
knocking.connect(sys.argv[1])
print(knocking.recv(1))
"""
    other = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program, str(path)], capture_output=True, check=False
    )
    assert other.stdout.strip() in {b"b''", b""}
    assert b"ConnectionResetError" in other.stderr or other.stdout.strip() == b"b''"


async def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        await Daemon(tmp_path / "open" / "pipe").server.start()


async def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ConfigError):
        private_folder(tmp_path / "link")


async def test_the_socket_is_for_its_owner_alone(daemon: Daemon, path: Path) -> None:
    assert os.lstat(path).st_mode & 0o777 == 0o600


async def test_a_path_without_a_listener_is_told_within_the_time(path: Path) -> None:
    with pytest.raises(PipeClosed, match="no daemon listens"):
        PipeClient(path, Ping, print, print).connect(0.05)


async def test_a_trainer_may_be_earlier_than_its_daemon(path: Path) -> None:
    trainer = Trainer(path)
    connecting = asyncio.create_task(trainer.connected())
    daemon = Daemon(path)
    await asyncio.sleep(0)
    await daemon.server.start()
    await connecting
    trainer.client.send(Ping(1))
    await daemon.wait_until(lambda: daemon.messages == [Ping(1)])
    await asyncio.to_thread(trainer.client.close)
    await daemon.server.stop()


async def test_a_daemon_takes_over_the_socket_of_one_that_died(daemon: Daemon, path: Path) -> None:
    successor = Daemon(path)
    await successor.server.start()
    trainer = await Trainer(path).connected()
    trainer.client.send(Ping(1))
    await successor.wait_until(lambda: successor.messages == [Ping(1)])
    await asyncio.to_thread(trainer.client.close)
    await successor.server.stop()


async def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / ("d" * 120))
    daemon = Daemon(folder / "pipe")
    await daemon.server.start()
    trainer = await Trainer(folder / "pipe").connected()
    trainer.client.send(Ping(1))
    await daemon.wait_until(lambda: daemon.messages == [Ping(1)])
    await asyncio.to_thread(trainer.client.close)
    await daemon.server.stop()


async def test_stopping_removes_the_socket_and_may_be_done_twice(daemon: Daemon, path: Path) -> None:
    await daemon.server.stop()
    await daemon.server.stop()
    assert list(path.parent.iterdir()) == []


# ----------------------------------------------------------------------------------------------- a client with a loop


async def test_a_client_on_a_loop_talks_and_hears_the_end_once(daemon: Daemon, path: Path) -> None:
    daemon.echo = True
    heard: asyncio.Queue[Any] = asyncio.Queue()
    client = LoopClient(path, Ping | Pong, lambda _, message: heard.put_nowait(message), heard.put_nowait)
    connection = await client.connect()
    connection.send(Ping(1))
    async with asyncio.timeout(20):
        assert await heard.get() == Pong(1)
        daemon.connections[0].close()
        assert await heard.get() is connection
    assert not connection.is_open
    connection.send(Ping(2))  # goes nowhere
    assert heard.empty()


async def test_a_client_on_a_loop_says_at_once_that_no_process_listens(tmp_path: Path) -> None:
    with pytest.raises(PipeClosed, match="no process listens"):
        await LoopClient(tmp_path / "pipe", Ping, lambda *_: None, lambda _: None).connect()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_client_on_a_loop_tells_another_users_server_nothing() -> None:
    program = """
import os, socket, sys
os.setuid(65534)
ear = socket.socket(socket.AF_UNIX)
ear.bind(sys.argv[1])
ear.listen()
print("ready", flush=True)
print(ear.accept()[0].recv(1))
"""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "pipe"
        path.parent.chmod(0o777)
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(path), stdout=subprocess.PIPE)
        assert other.stdout is not None and await other.stdout.readline() == b"ready\n"
        with pytest.raises(PipeClosed, match="another user listens"):
            await LoopClient(path, Ping, lambda *_: None, lambda _: None).connect()
        assert (await other.communicate())[0] in {b"b''\n", b""}
