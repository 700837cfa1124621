"""A loader of other data than that which is trained on, shared out among all workers, batch by batch.

Owns: which batch of it this worker gets next, and gathering what all have found for theirs. Does not own: the ring
(`edl.trainer.evaluation`), nor loading (`edl.torch.shared_batches`).

The script owns the loop, so all workers go through it in rounds: in each one they get a batch each, and tell each other
at `gather_for_metrics()`, or else at the end of the round, which batches are done. If a worker dies, what it had not
told comes again in a later round, to another one. In the last round some may have no batch left. They get one that
another one has, too, which counts once; so there is something to gather, whichever worker dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import recursively_apply

from edl.errors import JobFailed
from edl.torch.process import trainer as seat
from edl.torch.shared_batches import SharedBatches, packed_values, unpacked_values


class RoundWord:
    """`edl.trainer.evaluation.Work`: nothing is computed here, each worker says what it has."""

    def __init__(self, found: bytes = b"", units: int = 0) -> None:
        """With one unit: all make sure first that they evaluate the same model."""
        self.units, self._found = units, found

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:  # noqa: ARG002 - the port's
        return units

    def found(self) -> bytes:
        return self._found


class EvaluationRound:
    """One turn of the script's loop, on all workers."""

    def __init__(self, mine: int, samples: int, usual: int) -> None:
        """This worker's batch: its number, and how many samples it has, `usual` in each but the last one."""
        self._mine, self._samples, self._usual = mine, samples, usual
        self.done: set[int] | None = None  # batches, of all workers, once they have told

    def cut(self, values: Any) -> Any:
        """A loss that was repeated as often as a usual batch has samples counts as often as this one has."""
        if self._samples == self._usual:
            return values
        return recursively_apply(
            lambda one: one[: self._samples] if len(one) == self._usual else one, values, test_type=_has_rows
        )

    def told(self, values: Any) -> dict[int, Any]:
        """What the workers say beforehand of what they will gather, by the number of their batch."""
        told = seat.evaluate_shared(RoundWord(packed_values([self._mine, values])))
        found: dict[int, Any] = {}
        for batch, theirs in map(unpacked_values, told):
            found.setdefault(batch, theirs)
        return found

    def gathered(self, values: Any) -> list[Any]:
        """What the workers have, by the number of their batch, which is done then."""
        found = self.told(values)
        if self.done is not None and self.done != set(found):
            raise JobFailed(
                "a worker died between two calls of gather_for_metrics() for one batch, so what it had computed of "
                "that is lost by half: gather all of it in one call, as a tuple"
            )
        self.done = set(found)
        return [found[batch] for batch in sorted(found)]


def told_by_all(value: Any) -> list[Any]:
    """What each worker has, by rank. As an evaluation, of which a newcomer learns what came of it."""
    return [unpacked_values(one) for one in seat.evaluate_shared(RoundWord(packed_values(value)))]


class SharedLoader:
    """What `prepare()` gives for such a loader."""

    def __init__(
        self, whole: Any, batches: SharedBatches, placed: Callable[[Any], Any], apart: Callable[[], bool]
    ) -> None:
        """`whole`: Accelerate's own. `apart`: the script is in the middle of a step, where it is given that one."""
        self.whole = whole
        self.batches = batches
        self.round: EvaluationRound | None = None  # the one under way
        self._placed, self._apart = placed, apart

    def __len__(self) -> int:
        """Batches, of all workers."""
        return len(self.whole)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def __iter__(self) -> Iterator[Any]:
        if self._apart():
            yield from self.whole
            return
        seat.evaluate_shared(RoundWord(units=1))
        own = OwnBatches(self.batches)
        missing = list(range(self.batches.count))
        try:
            while missing:
                mine, batch = own.next(missing)
                self.round = EvaluationRound(mine, self.batches.samples(mine), self.batches.size)
                yield self._placed(batch)
                if self.round.done is None:
                    self.round.gathered(None)
                done = self.round.done or set()
                missing = [one for one in missing if one not in done]
        finally:
            self.round = None


class OwnBatches:
    """Loads this worker's, and ahead as the loader does; another size, or a death, is another order."""

    def __init__(self, batches: SharedBatches) -> None:
        self._batches = batches
        self._expected: list[int] = []
        self._loading: Iterator[Any] = iter(())

    def next(self, missing: Sequence[int]) -> tuple[int, Any]:
        """With its number. Where none is left for this worker, it is one of another worker's."""
        mine = list(missing[seat.rank() :: seat.size()])
        mine = mine or [missing[seat.rank() % len(missing)]]
        if mine != self._expected:
            self._expected, self._loading = mine, self._batches.load(mine)
        self._expected = mine[1:]
        return mine[0], next(self._loading)


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def joined(like: Any, parts: Sequence[Any]) -> Any:
    """The rows of all parts, nested as `like` is."""
    if isinstance(like, torch.Tensor):
        return torch.cat([one if one.dim() else one[None] for one in parts]).to(like.device)
    if isinstance(like, Mapping):
        return type(like)({name: joined(one, [part[name] for part in parts]) for name, one in like.items()})  # type: ignore[call-arg]
    if isinstance(like, (tuple, list)) and all(isinstance(one, (torch.Tensor, Mapping, tuple, list)) for one in like):
        found = [joined(one, [part[place] for part in parts]) for place, one in enumerate(like)]
        return type(like)(*found) if hasattr(like, "_fields") else type(like)(found)
    return [one for part in parts for one in part]


def lengths(values: Any, dim: int) -> Any:
    """Of nested tensors, nested alike; 0 where one has no such dimension."""
    if isinstance(values, torch.Tensor):
        return values.shape[dim] if dim < values.dim() else 0
    if isinstance(values, Mapping):
        return {name: lengths(one, dim) for name, one in values.items()}
    return [lengths(one, dim) for one in values]


def padded(values: Any, dim: int, wanted: Sequence[Any], filling: float, *, first: bool) -> Any:
    """Nested tensors, each as long as the longest that is `wanted`."""
    if isinstance(values, Mapping):
        found = {
            name: padded(one, dim, [to[name] for to in wanted], filling, first=first) for name, one in values.items()
        }
        return type(values)(found)  # type: ignore[call-arg]
    if not isinstance(values, torch.Tensor):
        return type(values)(
            padded(one, dim, [to[place] for to in wanted], filling, first=first) for place, one in enumerate(values)
        )
    if dim >= values.dim() or (more := max(wanted) - values.shape[dim]) <= 0:
        return values
    shape = [*values.shape[:dim], more, *values.shape[dim + 1 :]]
    filled = values.new_full(shape, filling)
    return torch.cat([filled, values] if first else [values, filled], dim)
