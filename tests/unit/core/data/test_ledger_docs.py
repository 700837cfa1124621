"""The tables of docs/data.md are what the ledger does."""

from __future__ import annotations

import re
from pathlib import Path

from edl.core.data.ledgers import new_ledger
from edl.core.data.sample_ledger import Ledger
from edl.protocol.data_nouns import DataSpec, Range

DOCS = Path(__file__).parents[4] / "docs" / "data.md"


def tables_of_docs() -> list[list[list[str]]]:
    """Rows of cells of each table whose first column is a worker."""
    found = re.findall(r"^\| worker \|.*\n\|[ |-]+\n((?:\|.*\n)+)", DOCS.read_text(), re.MULTILINE)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()] for table in found]


def table_of(ledger: Ledger) -> list[list[str]]:
    return [
        [worker, *(shown(ledger, worker, step) for step in range(ledger.step + 1, ledger.covered_step + 1))]
        for worker in ledger.roster
    ]


def shown(ledger: Ledger, worker: str, step: int) -> str:
    lease = next(lease for lease in ledger.leases(worker) if lease.after_step < step <= lease.until_step)
    return ", ".join(map(written, lease.between(step - 1, step))) or "none"


def written(piece: Range) -> str:
    return f"{piece.start}" if len(piece) == 1 else f"{piece.start}-{piece.stop - 1}"


def test_the_example_is_true():
    ledger = new_ledger(DataSpec(total=48, epochs=1, batch=4), ["a", "b"])
    ledger.grant(3)
    before = table_of(ledger)
    ledger.enter(["a", "c", "d"], 1)
    ledger.grant(99)
    assert tables_of_docs() == [before, table_of(ledger)]
