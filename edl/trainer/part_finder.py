"""The parts of a trainer's steps in a job with virtual workers: its own, and those of others that it computes again.

Owns: looking them up in the leases, which of them a script can be given, and what their loops ask of the trainer. Does
not own: which parts a step has and who has which (`edl.protocol.data_nouns`), which are computed again
(`edl.core.worker.compute_check`), nor computing them (`edl.trainer.virtual_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec
import numpy as np

from edl.core.worker.compute_check import Recomputed, recomputed, rounds
from edl.core.worker.worker_inputs import BitsStand
from edl.errors import UsageError
from edl.protocol.data_nouns import Lease
from edl.trainer.data.sample_ids import Ids, SampleIds
from edl.trainer.framework_port import Framework
from edl.trainer.recomputed_parts import UNCHECKED, StepTrial
from edl.trainer.seating import Seating
from edl.trainer.step_end import BatchEnds
from edl.trainer.virtual_steps import (
    LOADING,
    LoadedParts,
    PartLoad,
    VirtualParts,
    loads,
    parts_of,
    rehearsed,
    rows_of,
    stand_ins,
)
from edl.trainer.worker_shell import WorkerShell

GIVE_IDS: Final = (
    "--verify-compute: a part of another worker needs its samples: give edl.microbatches the ids of "
    "elastic_shard_generator().batches(n) as they come, or iterate an edl.ElasticDataLoader, or start the job without "
    "--verify-compute"
)
OF_STREAM: Final = (
    "--verify-compute: a stream's items are at one worker only, so no other one can compute its part again: start the "
    "job without --verify-compute"
)


class PartFinder:
    """The parts of one trainer. Implements `edl.trainer.virtual_steps.VirtualPort`."""

    def __init__(
        self,
        framework: Framework,
        shell: WorkerShell,
        seating: Seating,
        ends: BatchEnds,
        steps_before: Callable[[], int],
    ) -> None:
        """`steps_before`: of earlier lives."""
        self._framework, self._shell, self._seating, self._ends = framework, shell, seating, ends
        self._machine, self._leases = shell.machine, shell.leases
        self._steps_before = steps_before
        self.virtual = 0  # virtual workers of the job

    @property
    def _step(self) -> int:
        """Return the number of the mini-batch being worked on, in this life."""
        return self._machine.step + 1

    @property
    def _rehearses(self) -> bool:
        return self._shell.rehearsals.left > 0

    def parts_of_step(self, batch: Any) -> VirtualParts:
        spec = self._machine.status.data
        if spec is None:
            raise UsageError(
                "edl.microbatches(): virtual workers take their samples from edl.elastic_shard_generator() or "
                "edl.ElasticDataLoader: iterate one of them, or start the job without --virtual-workers"
            )
        if self._rehearses:
            return rehearsed(spec, rows_of(batch))
        lease = self._leases.at(self._step)
        if lease is None:
            raise UsageError(
                f"edl.microbatches(): step {self._step} has no mini-batch yet; call it in the loop over samples"
            )
        parts = parts_of(spec, lease, self._step)
        return parts if parts.parts else stand_ins(spec, parts, rows_of(batch))

    def loads_of(self, ids: Ids) -> list[PartLoad]:
        """Return what the parts of the mini-batch being worked on are loaded from; those of others that this worker
        may compute again, too.
        """
        parts, lease = self.parts_of_step(ids), self._leases.at(self._step)
        return [*loads(parts, ids), *self._loads_again(parts, lease, self._step)]

    def loads_coming(self, count: int) -> list[PartLoad]:
        """Return the next `count` parts after this step, of its epoch, as far as they are leased."""
        found: list[PartLoad] = []
        if self._rehearses:
            return found
        step, spec = self._step, self._machine.status.data
        now = self._leases.at(step)
        while spec is not None and now is not None and len(found) < count:
            step += 1
            lease = self._leases.wanted_at(step)
            if lease is None or lease.epoch != now.epoch:
                break
            parts = parts_of(spec, lease, step)
            found += [*loads(parts, self._ids(lease, step)), *self._loads_again(parts, lease, step)]
        return found

    # ------------------------------------------------------------------------------------ what loops ask of the trainer

    def adding_up(self) -> AbstractContextManager[None]:
        return self._framework.adding_up()

    def step_of_all_lives(self) -> int:
        return self._steps_before() + self._step

    def tell_bits(self, bits: str) -> None:
        self._shell.hear(BitsStand(bits))

    @property
    def corrupt_since(self) -> int:
        since = self._ends.corrupt_since
        return since and self._steps_before() + since

    @property
    def keeps_digests(self) -> bool:
        return self._shell.audit.on

    def keep_digests(self, loop: int, digests: Sequence[tuple[int, int]]) -> None:
        """Keep the digests of this step's parts in the audit. Raises SystemExit where a replay ends."""
        step = self.step_of_all_lives()
        self._shell.audit.computed(step, loop, digests)
        if (until := self._seating.started().replay_until) is not None and step >= until:
            raise SystemExit(0)

    # ------------------------------------------------------------------------------------------- what is computed again

    @property
    def _share(self) -> float:
        return self._machine.unusual.checking.compute

    def trial(self, batch: Any, parts: VirtualParts) -> StepTrial:
        if not self._share:
            return UNCHECKED
        lease, rank = self._leases.at(self._step), self._machine.rank
        if lease is None or not parts.counts:
            return StepTrial((), rank, self.virtual, self._ends.judge)
        if lease.by_shard:
            raise UsageError(OF_STREAM)
        if not (isinstance(batch, LoadedParts) or self._are_ids(batch, lease)):
            raise UsageError(GIVE_IDS)
        found = self._recomputed(parts, lease, self._step)
        besides = [] if isinstance(batch, LoadedParts) else self._with_samples(parts, lease, self._step, 1)
        return StepTrial(found, rank, self.virtual, self._ends.judge, besides)

    def _are_ids(self, batch: Any, lease: Lease) -> bool:
        return isinstance(batch, np.ndarray) and np.array_equal(batch, self._ids(lease, self._step))

    def ids_of(self, virtual: int) -> Ids:
        """Return the samples of a virtual worker, of any worker's, in the mini-batch being worked on."""
        lease = self._leases.at(self._step)
        assert lease is not None  # its parts are computed
        return self._ids_of(virtual, lease, self._step)

    def _recomputed(self, parts: VirtualParts, lease: Lease, step: int) -> list[Recomputed]:
        """Return the parts of a step that are computed a second time."""
        if not self._share or not parts.counts:
            return []
        count = rounds(parts.place.seed, self._steps_before() + step, self.virtual, self._machine.size, self._share)
        return self._with_samples(parts, lease, step, count) if count else []

    def _with_samples(self, parts: VirtualParts, lease: Lease, step: int, count: int) -> list[Recomputed]:
        bounds, of_all_lives = lease.bounds_of_all(step), self._steps_before() + step
        found = recomputed(parts.place.seed, of_all_lives, self.virtual, self._machine.size, count)
        return [one for one in found if bounds[one.virtual + 1] > bounds[one.virtual]]

    def _loads_again(self, parts: VirtualParts, lease: Lease | None, step: int) -> list[PartLoad]:
        if lease is None:
            return []
        rank, place = self._machine.rank, parts.place
        again = [one.virtual for one in self._recomputed(parts, lease, step) if rank in {one.checker, one.third}]
        keys = [(virtual, (place.epoch, place.number, virtual)) for virtual in again]
        return [
            PartLoad(key, self._ids_of(virtual, lease, step), place.seed_of(virtual, LOADING)) for virtual, key in keys
        ]

    def _ids_of(self, virtual: int, lease: Lease, step: int) -> Ids:
        return self._ids(msgspec.structs.replace(lease, part=(virtual, virtual + 1, self.virtual)), step)

    def _ids(self, lease: Lease, step: int) -> Ids:
        spec = self._machine.status.data
        assert spec is not None  # it has leases
        return SampleIds().of(spec, lease, step)
