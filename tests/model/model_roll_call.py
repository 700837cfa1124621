"""Simulated calls of a next ring's members: daemons that ask each other whether they are there.

Owns: what `edl.daemon.roll_caller` does. Does not own: who is called, and what follows
(`edl.core.switch.ring_forming`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl.core.worker.worker_states import TrainerState
from edl.protocol.assignment import Summons
from tests.model.model_worker import SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

RETRY_S = 0.02


class RollCalls:
    def __init__(self, job: SimJob) -> None:
        self.job = job

    def follow(self, worker: SimWorker, called: Summons | None, roster: tuple[str, ...]) -> None:
        if called is None or called.number <= worker.met[0]:
            return
        ranks = [peer.rank for peer in called.peers]
        worker.met = (called.number, *ranks)
        if not ranks:
            self.job.daemons.stir(worker)
        for rank in ranks:
            self._send(worker, rank, self.job.workers[roster[rank]], called.number)

    def _send(self, worker: SimWorker, rank: int, peer: SimWorker, number: int) -> None:
        self.job.after(2 * self.job.delay(), self._answered, worker, rank, peer, number)

    def _answered(self, worker: SimWorker, rank: int, peer: SimWorker, number: int) -> None:
        if worker.met[0] != number or not worker.daemon or not worker.alive or worker.doing is TrainerState.OVER:
            return
        if not peer.daemon or not peer.alive or peer.met[0] < number:
            self.job.after(RETRY_S, self._send, worker, rank, peer, number)
            return
        worker.met = (number, *(one for one in worker.met[1:] if one != rank))
        if worker.met == (number,):
            self.job.daemons.stir(worker)
