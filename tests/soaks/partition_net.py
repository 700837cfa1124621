"""Hosts that are network namespaces, on a switch of ours that loses, delays or keeps what passes it.

Owns: the namespaces, one TAP device in each, the frames between them, and that all of it is gone at the end. Does not
own: what runs in them, nor when a link is cut. Needs root, iproute2 and /dev/net/tun; no module of the kernel for
faults, which few kernels of virtual machines have.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

TUN = Path("/dev/net/tun")
NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
DEVICE = "eth0"
FRAME_BYTES = 2048
BROADCAST = b"\xff" * 6


@dataclass(frozen=True, slots=True)
class Way:
    """What becomes of frames in one direction."""

    loss: float = 0.0
    delay_s: float = 0.0


OPEN, CUT = Way(), Way(loss=1.0)


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace, with a host name of its own for what runs in it."""

    name: str
    namespace: str
    number: int

    @property
    def address(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def mac(self) -> bytes:
        return bytes([2, 0, 0, 0, 0, self.number])

    def command(self, *arguments: str) -> list[str]:
        """Run it there. Ends with the thread that starts it; its process id is that of the command itself."""
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        return ["ip", "netns", "exec", self.namespace, "setpriv", "--pdeathsig", "KILL", *inside, *arguments]

    def pids(self) -> list[int]:
        """Of all that runs there."""
        return [int(pid) for pid in ip("netns", "pids", self.namespace).split()]

    def call(self, what: Callable[[], T]) -> T:
        """Call it in a thread that belongs to this host's network, and so do the sockets that it opens."""
        found: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                with (NAMESPACES / self.namespace).open("rb") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), f"setns {self.namespace}")
                found.append(what())
            except BaseException as error:  # noqa: BLE001 - raised again below
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return found[0]


def why_not() -> str:
    """Why there can be no hosts here; empty if there can."""
    if os.geteuid():
        return "namespaces and TAP devices need root"
    if not TUN.exists():
        return f"there is no {TUN}"
    name = f"edl{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no namespace can be made ({error})"
    return ""


class Network:
    """Hosts and the switch between them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.hosts = [Host(name, f"edl{os.getpid()}-{name}", 1 + at) for at, name in enumerate(names)]
        self._devices: dict[str, int] = {}
        self._ways: dict[str, tuple[Way, Way]] = dict.fromkeys(names, (OPEN, OPEN))  # from it, to it
        self._apart: frozenset[str] = frozenset()
        self._random = random.Random(0)
        self._closing = threading.Event()
        self._switch = threading.Thread(target=self._forward, name="switch", daemon=True)

    def open(self) -> None:
        for host in self.hosts:
            ip("netns", "add", host.namespace)
            self._devices[host.name] = host.call(_tap)
            mac = ":".join(f"{byte:02x}" for byte in host.mac)
            for words in (
                ("link", "set", "lo", "up"),
                ("link", "set", DEVICE, "address", mac),
                ("addr", "add", f"{host.address}/24", "dev", DEVICE),
                ("link", "set", DEVICE, "up"),
            ):
                ip("-n", host.namespace, *words)
        self._switch.start()

    def set_link(self, name: str, out: Way = OPEN, into: Way = OPEN) -> None:
        """What becomes of frames from that host, and of those to it; as before without arguments."""
        self._ways[name] = (out, into)

    def part(self, *names: str) -> None:
        """No frame passes between these hosts and the others; as before without arguments."""
        self._apart = frozenset(names)

    def close(self) -> None:
        """All processes of the hosts end, and the hosts with them, however impatient the user is with Ctrl-C."""
        before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._close()
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _close(self) -> None:
        for host in self.hosts:
            if (NAMESPACES / host.namespace).exists():
                end_all_in(host)
        self._closing.set()
        if self._switch.is_alive():
            self._switch.join()
        for device in self._devices.values():
            os.close(device)
        for host in self.hosts:
            if (NAMESPACES / host.namespace).exists():
                ip("netns", "del", host.namespace)

    # ---------------------------------------------------------------------------------------------------- the switch

    def _forward(self) -> None:
        source_of = {device: name for name, device in self._devices.items()}
        port_of = {host.mac: host.name for host in self.hosts}
        late: list[tuple[float, int, str, bytes]] = []
        count = 0
        while not self._closing.is_set():
            patience_s = min(0.1, max(0.0, late[0][0] - time.monotonic())) if late else 0.1
            for device in select.select(list(source_of), [], [], patience_s)[0]:
                frame, source = os.read(device, FRAME_BYTES), source_of[device]
                for target in self._targets(port_of, source, frame[:6]):
                    if (source in self._apart) != (target in self._apart):
                        continue
                    ways = self._ways[source][0], self._ways[target][1]
                    if any(way.loss and self._random.random() < way.loss for way in ways):
                        continue
                    count += 1  # frames that are due together keep their order
                    due = time.monotonic() + sum(way.delay_s for way in ways)
                    heapq.heappush(late, (due, count, target, frame))
            while late and late[0][0] <= time.monotonic():
                _, _, target, frame = heapq.heappop(late)
                with contextlib.suppress(OSError):  # the device is down, or its queue is full: so are real ones
                    os.write(self._devices[target], frame)

    def _targets(self, port_of: dict[bytes, str], source: str, mac: bytes) -> Iterator[str]:
        if mac in port_of:
            yield port_of[mac]
        elif mac == BROADCAST:
            yield from (name for name in self._ways if name != source)


def _tap() -> int:
    device = os.open(TUN, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TAP | IFF_NO_PI))
    return device


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def end_all_in(host: Host) -> None:
    """Whatever runs there has been started by us."""
    deadline = time.monotonic() + 10
    while (pids := host.pids()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
