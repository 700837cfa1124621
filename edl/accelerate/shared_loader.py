"""Share a loader of data other than the training data out among all workers, batch by batch.

Owns: which batch this worker gets next, and gathering all workers' results. Does not own: the ring
(`edl.trainer.shared_evaluation`), nor loading (`edl.torch.shared_batches`).

The script owns the loop, so all workers go through it in rounds: in each round they get a batch each, and report at
`gather_for_metrics()`, or else at the end of the round, which batches are done. If a worker dies, the batch that it had
not reported comes again in a later round, on another worker. In the last round some workers may have no batch left.
They get a batch that another worker has, too, which counts once; so there is something to gather, whichever worker
dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import recursively_apply

from edl.errors import JobFailed
from edl.torch.shared_batches import SharedBatches, packed_values, unpacked_values
from edl.torch.torch_process import trainer as seat


class RoundMessage:
    """Exchange values as `edl.trainer.shared_evaluation.Work`: nothing is computed, each worker reports its own
    value.
    """

    def __init__(self, found: bytes = b"", units: int = 0) -> None:
        """Take one `units` to have all workers first make sure that they evaluate the same model."""
        self.units, self._found = units, found

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:  # noqa: ARG002 - the port's
        return units

    def found(self) -> bytes:
        return self._found


class EvaluationRound:
    """A turn of the script's loop, on all workers."""

    def __init__(self, mine: int, samples: int, usual: int) -> None:
        """`mine`: the number of this worker's batch, `samples`: its samples, `usual`: those of all but the last."""
        self._mine, self._samples, self._usual = mine, samples, usual
        self.done: set[int] | None = None  # batches of all workers, once they have reported

    def cut(self, values: Any) -> Any:
        """Shorten the values of a short batch to its samples: a loss is repeated as often as a usual batch has
        samples.
        """
        if self._samples == self._usual:
            return values
        return recursively_apply(
            lambda one: one[: self._samples] if len(one) == self._usual else one, values, test_type=_has_rows
        )

    def told(self, values: Any) -> dict[int, Any]:
        """Exchange values before they are gathered; return them by the number of the workers' batches."""
        told = seat.evaluate_shared(RoundMessage(packed_values([self._mine, values])))
        found: dict[int, Any] = {}
        for batch, theirs in map(unpacked_values, told):
            found.setdefault(batch, theirs)
        return found

    def gathered(self, values: Any) -> list[Any]:
        """Return the workers' values in the order of their batches, which are done then."""
        found = self.told(values)
        if self.done is not None and self.done != set(found):
            raise JobFailed(
                "a worker died between two calls of gather_for_metrics() for one batch, so what it had computed of "
                "that is lost by half: gather all of it in one call, as a tuple"
            )
        self.done = set(found)
        return [found[batch] for batch in sorted(found)]


def told_by_all(value: Any) -> list[Any]:
    """Return each worker's value, by rank."""
    # The exchange is an evaluation, so that a newcomer learns its result.
    return [unpacked_values(one) for one in seat.evaluate_shared(RoundMessage(packed_values(value)))]


class SharedLoader:
    """The loader that `prepare()` returns for such data."""

    def __init__(
        self, whole: Any, batches: SharedBatches, placed: Callable[[Any], Any], apart: Callable[[], bool]
    ) -> None:
        """`whole`: Accelerate's own, which is used while the script is in the middle of a step (`apart`)."""
        self.whole = whole
        self.batches = batches
        self.round: EvaluationRound | None = None  # the round under way
        self._placed, self._apart = placed, apart

    def __len__(self) -> int:
        """Return the number of batches of all workers."""
        return len(self.whole)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def __iter__(self) -> Iterator[Any]:
        if self._apart():
            yield from self.whole
            return
        seat.evaluate_shared(RoundMessage(units=1))
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
    """Load this worker's batches, and ahead as the loader does; another size, or a death, changes their order."""

    def __init__(self, batches: SharedBatches) -> None:
        self._batches = batches
        self._expected: list[int] = []
        self._loading: Iterator[Any] = iter(())

    def next(self, missing: Sequence[int]) -> tuple[int, Any]:
        """Return a batch and its number. If none is left for this worker, it is a batch of another worker."""
        mine = list(missing[seat.rank() :: seat.size()])
        mine = mine or [missing[seat.rank() % len(missing)]]
        if mine != self._expected:
            self._expected, self._loading = mine, self._batches.load(mine)
        self._expected = mine[1:]
        return mine[0], next(self._loading)


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def joined(like: Any, parts: Sequence[Any]) -> Any:
    """Concatenate the rows of all parts, nested as `like` is."""
    if isinstance(like, torch.Tensor):
        return torch.cat([one if one.dim() else one[None] for one in parts]).to(like.device)
    if isinstance(like, Mapping):
        return type(like)({name: joined(one, [part[name] for part in parts]) for name, one in like.items()})  # type: ignore[call-arg]
    if isinstance(like, (tuple, list)) and all(isinstance(one, (torch.Tensor, Mapping, tuple, list)) for one in like):
        found = [joined(one, [part[place] for part in parts]) for place, one in enumerate(like)]
        return type(like)(*found) if hasattr(like, "_fields") else type(like)(found)
    return [one for part in parts for one in part]


def lengths(values: Any, dim: int) -> Any:
    """Return the lengths of nested tensors, nested alike; 0 if a tensor has no such dimension."""
    if isinstance(values, torch.Tensor):
        return values.shape[dim] if dim < values.dim() else 0
    if isinstance(values, Mapping):
        return {name: lengths(one, dim) for name, one in values.items()}
    return [lengths(one, dim) for one in values]


def padded(values: Any, dim: int, wanted: Sequence[Any], filling: float, *, first: bool) -> Any:
    """Pad nested tensors, each to the longest length in `wanted`."""
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
