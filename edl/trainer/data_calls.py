"""The calls by which a script trains on samples that edl gives it, and evaluates what it has trained.

Owns: these calls, and cutting a batch that is too large for the memory. Does not own: which samples a worker has
(`edl.trainer.sample_source`), iterating over them (`edl.trainer.data.shards`), parts of virtual workers
(`edl.trainer.virtual_steps`), nor metrics (`edl.trainer.script_metrics`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from typing import Any, TypeVar, overload

from edl.errors import UsageError
from edl.sources.source_port import Source
from edl.sources.streams.elastic_stream import ElasticStream
from edl.trainer.data.sample_ids import Among, Ids
from edl.trainer.data.shards import ShardGenerator
from edl.trainer.data.source import files_of
from edl.trainer.first_state import FirstState
from edl.trainer.framework_port import Framework
from edl.trainer.sample_source import SampleSource
from edl.trainer.script_metrics import ScriptMetrics
from edl.trainer.seating import Seating
from edl.trainer.step_end import BatchEnds
from edl.trainer.virtual_steps import VirtualSteps
from edl.trainer.worker_shell import WorkerShell

T = TypeVar("T")


class DataCalls:
    """The calls of one script, on the training thread unless they say otherwise."""

    def __init__(
        self,
        *,
        framework: Framework,
        shell: WorkerShell,
        seating: Seating,
        samples: SampleSource,
        resuming: FirstState,
        ends: BatchEnds,
    ) -> None:
        self._framework, self._shell, self._seating = framework, shell, seating
        self._leases, self._machine = shell.leases, shell.machine
        self._samples, self._resuming, self._ends = samples, resuming, ends
        self._metrics = ScriptMetrics(framework, self._machine, ends, self._own_samples, self._begin_evaluated)
        self.virtual_steps: VirtualSteps | None = None  # of a job with virtual workers

    @property
    def among(self) -> Among:
        return Among() if (shards := self._samples.shards) is None else shards.among

    @overload
    def elastic_shard_generator(  # type: ignore[overload-overlap] # a text has a length, too
        self,
        source: str | os.PathLike[str] | Sequence[os.PathLike[str]],
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: str | None = None,
        *,
        among: Any = None,
    ) -> ShardGenerator[list[Any]]: ...

    @overload
    def elastic_shard_generator(
        self,
        source: Sequence[str],
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: str | None = None,
        *,
        among: Any = None,
    ) -> ShardGenerator[Any]: ...

    @overload
    def elastic_shard_generator(
        self,
        source: ElasticStream,
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: None = None,
        *,
        among: Any = None,
    ) -> ShardGenerator[list[Any]]: ...

    @overload
    def elastic_shard_generator(
        self,
        source: int | Sized,
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: None = None,
        *,
        among: Any = None,
    ) -> ShardGenerator[Ids]: ...

    def elastic_shard_generator(
        self,
        source: int | Sized | os.PathLike[str] | ElasticStream,
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: str | None = None,  # noqa: A002 - the contract's name
        *,
        among: Any = None,
    ) -> ShardGenerator[Any]:
        """Return this worker's samples of `source`: each sample of an epoch goes to exactly one worker, at any size.

        `source` is a number of samples, anything with `len()`, or files: paths, globs, folders, URLs; `format` is
        theirs where their names do not say it. Use `.batches(n)` for one numpy array of sample ids per step (of files:
        one list of records), or iterate (or call) it for one sample at a time. `epochs=None`: each iteration is one
        more epoch.

        `among`: of a worker of several processes, the dimension of its mesh over which they divide its samples, such as
        `mesh["shard"]`. Those that only differ in another dimension take the same samples. None: all take all of them.

        >>> for ids in edl.elastic_shard_generator(6, epochs=1).batches(4):
        ...     print(ids)
        ...     train_on(ids)
        ...     committed = edl.notify_batch_end()
        [0 1 2 3]
        [4 5]
        """
        settings = (
            self._seating.started() if self._seating.imports_only else self._seating.seated("elastic_shard_generator")
        )
        if settings.processes > 1 and isinstance(source, ElasticStream):
            raise UsageError(
                "a stream is not read by workers of several processes (--processes) yet: train on ids or files"
            )
        self._ends.standing.register()
        shards: ShardGenerator[Any] = ShardGenerator(
            source,
            self._samples,
            epochs=epochs,
            shuffle=shuffle,
            seed=seed,
            format=format,
            default_batch=settings.batch_size,
            step_timeout_s=settings.step_timeout_s,
            home=settings.home,
            audit=self._shell.audit,
            goes_on_in=self._goes_on_in,
            earlier=self._samples.shards,
            virtual=settings.virtual_workers or 0,
            among=Among.of(among),
        )
        self._samples.shards = shards
        return shards

    def own_samples(self) -> int:
        """Return how many samples of the mini-batch being worked on are this worker's own.

        0: the loop handed out stand-ins, which weigh nothing, as no sample was left for this worker; and in a
        rehearsal.

        >>> for ids in edl.elastic_shard_generator(5, epochs=1).batches(4):
        ...     print(edl.own_samples())
        ...     train_on(ids)
        ...     committed = edl.notify_batch_end()
        4
        1
        """
        self._seating.joined("own_samples")
        if self._rehearses():
            return 0
        step = self._machine.step + 1
        own = self._leases.own(step)
        if own is None:
            raise UsageError(
                f"edl.own_samples(): step {step} has no mini-batch yet; ask in the loop over elastic_shard_generator()"
            )
        return own

    def part_weight(self) -> float:
        """Return what to multiply this process's loss by, a mean over its part of the worker's samples: 1.0, but for a
        short step that does not divide among the processes of `among=`.

        >>> edl.part_weight()
        1.0
        """
        self._seating.joined("part_weight")
        shards, own = self._samples.shards, None if self._rehearses() else self._leases.own(self._machine.step + 1)
        return 1.0 if shards is None or not own else shards.among.weight(own)

    def microbatches(self, batch: T, most: int | None = None) -> Iterator[tuple[T, float]]:
        """Cut a batch that is too large for the memory at once. Yield its parts, each with its share of the batch.

        Parts have at most `most` samples, as evenly as can be. Multiply the loss of each part, a mean, by its share,
        and make one update after the last: the gradient is that of the whole batch. In PyTorch, `backward()` only adds
        up until the last part. With virtual workers each part is one of theirs.

        >>> [(part, share) for part, share in edl.microbatches([7, 8, 9, 10], most=2)]
        [([7, 8], 0.5), ([9, 10], 0.5)]
        """
        self._seating.started()
        if most is not None and (type(most) is not int or most < 1):
            raise UsageError(f"edl.microbatches(batch, most={most!r}): must be a whole number of at least 1")
        if (virtual := self.virtual_steps) is not None:
            return virtual.parts(batch, most)
        if most is None:
            return iter([(batch, 1.0)])
        if not hasattr(batch, "__len__") or not hasattr(batch, "__getitem__"):
            raise UsageError(
                f"edl.microbatches(batch, most): a {type(batch).__name__} cannot be cut; give it ids, or a list"
            )
        return self._microbatches(batch, most)

    def begin_part(self) -> None:
        assert self.virtual_steps is not None  # there are parts
        self.virtual_steps.begin_part()

    def begin_numbers(self, ids: Ids) -> None:
        """Begin the script's random numbers for the mini-batch being worked on."""
        assert self.virtual_steps is not None  # its loader gives parts
        self.virtual_steps.begin_numbers(ids)

    def evaluate(self, function: Callable[[Any], Any], source: int | Sized, batch_size: int) -> dict[str, Any]:
        """Sum over all samples of a validation set, each of which one worker computes, at any number of workers.

        Call it between two mini-batches, at the same place on all workers: after the loop over an epoch, or after
        `notify_batch_end()`; in a loop over a prepared loader, after the update. It returns the same on all of them. If
        workers die meanwhile, the others compute what those had not told yet.

        Args:
            function: is given the numbers of some samples, a numpy array. It returns a dict of sums over them: numbers,
                arrays (a confusion matrix, say), or tensors; or `edl.gather_for_metrics(rows)`, with a row for each
                sample.
            source: a number of samples, or anything with `len()`.
            batch_size: as many samples as `function` is given at once; fewer in the last batch.

        Returns a dict of the same names: numbers, numpy arrays, and rows of all samples in their order.

        >>> edl.evaluate(lambda ids: {"seen": len(ids), "sum": float(ids.sum())}, 10, batch_size=4)
        {'seen': 10, 'sum': 45.0}
        """
        self._seating.seated("evaluate")
        self._seating.check_alone("edl.evaluate()")
        return self._metrics.evaluate(function, source, batch_size)

    def gather_for_metrics(self, values: Any) -> Any:
        """Return the rows of all workers' mini-batches, by rank, as numpy arrays; stand-ins are left out.

        `values`: a tensor or array with a row for each sample, or tuples, lists and dicts of such. Call it on all
        workers alike, between the item of the loop and `notify_batch_end()`. If the ring breaks, a worker gets its own.

        Inside of the function of `edl.evaluate`, return what this returns: the rows of all samples, in their order, are
        in what `edl.evaluate` returns.

        >>> for ids in edl.elastic_shard_generator(5, epochs=1).batches(4):
        ...     train_on(ids)
        ...     print(edl.gather_for_metrics(10 * ids))
        ...     committed = edl.notify_batch_end()
        [ 0 10 20 30]
        [40]
        """
        self._seating.seated("gather_for_metrics")
        self._seating.check_alone("edl.gather_for_metrics()")
        return self._metrics.gather(values)

    def opening(self, source: Any, format_name: str | None) -> Callable[[], Source]:
        """Return how to open files as samples, in this process and in others that load for it."""
        return partial(
            files_of, source, format_name, self._seating.started().home, 5 * self._seating.started().step_timeout_s
        )

    # -------------------------------------------------------------------------------------------------- small parts

    def _rehearses(self) -> bool:
        return self._shell.rehearsals.left > 0

    def _own_samples(self) -> int | None:
        return None if self._samples.shards is None else self.own_samples()

    def _goes_on_in(self) -> int:
        """Return the epoch in which this life of the job begins."""
        self._seating.joined("resumed")
        return 0 if (origin := self._resuming.origin) is None else origin.epoch

    def _begin_evaluated(self, first: int) -> None:
        if self.virtual_steps is not None:
            self.virtual_steps.begin_evaluated(first)

    def _microbatches(self, batch: Any, most: int) -> Iterator[tuple[Any, float]]:
        own = self._leases.own(self._machine.step + 1) or 0
        begin, parts = 0, self.among.microbatches(own, len(batch), most)
        for number, part in enumerate(parts, 1):
            last = number == len(parts)
            with contextlib.nullcontext() if last else self._framework.adding_up():
                yield batch[begin : begin + part] if part else batch[:1], part / len(batch)
            begin += part
