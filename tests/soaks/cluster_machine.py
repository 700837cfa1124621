"""The machine below a cluster, as a benchmark changes it: its clocks are set, and its disk is full for a while.

Owns: these two. Does not own: when that happens (`tests/soaks/cluster_strikes.py`), nor the cluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

MACHINE = "machine"  # the clock of all processes whose own was not set
DISK_MB = 256
ALONE = "MOUNTS_OF_ITS_OWN"
BLOCKS = (1 << 20, 4096)


class Clocks:
    """The wall clocks of Python's processes. Those that only count are as they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    @property
    def path(self) -> Path:
        """Return what is to come first on the processes' path."""
        return Path(__file__).with_name("clock_set")

    @property
    def environ(self) -> dict[str, str]:
        return {"CLOCK_SET": str(self._folder)}

    def set(self, name: str, ahead_s: float) -> None:
        """Of MACHINE, or of the one process of that name."""
        new = self._folder / f".{name}"
        new.write_text(f"{ahead_s}")
        new.rename(self._folder / name)


class Disk:
    """A small file system that no process but this one and its children sees, and that ends with them."""

    def __init__(self, folder: Path) -> None:
        """`folder`: is empty, and lies on this disk from now on."""
        self._ballast = folder / "ballast"
        size = f"size={DISK_MB}m,mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "benchmark", str(folder)], check=True)

    def fill(self) -> None:
        """To the last byte."""
        with self._ballast.open("ab") as file:
            for block in BLOCKS:
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), block)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


def with_own_mounts(module: str) -> bool:
    """Begin this program again where it can mount a disk that nobody else sees; False: it may not."""
    unshare = shutil.which("unshare")
    if not os.environ.get(ALONE) and os.geteuid() == 0 and unshare:
        command = [unshare, "--mount", sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(unshare, command, {**os.environ, ALONE: "1"})
    return bool(os.environ.get(ALONE))
