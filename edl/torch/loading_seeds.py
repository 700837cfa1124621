"""Seeds of the random numbers by which a DataLoader's worker processes load mini-batches: a resumed job goes on with
the same.

What those processes have drawn is nothing that a checkpoint could have: they are ahead of training, and there may be
another number of them next time. So each mini-batch comes to them with a seed of its own, which follows from the step,
over all lives of the job, from the worker's rank, and from one number that is drawn once by the script's random
numbers, and saved. Python's `random`, the generator that `numpy.random.rand()` and its like share, and torch's begin
anew with it.

Owns: these seeds. Does not own: which mini-batch is whose (`edl.trainer.data.shards`).
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import torch
from torch.utils.data import get_worker_info

from edl.trainer import random_states
from edl.trainer.virtual_steps import PartLoad

NAME: Final = "torch.loading"  # among the states of random numbers


class SeatOfSteps(Protocol):
    """The part of the trainer that `LoadingSeeds` uses."""

    def rank(self) -> int: ...

    @property
    def steps_before(self) -> int:
        """Count the steps of all lives of the job before this one."""


class LoadingSeeds:
    def __init__(self) -> None:
        self._drawn: int | None = None

    def drawn(self, generator: torch.Generator | None) -> int:
        """Return the number from which all seeds follow: of the script's generator, if it gave one, else of its random
        numbers as they are at the first call. None of them is used up.
        """
        if self._drawn is None:
            if generator is not None:
                self._drawn = generator.initial_seed() % 2**63
            else:
                with torch.random.fork_rng(devices=()):
                    self._drawn = int(torch.empty((), dtype=torch.int64).random_().item())
        return self._drawn

    def of(self, seat: SeatOfSteps, step: int) -> int:
        """Return the seed of this worker's mini-batch in a step of this life. `drawn` was called before."""
        assert self._drawn is not None
        key = struct.pack("<qqq", self._drawn, seat.rank(), seat.steps_before + step)
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1

    def state(self) -> dict[str, bytes]:
        return {} if self._drawn is None else {NAME: struct.pack("<q", self._drawn)}

    def give_back(self, states: dict[str, bytes]) -> None:
        """Take over the number that was saved, if there is one. Raises struct.error for what is no such number."""
        if NAME in states:
            (self._drawn,) = struct.unpack("<q", states[NAME])


class SeededIds(list[int]):
    """Ids of a mini-batch, on their way to a process that loads it: as they arrive there, its random numbers begin."""

    def __init__(self, ids: Iterable[int], seed: int) -> None:
        super().__init__(ids)
        self.seed = seed

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (list(self), self.seed)


def _arrived(ids: list[int], seed: int) -> list[int]:
    if get_worker_info() is not None:
        begin_with(seed)
    return ids


def begin_with(seed: int) -> None:
    """Seed all random numbers of this process."""
    random_states.begin_with(seed)
    torch.default_generator.manual_seed(
        seed
    )  # `torch.manual_seed` writes down the stack, too: a hundred times the cost
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


# In a job with virtual workers a loader loads parts of steps. Which parts a worker has changes with the job's size, so
# what worker processes have loaded ahead may not be wanted. Each part has a key, its place in the data; what comes with
# another key than the next one wanted is dropped, and loading begins anew with that one.


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
