"""A worker's part of a ledger: its leases, and its batch. Which leases it gets is the ledger's business."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
