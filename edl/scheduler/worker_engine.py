"""Port of an engine, which starts and ends the workers of one node for its agent. The embedded engine is
`local_engine`.

An engine that hands workers to another system keeps the same promises, and the suite of tests/contract/test_engines.py
is run on each.

Owns: the promises. Does not own: which worker is started when (`edl.cluster.queue.agent_machine`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from edl.cluster.queue.agent_machine import WorkerFound
from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.queue_entries import Submission, WorkerOrder

LIMB_STARTER: Final = Path(__file__).with_name("limb_starter.py")

Ended = Callable[[str, EndEvidence], None]


class Start(msgspec.Struct, frozen=True):
    order: WorkerOrder
    asked: Submission
    environ: Mapping[str, str]  # all of it

    @property
    def command(self) -> tuple[str, ...]:
        """Return what the worker's warden starts: the job's command, or what starts it once for each limb."""
        if self.asked.processes == 1:
            return self.asked.command
        return (sys.executable, "-I", "-S", str(LIMB_STARTER), str(self.asked.processes), *self.asked.command)


class WorkerEngine(Protocol):
    """Belongs to one event loop."""

    @property
    def takes_workers(self) -> bool:
        """Tell whether the node has devices to give now: another system may have lost it, or keep it for others."""

    async def find(self) -> list[WorkerFound]:
        """Return workers that this engine was ever asked to start here and that were not forgotten; from now on the end
        of each that lives is told. Called once, first.
        """

    async def start(self, start: Start) -> int | None:
        """Claim the worker's id for good and start the worker. Return its pid, or the number by which the other system
        knows it, 0: none. None: the id was claimed before; nothing is done. A worker that cannot be started ends at
        once, with a reason.
        """

    async def bar(self, worker: str) -> WorkerFound:
        """Claim the worker's id for good, unless it was claimed before; return what has become of the worker. From now
        on it does not begin, and the end of one that lives is told. Raises OSError, EdlError.
        """

    def end(self, worker: str, *, kill: bool) -> None:
        """Ask it to leave, or kill all of its processes. Its end is told as any other."""

    def forget(self, worker: str) -> None:
        """Forget a worker that is gone and whose end was heard of. Its id stays claimed."""

    async def close(self) -> None:
        """Tell of no further end. Workers go on."""


Make = Callable[[Ended], WorkerEngine]
"""An engine that calls its argument once for each worker that ended, when none of its processes is left (I17)."""
