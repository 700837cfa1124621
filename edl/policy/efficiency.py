"""Conditions for more or fewer workers, after Or, Zhang and Freedman (MLSys 2020): pure arithmetic.

Both compare measurements of two sizes. `True` means that the larger size is worth its workers.

The search for the size beyond which more workers are not worth it is a pure function from the measured rates of sizes
to the size that comes next:

1. one size is known: measure the next larger one, or, at the maximum already, the next smaller one;
2. each pair of neighbouring sizes is judged;
3. all pass: go to the next larger size, or stay at the maximum for good;
4. else, if too few of the smallest sizes have passed: go to the next smaller size, down to the minimum;
5. else stay for good at the first size whose step up fails.

A size counts as known once `batches` of its batches were measured. Unlike in the paper, a size is measured fully before
it is left and not only before the search ends, so no decision rests on a handful of steps and no size is visited twice.

The worth of a job's end at a given time, and the price of workers, are read from a user's file:

    price = 0.5                         # of a worker for an hour
    linear = { worth = 100, until_s = 10800 }                 # falls to nothing at that time

or, instead of `linear`, pieces: each has a constant worth up to its end, or a worth that changes in a straight line
to `to`.

    pieces = [ { worth = 100, until_s = 3600 }, { worth = 100, to = 0, until_s = 7200 } ]
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import msgspec

from edl.errors import ConfigError
from edl.policy.policy_job_view import Decision, View
from edl.protocol.tally import Rate


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A constant `worth`, or a straight line from `worth` to `to`, for ends up to `until_s`."""

    worth: float
    until_s: float
    to: float | None = None


class Utility(msgspec.Struct, frozen=True):
    """The worth of an end by its time; beyond the last piece an end is worth nothing."""

    price: float  # of a worker for an hour
    pieces: tuple[Piece, ...]

    def at(self, end_s: float) -> float:
        began = 0.0
        for piece in self.pieces:
            if end_s <= piece.until_s:
                to = piece.worth if piece.to is None else piece.to
                return piece.worth + (to - piece.worth) * (end_s - began) / (piece.until_s - began)
            began = piece.until_s
        return 0.0


class _Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worth: float
    until_s: float


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    price: float
    linear: _Linear | None = None
    pieces: tuple[Piece, ...] = ()


def read(text: str, name: str) -> Utility:
    """Parse the utility in `text`, the content of the file `name`. Raises ConfigError."""
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{name}: {error}") from None
    if bool(file.linear) == bool(file.pieces):
        raise ConfigError(f"{name}: must have either linear = {{worth, until_s}} or pieces = [{{worth, until_s}}, ...]")
    pieces = file.pieces or _falling(file.linear)
    ends = [0.0, *(piece.until_s for piece in pieces)]
    if any(later <= earlier for earlier, later in pairwise(ends)):
        raise ConfigError(f"{name}: until_s must be more than 0, and grow from piece to piece")
    if file.price < 0:
        raise ConfigError(f"{name}: price = {file.price:g}: must not be negative")
    return Utility(file.price, pieces)


def _falling(linear: _Linear | None) -> tuple[Piece, ...]:
    return () if linear is None else (Piece(linear.worth, linear.until_s, 0.0),)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one condition for a pair of sizes."""

    passes: bool
    reason: str
    numbers: dict[str, float]


def scaling_efficiency(smaller: Rate, larger: Rate) -> float:
    """Return the throughput that each further worker adds, divided by the throughput per worker of the smaller size:
    ((R' - R) / d) / (R / k).
    """
    if smaller.samples_s <= 0:
        return 0.0
    added = (larger.samples_s - smaller.samples_s) / (larger.size - smaller.size)
    return added / (smaller.samples_s / smaller.size)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The condition that each further worker adds more than a share of a worker's throughput at the smaller size."""

    least: float

    def passes(self, _view: View, smaller: Rate, larger: Rate, /) -> bool:
        return scaling_efficiency(smaller, larger) > self.least

    def judge(self, _view: View, smaller: Rate, larger: Rate, /) -> Finding:
        found = scaling_efficiency(smaller, larger)
        passes = found > self.least
        return Finding(
            passes,
            f"from {smaller.size} to {larger.size} workers, each further one adds {found:.2f} of a worker, "
            f"{'more' if passes else 'not more'} than {self.least:g}",
            {"efficiency": found, "least": self.least, "from": smaller.size, "to": larger.size},
        )


@dataclass(frozen=True, slots=True)
class Worth:
    """The condition that an earlier end is worth more than its additional cost."""

    utility: Utility

    def passes(self, view: View, smaller: Rate, larger: Rate, /) -> bool:
        return self.judge(view, smaller, larger).passes

    def judge(self, view: View, smaller: Rate, larger: Rate, /) -> Finding:
        if view.samples_left is None:
            return Finding(False, "how many samples are left is not known, so no end can be told", {})
        ends = [_end_s(view, rate) for rate in (smaller, larger)]
        costs = [self._cost(view, rate) for rate in (smaller, larger)]
        gain = self.utility.at(ends[1]) - self.utility.at(ends[0])
        more = costs[1] - costs[0]
        passes = gain > more
        return Finding(
            passes,
            f"with {larger.size} workers instead of {smaller.size} the job ends after {ends[1]:.0f} s instead of "
            f"{ends[0]:.0f} s, which is worth {gain:.4g} and costs {more:.4g} more",
            {"gain": gain, "cost": more, "from": smaller.size, "to": larger.size},
        )

    def _cost(self, view: View, rate: Rate) -> float:
        """Return the cost of the rest of the job: the cost so far is equal for both sizes."""
        left_s = _end_s(view, rate) - view.now
        return left_s / 3600 * rate.size * self.utility.price


def _end_s(view: View, rate: Rate) -> float:
    left = view.samples_left or 0
    return view.now + (left / rate.samples_s if rate.samples_s > 0 else float("inf"))


class Condition(Protocol):
    """The condition that the size of `larger` is worth its workers."""

    def passes(self, view: View, smaller: Rate, larger: Rate, /) -> bool: ...

    def judge(self, view: View, smaller: Rate, larger: Rate, /) -> Finding: ...


@dataclass(frozen=True, slots=True)
class Search:
    """A policy whose decision depends on nothing but the view."""

    condition: Condition
    stride: int = 1  # workers more or fewer at once
    batches: int = 100  # batches measured at a size until it counts as known
    passes: int = (
        3  # successive pairs, from the smallest size on, that must pass until smaller sizes are no longer tried
    )

    def decide(self, view: View) -> Decision:
        known = [rate for rate in view.rates if rate.batches >= self.batches]
        if not any(rate.size == view.size for rate in known):
            have = view.rate.batches if view.rate else 0
            return self._stay(view, f"{have} of {self.batches} batches are measured at a size of {view.size}")
        if len(known) == 1:
            return self._second(view)
        pairs = list(pairwise(known))
        failed = next((place for place, pair in enumerate(pairs) if not self.condition.passes(view, *pair)), None)
        verdict = self.condition.judge(view, *pairs[-1 if failed is None else failed])
        if failed is None:
            return self._beyond(view, known[-1], verdict)
        below = view.bounded(known[0].size - self.stride)
        if failed < self.passes and below < known[0].size:
            return _decision(below, verdict, f"perhaps {below} are enough")
        best = known[failed].size
        return _decision(view.bounded(best), verdict, f"{best} are enough")

    def _second(self, view: View) -> Decision:
        above, below = view.bounded(view.size + self.stride), view.bounded(view.size - self.stride)
        if above > view.size:
            return Decision(above, f"no other size than {view.size} is measured: what would {above} do?")
        if below < view.size:
            return Decision(below, f"no other size than {view.size}, the largest, is measured: what would {below} do?")
        return self._stay(view, f"no other size than {view.size} is allowed")

    def _beyond(self, view: View, largest: Rate, verdict: Finding) -> Decision:
        above = view.bounded(largest.size + self.stride)
        if above > largest.size:
            return _decision(above, verdict, f"what would {above} do?")
        return _decision(view.bounded(largest.size), verdict, "and no more are allowed")

    @staticmethod
    def _stay(view: View, reason: str) -> Decision:
        return Decision(view.size, reason)


def _decision(size: int, verdict: Finding, so: str) -> Decision:
    return Decision(size, f"{verdict.reason}: {so}", numbers=verdict.numbers)
