"""Workers of one ring compare their states, and what they do when these differ (I15).

Owns: comparing, at the end of a mini-batch, and what follows for this trainer. Does not own: when it is due, who is
right (`edl.core.worker.divergence`), what is compared (the adapters), nor whether the job ends
(`edl.core.job.machine`).

One number of each member goes into one small all-reduce. Only where these differ do all hear all fingerprints of all.
"""

from __future__ import annotations

import logging
import time

import msgspec

from edl.collectives.ring import of_all_members
from edl.core.worker.digest import of_all
from edl.core.worker.divergence import difference, told
from edl.core.worker.inputs import StatesDiffer
from edl.errors import JobFailed
from edl.protocol.divergence import Divergence, Fingerprint, OnDivergence
from edl.trainer.extras import Extras
from edl.trainer.framework import Framework
from edl.trainer.shell import WorkerShell

logger = logging.getLogger("edl")


class _Teller(msgspec.Struct, frozen=True):
    """One of the ring, as it tells the others of itself where they differ."""

    worker: str
    fingerprints: list[Fingerprint]


class Comparison:
    """Of one trainer's state with those of the others. Belongs to the training thread."""

    def __init__(self, framework: Framework, shell: WorkerShell, extras: Extras) -> None:
        self._framework = framework
        self._shell = shell
        self._extras = extras
        self._names: list[str] = []  # of the ring's members, by rank, once they differed

    def make(self, timeout_s: float) -> None:
        """All members of the ring call it after the same step. Raises RingBroken, JobFailed, and what ends a script."""
        found = self._difference(persists=False)
        if found is None:
            return
        self._tell(found)
        if self._shell.machine.unusual.checking.on_divergence is OnDivergence.HEAL:
            logger.warning("%s; the state of %s becomes that of all", told(found), found.root)
            place = self._framework.ring.place
            wrong = place is not None and place.worker in found.workers
            self._shell.heal(self._names.index(found.root), current=not wrong)
            found = self._difference(persists=True)
            if found is None:
                return
            self._tell(found)
        self._wait_for_the_end(found, timeout_s)

    def _difference(self, *, persists: bool) -> Divergence | None:
        """What all members find alike."""
        ring, shell, machine = self._framework.ring, self._shell, self._shell.machine
        mine = self._framework.fingerprints(self._extras._compared())
        began = time.perf_counter_ns()
        same = ring.same(of_all(mine))
        shell.link.page.add_waited(time.perf_counter_ns() - began)
        if same:
            return None
        received = of_all_members(ring, msgspec.msgpack.encode(_Teller(shell.link.worker, list(mine))))
        members = [msgspec.msgpack.decode(one, type=_Teller) for one in received]
        self._names = [member.worker for member in members]
        found = difference([member.fingerprints for member in members])
        if found is None:
            raise RuntimeError("the workers' digests differ, and nothing that they are of does")
        return Divergence(
            generation=machine.generation,
            step=machine.step,
            equal_step=machine.unusual.equal_step,
            first=found.first,
            differing=found.differing,
            compared=found.compared,
            workers=tuple(self._names[rank] for rank in found.ranks),
            root=self._names[found.root],
            majority=found.majority,
            persists=persists,
        )

    def _tell(self, found: Divergence) -> None:
        self._shell.hear(StatesDiffer(found))

    def _wait_for_the_end(self, found: Divergence, timeout_s: float) -> None:
        """The job's leader ends it for all, with the reason. Without one, each trainer ends by itself (I12)."""
        link, until = self._shell.link, time.monotonic() + timeout_s
        while time.monotonic() < until:
            self._shell.while_waiting()
            link.wait_news(link.orders)
        raise JobFailed(told(found))
