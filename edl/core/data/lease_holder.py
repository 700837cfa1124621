"""A worker's part of a ledger: its leases, its batch, and whether its leases still suit the members.

Does not own: which leases it gets, nor what is done about those that do not suit (`edl.core.data.sample_ledger`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from edl.errors import InvalidTransition
from edl.protocol.data_nouns import DataSpec, Lease


class LeaseHolder:
    __slots__ = ("batch", "leases", "number")

    def __init__(self, batch: int, number: int = 0, leases: tuple[Lease, ...] = ()) -> None:
        self.batch = batch  # of what is leased to it from now on; 0 where there are more workers than samples
        self.number = number  # of the newest lease ever given
        self.leases = leases  # not fully trained, in order; () while it has no coverage of its own

    def fault(self, step: int, covered: int) -> str:
        """Return what is wrong with the leases of the steps from `step` to `covered`; nothing where they are whole."""
        at, number = step, self.number - len(self.leases)
        for lease in self.leases:
            number += 1
            if lease.number != number or max(lease.after_step, step) != at or lease.until_step <= at:
                return f"'s leases have a gap at {lease}"
            at = lease.until_step
        return f" runs dry at step {at}, others at {covered}" if self.leases and at != covered else ""


def batches_of(members: Iterable[LeaseHolder]) -> list[int]:
    return [member.batch for member in members]


def batch_by_worker(roster: Sequence[str], batches: Sequence[int] | None, spec: DataSpec) -> dict[str, int]:
    return dict(zip(distinct(roster), batches or [spec.batch] * len(roster), strict=True))


def distinct(roster: Sequence[str]) -> Sequence[str]:
    if len(set(roster)) != len(roster):
        raise InvalidTransition("ledger", f"a worker is twice in the roster {list(roster)} (I2)")
    return roster


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
