"""The policy of a job for its size, its batch, the equality of its workers and its checkpoints; and the changes of size
and batch that are under way.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from edl.protocol.checkpoint_record import Checkpointing
from edl.protocol.divergence_report import Checking

_NUMBER: Final = r"[0-9]{1,9}(\.[0-9]{1,9})?"
_DIGEST: Final = r"sha256:[0-9a-f]{64}"
_CHOICE: Final = rf"(efficiency={_NUMBER}|utility=[^,]+|policy={_DIGEST})"
_AUTOSCALE: Final = rf"\A({_CHOICE}(,(stride|batches|cooldown)={_NUMBER}|,dry-run)*)?\Z"

MOST: Final = 10**9
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Table = Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=10_000)]
"""Pairs of a number of workers, and the batch of all of them."""


def digest_text(digest: str) -> str:
    """Return the name of code whose path must not be shown."""
    return f"sha256:{digest}"


class BatchRule(StrEnum):
    """The rule that decides the batch of a step (`edl.core.data.batching`)."""

    LOCAL = "fixed-local"
    GLOBAL = "fixed-global"
    TABLE = "function"
    ASKED = "asked"  # by `edl batch`: no job begins with it


class Batching(msgspec.Struct, frozen=True):
    """The batch of a step, at any number of workers."""

    rule: BatchRule = BatchRule.LOCAL
    # bound for all workers together; 0: no bound (LOCAL). ASKED: exactly so many
    most: Annotated[int, msgspec.Meta(ge=0)] = 0
    table: Annotated[
        tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=10_000)
    ] = ()  # values of the user's function: (workers, batch of all), ascending

    def __str__(self) -> str:
        if self.rule is BatchRule.ASKED:
            return self.rule.value
        return f"{self.rule.value},most={self.most}" if self.most else self.rule.value


class JobPolicy(msgspec.Struct, frozen=True):
    """The policy that the job's first worker tells; equal for all leaders. Other forms are refused (I18)."""

    # As in `edl run --autoscale`, but a user's code by its digest; empty: only people change the size.
    autoscale: Annotated[str, msgspec.Meta(pattern=_AUTOSCALE, max_length=4096)] = ""
    utility: Annotated[str, msgspec.Meta(max_length=100_000)] = ""  # contents of the file named there
    every: Count = 10  # steps from one decision to the next
    stragglers: Annotated[str, msgspec.Meta(pattern=r"\A(off|tell|replace|share)\Z")] = "off"
    batching: Batching = Batching()
    checking: Checking = Checking()
    checkpointing: Checkpointing = Checkpointing()


class Rebatch(msgspec.Struct, frozen=True):
    """A rebatch: leases are about to be cut anew (`edl.core.data.lease_recut`), and no worker is to read beyond step
    `mark`.
    """

    number: int  # never used twice
    mark: int
    planned: bool = False  # a plan depends on it: samples leased beyond the mark may be others' in its ring


class Replacing(msgspec.Struct, frozen=True):
    """The replacement of `worker` by a newcomer; then it leaves. Afterwards the job has `size` workers, as before."""

    worker: str
    size: int
