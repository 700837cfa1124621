"""What a trial of a script says; without torch, as the command line reads it."""

from __future__ import annotations

from typing import Final

import msgspec

TRIAL: Final = "EDL_TORCHRUN_TRIAL"
"""The variable of a trial's process: the file descriptor for its answer, and the workers that the job begins with."""


class TrialResult(msgspec.Struct, frozen=True):
    batches: int = 0  # of the first update; 0: not from a loader with a DistributedSampler
    refused: str = ""  # the line that says so
    failed: str = ""  # the script's own error, in one line
    ended: bool = False  # without an update
