"""Decide whether a failed job is tried again: progress refills a budget, and the same fault is not tried a third time.

A cluster and `edl run` decide by this rule; each counts its own budget. Owns: the rule. Does not own: what a failure is
(`causes`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from edl.cluster.queue.end_causes import Domain, EndCause

KEPT: Final = 10  # strikes kept of one job
NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|(?<![0-9])(?<!^code )[0-9]+")  # not the exit status that a root begins with


class RetryRules(msgspec.Struct, frozen=True):
    """Retry rules for all jobs of a cluster."""

    tries: int = 3  # failures without progress in between
    spare: int = 10  # the same for failures that the machines are to blame for
    progress: int = 10  # steps after which the budget is full again
    rest_s: float = 1.0  # rest after the first failure; twice as long after each further one
    longest_rest_s: float = 60.0


class FailureKept(msgspec.Struct, frozen=True):
    """A failure that was counted."""

    code: str
    root: str
    step: int
    at: float = 0.0
    life: int = 0
    made: int = 0  # workers that the job had had by then: if one of these fails at that step too, it is one failure

    @property
    def fault(self) -> tuple[str, str, int]:
        """Return what two failures of one fault have in common: numbers and addresses differ in each life."""
        return self.code, NUMBER.sub("#", self.root), self.step


class Denial(Enum):
    """The reason for which a job is not tried again."""

    HOPELESS = "another try would end alike"
    REPEATED = "the same fault came again without progress in between"
    SPENT = "the budget is used up"


def denied(cause: EndCause, failure: FailureKept, since: Sequence[FailureKept], left: int) -> Denial | None:
    """Return why no try follows a failure; None: another one does. `since`: the failures since the last progress;
    `left`: tries that would be left after the next.
    """
    if not cause.retry:
        return Denial.HOPELESS
    if cause.domain is not Domain.INFRASTRUCTURE and failure.fault in {one.fault for one in since}:
        return Denial.REPEATED
    return Denial.SPENT if left < 0 else None
