"""Simulated rings of the limbs other than the first, prepared beside the rings of now: each forms, or fails, by itself.

Owns: what the preparing threads of these limbs do, and that a switch is announced where all rings of a generation
stand. Does not own: the rings of the first limbs (`tests.model.model_next_rings`), nor what a worker makes of a half
generation (`tests.model.model_limbs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl.core.worker.worker_inputs import RingNotPrepared, RingPrepared
from edl.protocol.assignment import Place
from edl.protocol.record import Plan
from tests.model.model_next_rings import FORM_S
from tests.model.model_rings import STEP_TIMEOUT_S

if TYPE_CHECKING:
    from tests.model.model_limbs import LimbedWorker
    from tests.model.model_worker import SimWorker
    from tests.model.simulation import SimJob

SOON_S = 0.005


class LimbRing:
    """The ring of one limb of each worker, of one generation."""

    def __init__(self, place: Place) -> None:
        self.size = place.size
        self.ranks: dict[str, int] = {}
        self.came: dict[str, LimbedWorker] = {}
        self.stood: set[str] = set()
        self.breaks = False  # it never comes to stand, whatever the other limbs' rings do


class LimbRings:
    def __init__(self, job: SimJob) -> None:
        self.job = job
        self.held: dict[tuple[str, int], int] = {}  # by worker and limb: what its process forms, or has formed
        self.rings: dict[tuple[int, int], LimbRing] = {}  # by generation and limb

    def prepare(self, worker: LimbedWorker, limb: int, place: Place) -> None:
        if (worker.id, limb) in self.held:
            kept = self.held[worker.id, limb]
            self._violated(f"limb {limb} of {worker.id} keeps ring {kept}, and prepares ring {place.generation}")
        generation = self.held[worker.id, limb] = place.generation
        ring = self.rings.setdefault((generation, limb), LimbRing(place))
        ring.ranks[worker.id] = place.rank
        if not worker.prepares:
            self._fail_soon(worker, limb, generation, "Horovod said no")
            return
        if worker.breaks == "prepared" or (worker.cut_off and place.size > 1):
            worker.breaks = "" if worker.breaks == "prepared" else worker.breaks
            ring.breaks = True
        self.job.after(FORM_S * self.job.limb_source.random(), self._come, worker, limb, generation)
        self.job.after(STEP_TIMEOUT_S, self._fail, worker, limb, generation, "the others did not come in time")

    def release(self, worker: LimbedWorker, limb: int, generation: int) -> None:
        if self.held.get((worker.id, limb)) == generation:
            self._drop(worker, limb)

    def go(self, worker: LimbedWorker, limb: int, generation: int) -> None:
        """The limb's training thread goes to that ring, whichever thread has begun to form it."""
        if self.held.get((worker.id, limb)) == generation:
            del self.held[worker.id, limb]

    def stands_at(self, worker: LimbedWorker, limb: int, generation: int) -> bool:
        ring = self.rings.get((generation, limb))
        return self.held.get((worker.id, limb)) == generation and ring is not None and worker.id in ring.stood

    def missed(self, worker: SimWorker) -> None:
        """A worker is dead: the other members of rings that form notice."""
        for one, limb in [key for key in self.held if key[0] == worker.id]:
            self._drop(self.job.workers[one], limb)

    def _drop(self, worker: SimWorker, limb: int) -> None:
        generation = self.held.pop((worker.id, limb))
        self._break(worker, limb, generation)

    def _break(self, leaver: SimWorker, limb: int, generation: int) -> None:
        ring = self.rings[generation, limb]
        forms = len(ring.came) == ring.size
        for one in ring.came.values():
            waits = one is not leaver and one.id not in ring.stood
            if waits and (not forms or self.job.limb_source.random() < 0.5):
                self._fail_soon(one, limb, generation, "connection reset by peer")

    def _come(self, worker: LimbedWorker, limb: int, generation: int) -> None:
        ring = self.rings[generation, limb]
        if not self._forms(worker, limb, generation):
            return
        ring.came[worker.id] = worker
        if len(ring.came) < ring.size:
            return
        for one in ring.came.values():
            if ring.breaks:
                self._fail_soon(one, limb, generation, "connection reset by peer")
            else:
                self.job.after(FORM_S * self.job.limb_source.random(), self._stand, one, limb, generation)

    def _stand(self, worker: LimbedWorker, limb: int, generation: int) -> None:
        if self._forms(worker, limb, generation):
            ring = self.rings[generation, limb]
            ring.stood.add(worker.id)
            offer = 1 if worker.sends_state and not ring.ranks[worker.id] else 0
            worker.tell_limb(limb, RingPrepared(generation, offer))

    def _fail_soon(self, worker: LimbedWorker, limb: int, generation: int, reason: str) -> None:
        self.job.after(SOON_S * self.job.limb_source.random(), self._fail, worker, limb, generation, reason)

    def _fail(self, worker: LimbedWorker, limb: int, generation: int, reason: str) -> None:
        if self._forms(worker, limb, generation) and worker.id not in self.rings[generation, limb].stood:
            del self.held[worker.id, limb]
            worker.tell_limb(limb, RingNotPrepared(generation, reason, able=worker.prepares))
            self._break(worker, limb, generation)

    def _forms(self, worker: LimbedWorker, limb: int, generation: int) -> bool:
        return self.held.get((worker.id, limb)) == generation and worker.alive and not worker.stalled

    # ------------------------------------------------------------------------------------------------ what must hold

    def planned(self, plan: Plan) -> None:
        """Check that a switch beside training is announced where the rings of all limbs stand at all members."""
        for limb in range(1, self.job.processes) if plan.prepared else ():
            ring = self.rings.get((plan.generation, limb))
            if ring is None or len(ring.stood) < ring.size:
                self._violated(f"ring {plan.generation} is announced, and does not stand at all limbs {limb}")

    def over(self) -> None:
        left = {key: kept for key, kept in self.held.items() if self._lives(key[0])}
        if left:
            self._violated(f"at the end of all, rings of limbs are left over: {left}")

    def _lives(self, worker: str) -> bool:
        return self.job.workers[worker].alive and not self.job.workers[worker].stalled

    def _violated(self, complaint: str) -> None:
        self.job.checks.violated("I14", complaint)
