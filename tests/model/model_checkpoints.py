"""Simulated checkpoints: copies that take time, daemons that store them, a store in which things go wrong.

Owns: what trainers, daemons and the leader's shell do for a saving, and what lies in the store, which outlives a job.
Does not own: when a job is saved (`edl.core.checkpoint`), nor what must hold of it (`tests.model.saving_checks`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from edl.core.job.leader_inputs import PublishingFailed, SavingPublished
from edl.core.worker.worker_inputs import CheckpointWished, CopyFailed, CopyTaken
from edl.protocol.assignment import Orders
from edl.protocol.checkpoint_record import FileInfo, PartInfo, Save, Saving
from edl.protocol.record import Record
from tests.model.model_faults import Moment
from tests.model.model_rings import STEP_S
from tests.model.model_worker import SimWorker
from tests.model.models import Model

if TYPE_CHECKING:
    from tests.model.model_leader import LeaderInJob
    from tests.model.simulation import SimJob

STORE_S: Final = 0.02  # usually at most, for a part
LATE_S: Final = 0.4  # a part that is late
PUBLISH_S: Final = 0.01
COPY_FAILS: Final = 0.01  # so many copies do
UPDATES: Final = 0.1  # so many of those that work on the next mini-batch are at its update
STORE_FAILS: Final = 0.03
STORE_LATE: Final = 0.05
PUBLISH_FAILS: Final = 0.1
PUBLISH_LOST: Final = 0.05  # its answer never comes


@dataclass(frozen=True, slots=True)
class Copy:
    save: Save
    worker: str
    generation: int
    step: int
    model: Model


@dataclass(slots=True)
class SimStore:
    """Durable files. `parts` by path and rank; a manifest makes a checkpoint of them."""

    parts: dict[tuple[str, int], Copy] = field(default_factory=dict)
    manifests: dict[str, Saving] = field(default_factory=dict)


class Savings:
    def __init__(self, job: SimJob, seed: int, store: SimStore | None = None) -> None:
        self.job = job
        self.store = store or SimStore()
        self.fails = True  # now and then
        self.store_s, self.store_fails, self.store_late = STORE_S, STORE_FAILS, STORE_LATE
        self.wishes: dict[int, bool] = {}  # steps at which scripts ask for a checkpoint: on all workers, or on rank 0
        self._random = random.Random(f"storage {seed}")
        self._rests: dict[str, int] = {}  # by worker, the saving for which what is left of it has copied
        self._copying: dict[str, Copy] = {}  # by worker, what its trainer is not through with
        self._copies: dict[str, Copy] = {}  # by worker, the newest: in a folder that its next daemon finds, too

    # ----------------------------------------------------------------------------------------------- a trainer's hands

    def copy(self, worker: SimWorker, save: Save, *, beside: bool = False) -> None:
        """Copy a worker's state beside its next mini-batch. `beside`: it is at one, and may be at its update."""
        if beside and self._chance(UPDATES):
            self.job.shells.tell(worker, CopyFailed(save.number, "its update had begun"))
            return
        copy = Copy(save, worker.id, worker.generation, worker.step, worker.model)
        self.job.checks.savings.copies(copy)
        self.job.happens(Moment.COPYING, worker)
        self._copying[worker.id] = copy
        self.job.after(0.5 * STEP_S * self._random.random(), self._copied, worker, copy)

    def wish(self, members: Sequence[SimWorker], step: int) -> None:
        if step in self.wishes:
            asking = members if self.wishes[step] else members[:1]
            for worker in (*asking, *asking):  # each of them twice
                self.job.shells.tell(worker, CheckpointWished())

    def finish(self, worker: SimWorker) -> None:
        if worker.id in self._copying:
            self._copied(worker, self._copying[worker.id])

    def _copied(self, worker: SimWorker, copy: Copy) -> None:
        if not worker.alive or worker.stalled or self._copying.get(worker.id) is not copy:
            return
        del self._copying[worker.id]
        if self._chance(COPY_FAILS):
            self.job.shells.tell(worker, CopyFailed(copy.save.number, "no memory is left"))
            return
        self._copies[worker.id] = copy
        self.job.shells.tell(worker, CopyTaken(copy.save.number, ("part",), 1000 * STEP_S))

    # ------------------------------------------------------------------------------------------------ a daemon's hands

    def tell_again(self, worker: SimWorker) -> None:
        copied, copy = worker.observed.status.copied, self._copies.get(worker.id)
        if copy is not None and copy.save.number == copied.number and copied.files:
            self.store_part(worker)

    def store_part(self, worker: SimWorker) -> None:
        """Store the worker's copy, as its daemon was told of it; another daemon may be told too, and begins anew.

        A copy that no leader wants any more is not stored: it may be durable already.
        """
        copy, daemon = self._copies[worker.id], worker.daemon
        wanted = None if worker.orders is None else worker.orders.save
        if wanted is None or wanted.number != copy.save.number:
            return
        if not worker.holds_copy(copy.save.number):
            self.job.checks.violated("I11", f"{worker.id} stores a copy that not all of its processes have taken")
        self.job.happens(Moment.STORING, worker)
        late = LATE_S if self._chance(self.store_late) else self.store_s
        fails = self._chance(self.store_fails)
        self.job.after(late * self._random.random(), self._stored, worker, copy, daemon, fails)

    def _stored(self, worker: SimWorker, copy: Copy, daemon: int, fails: bool) -> None:
        if worker.daemon != daemon:  # it is gone: what it wrote may lie there or not
            if worker.daemon and not fails and self._random.random() < 0.5:
                self.store.parts[copy.save.path, copy.save.part] = copy
            return
        if fails:
            worker.observed.not_stored(copy.save.number, "the disk is full")
        else:
            self.store.parts[copy.save.path, copy.save.part] = copy
            size = FileInfo(f"part-{copy.save.part:04d}-of-{copy.save.parts:04d}", 100, "0")
            worker.observed.stored(copy.save.number, PartInfo((size,), 1000 * STEP_S))
        self.job.daemons.stir(worker)

    def copy_rest(self, worker: SimWorker, orders: Orders) -> None:
        """Copy what the held processes of a worker have, once, and store it."""
        save = orders.save
        assert save is not None
        if save.number in (self._rests.get(worker.id), worker.observed.saved_part[0]):
            return
        self._rests[worker.id] = save.number
        copy = Copy(save, worker.id, worker.generation, worker.step, worker.model)
        self.job.checks.savings.copies(copy)
        failure = worker.copies_of_rest(orders) or ("its update had begun" if self._chance(UPDATES) else "")
        self.job.happens(Moment.STORING)
        self.job.after(self.store_s * self._random.random(), self._rest_is_stored, worker, copy, failure)

    def _rest_is_stored(self, worker: SimWorker, copy: Copy, failure: str) -> None:
        if not worker.daemon:
            return
        save = copy.save
        if failure:
            worker.observed.not_stored(save.number, failure)
        else:
            for limb in save.limbs:
                self.store.parts[save.path, limb] = copy
            files = tuple(FileInfo(f"part-{limb:04d}", 100, "0") for limb in save.limbs for _ in range(2))
            worker.observed.stored(save.number, PartInfo(files, 1000 * STEP_S))
        self.job.daemons.stir(worker)

    def is_storing(self, worker: SimWorker) -> bool:
        """Tell whether the daemon stores a part: it reports its trainer's end only after that."""
        copied, observed = worker.observed.status.copied, worker.observed
        wanted = None if worker.orders is None else worker.orders.save
        if wanted is None or wanted.number != copied.number:
            return False
        told = (observed.saved_part[0], observed.save_failed[0])
        return bool(copied.files) and copied.number not in told

    # ------------------------------------------------------------------------------------------ the leader's shell

    def publish(self, leader: LeaderInJob, record: Record) -> None:
        """Write the manifest, beside all else. If the leader dies, it may be written or not."""
        assert record.checkpoints.saving is not None
        if leader.term == self.job.term and self.job.durable is not record:
            self.job.checks.violated(
                "I9", f"saving {record.checkpoints.saving.number} is to be published, and that is not durable"
            )
        self.job.happens(Moment.PUBLISHING)
        fails, lost = self._chance(PUBLISH_FAILS), self._chance(PUBLISH_LOST)
        self.job.after(
            PUBLISH_S * self._random.random(), self._published, leader, record.checkpoints.saving, fails, lost
        )

    def _published(self, leader: LeaderInJob, saving: Saving, fails: bool, lost: bool) -> None:
        if not leader.alive and self._random.random() < 0.5:
            return
        if not fails:
            self.job.checks.savings.published(saving)
            self.store.manifests[saving.path] = saving
        if leader.alive and not lost:
            failed = PublishingFailed(saving.number, "the store says no")
            leader.receive(failed if fails else SavingPublished(saving.number))

    def _chance(self, share: float) -> bool:
        return self.fails and self._random.random() < share
