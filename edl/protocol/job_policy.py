"""What a job was started with to govern itself: its size, its batch, its workers' equality, its checkpoints; and what
is under way of the first two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from edl.protocol.divergence import Checking
from edl.protocol.saving import Checkpointing

_NUMBER: Final = r"[0-9]{1,9}(\.[0-9]{1,9})?"
_DIGEST: Final = r"sha256:[0-9a-f]{64}"
_CHOICE: Final = rf"(efficiency={_NUMBER}|utility=[^,]+|policy={_DIGEST})"
_AUTOSCALE: Final = rf"\A({_CHOICE}(,(stride|batches|cooldown)={_NUMBER}|,dry-run)*)?\Z"

MOST: Final = 10**9
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Table = Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=10_000)]
"""Pairs of workers, and the batch of all of them."""


def digest_text(digest: str) -> str:
    """How code is called where it must not be named."""
    return f"sha256:{digest}"


class BatchRule(StrEnum):
    """What the batch of a step depends on (`edl.core.data.batching`)."""

    LOCAL = "fixed-local"
    GLOBAL = "fixed-global"
    TABLE = "function"
    ASKED = "asked"  # `edl batch`: no job begins with it


class Batching(msgspec.Struct, frozen=True):
    """How large the batch of a step is, at any number of workers."""

    rule: BatchRule = BatchRule.LOCAL
    most: Annotated[int, msgspec.Meta(ge=0)] = 0  # of all workers together; 0: no bound (LOCAL). ASKED: just so many
    table: Annotated[
        tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=10_000)
    ] = ()  # what the user's function said: (workers, batch of all), ascending

    def __str__(self) -> str:
        if self.rule is BatchRule.ASKED:
            return self.rule.value
        return f"{self.rule.value},most={self.most}" if self.most else self.rule.value


class JobPolicy(msgspec.Struct, frozen=True):
    """As its first worker says it; equal for all leaders. What has another form is not taken (I18)."""

    # As `edl run --autoscale` takes it, but a user's code by its digest; empty: only people change the size.
    autoscale: Annotated[str, msgspec.Meta(pattern=_AUTOSCALE, max_length=4096)] = ""
    utility: Annotated[str, msgspec.Meta(max_length=100_000)] = ""  # what the file named there holds
    every: Count = 10  # steps from one look to the next
    stragglers: Annotated[str, msgspec.Meta(pattern=r"\A(off|tell|replace|share)\Z")] = "off"
    batching: Batching = Batching()
    checking: Checking = Checking()
    checkpointing: Checkpointing = Checkpointing()


class Rebatch(msgspec.Struct, frozen=True):
    """Leases are about to be cut anew (`edl.core.data.rebatch`): no worker is to read beyond the step `mark`."""

    number: int  # never used twice
    mark: int
    planned: bool = False  # a plan rests on it: what was leased beyond may be others' in its ring


class Replacing(msgspec.Struct, frozen=True):
    """Another worker comes for `worker`; then it leaves. Afterwards the job has `size` workers, as before."""

    worker: str
    size: int
