"""What a job was started with to choose its size by itself, and what of that is under way."""

from __future__ import annotations

import msgspec


class Governing(msgspec.Struct, frozen=True):
    """As its first worker says it; equal for all leaders."""

    autoscale: str = ""  # as `edl run --autoscale` takes it; empty: nobody but people changes the size
    utility: str = ""  # what the file named there holds
    every: int = 10  # steps from one look to the next
    stragglers: str = "off"  # or "tell", or "replace"


class Replacing(msgspec.Struct, frozen=True):
    """Another worker comes for `worker`; then it leaves. Afterwards the job has `size` workers, as before."""

    worker: str
    size: int
