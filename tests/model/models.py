"""Stand in for a model in a simulated job by numbers that a step changes as the gradient of its samples would.

Two workers have equal models when these are equal, and a model is that of a step when its steps made it so, in their
order, each by all of its samples with equal weights. Owns: how a model changes. Does not own: when (in steps of
`tests.model.model_rings`, and copies of `tests.model.model_beginnings`), nor which one is right
(`tests.model.training_checks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

PRIME = 2**61 - 1  # numbers are added up modulo this one, so that their order does not matter


@dataclass(frozen=True, slots=True)
class Model:
    """Model of one worker: a value, so that a copy is equal."""

    learned: int  # weights, and all that an optimizer keeps: a step without samples leaves it as it is
    carried: int  # what else a step may change, and a void one on some: hyper-parameters, what scripts register

    def after(self, step: int, gradient: int | None) -> Model:
        return Model(learn(self.learned, gradient), hash((self.carried, step)))

    def half_copied(self, from_whom: Model) -> Model:
        """Return a model with some parts of another: it equals no worker's."""
        return Model(hash((self.learned, from_whom.learned, -1)), hash((self.carried, from_whom.carried, -1)))

    def disturbed(self, worker: str) -> Model:
        """Return the model after a void mini-batch of `worker`: a schedule has moved on, say."""
        return Model(self.learned, hash((self.carried, _number(worker))))


def learn(learned: int, gradient: int | None) -> int:
    return learned if gradient is None else hash((learned, gradient))


def fresh(worker: str) -> Model:
    """Return a model as a script builds it: unlike any other."""
    return Model(_number(worker), _number(worker))


def mean(parts: Iterable[int], of: int) -> int | None:
    """Return the share of `parts` in the mean of `of` gradients; None if `of` is 0."""
    return sum(parts) * pow(of, PRIME - 2, PRIME) % PRIME if of else None


def of_sample(sample: tuple[int, int]) -> int:
    return hash(sample)


def of_own(worker: str, step: int) -> int:
    """Return the gradient of one mini-batch of the script's own data."""
    return hash((_number(worker), step))


def _number(worker: str) -> int:
    return crc32(worker.encode())
