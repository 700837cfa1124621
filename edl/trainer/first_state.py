"""Starting from equal models before the first mini-batch; a resumed job starts from its checkpoint.

Owns: taking that over, once for each ring that begins before the first step; checking that all members are about to
train the same model, and what is said where models differ. Does not own: the checkpoint
(`edl.checkpoints`), its data (`edl.core.data.resume_position`), nor what the state is made of
(`edl.trainer.framework_port`).
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from edl.checkpoints.checkpoint_names import parse_name
from edl.core.data.resume_position import BEGIN_ANEW
from edl.core.worker.worker_inputs import BatchBegins
from edl.errors import CheckpointError, ForeignCheckpoint, NotResumed, UsageError
from edl.protocol.assignment import Orders
from edl.protocol.audit_lines import LifeAudited
from edl.protocol.checkpoint_record import Origin
from edl.trainer import random_states
from edl.trainer.framework_port import Framework
from edl.trainer.registered_state import RegisteredState
from edl.trainer.worker_shell import WorkerShell

if TYPE_CHECKING:
    from edl.checkpoints.checkpoint_reader import Checkpoint
    from edl.checkpoints.manifest import Manifest, StageState, StoredTensor
import hashlib
from collections.abc import Sequence
from itertools import zip_longest

from edl.collectives.ring_port import Ring, of_all_members

logger = logging.getLogger("edl")


class FirstState:
    """Resume one trainer. Only `begin_batch` may be called outside the training thread."""

    def __init__(self, framework: Framework, extras: RegisteredState, shell: WorkerShell) -> None:
        self._framework = framework
        self._extras = extras
        self._shell = shell
        self._machine = shell.machine
        self._generation = 0  # the newest that it was taken over for

    @property
    def origin(self) -> Origin | None:
        """Checkpoint that this life of the job resumed from; None if it began anew."""
        orders = self._machine.orders
        return None if orders is None else orders.origin

    @property
    def not_taken_over(self) -> Origin | None:
        """Checkpoint of this life of which nothing was taken over here; None otherwise."""
        return None if self._generation > 0 else self.origin

    def begin_batch(self) -> None:
        """Make models equal before the forward passes of the first generation, when the script lets us know of them."""
        machine = self._machine
        if machine.model.may_differ and self._shell.is_training_thread:
            if (origin := self.origin) is not None:
                self._take_over(origin.path, machine.generation, machine.rank, machine.size)
            self._shell.hear(BatchBegins())

    def _take_over(self, path: str, generation: int, rank: int, size: int) -> None:
        """Take over a checkpoint in a ring that begins before the first step. Raises NotResumed, ForeignCheckpoint."""
        if generation == self._generation:
            return
        self._generation = generation
        try:
            with closing(_opened(path)) as found:
                self._take(found, rank, size)
        except UsageError as error:
            raise ForeignCheckpoint(f"{path} does not go with this script: {error}; {BEGIN_ANEW}") from error
        except CheckpointError as error:
            raise NotResumed(str(error)) from error
        logger.info("this worker goes on from %s", path)

    def _take(self, found: Checkpoint, rank: int, size: int) -> None:
        manifest = found.manifest
        if manifest.framework != self._framework.name:
            raise UsageError(f"it is one of {manifest.framework}, and this script trains with {self._framework.name}")
        limb, processes = self._shell.limb, self._machine.limbs
        head, tensors = stage_here(manifest, limb, processes)
        state = [one for one in tensors if one.belongs != "registered"]

        def fill(number: int, into: memoryview, offset: int = 0) -> None:
            found.read_range(state[number].name, offset, into)

        self._framework.restore(head.state, fill)
        more = [one for one in tensors if one.belongs == "registered"]

        def fill_registered(number: int, into: memoryview, offset: int = 0) -> None:
            found.read_range(more[number].name, offset, into)

        self._extras.restore(self._framework, head.registered, fill_registered)
        if (size, processes) == (manifest.size, manifest.processes):
            self._give_back_random_states(found, rank * processes + limb)

    def _give_back_random_states(self, found: Checkpoint, number: int) -> None:
        # The states are those of the process that had this place; none if the number of workers differs, or that of
        # their processes. A newcomer has its own.
        from edl.checkpoints.part_files import Own

        raw = found.own(number)
        if raw is None:
            return
        try:
            own = msgspec.msgpack.decode(raw, type=Own)
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"{found.path}: what process {number} had cannot be read: {error}") from None
        random_states.give_back(self._framework, own.random)


def stage_here(manifest: Manifest, limb: int, processes: int) -> tuple[StageState, Sequence[StoredTensor]]:
    """Return the state that this process goes on from, and its tensors. Raises UsageError."""
    heads = manifest.heads
    if len(heads) == 1:
        return heads[0], manifest.tensors
    if processes != manifest.processes:
        raise UsageError(
            f"it is one of {len(heads)} stages of a pipeline, over {manifest.processes} processes of each worker, and "
            f"here a worker has {processes}: resume it by --processes {manifest.processes}"
        )
    which = next(number for number, head in enumerate(heads) if limb in head.processes)
    begin = sum(head.tensors for head in heads[:which])
    return heads[which], manifest.tensors[begin : begin + heads[which].tensors]


def life_begun(orders: Orders | None) -> LifeAudited:
    """Return this life and its origin, for the audit."""
    life, origin = (1, None) if orders is None else (orders.life, orders.origin)
    *_, job, name = ["", *("" if origin is None else origin.path).rstrip("/").split("/")]
    found = parse_name(name)
    return LifeAudited(life) if found is None else LifeAudited(life, found.life, found.step, job)


def _opened(path: str) -> Checkpoint:
    # The launcher has verified this checkpoint.
    from edl.checkpoints.checkpoint_paths import placed
    from edl.checkpoints.checkpoint_reader import open_checkpoint

    return open_checkpoint(*placed(path))


ALIKE = "All workers must build the same model and wrap the same optimizers, in the same order"


def check_same(ring: Ring, parts: Sequence[str]) -> None:
    """Check `parts`, which describe this member's model, against all members', who call it at the same place.

    Raises RingBroken, and on all of them UsageError.
    """
    mine = msgspec.msgpack.encode(parts)
    if ring.same(int.from_bytes(hashlib.blake2b(mine, digest_size=8).digest(), "little"))():
        return
    by_rank = [msgspec.msgpack.decode(one, type=list[str]) for one in of_all_members(ring, mine)]
    raise UsageError(f"edl.Optimizer: {difference(by_rank)}. {ALIKE}")


def difference(by_rank: Sequence[Sequence[str]]) -> str:
    """Say how the first rank with a model other than rank 0's differs."""
    rank = next(rank for rank, of_rank in enumerate(by_rank) if of_rank != by_rank[0])
    pairs = zip_longest(by_rank[0], by_rank[rank], fillvalue="nothing more")
    first, here = next((first, here) for first, here in pairs if first != here)
    return f"the model of rank {rank} is not that of rank 0: {here} on rank {rank}, {first} on rank 0"
