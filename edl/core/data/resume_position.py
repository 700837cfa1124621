"""The data of a job as of one step, for a checkpoint, and what a job that is resumed from it begins with.

What is leased up to a step stays as it is while one ring trains, but for a cut that no worker has read beyond
(`edl.core.data.lease_recut`). So the ledger as of a step that is leased can be told before any worker is there
(`projected`). Where such a cut comes before the step after all, it is told anew.

A life that is resumed counts its steps from 0, and its workers are others (`rebased`). What the workers of the life
before held is in the name of their ranks until the first ring is planned: where that one is as large, its workers go on
with what their ranks held, in the same order, and with the deal under way; else all of it is leased anew.

Owns: these two forms of a ledger. Does not own: which samples are whose (`edl.core.data.sample_ledger`), nor when a job
is saved (`edl.core.checkpoint`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from edl.core.data.ledgers import restored_ledger
from edl.core.data.sample_ledger import Ledger
from edl.core.data.stream_parts import renamed
from edl.errors import UsageError
from edl.protocol.checkpoint_record import Resumed
from edl.protocol.data_nouns import DataSpec, Lease, LedgerSnapshot, MemberSnapshot

BEGIN_ANEW: Final = "with --resume never the job begins anew"
RANK: Final = "#"  # no worker's id begins so


def projected(ledger: Ledger, step: int) -> LedgerSnapshot:
    """Return `ledger` as it will be once `step`, up to which it is leased, is stable."""
    ahead = restored_ledger(ledger.snapshot())
    ahead.commit(step)
    return ahead.snapshot()


def rebased(snapshot: LedgerSnapshot, step: int = 0) -> LedgerSnapshot:
    """Return the same data as of `step` of a life in which none of those workers is any more. Harmless twice."""
    members = tuple(
        MemberSnapshot(f"{RANK}{rank}", one.batch, one.number, _moved(one.leases, snapshot.step, step))
        for rank, one in enumerate(snapshot.members)
    )
    # A script that has had its last batch of a pass is gone, and another one asks for all that is left. One that cuts
    # batches itself takes samples of an epoch only while that is not closed.
    closed = snapshot.closed and (not snapshot.spec.by_sample or any(one.leases for one in members))
    names = {one.worker: f"{RANK}{rank}" for rank, one in enumerate(snapshot.members)}
    stream = None if snapshot.stream is None else renamed(snapshot.stream, names)
    return msgspec.structs.replace(snapshot, step=step, members=members, late=-1, closed=closed, stream=stream)


def _moved(leases: Iterable[Lease], step: int, to_step: int) -> tuple[Lease, ...]:
    """Return the parts of `leases` that are untrained after `step`, shifted so that they follow `to_step`."""
    left = ((lease, max(lease.after_step, step)) for lease in leases)
    return tuple(
        msgspec.structs.replace(
            lease, after_step=after - step + to_step, steps=lease.until_step - after, ranges=lease.left(step)
        )
        for lease, after in left
    )


def is_inherited(ledger: Ledger) -> bool:
    return any(worker.startswith(RANK) for worker in ledger.roster)


def inherited(resumed: Resumed, worker: str, spec: DataSpec, step: int) -> Ledger:
    """Return the untrained data of the previous life, if `worker`, the first to ask for data, trains on the same data.

    Raises UsageError.
    """
    if resumed.ledger is None:
        raise UsageError(
            f"worker {worker} asks for data, and the scripts that were saved in {resumed.path} did not; {BEGIN_ANEW}"
        )
    before = resumed.ledger.spec
    differing = list(spec.differences(before))
    if spec.has_end and spec.epochs < before.epochs:  # else it asks for more of them, one by one
        differing.append("epochs")
    if differing:
        named = ", ".join(f"{name}={getattr(spec, name)} for {getattr(before, name)}" for name in differing)
        raise UsageError(
            f"worker {worker} trains on other data than what was saved in {resumed.path}: {named}; {BEGIN_ANEW}"
        )
    ledger = restored_ledger(rebased(resumed.ledger, step))
    ledger.extend(spec.epochs)
    return ledger
