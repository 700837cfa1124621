"""The ledger as a value, as the coordinator stores it and leaders pass it on."""

from __future__ import annotations

import msgspec

from edl.protocol.data_nouns import DataSpec, Lease


class MemberSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The leases of one worker of the roster."""

    worker: str
    batch: int
    number: int  # of the newest lease ever given to it
    leases: tuple[Lease, ...]  # not fully trained


class Deal(msgspec.Struct, frozen=True, array_like=True):
    """Samples for some steps, dealt to the members in runs. Rounds lease them; until then they are unassigned."""

    left: int = 0  # of its steps, those after the newest round
    steps: int = 0  # most steps that were dealt for; 0: the next deal is a first one


class LedgerSnapshot(msgspec.Struct, frozen=True):
    """The ledger's state. Its size depends on members, untrained leases and returned pieces, not on samples."""

    spec: DataSpec
    step: int  # the newest stable step that the ledger knew
    epoch: int  # of the newest round
    closed: bool  # the newest round was final
    ended: int  # number of trained epochs
    frontier: int  # places (epoch * total + position) from here on were never leased, or are unassigned again
    returned: tuple[tuple[int, int], ...]  # unassigned places before the frontier: from, to
    members: tuple[MemberSnapshot, ...]  # in order of rank
    late: int = -1  # the newest epoch whose samples came back after its final round was given to scripts
    deal: Deal = Deal()  # the newest deal
