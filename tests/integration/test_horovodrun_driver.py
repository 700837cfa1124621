"""What we speak to horovodrun's driver, on Horovod's own driver, server and client in this process."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from horovod.runner.common.util import codec, hosts
from horovod.runner.elastic.discovery import FixedHosts
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient
from horovod.runner.http.http_server import RendezvousServer

from edl.errors import PeerError
from edl.horovodrun import driver_requests
from edl.horovodrun.driver_requests import Driver, HostUpdates, SlotCount

HOST = "127.0.0.1"
WAIT_S = 30.0


class Real:
    """Horovod's driver with hosts that the test sets, and workers that are threads."""

    def __init__(self, slots: int) -> None:
        self.discovery = FixedHosts({"localhost": slots})
        self.server = RendezvousServer()
        self.driver = ElasticDriver(self.server, self.discovery, 1, 4)
        self.port = self.server.start(create_rendezvous_handler(self.driver))
        self.started: list[str] = []
        self.ended: dict[str, threading.Event] = {}
        self.driver.wait_for_available_slots(slots)
        self.driver.start(slots, self._work)

    def _work(self, slot: hosts.SlotInfo, _events: object) -> tuple[int, float]:
        name = f"{slot.hostname}:{slot.local_rank}"
        self.ended[name] = threading.Event()
        self.started.append(name)
        self.ended[name].wait()
        return 0, 0.0

    def stop(self) -> None:
        self.driver.stop()
        for ended in self.ended.values():
            ended.set()
        self.server._httpd.server_close()  # it leaves that to the end of its process


@pytest.fixture
def real() -> Iterator[Real]:
    real = Real(2)
    yield real
    real.stop()


async def until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.02)


async def test_the_store(real: Real):
    driver = Driver(HOST, real.port)
    assert await driver.get("edl", "job") is None
    await driver.put("edl", "job", b"here \x00 and there")
    assert await driver.get("edl", "job") == b"here \x00 and there"


@pytest.mark.slow
async def test_a_recount_starts_newcomers_frees_slots_and_empties_the_store(real: Real):
    driver, told = Driver(HOST, real.port), asyncio.Event()
    notices = HostUpdates(told.set)
    port = await notices.start(HOST)
    await driver.announce("localhost:0", "lo", HOST, port, notices.key)
    await driver.put("edl", "job", b"x")
    real.discovery.set({"localhost": 3})
    await asyncio.wait_for(told.wait(), WAIT_S)

    first = asyncio.create_task(driver.ask("localhost:0"))
    await asyncio.sleep(0.2)
    assert not first.done()  # it waits for the other one
    assert await driver.ask("localhost:1") == SlotCount(1, 3, 3)
    assert await first == SlotCount(0, 3, 3)
    await until(lambda: "localhost:2" in real.started, "the newcomer")
    assert await driver.get("edl", "job") is None

    told.clear()
    real.discovery.set({"localhost": 1})
    await asyncio.wait_for(told.wait(), WAIT_S)
    counts = await asyncio.gather(*(driver.ask(f"localhost:{slot}") for slot in range(3)))
    assert [count.rank for count in counts] == [0, -1, -1]
    real.ended["localhost:2"].set()  # the one that was freed may end
    notices.stop()


async def test_the_driver_hears_of_us_through_its_own_client(real: Real):
    del real
    told = threading.Event()
    notices = HostUpdates(told.set)
    port = await notices.start(HOST)

    def tell() -> None:
        client = WorkerNotificationClient({"lo": [(HOST, port)]}, notices.key, 0)
        client.notify_hosts_updated(1, HostUpdateResult.added)

    await asyncio.to_thread(tell)
    assert told.is_set()
    notices.stop()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x00" * 36,
        bytes(32) + struct.pack("=i", -1) + b"x" * 100,
        bytes(32) + struct.pack("=i", 2**31 - 1),
        bytes(32) + struct.pack("=i", 20) + b"HostsUpdatedRequest.",
    ],
)
async def test_strangers_are_not_heard(message: bytes):
    told = asyncio.Event()
    notices = HostUpdates(told.set)
    port = await notices.start(HOST)
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(message)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert not told.is_set()
    notices.stop()


async def test_no_pickle_is_loaded_even_of_a_caller_with_the_key(tmp_path):
    mark = tmp_path / "mark"
    bomb = f"cposix\nsystem\n(Vtouch {mark}\ntR.".encode()
    notices = HostUpdates(lambda: None)
    port = await notices.start(HOST)
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(hmac.new(notices.key, bomb, hashlib.sha256).digest() + struct.pack("=i", len(bomb)) + bomb)
    assert await reader.read() == b""
    writer.close()
    notices.stop()
    assert not mark.exists()
    codec.cloudpickle.loads(bomb)
    assert mark.exists()  # so it was one


def test_what_we_write_horovod_reads():
    addresses = ({"eth0": [("10.0.0.1", 4711)], "lo": []}, b"key")
    assert codec.loads_base64(base64.b64encode(driver_requests.written(addresses))) == addresses


async def test_a_driver_that_is_not_there():
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        with pytest.raises(PeerError, match="does not answer"):
            await Driver(HOST, unused.getsockname()[1]).get("edl", "job")
