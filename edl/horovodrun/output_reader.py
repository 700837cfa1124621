"""Detect that no reader is left for the output of this process.

On a remote host nothing else tells of the end of the ssh by which horovodrun has started this process: neither killing
horovodrun nor Ctrl-C sends a signal there, and sshd only closes the pipes.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Sequence


class Hearing:
    """Call `lost` once, on the running loop, when all of `descriptors` that are pipes have lost their readers."""

    def __init__(self, descriptors: Sequence[int], lost: Callable[[], object]) -> None:
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._heard = {descriptor for descriptor in descriptors if stat.S_ISFIFO(os.fstat(descriptor).st_mode)}
        for descriptor in self._heard:
            # an error is all that a writing end can report
            self._loop.add_reader(descriptor, self._on_error, descriptor)

    def stop(self) -> None:
        """Stop the calls. Harmless twice."""
        for descriptor in self._heard:
            self._loop.remove_reader(descriptor)
        self._heard = set()

    def _on_error(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._heard.discard(descriptor)
        if not self._heard:
            self._lost()
