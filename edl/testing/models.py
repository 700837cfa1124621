"""What stands for a model in a simulated job: numbers that a step changes as the gradient of its samples would.

Two workers have equal models when these are equal, and a model is that of a step when its steps made it so, in their
order, each by all of its samples with equal weights. Owns: how a model changes. Does not own: when (in steps of
`edl.testing.rings`, and copies of `edl.testing.beginnings`), nor which one is right (`edl.testing.training_checks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

PRIME = 2**61 - 1  # numbers are added up modulo this one, so that their order does not matter


@dataclass(frozen=True, slots=True)
class Model:
    """What one worker has. Values, so that a copy of it is the same."""

    learned: int  # weights, and all that an optimizer keeps: a step without samples leaves it as it is
    carried: int  # what else a step may change, and a void one on some: hyper-parameters, what scripts register

    def after(self, step: int, gradient: int | None) -> Model:
        """Once `step` is applied."""
        return Model(learn(self.learned, gradient), hash((self.carried, step)))

    def half_copied(self, from_whom: Model) -> Model:
        """Some of it is of another model: it is no worker's."""
        return Model(hash((self.learned, from_whom.learned, -1)), hash((self.carried, from_whom.carried, -1)))

    def disturbed(self, worker: str) -> Model:
        """By a void mini-batch of `worker`: a schedule has moved on, say."""
        return Model(self.learned, hash((self.carried, _number(worker))))


def learn(learned: int, gradient: int | None) -> int:
    """`gradient` None: no worker had samples."""
    return learned if gradient is None else hash((learned, gradient))


def fresh(worker: str) -> Model:
    """As a script builds it: like no other one's."""
    return Model(_number(worker), _number(worker))


def mean(parts: Iterable[int], of: int) -> int | None:
    """What `parts` add to the mean of `of` of them; None of nothing."""
    return sum(parts) * pow(of, PRIME - 2, PRIME) % PRIME if of else None


def of_sample(sample: tuple[int, int]) -> int:
    """The gradient of one sample."""
    return hash(sample)


def of_own(worker: str, step: int) -> int:
    """That of one mini-batch of data that the script brings itself."""
    return hash((_number(worker), step))


def _number(worker: str) -> int:
    return crc32(worker.encode())
