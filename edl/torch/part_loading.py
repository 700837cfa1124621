"""Loading of the parts of steps by a DataLoader, in a job with virtual workers.

Which parts a worker has changes with the size of the job, so what worker processes have loaded ahead may not be wanted.
Each part has a key, its place in the data; what comes with another key than the next one wanted is dropped, and loading
begins anew with that one.

Owns: that order. Does not own: which parts there are (`edl.trainer.virtual_steps`), nor loading, which is the
DataLoader's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from edl.torch.loading_seeds import SeededIds, begin_with
from edl.trainer.virtual_steps import PartLoad


class PartLoading:
    def __init__(self, begin: Callable[[Iterator[list[int]]], Iterator[Any]], *, here: bool) -> None:
        """`begin` makes the loader's iterator over such lists. `here`: this process loads, and no others."""
        self._begin = begin
        self._here = here
        self._iterator: Iterator[Any] | None = None
        self._wanted: deque[PartLoad] = deque()  # the loader has not asked for these yet
        self._asked: deque[PartLoad] = deque()  # it has not given these yet

    def take(self, own: Sequence[PartLoad], coming: Sequence[PartLoad]) -> dict[int, Any]:
        """Return the loaded parts of the step, by virtual worker; go on with those of the coming steps."""
        known = [*self._asked, *self._wanted]
        sequence = [*own, *coming]
        if self._iterator is None or [one.key for one in known] != [one.key for one in sequence[: len(known)]]:
            self._begin_with(sequence)
        else:
            self._wanted.extend(sequence[len(known) :])
        found = {}
        for number, load in enumerate(own):
            if not (self._asked or self._wanted):
                self._begin_with(sequence[number:])
            found[load.virtual] = self._next(sequence[number:])
        return found

    def _next(self, sequence: Sequence[PartLoad]) -> Any:
        assert self._iterator is not None  # it was begun
        try:
            loaded = next(self._iterator)
        except StopIteration:  # it had been through all that was known then
            self._begin_with(sequence)
            loaded = next(self._iterator)
        self._asked.popleft()
        return loaded

    def _begin_with(self, sequence: Sequence[PartLoad]) -> None:
        self._wanted, self._asked = deque(sequence), deque()
        self._iterator = self._begin(self._feed(self._wanted, self._asked))

    def _feed(self, wanted: deque[PartLoad], asked: deque[PartLoad]) -> Iterator[list[int]]:
        while wanted:
            load = wanted.popleft()
            asked.append(load)
            if self._here:
                begin_with(load.seed)
            yield SeededIds(load.ids.tolist(), load.seed)
