"""Which processes can see whether others of a job live: those of one kernel, one namespace of pids and one address."""

from __future__ import annotations

import hashlib
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


def pid_space() -> str | None:
    """Equal for processes of one boot of one kernel that mean the same process by a pid; None where the system does not
    say so.
    """
    try:
        pids = Path("/proc/self/ns/pid").stat()
        return f"{BOOT.read_text().strip()}:{pids.st_dev}:{pids.st_ino}"
    except OSError:
        return None


def host_id(address: str) -> str | None:
    """Equal for processes that mean the same process by a pid; None where the system does not say so.

    `address` is the one by which this host is reached: machines that were restored from one image may have all else
    in common.
    """
    space = pid_space()
    return None if space is None else hashlib.sha256(f"{space} {address}".encode()).hexdigest()[:16]
