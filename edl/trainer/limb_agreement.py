"""The limbs of one worker in agreement: what one of them hears on its training thread, all of them hear.

Owns: when rows are exchanged, on the training thread of each limb, and waiting for orders that another limb has heard.
Does not own: what rows say (`edl.core.worker.limb_votes`), nor how they travel (the framework's `LimbRows`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from edl.core.worker import limb_votes
from edl.core.worker.limb_votes import NO_ORDERS, Occasion, Row, UpdateVote
from edl.core.worker.worker_inputs import Input
from edl.core.worker.worker_machine import WorkerMachine
from edl.errors import JobFailed
from edl.protocol.assignment import Orders
from edl.trainer.daemon_link import DaemonLink


class LimbRows(Protocol):
    """The connection between the limbs of one worker."""

    def exchange(self, row: Row) -> list[Row]:
        """Return the rows of all limbs, by limb. Raises JobFailed where a limb has ended."""


class LimbWorld(NamedTuple):
    """The world of one limb: the other limbs, and its like in other workers."""

    rows: LimbRows
    exchange: Callable[[int, int], list[int]]  # a number with the members of a ring that is prepared, by generation


class LimbAgreement:
    """The agreement of this process with the others of its worker, on the training thread."""

    def __init__(self, rows: LimbRows, machine: WorkerMachine, limb: int) -> None:
        self.limb = limb
        self._rows = rows
        self._machine = machine

    def vote(self, *, void: bool, look: bool) -> UpdateVote:
        """Return what holds for all limbs before an update."""
        return limb_votes.update_of(self._rows.exchange(limb_votes.row(Occasion.UPDATE, int(void), int(look))))

    def orders(self, link: DaemonLink) -> Orders | None:
        """Return the newest orders that any limb has heard, the same on all; None: none has heard any."""
        while True:
            newest = link.orders
            stamp = NO_ORDERS if newest is None else (newest.term, newest.version)
            wanted = limb_votes.newest_orders(self._rows.exchange(limb_votes.row(Occasion.ORDERS, *stamp)))
            found = None if wanted == NO_ORDERS else link.wait_orders(wanted)
            holds = found is not None or wanted == NO_ORDERS
            if limb_votes.all_hold(self._rows.exchange(limb_votes.row(Occasion.HELD, int(holds)))):
                return found
            # A daemon that was started anew may have told one limb of orders between which another one has heard none.

    def answer(self, answer: Input) -> Input:
        """Return what came of a command on all limbs: where it failed on one, it has failed."""
        rows = self._rows.exchange(limb_votes.answer_row(answer))
        return limb_votes.agreed(answer, rows, sits=self._machine.sits)


class LimbLost(JobFailed):
    """Raised where another process of this worker has ended: the daemon ends this one, too."""
