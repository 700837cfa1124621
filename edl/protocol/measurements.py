"""Measurements of a job: the resource use of workers, and the throughput at a size."""

from __future__ import annotations

import msgspec


class Rate(msgspec.Struct, frozen=True):
    """The measured throughput of a job of `size` workers."""

    size: int
    batches: int  # measured batches
    samples: int  # samples trained in these
    seconds: float  # seconds that these took

    @property
    def samples_s(self) -> float:
        """Return the throughput."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def step_s(self) -> float:
        """Return the mean time of a step."""
        return self.seconds / self.batches if self.batches else 0.0


class Usage(msgspec.Struct, frozen=True):
    """The resources that a worker has used since its trainer began; the difference of two gives a rate."""

    at: float  # seconds, on the worker's own clock
    step: int
    waited_s: float = 0.0  # waiting for peers, including the transfer itself
    loaded_s: float = 0.0  # waiting for samples
    cpu_s: float = 0.0
    memory: int = 0  # bytes held now
    reported: dict[str, float] = {}  # the newest value of each figure that the script reports
    computed_s: float = 0.0  # in rings, neither waiting nor loading; never shrinks
