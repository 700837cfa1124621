"""Make the ledger that a source needs: by positions, or a stream's."""

from __future__ import annotations

from collections.abc import Sequence

from edl.core.data.position_ledger import PositionLedger
from edl.core.data.sample_ledger import Ledger
from edl.core.data.stream_ledger import StreamLedger
from edl.protocol.data_nouns import DataSpec, LedgerSnapshot


def new_ledger(
    spec: DataSpec, roster: Sequence[str] = (), step: int = 0, batches: Sequence[int] | None = None
) -> Ledger:
    return _kind(spec)(spec, roster, step, batches)


def restored_ledger(snapshot: LedgerSnapshot) -> Ledger:
    """Return a ledger that is equal to the one that the snapshot was taken of."""
    return _kind(snapshot.spec).restore(snapshot)


def _kind(spec: DataSpec) -> type[Ledger]:
    return StreamLedger if spec.shards else PositionLedger
