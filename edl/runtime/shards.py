"""What `elastic_shard_generator` returns: this worker's samples, in the batches of its steps or one by one.

Owns: turning leases into samples, and knowing which step each of them is for. Does not own: leases and the committed
step (the feed, which the trainer implements), nor which samples are whose (`edl.core.ledger`).

A generator may be pulled in another thread than the training one, and ahead of it. What a step consumes follows from
the leases alone (I7), never from what was handed out. One pass of the script over its samples starts at the first step
that is not trained, so leaving a pass midway loses nothing; and a void mini-batch (I8) is handed out again by stepping
back, as long as the script has not asked for the one after it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from edl.core.permutation import samples_at
from edl.errors import InvalidTransition, UsageError
from edl.protocol.data import DataSpec, Lease, Range

BLOCK = 8192  # samples whose ids are computed at once

Ids = NDArray[np.int64]
T = TypeVar("T")


class Feed(Protocol):
    """What a generator needs of its job. Called from whichever thread pulls the generator."""

    def open(self, spec: DataSpec) -> None:
        """Say what is trained on, at the beginning of each pass: the first time, again, or with more epochs.

        Raises UsageError if the job trains on something else.
        """

    def next_lease(self, after: int = 0) -> Lease | None:
        """The lease after number `after`; waits for it, with a bound, and raises when the job or this worker is over.

        None: nothing is left to be leased of all epochs that were asked for (by this worker's last `open` at least),
        and this worker has committed the last step that has data. Before that, a fault may yet bring samples back.
        """

    def rehearsing(self) -> bool:
        """This worker is a newcomer and its first mini-batch does not count."""

    def step(self) -> int:
        """The step that is being worked on: one more than this worker has committed."""


@dataclass(slots=True)
class _Pass:
    """One iteration of the script."""

    step: int | None = None  # handed out up to and with this one; None before the first lease is known
    idle: bool = False  # all of `step` is handed out, and nothing after it has been asked for
    epoch: int | None = None  # that its first lease belonged to
    rehearsed: bool = False
    ended: bool = False  # it came to its end, instead of being given up on the way


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one step trains, or stands in for it."""

    ids: Ids
    wanted: int  # samples of a full batch
    share: int  # of `ids`, how many count
    last: bool  # of a final lease


class ShardGenerator:
    """The samples of one worker, while workers come and go.

    `for ids in shards.batches(n)` gives one array of sample ids per step. `for i in shards` (or `shards()`, for
    tf.data) gives sample by sample, for scripts that cut batches themselves.
    """

    def __init__(  # noqa: PLR0913 - the names that users type
        self,
        source: int | Sized,
        feed: Feed,
        *,
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: str | None = None,  # noqa: A002 - the contract's name
        default_batch: int | None = None,
    ) -> None:
        self._total = _samples_of(source, format)
        self._epochs = None if epochs is None else _positive("epochs", epochs, "a number of passes, or None")
        self._shuffle = _flag("shuffle", shuffle)
        self._seed = _whole("seed", seed, "any whole number")
        self._default_batch = default_batch
        self._feed = feed
        self._process = os.getpid()
        self._state = threading.RLock()  # guards what follows; never held while waiting for the feed
        self._fetching = threading.Lock()  # one thread waits for the feed, others for this
        self._leases: list[Lease] = []
        self._newest = 0  # number of the newest lease that came
        self._pass = _Pass()
        self._passes_ended = 0  # or, of whole epochs, the next one
        self._held: _Held | None = None
        self._block: _Block | None = None

    # ------------------------------------------------------------------------------------------- the script's side

    def batches(self, n: int) -> Iterator[Ids]:
        """One array of at most `n` sample ids per step; when this worker has none in a step, one that does not count."""
        size = _positive("n of batches(n)", n, "the samples of one step of one worker")
        return self._batches(self._spec(size, by_sample=False))

    def __iter__(self) -> Iterator[int]:
        """Sample by sample. The script cuts batches of the size that `edl.init(batch_size=...)` was told."""
        if self._default_batch is None:
            raise UsageError(
                "to iterate elastic_shard_generator() sample by sample, edl must know how many samples make a step: "
                "say edl.init(batch_size=64) or EDL_BATCH_SIZE=64, or take whole batches from .batches(64)"
            )
        size = _positive("batch_size", self._default_batch, "the samples of one step of one worker")
        return self._samples(self._spec(size, by_sample=True))

    def __call__(self) -> Iterator[int]:
        """The same as `iter()`: tf.data.Dataset.from_generator wants something to call."""
        return iter(self)

    def in_step(self, pipeline: Iterable[T]) -> Iterator[T]:
        """`pipeline`, which may read ahead of training, so that a void mini-batch comes again.

        Put it around the outermost iterable of the training loop: it keeps the item that is being trained.
        """
        held = _Held()
        with self._state:
            self._held = held
        try:
            for item in pipeline:
                yield item
                while held.take():
                    yield item
        finally:
            with self._state:
                self._held = None if self._held is held else self._held

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise UsageError(_WRONG_PROCESS)

    # ------------------------------------------------------------------------------------------ the trainer's side

    def share(self, step: int) -> int:
        """Samples that this worker trains in `step`: a function of its leases."""
        return self._lease_at(step).share(step)

    def epoch(self, step: int) -> int:
        """The pass over the data that `step` belongs to."""
        return self._lease_at(step).epoch

    def redeliver(self) -> bool:
        """The mini-batch being worked on is void: hand it out again (I8). Call it before the script goes on.

        False: the script's pipeline has read ahead, so stepping back would reorder samples. Then the trainer must
        repeat the step itself, with the gradients it has; or end this worker, whose leases go back as they are.
        """
        with self._state:
            if self._held is not None:
                return self._held.keep()
            void, now = self._feed.step(), self._pass
            if now.ended and now.step == void:
                now.ended = False  # the next pass begins with it
            if now.ended or not now.idle or now.step != void:
                return False
            now.step = void - 1
            now.idle = False
            return True

    # ------------------------------------------------------------------------------------------------ the inside

    def _spec(self, batch: int, *, by_sample: bool) -> DataSpec:
        return DataSpec(
            total=self._total,
            epochs=self._epochs or 1,
            batch=batch,
            shuffle=self._shuffle,
            seed=self._seed,
            whole_epochs=self._epochs is None or not by_sample,
            by_sample=by_sample,
        )

    def _batches(self, spec: DataSpec) -> Iterator[Ids]:
        now, spec = self._begin(spec)
        while (batch := self._next(now, spec)) is not None:
            self._hand_out_last(now)
            yield batch.ids
        self._end(now)
