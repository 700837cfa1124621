"""What tests/soaks/hostile.py sees of a job from outside: its processes, where they listen, what they take."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from tests.soaks.hostile_inputs import COORDINATOR, DAEMON, LEADER, RENDEZVOUS, Target
from tests.soaks.hostile_wire import exchange

LISTENING = "0A"


class Memory(NamedTuple):
    """Of one process, in MB."""

    now: float
    peak: float


def processes(home: Path) -> list[int]:
    """All that came from a job with records of its own in `home`."""
    mark, found = f"EDL_HOME={home}".encode(), []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # ended, or another user's
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def listening(pid: int) -> list[tuple[str, int]]:
    """Host and port of its listening TCP sockets; none of a process that has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return _listening(pid)
    return []


def _listening(pid: int) -> list[tuple[str, int]]:
    links, found = set(), []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.add(str(entry.readlink()))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in links:
                address, _, port = fields[1].partition(":")
                found.append((_host(address), int(port, 16)))
    return found


def _host(address: str) -> str:
    """As a socket takes it. The kernel writes each word of it backwards; an IPv4 address may be part of an IPv6 one."""
    if len(address) == 32 and not address.startswith("0000000000000000FFFF0000"):
        return "::1" if address.strip("0") == "1" else "::"
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(address[-8:])))


async def targets(home: Path, status: dict[str, Any]) -> list[Target]:
    """Every port of the job."""
    leads = {worker["daemon_pid"]: worker["id"] == status["leader"] for worker in status["workers"]}
    found = [(pid, address) for pid in processes(home) for address in listening(pid)]
    return [Target(await _role(address, leads.get(pid)), *address) for pid, address in found]


async def _role(address: tuple[str, int], leads: bool | None) -> str:
    """`leads`: None, if it is no daemon that listens there."""
    if leads is None:
        return COORDINATOR
    if (await exchange(address, b"?? ?? ??\r\n\r\n")).received.startswith(b"HTTP/1.1"):
        return RENDEZVOUS
    return LEADER if leads else DAEMON


def memory(pid: int) -> Memory:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Memory(*(int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")))


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
