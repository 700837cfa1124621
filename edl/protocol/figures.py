"""What is measured of a job: figures of workers, and what a size achieves."""

from __future__ import annotations

import msgspec


class Rate(msgspec.Struct, frozen=True):
    """What a job of `size` workers was measured to do."""

    size: int
    batches: int  # measured
    samples: int  # trained in them
    seconds: float  # that they took

    @property
    def samples_s(self) -> float:
        """Throughput."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def step_s(self) -> float:
        """Mean time of a step."""
        return self.seconds / self.batches if self.batches else 0.0


class Usage(msgspec.Struct, frozen=True):
    """What a worker has used since its trainer began; two of them, compared, give a rate."""

    at: float  # seconds, on the worker's own clock
    step: int
    waited_s: float = 0.0  # for peers, and for the transfer itself
    loaded_s: float = 0.0  # waiting for samples
    cpu_s: float = 0.0
    memory: int = 0  # bytes held now
    reported: dict[str, float] = {}  # the newest figures of the script's own
    computed_s: float = 0.0  # in rings, and neither waiting nor loading; never shrinks
