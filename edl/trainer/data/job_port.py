"""The port of a generator to its job, and the mini-batches that do not count.

Owns: both forms. Does not own: when there must be a rehearsal (`edl.core.worker.worker_machine`), nor what is handed
out for it (`edl.trainer.data.epoch_cursor`).
"""

from __future__ import annotations

from typing import Protocol

from edl.core.worker.lease_buffer import LeaseBuffer
from edl.protocol.data_nouns import DataSpec, ShardPart


class Rehearsals:
    """Count a worker's rehearsals from its beginning on: how many are due, and how many have ended.

    They are a newcomer's first mini-batches, and one in the place of data that never come. The machine's commands
    change the count; any thread may look.
    """

    def __init__(self) -> None:
        self.due = 0
        self.ended = 0

    @property
    def left(self) -> int:
        """Rehearsals to come, with the one that is being worked on."""
        return self.due - self.ended

    def add(self, number: int) -> None:
        self.due += number

    def end_one(self) -> None:
        self.ended += 1

    def end_all(self) -> None:
        self.ended = self.due


class DataPort(Protocol):
    """Methods run on the thread that pulls the generator."""

    @property
    def leases(self) -> LeaseBuffer:
        """Leases of this worker. Other threads may change them at any time."""

    def open(self, spec: DataSpec) -> None:
        """Declare the data at the beginning of each pass: the first time, again, or with more epochs.

        Raises UsageError if the job trains on something else.
        """

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        """Wait, with a bound, until `leases` offers `step`, the first of some steps of one lease.

        The first step that is not committed takes its place if it is later, or `step` is None. Raises when the job or
        this worker is over.

        False: nothing is left to be leased of all epochs that were asked for (by this worker's last `open` at least),
        and this worker has committed the last step that has data. Before that, a fault may yet bring samples back.
        Without `wait`, False says no more than that the samples are not here.
        """

    def begin_batch(self) -> None:
        """Bring the model to the job's state, for the next step or for the end of the loop. On the training thread."""

    @property
    def rehearsals(self) -> Rehearsals:
        """A newcomer's first mini-batches, and those whose ring is gone before data came."""

    def check_ended(self, step: int) -> None:
        """Raise UsageError on the training thread, which has gone on from `step` without its end."""

    def loaded(self, nanoseconds: int) -> None:
        """Note for how long the script has just waited for samples."""

    def step(self) -> int:
        """Return the step that is being worked on: one more than this worker has committed."""


class StreamPort(DataPort, Protocol):
    """The port of a generator whose samples are a stream's."""

    def found(self, parts: tuple[ShardPart, ...]) -> None:
        """Tell what was found in the parts of a stream that this worker reads. Any thread."""
