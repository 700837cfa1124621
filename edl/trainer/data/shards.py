"""The generator of `elastic_shard_generator`: this worker's samples, in the batches of its steps or one by one.

Owns: the faces that scripts iterate, and how one pass over the samples follows another. Does not own: the place inside
a pass (`passes`), leases (`edl.core.worker.lease_buffer`) and their samples (`sample_ids`), reading files (`reading`),
the committed step (the port, which the trainer implements).

A generator may be pulled in another thread than the training one, and ahead of it. What a step consumes follows from
the leases alone (I7), never from what was handed out. A pass starts at the first step that is not trained, so leaving
one midway loses nothing, and one that is left after its epoch's last step has ended as any. A void mini-batch (I8) is
handed out again by stepping back, as long as the script has not asked for the one after it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar, cast

import msgspec
import numpy as np

from edl.config import Settings
from edl.errors import UsageError
from edl.protocol.data_nouns import ITEMS, DataSpec, Lease, Range
from edl.sources.streams.elastic_stream import ElasticStream
from edl.trainer.data.audit_files import Audit
from edl.trainer.data.epoch_cursor import LEFT, Batch, Pass, PassSoFar, PassState
from edl.trainer.data.job_port import DataPort, StreamPort
from edl.trainer.data.prefetch import ReadAhead
from edl.trainer.data.sample_ids import Among, Ids, SampleIds
from edl.trainer.data.source import check_stream, positive, records_of, samples_of, whole
from edl.trainer.data.stream_reader import StreamReader

IN_A_ROW = 8  # mini-batches, after which a script is known to ask for each after the end of the one before
AHEAD_STEPS = 2  # whose records are read before they are asked for

T = TypeVar("T")
AnyBatch = TypeVar("AnyBatch")  # an array of sample ids, or a list of records


class CurrentItem:
    """The item of a pipeline that is being trained, in the script's hands."""

    def __init__(self) -> None:
        self.again = 0  # it was void: so many of the next items are this one
        self.stale = 0  # so many items come that the pipeline had read already when the others trained them

    def passes_over(self) -> bool:
        """Tell whether the item that the pipeline has just given must be skipped."""
        if not self.stale:
            return False
        self.stale -= 1
        return True


class ShardGenerator(Generic[AnyBatch]):
    """The samples of one worker, while workers come and go.

    `for ids in shards.batches(n)` gives one array of sample ids per step; of files, `for records in ...` a list of
    records. `for i in shards` (or `shards()`, for tf.data) gives sample by sample, for scripts that cut batches
    themselves.

    >>> shards = edl.elastic_shard_generator(["one", "two", "three"], epochs=1)
    >>> for ids in shards.batches(2):
    ...     print(ids, shards.epochs_done)
    ...     train_on(ids)
    ...     committed = edl.notify_batch_end()
    [0 1] 0
    [2] 0
    """

    def __init__(  # noqa: PLR0913 - the names that users type
        self,
        source: int | Sized | os.PathLike[str] | ElasticStream,
        port: DataPort,  # of a stream, a StreamPort
        *,
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: str | None = None,  # noqa: A002 - the contract's name
        default_batch: int | None = None,
        step_timeout_s: float = 60.0,
        home: Path | None = None,
        audit: Audit | None = None,
        goes_on_in: Callable[[], int] = lambda: 0,
        earlier: ShardGenerator[Any] | None = None,
        virtual: int = 0,
        among: Among = Among(),  # noqa: B008 - frozen
    ) -> None:
        """Ask `goes_on_in` for the epoch in which this life of the job begins.

        If the life before was saved after the last step of an epoch, it is that epoch, of which nothing is left.

        `earlier`: the generator that the script has made before this one.
        """
        self._epochs = None if epochs is None else positive("epochs", epochs, "a number of passes, or None")
        if not isinstance(shuffle, bool):
            raise UsageError(f"shuffle is {shuffle!r}: it must be True or False")
        self._shuffle = shuffle
        self._seed = whole("seed", seed, "a whole number, the same on all workers")
        self._stream = source if isinstance(source, ElasticStream) else None
        self._reader: ReadAhead | StreamReader | None = None
        if self._stream is not None:
            check_stream(self._stream, epochs, shuffle=shuffle)
            self._total, self._fingerprint = len(self._stream.names) * ITEMS, self._stream.fingerprint
            self._reader = StreamReader(self._stream, cast("StreamPort", port), 2 * step_timeout_s, audit or Audit())
        else:
            records = records_of(source, format, home or Settings().home, 5 * step_timeout_s)
            self._total = samples_of(source if records is None else records)
            self._fingerprint = str(getattr(source if records is None else records, "fingerprint", ""))
            self._reader = None if records is None else ReadAhead(records, 2 * step_timeout_s)
        self._default_batch = default_batch
        self._virtual = virtual
        self.among = among
        self._port = port
        self._audit = audit or Audit()
        self._goes_on_in = goes_on_in
        self._earlier = earlier
        self._ids = SampleIds()
        self._step_timeout_s = step_timeout_s
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._pass: Pass | None = None
        self._first: Pass | None = None
        self._came_late = False  # this worker rehearsed as its first pass began, which the others had begun before
        self._before: Pass | None = None  # the one before, if it came to its end: its items may be in the pipeline
        self._held: CurrentItem | None = None
        self._epochs_done = 0  # before the present pass
        self._so_far = PassSoFar()  # at the beginning of the present pass
        self._by_epochs = epochs is None  # each iteration is one
        self._expected: int | None = None  # the epoch that the next pass is to be the rest of
        self._wait_committed: Callable[[Callable[[], int]], None] | None = None

    # ------------------------------------------------------------------------------------------- the script's side

    def batches(self, n: int) -> Iterator[AnyBatch]:
        """Yield an array of sample ids per step, or a list of records for files.

        It has `n` samples, or what the job's batch policy makes of `n` for this worker; fewer in an epoch's last step.
        A worker for which no sample is left in a step gets some that do not count, so that it can take part.
        """
        self._check_process()
        return self._batches(self._spec(positive("n in batches(n)", n, "the samples of one step of one worker")))

    def runs(self, n: int, epoch: int | None = None) -> Iterator[Iterator[Ids]]:
        """Yield runs of batches, for a pipeline that reads ahead on the training thread.

        Such a pipeline would wait forever for samples beyond those that it trains: so a run ends where the next batch
        is not here yet. Take all of it before the next.

        `epoch`, if each iteration is one epoch: yield the rest of it, which may be nothing.
        """
        self._check_process()
        return self._runs(self._spec(positive("n in runs(n)", n, "the samples of one step of one worker")), epoch)

    def __iter__(self) -> Iterator[Any]:
        """Yield sample by sample. The script cuts batches of the size that `edl.init(batch_size=...)` was told."""
        self._check_process()
        if self.among.count > 1:
            raise UsageError("elastic_shard_generator(among=...): take whole batches, from .batches(n)")
        if self._stream is not None:
            raise UsageError(
                "a stream is given out in batches, as a short last one has its weight: take them from .batches(n), "
                "edl.ElasticDataLoader or edl.elastic_dataset"
            )
        if self._default_batch is None:
            raise UsageError(
                "to iterate elastic_shard_generator() sample by sample, edl must know how many samples make a step: "
                "say edl.init(batch_size=64) or EDL_BATCH_SIZE=64, or take whole batches from .batches(64)"
            )
        spec = self._spec(positive("batch_size", self._default_batch, "the samples of one step of one worker"))
        whole_epochs = self._by_epochs  # else one stream, in which the script's batches reach across epochs
        # The last step is leased only once all before it is trained: so nothing can be leased beyond it.
        spec = msgspec.structs.replace(spec, by_sample=True, whole_epochs=whole_epochs, open_ended=False)
        return self._samples(spec)

    def __call__(self) -> Iterator[Any]:
        """Return `iter()`, as tf.data.Dataset.from_generator wants something to call."""
        return iter(self)

    def example(self) -> Any:
        """Return some sample, for pipelines that must know its kind beforehand. It counts for nothing."""
        if isinstance(self._reader, StreamReader):
            return self._reader.example()
        return 0 if self._reader is None else self._reader.take(np.zeros(1, np.int64))[0]

    @property
    def gives_ids(self) -> bool:
        """Tell whether a batch is an array of sample ids, not a list of records or of a stream's items."""
        return self._reader is None

    def in_step(self, pipeline: Iterable[T]) -> Iterator[T]:
        """Iterate `pipeline`, which may read ahead of training, so that a void mini-batch comes again.

        Put it around the outermost iterable of the training loop: it keeps the item that is being trained.
        """
        held = self.hold()
        try:
            for item in pipeline:
                if held.passes_over():
                    continue
                yield item
                while held.again:
                    held.again -= 1
                    yield item
            self._port.begin_batch()  # where a job goes on and nothing is left to train: the model is that of its end
        finally:
            if self._held is held:
                self._held = None

    @property
    def newest_step(self) -> int:
        """Return the step of the newest batch; 0 for a rehearsal's, or before the first."""
        return 0 if self._pass is None else self._pass.step or 0

    @property
    def epochs_done(self) -> int:
        """Epochs whose last step is committed, before a newcomer's time too; equal on all workers after a step; 0 at
        first.

        With `epochs=None`, `while shards.epochs_done < 10:` around the loop over an epoch is right on all workers, also
        where that loop is left by `break`.
        """
        now = self._pass
        if now is None:
            return self._epochs_done
        return self._done(now, wait=True)

    @property
    def epochs_known_done(self) -> int:
        """Epochs whose last step is committed, as far as is known without waiting."""
        return self._epochs_done if self._pass is None else self._done(self._pass, wait=False)

    def _done(self, now: Pass, *, wait: bool) -> int:
        """Count the epochs that are over; without `wait`, as far as is known."""
        over = max(self._epochs_done, self._over(wait=wait) or 0)
        if now.state is not PassState.ENDED or now.is_cut or (now.step or 0) >= self._port.step():
            return over
        if self._epochs is not None and not self._by_epochs:
            return self._epochs
        return max(over, (self._epochs_done if now.epoch is None else now.epoch) + 1)

    def __reduce__(self) -> NoReturn:
        raise UsageError(_OTHER_PROCESS)

    # ------------------------------------------------------------------------------------------ the trainer's side

    def share(self, step: int) -> int:
        """Return how many samples this worker trains in `step`, by its leases."""
        return self._lease_at(step).share(step)

    def pieces(self, step: int) -> tuple[Range, ...]:
        """Return the places that this worker trains in `step`, by its leases; none where it was given stand-ins."""
        lease = self._port.leases.at(step)
        return () if lease is None else lease.between(step - 1, step)

    def hold(self) -> CurrentItem:
        """Let the caller keep the item that is being trained, and look whether it is to come again."""
        self._held = CurrentItem()
        return self._held

    def redeliver(self, more: int = 0) -> bool:
        """Hand out the mini-batch being worked on again, as it is void (I8). Call it before the script goes on.

        `more`: so many before it come again, too. They are stand-ins as it is, of a newcomer without a state.
        False: the script's pipeline has read ahead, so stepping back would disorder it. Then the trainer must repeat
        the step itself, with the gradients it has, or end this worker, whose leases then go back as they are.
        """
        held, now = self._held, self._pass
        if held is not None:
            held.again = 1 + more
            return True
        if now is not None and now.state is PassState.GIVEN_UP:
            return True  # the pass that follows begins with it
        return now is not None and now.step_back(self._port.step(), more)

    def pass_over(self, done: int, step: int) -> bool:
        """Hand out nothing between step `done`, at which the script was, and the end of `step`, where the others are.

        They can if no worker has samples, as such a step waits for no worker.

        False: the script's pipeline has read it already, and gives it out.
        """
        held, now = self._held, self._pass  # without the lock: the pipeline may hold it, and wait for this very step
        if now is None or now.state is PassState.GIVEN_UP:
            return True
        now.pass_over(step)
        stale = sum(one.gave(done, step) for one in {self._before, now} if one)
        if held is None:
            return not stale
        held.stale += stale
        return True

    def give_up(self) -> None:
        """Leave the iteration, whatever the script's pipeline has read ahead."""
        held, self._held = self._held, None
        if held is not None:
            held.again, held.stale = 0, 0
        if self._pass is not None:
            self._epochs_done = self.epochs_known_done
            self._pass.made_anew = True
            self._pass.give_up()

    def so_far(self, committed: int) -> PassSoFar:
        """Return where the script stands in its iteration, after that step."""
        if (now := self._pass) is None or now.made_anew:
            return self._so_far
        so_far = self._so_far._replace(steps=now.made_by(committed))
        return so_far.next(left=True) if now.state is PassState.GIVEN_UP else so_far

    def join(self, after: int, epoch: int | None, so_far: PassSoFar) -> None:
        """Let a newcomer's iteration, which had rehearsals only, be the rest of the others' iteration after that step.

        If nothing is left, the newcomer goes on with what they do between two iterations.

        It has not seen what the others count in theirs. If they leave each after as many steps, as does `for i, batch
        in enumerate(...)` with `if i == 5: break`, then this iteration is over after as many, too.
        """
        self._so_far = so_far._replace(steps=0)
        if self._pass is not None:
            if after == 0:
                epoch = self._goes_on_in()
            self._pass.join(after, epoch if self._by_epochs else None, so_far)

    def by_epochs(self) -> None:
        """Make each iteration one epoch, also if the script has said how many there are."""
        self._by_epochs = True

    def expect(self, epoch: int) -> None:
        """Make the next iteration the rest of that epoch, and of those before it; that may be nothing."""
        self._expected = epoch

    @property
    def epochs(self) -> int | None:
        return self._epochs

    def leave(self) -> None:
        """Leave the iteration for another one; a pipeline that waits for its samples gets an error."""
        if self._pass is not None:
            self._pass.leave()

    @property
    def newest_pass(self) -> Pass | None:
        return self._pass

    @property
    def left(self) -> bool:
        """Tell whether the script has left its iteration, and begun no other."""
        return self._pass is not None and self._pass.state is PassState.GIVEN_UP

    def check_goes_on(self) -> None:
        """Raise UsageError on a waiting pipeline's thread, once the iteration was left: closing waits for that
        thread.
        """
        if self.left:
            raise UsageError(LEFT)

    def read_by(self, processes: int, context: Any = None) -> None:
        """Let so many processes read the stream, started in a context of multiprocessing; 0: a thread of this one."""
        assert isinstance(self._reader, StreamReader)
        self._reader.read_by(processes, context)

    def check_read(self) -> None:
        """Raise what reading a stream has raised: a script that waits for its samples hears of it there."""
        if isinstance(self._reader, StreamReader):
            self._reader.check()

    def check_untrained(self) -> None:
        """Raise UsageError, before the first pass, if the script has trained all of it with an earlier generator."""
        earlier = self._earlier
        while earlier is not None and earlier._pass is None:
            earlier = earlier._earlier
        if earlier is None or (earlier._total, earlier._fingerprint) != (self._total, self._fingerprint):
            return
        if self._epochs is None or (trained := earlier._trained_here) < self._epochs:
            return
        raise UsageError(
            f"epochs={self._epochs}: this script has trained {_epochs(trained)} of the source "
            f"with an earlier generator, and epochs= counts them: to train {_epochs(self._epochs)} more, ask for "
            f"epochs={(more := trained + self._epochs)}, or loop over one generator without epochs=, "
            f"`while shards.epochs_done < {more}:`"
        )

    def keep_in_step(self, wait_committed: Callable[[Callable[[], int]], None]) -> None:
        """Hand out a step's samples, one by one, only when the step before is committed or void.

        For pipelines that read ahead where `in_step` cannot be put around them: inside a graph.
        """
        self._wait_committed = wait_committed

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    # ------------------------------------------------------------------------------------------------ the inside

    def _batches(self, spec: DataSpec) -> Iterator[Any]:
        self.among.check(spec.batch)
        part, alone = self.among.part, self.among.count == 1
        now, in_a_row = self._begin(spec), 0
        while (batch := now.next()) is not None:
            items = self._items(now, batch)
            now.rest()
            yield items
            in_a_row = self._note_asked(now, in_a_row)
            if self._reader is None:
                while (ids := now.next_usual()) is not None:
                    yield ids if alone else part(ids)
                    in_a_row = self._note_asked(now, in_a_row)
        now.end()

    def _note_asked(self, now: Pass, in_a_row: int) -> int:
        """Return how often in a row the script has asked for a mini-batch after the end of the one before. A script
        that did so for long and does not now has skipped the end, and would train these samples in the wrong step.
        """
        if now.step is None or now.step < self._port.step():
            return in_a_row + 1
        if in_a_row >= IN_A_ROW:
            self._port.check_ended(now.step)
        return 0

    def _runs(self, spec: DataSpec, epoch: int | None) -> Iterator[Iterator[Ids]]:
        self.among.check(spec.batch)
        now = self._begin(spec, epoch)
        while (batch := now.next()) is not None:
            yield _run(now, batch, self.among)
        now.end()

    def _samples(self, spec: DataSpec) -> Iterator[Any]:
        now = self._begin(spec)
        while True:
            if self._wait_committed is not None:
                self._wait_committed(lambda: now.step or 0)
            if (batch := now.next()) is None:
                break
            items = self._items(now, batch)
            *others, last = items if isinstance(items, list) else items.tolist()
            yield from others
            now.rest()
            step = now.step
            yield last
            if now.step == step:
                if batch.ends_pass:  # not waited for: it may be short, and the script only knows by the end
                    break
            elif now.state is PassState.GIVEN_UP:  # it was void
                return
        now.end()

    def _items(self, now: Pass, batch: Batch) -> Ids | list[Any]:
        """Return ids, or records from files. Then begin to read the next records."""
        if self._reader is None:
            return self.among.part(batch.ids)
        began = time.perf_counter_ns()
        records = self._reader.take(self.among.part(batch.ids))
        self._port.loaded(time.perf_counter_ns() - began)
        self._reader.expect([self.among.part(ids) for ids in now.coming(AHEAD_STEPS)])
        return records

    def _spec(self, batch: int) -> DataSpec:
        stream = self._stream
        return DataSpec(
            self._total,
            self._epochs or 1,
            batch,
            self._shuffle,
            self._seed,
            source=self._fingerprint,
            open_ended=self._epochs is None and not (stream is not None and stream.endless),
            shards=0 if stream is None else len(stream.names),
            unit=1 if stream is None else stream.unit,
            at_once=0 if stream is None else stream.at_once,
            virtual=self._virtual,
        )

    def _begin(self, spec: DataSpec, epoch: int | None = None) -> Pass:
        with self._lock:
            if self._pass is not None:
                ended = self._pass.state is PassState.ENDED
                self._finish(self._pass)
                self._before = self._pass if ended else None
            one_epoch = self._by_epochs
            if epoch is None:
                epoch, self._expected = self._expected, None
            if epoch is None and one_epoch:
                epoch = self._next_epoch()
            if self._epochs is None:
                spec = msgspec.structs.replace(spec, epochs=(self._epochs_done if epoch is None else epoch) + 1)
            now = self._pass = Pass(spec, self._port, self._ids, self._audit, one_epoch=one_epoch, epoch=epoch)
            if self._first is None:
                self._first, self._came_late = now, now.began_after is None
        self._port.open(spec)
        if isinstance(self._reader, StreamReader):
            self._reader.begin(spec)
        self.check_untrained()
        self._earlier = None
        return now

    @property
    def _trained_here(self) -> int:
        """Count the epochs that were asked for here and that this process has seen trained to the end of its loop; 0
        where others may have trained them: in the life before, or before this worker came.
        """
        now, first = self._pass, self._first
        if now is None or first is None or self._epochs is None or now.state is not PassState.ENDED:
            return 0
        begun = first.began_after
        if begun is None or begun + 1 >= self._port.step() or (self._came_late and begun > 0):
            return 0
        return min(self._epochs, self._done(now, wait=False))

    def _finish(self, before: Pass) -> None:
        """Wait until the end of a pass, which may still be in the script's pipeline, is trained, step by step (I12)."""
        trained, since = self._port.step() - 1, time.monotonic()
        while before.state is PassState.ENDED and trained < (before.step or 0):
            if time.monotonic() - since > self._step_timeout_s:
                raise UsageError(_NOT_TRAINED)
            time.sleep(0.01)
            now = self._port.step() - 1
            trained, since = now, (since if now == trained else time.monotonic())
        self._so_far = self.so_far(trained).next(left=before.state is not PassState.ENDED or before.is_cut)
        self._epochs_done = self._done(before, wait=False)
        before.give_up()

    def _over(self, *, wait: bool) -> int | None:
        """Count the epochs that are over with the newest committed step. None: unknown, as in a rehearsal."""
        port = self._port
        if port.rehearsals.left:
            return None
        over = port.leases.epochs_before(port.step())
        if over is None and wait:
            port.await_samples(None)
            over = port.leases.epochs_before(port.step())
        return over

    def _next_epoch(self) -> int | None:
        """Return the epoch of a pass that begins now; None if it is not known yet."""
        begins_life = self._pass is None and self._port.step() == 1 and not self._port.rehearsals.left
        return self._goes_on_in() if begins_life else self._over(wait=False)

    def _lease_at(self, step: int) -> Lease:
        leases = self._port.leases
        lease = leases.at(step)
        if lease is None or step > leases.handed_out:
            raise UsageError(
                f"step {step} has no mini-batch of edl's samples: take one from the loop over them before each "
                "notify_batch_end()"
            )
        return lease

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise UsageError(_OTHER_PROCESS)


def _epochs(number: int) -> str:
    return f"{number} epoch" + "s" * (number != 1)


def _run(now: Pass, first: Batch, among: Among) -> Iterator[Ids]:
    batch: Batch | None = first
    while batch is not None:
        now.rest()
        yield among.part(batch.ids)
        batch = now.next(wait=False)


_OTHER_PROCESS = (
    "edl's samples are given out only in the process that called edl.init(): with worker processes of PyTorch use "
    "edl.ElasticDataLoader, or let them load what the ids from .batches(n) stand for"
)
_NOT_TRAINED = (
    "the samples are iterated again, but batches of the iteration before were never trained: take all "
    "that your pipeline has read ahead before you begin anew; put .repeat() behind .batch(), or ask for epochs=..."
)
