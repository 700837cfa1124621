"""For pytest: `Trainer(strategy="edl")`, in tests that leave the strategy to Lightning."""

from __future__ import annotations

import functools
from typing import Any

from lightning.pytorch import Trainer

import edl.lightning  # noqa: F401 - the strategy, by its name

theirs = Trainer.__init__


@functools.wraps(theirs)
def begin(trainer: Trainer, **given: Any) -> None:
    """What a test says itself stays."""
    theirs(trainer, **{"strategy": "edl", **given})


Trainer.__init__ = begin
