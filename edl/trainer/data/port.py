"""What a generator needs of its job."""

from __future__ import annotations

from typing import Protocol

from edl.core.worker.lease_buffer import LeaseBuffer
from edl.protocol.data import DataSpec
from edl.trainer.data.rehearsals import Rehearsals


class DataPort(Protocol):
    """Called from whichever thread pulls the generator."""

    @property
    def leases(self) -> LeaseBuffer:
        """What this worker holds now. Other threads may change it at any time."""

    def open(self, spec: DataSpec) -> None:
        """Say what is trained on, at the beginning of each pass: the first time, again, or with more epochs.

        Raises UsageError if the job trains on something else.
        """

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        """Before the first of some steps of one lease is handed out: wait until `leases` offers `step`, with a bound.
        Or else of the first one that is not committed, where this is later, or `step` is None. Raises when the job or
        this worker is over.

        False: nothing is left to be leased of all epochs that were asked for (by this worker's last `open` at least),
        and this worker has committed the last step that has data. Before that, a fault may yet bring samples back.
        Without `wait`, False says no more than that the samples are not here.
        """

    def begin_batch(self) -> None:
        """On the training thread: what is trained next, or what a script does after its loop, is on the job's state."""

    @property
    def rehearsals(self) -> Rehearsals:
        """A newcomer's first mini-batches, and those whose ring is gone before data came."""

    def loaded(self, nanoseconds: int) -> None:
        """So long the script has just waited for samples."""

    def step(self) -> int:
        """The step that is being worked on: one more than this worker has committed."""
