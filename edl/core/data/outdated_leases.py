"""Find leases that no longer suit the members: by the last step of each. What is done about them is the ledger's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from edl.core.data.lease_holder import LeaseHolder
from edl.protocol.data_nouns import Lease


def of_other_batches(members: Iterable[LeaseHolder]) -> Iterator[int]:
    """Find leases whose batch is not the member's present one."""
    for member in members:
        yield from (lease.until_step for lease in member.leases if lease.batch != member.batch)


def starved(members: Mapping[str, LeaseHolder], able: Collection[str] | None) -> Iterator[int]:
    """Find leases that lack samples: of a whole round only the last step may be short. `able`: the members that could
    have whole batches; None: all.
    """
    for worker, member in members.items():
        for lease in member.leases:
            if len(lease) < (lease.steps - 1) * lease.batch and (able is None or worker in able):
                yield lease.until_step


def overtaking(leases: Collection[Lease], covered: int, oldest: int | None) -> Iterator[int]:
    """Find leases that overtake older samples: a lease of a later epoch is trained before samples of an earlier one,
    which a member that is gone gave back when later epochs were leased already.

    `oldest`: the first epoch with unassigned samples, which are leased after the step `covered`; None: there are none.
    """
    late = {(lease.after_step, lease.ranges[0].epoch) for lease in leases if _brings_older(lease)}
    if oldest is not None:
        late.add((covered, oldest))
    for after_step, epoch in late:
        yield from (one.until_step for one in leases if one.epoch > epoch and one.after_step < after_step)


def _brings_older(lease: Lease) -> bool:
    """Tell whether `lease` begins with samples of an epoch before its own."""
    return bool(lease.ranges) and lease.ranges[0].epoch < lease.epoch
