"""An id shared by processes that can see whether others of the job live: same kernel boot, pid
namespace and address.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


def pid_space() -> str | None:
    """Return an id that is equal for processes of one boot and one pid namespace, in which a pid means the same process
    for both. Return None where the system does not say so.
    """
    try:
        pids = Path("/proc/self/ns/pid").stat()
        return f"{BOOT.read_text().strip()}:{pids.st_dev}:{pids.st_ino}"
    except OSError:
        return None


def host_id(address: str) -> str | None:
    """Return an id that is equal for processes to which a pid means the same process; None where the system does not
    say so.

    `address` is the one by which this host is reached: machines that were restored from one image may have all else in
    common.
    """
    space = pid_space()
    return None if space is None else hashlib.sha256(f"{space} {address}".encode()).hexdigest()[:16]
