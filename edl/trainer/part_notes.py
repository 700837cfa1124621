"""Note what a worker's parts of a step give for each tensor beside the sums, and combine the notes of all workers.

Owns: by how many virtual workers each tensor was given, whether its scale suffices, and what all workers agree on where
one did not. Does not own: the sums (the adapters), nor the scales (`edl.trainer.virtual_steps`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from edl.core.worker.fixed_point import ABSENT, SMALLEST, fits, needed
from edl.errors import UsageError
from edl.trainer.recomputed_parts import UNCHECKED, StepTrial
from edl.trainer.virtual_steps import Scales

LANES: Final = 3  # of each tensor: given, with nan, with infinities
WHOLE: Final = 0  # stands for an exponent where whole numbers are added as they are


class TimesGiven(NamedTuple):
    """The number of virtual workers that gave a tensor, and of those that had nan or infinities in it."""

    times: int
    nans: int
    infinities: int

    @property
    def filling(self) -> float | None:
        """Return what is in each element of a sum that is not finite."""
        return math.nan if self.nans else math.inf if self.infinities else None


class PartNotes:
    """The notes of one step, on the tensors whose scales are known, in their order."""

    def __init__(self, scales: Scales, names: Sequence[str], *, short: bool, trial: StepTrial = UNCHECKED) -> None:
        """`short`: a scale is not known. `trial`: what it tells goes with the notes."""
        self._trial = trial
        self.short = short  # a scale did not suffice here, or is not known
        self.again = False  # parts came out otherwise the second time: the step is computed once more
        self._scales = scales
        self._lanes = {name: [0] * LANES for name in names}
        self._limits = {name: math.ldexp(1.0, scales.exponents[name]) for name in names}
        self._largest: dict[str, float] = {}  # of what was given, and is within its limit
        self._needs: dict[str, int] = {}  # exponents, by all else that was given

    def note(self, name: str, largest: float, *, is_whole: bool) -> None:
        """Note the largest that was given of a tensor, and whether its scale suffices. What is not finite needs none:
        the sum tells that it was there.
        """
        if not is_whole and largest < self._limits.get(name, 0.0):
            self._lanes[name][0] += 1
            if largest > self._largest.get(name, -1.0):
                self._largest[name] = largest
            return
        finite = math.isfinite(largest)
        need = WHOLE if is_whole else needed(largest) if finite else SMALLEST
        self._needs[name] = max(need, self._needs.get(name, ABSENT))
        exponent = self._scales.exponents.get(name)
        if exponent is None or name not in self._lanes:
            self.short = True
            return
        lanes = self._lanes[name]
        lanes[0] += 1
        if not finite:
            lanes[1 if math.isnan(largest) else 2] += 1
        elif not (is_whole or fits(largest, exponent)):
            self.short = True

    @property
    def length(self) -> int:
        """Return how many numbers `told` are."""
        return LANES * len(self._lanes) + 1 + len(self._scales.differing) + self._trial.length

    def told(self) -> list[int]:
        """Return what is added up over all workers."""
        given = [one for lanes in self._lanes.values() for one in lanes]
        return [*given, int(self.short), *self._scales.differing, *self._trial.told()]

    def hear(self, told: Sequence[int]) -> list[TimesGiven] | None:
        """Return what all workers gave of each tensor. None: on at least one of them a scale did not suffice."""
        numbers = LANES * len(self._lanes)
        if told[numbers]:
            return None
        end = len(told) - self._trial.length
        self._scales.hear_differing(told[numbers + 1 : end])
        found = [TimesGiven(*told[start : start + LANES]) for start in range(0, numbers, LANES)]
        if self._trial.length:
            self.again = self._trial.hear(told[end:], finite=all(one.filling is None for one in found))
        return found

    def agree(
        self, parameters: Sequence[str], statistics: Sequence[str], largest: Callable[[Sequence[int]], Sequence[int]]
    ) -> None:
        """Take the largest exponent that any worker needs for each tensor, and compare what bits depend on. Raises
        UsageError where workers have not the same tensors.
        """
        names = [*parameters, *statistics]
        digest = int.from_bytes(hashlib.blake2b("\n".join(names).encode(), digest_size=7).digest(), "little")
        most = largest([digest, -digest, len(names), -len(names)])
        if most[0] != -most[1] or most[2] != -most[3]:
            raise UsageError("the workers train different models: all must build the same one, and name it alike")
        marks = self._scales.marks
        most = largest([*marks, *(-one for one in marks)])
        self._scales.hear_unlike(
            [one != -other for one, other in zip(most[: len(marks)], most[len(marks) :], strict=True)]
        )
        agreed = largest([self._need(name) for name in names])
        updated = set(parameters)
        for name, need in zip(names, agreed, strict=True):
            if need > ABSENT:
                self._scales.exponents[name] = need
            elif name in updated:
                self._scales.exponents.setdefault(name, SMALLEST)

    def _need(self, name: str) -> int:
        """Return the exponent that this worker needs for a tensor; ABSENT: it has given none."""
        within = self._largest.get(name)
        return max(self._needs.get(name, ABSENT), ABSENT if within is None else needed(within))
