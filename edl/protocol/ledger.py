"""The ledger as a value, as it lies at the coordinator and passes from one leader to the next."""

from __future__ import annotations

import msgspec

from edl.protocol.data import DataSpec, Lease


class MemberSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """What one worker of the roster holds."""

    worker: str
    batch: int
    number: int  # of the newest lease ever given to it
    leases: tuple[Lease, ...]  # not fully trained


class Deal(msgspec.Struct, frozen=True, array_like=True):
    """Samples for some steps, dealt to the members in runs. Rounds lease them; until then they are unassigned."""

    left: int = 0  # of its steps, those after the newest round
    steps: int = 0  # that were dealt for at most; 0: the next deal is a first one


class LedgerSnapshot(msgspec.Struct, frozen=True):
    """As large as there are members, leases not yet trained and returned pieces, however many samples there are."""

    spec: DataSpec
    step: int  # the newest stable one that the ledger knew
    epoch: int  # of the newest round
    closed: bool  # the newest round was final
    ended: int  # epochs that are trained
    frontier: int  # places (epoch * total + position) from here on were never leased, or are unassigned again
    returned: tuple[tuple[int, int], ...]  # unassigned places before the frontier: from, to
    members: tuple[MemberSnapshot, ...]  # in order of rank
    late: int = -1  # the newest epoch whose samples came back after scripts had been given its final round
    deal: Deal = Deal()  # the newest one
