"""A trial's result, and what the command line tells a worker by variables. Both sides need these, one without torch."""

from __future__ import annotations

from typing import Final

import msgspec

ACCUMULATE: Final = "EDL_TORCHRUN_ACCUMULATE"  # batches of one update
TRIAL: Final = "EDL_TORCHRUN_TRIAL"
"""The variable of a trial's process: the file descriptor for its answer, and the workers that the job begins with."""


class TrialResult(msgspec.Struct, frozen=True):
    batches: int = 0  # of the first update; 0: not from a loader with a DistributedSampler
    refused: str = ""  # the line that says so
    failed: str = ""  # the script's own error, in one line
    ended: bool = False  # without an update
