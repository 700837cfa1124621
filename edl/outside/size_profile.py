"""A profile of a job: its throughput at each size, measured while it is scaled in from the largest to the smallest.

Owns: the order of sizes, what counts as measured, the table. Does not own: measuring (the leader's meter does, and
keeps the measurements for the job's own policy), nor starting workers for the largest size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from edl.errors import EdlError, JobFailed, TimedOut, UsageError
from edl.outside.job_client import JobClient
from edl.policy.efficiency import scaling_efficiency
from edl.protocol.record import OVER, JobState, Status
from edl.protocol.tally import Rate

LOOK_S: Final = 0.5
BATCHES: Final = 100  # measured at each size
TIMEOUT_S: Final = 600.0


class Row(msgspec.Struct, frozen=True):
    """A size of a profile, and its measurements."""

    size: int
    batches: int
    step_s: float
    samples_s: float
    speedup: float  # throughput divided by the smallest size's throughput
    efficiency: float  # throughput per worker, divided by that of the smallest size
    # Throughput that each worker beyond the next smaller size adds, divided by the throughput per worker of that size.
    marginal: float | None


class Profile(msgspec.Struct, frozen=True):
    """The profile of a job; its rows begin with the smallest size.

    >>> Profile("mnist", ()).rows  # as Job.profile() returns it, with a row for each size
    ()
    """

    job: str
    rows: tuple[Row, ...]


def table_of(job: str, rates: Sequence[Rate]) -> Profile:
    """Make the profile from measured rates, smallest size first."""
    rows: list[Row] = []
    for place, rate in enumerate(rates):
        least, before = rates[0], rates[place - 1] if place else None
        speedup = rate.samples_s / least.samples_s if least.samples_s else 0.0
        rows.append(
            Row(
                size=rate.size,
                batches=rate.batches,
                step_s=rate.step_s,
                samples_s=rate.samples_s,
                speedup=speedup,
                efficiency=speedup * least.size / rate.size,
                marginal=None if before is None else scaling_efficiency(before, rate),
            )
        )
    return Profile(job, tuple(rows))


class Wish(msgspec.Struct, frozen=True):
    """The sizes to measure, and how long."""

    smallest: int
    largest: int
    stride: int = 1
    batches: int = BATCHES
    timeout_s: float = TIMEOUT_S  # for each size, including the boot of workers

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes, largest first: workers leave at once, and come only after a boot. Raises UsageError."""
        if not 1 <= self.smallest <= self.largest or self.stride < 1 or self.batches < 1:
            raise UsageError(
                f"cannot measure from {self.largest} down to {self.smallest} workers, {self.batches} batches at each, "
                f"in strides of {self.stride}: --max must be at least --min, and each number at least 1"
            )
        return tuple(range(self.largest, self.smallest - 1, -self.stride))


async def profile(client: JobClient, job: str, wish: Wish, seen: Callable[[str], object]) -> Profile:
    """Measure each size, then ask for the job's former size again. `seen` gets lines about the progress.

    Raises ScaleRejected, TimedOut, JobFailed.
    """
    sizes = wish.sizes
    before = (await client.status()).target
    try:
        rates = [await _measured(client, job, size, wish, seen) for size in sizes]
    finally:
        await _restore(client, before)
    return table_of(job, rates[::-1])


async def _measured(client: JobClient, job: str, size: int, wish: Wish, seen: Callable[[str], object]) -> Rate:
    clock = asyncio.get_running_loop().time
    deadline = clock() + wish.timeout_s
    await client.scale(size)
    while True:
        status = await client.status()
        if status.state in OVER:
            raise JobFailed(f"job {job} is over ({status.reason or status.state.value}): {size} workers not measured")
        if status.target != size:
            raise EdlError(f"job {job} was asked for {status.target} workers while {size} were measured")
        rate = status.rate if _is_at(status, size) else None
        if rate is not None and rate.size == size and rate.batches >= wish.batches:
            seen(f"{size} workers: {rate.samples_s:.4g} samples/s")
            return rate
        seen(_progress(status, size, rate, wish.batches))
        if clock() > deadline:
            raise TimedOut(f"job {job}: {size} workers were not measured within {wish.timeout_s:g} s")
        await asyncio.sleep(LOOK_S)


def _is_at(status: Status, size: int) -> bool:
    return status.state is JobState.RUNNING and status.size == size


def _progress(status: Status, size: int, rate: Rate | None, batches: int) -> str:
    if not _is_at(status, size):
        return f"{size} workers: {status.size} train so far"
    return f"{size} workers: {0 if rate is None else rate.batches} of {batches} batches"


async def _restore(client: JobClient, size: int) -> None:
    status = await client.status()
    if status.state not in OVER and status.target != size:
        await client.scale(size)
