"""The port of a generator to its job."""

from __future__ import annotations

from typing import Protocol

from edl.core.worker.lease_buffer import LeaseBuffer
from edl.protocol.data_nouns import DataSpec
from edl.trainer.data.rehearsal_count import Rehearsals


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

    def loaded(self, nanoseconds: int) -> None:
        """Note for how long the script has just waited for samples."""

    def step(self) -> int:
        """Return the step that is being worked on: one more than this worker has committed."""
