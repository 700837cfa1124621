"""Steps of a job with virtual workers: the same bits, however many workers compute them.

A script takes the parts of a step by `edl.microbatches(batch)`. Each is one virtual worker's, computed from the step's
own model and statistics, with random numbers of (seed, epoch, place in the epoch, virtual worker). After the last part
the gradients of all virtual workers are added up in a way that has no order (`edl.core.worker.fixed_point`). Where a
scale did not suffice, which all workers hear, the loop goes through the same parts once more.

Owns: which parts a step has here, their order, their random seeds, and the scales, which travel to newcomers and into
checkpoints. Does not own: gradients and statistics (`PartSums`, of the adapters), nor who computes which part
(`edl.protocol.data_nouns`).
"""

from __future__ import annotations

import hashlib
import logging
import platform
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from edl.core.data.batching import microbatches
from edl.errors import UsageError
from edl.protocol.data_nouns import DataSpec, Lease, Range
from edl.trainer.data.sample_ids import Ids
from edl.trainer.recomputed_parts import UNCHECKED, StepTrial
from edl.trainer.value_tree import Tensors

logger = logging.getLogger("edl")

HELD: Final = "held"
NAME: Final = "edl.virtual"  # among registered values
LOADING: Final = -1  # the loop over parts by whose seed samples are loaded
BEFORE: Final = -2  # the virtual worker by whose seed a loader's mini-batch begins, before any part
EVALUATED: Final = -2  # stands for the epoch of samples that are evaluated
AFTER: Final = -1  # the virtual worker by whose seed a script's random numbers go on after the parts
TAKE_PARTS: Final = (
    "this job has virtual workers (--virtual-workers), whose parts of a step are computed one by one: loop over "
    "`for part, share in edl.microbatches(batch):` with forward and backward in it, and update after that loop"
)


class Scales:
    """The exponent of each tensor in the coming step, by name; equal on all workers. With them travels what else bits
    depend on, as it was where the job began.
    """

    def __init__(self, conditions: Mapping[str, str] | None = None, step: Callable[[], int] = int) -> None:
        """`conditions`: of this process."""
        self.exponents: dict[str, int] = {}
        self._at_start: dict[str, int] = {}  # what they were as the newest step began
        self._of_step = 0  # the number of that step
        self._here = self._of_job = dict(conditions or {})
        self._step = step
        self._lost = ""  # since when, and by what, bits are not held

    def begin_step(self, conditions: Mapping[str, str] | None = None) -> None:
        """Begin a step, or begin it anew, as it was void: then what it has changed is no part of what comes again.
        `conditions`: of this process now; those of the job are those of its first step.
        """
        if conditions is not None:
            self._here = dict(conditions)
        if not self._of_step:
            self._of_job = self._here
        if (step := self._step()) == self._of_step:
            self.exponents = dict(self._at_start)
        else:
            self._at_start, self._of_step = dict(self.exponents), step

    @property
    def bits(self) -> str:
        """Say whether bits are held, as `edl status` does."""
        return f"not held {self._lost}" if self._lost else HELD

    @property
    def differing(self) -> list[int]:
        """Return for each condition, in the order of names, whether this process is not as the job began."""
        return [int(_differ(self._here[name], self._of_job.get(name, ""))) for name in sorted(self._here)]

    @property
    def marks(self) -> list[int]:
        """Return for each condition, in the order of names, a number that is the same where it is alike."""
        texts = (self._here[name].encode() for name in sorted(self._here))
        return [int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little") for text in texts]

    def hear_differing(self, workers: Sequence[int]) -> None:
        """Note how many workers of this step are not as the job began, in each condition. All hear the same."""
        names = [name for name, count in zip(sorted(self._here), workers, strict=True) if count]
        if names:
            self.lose(f"since step {self._step()}: a worker with another {' and another '.join(names)}")

    def hear_unlike(self, unlike: Sequence[bool]) -> None:
        """Note in which conditions the workers of this step are not alike. In the job's first step each took its own
        for the job's, which then has none there: what all keep is the same.
        """
        self.hear_differing(unlike)
        names = (name for name, is_unlike in zip(sorted(self._here), unlike, strict=True) if is_unlike)
        self._of_job = {**self._of_job, **dict.fromkeys(names, "")}

    def lose(self, why: str) -> None:
        """Note that bits are not held any more; the first reason stays."""
        self._lost = self._lost or why

    def state_dict(self) -> dict[str, Any]:
        return {
            "exponents": dict(self.exponents),
            "at start": dict(self._at_start),
            "of step": self._of_step,
            "conditions": self._of_job,
            "lost": self._lost,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.exponents, before, self._of_job = dict(state["exponents"]), self._of_job, dict(state["conditions"])
        self._at_start, self._of_step, self._lost = dict(state["at start"]), state["of step"], state["lost"]
        if self._of_job != before and (differing := differences(self._here, self._of_job)):
            logger.warning("bits: not held from step %d on: %s", self._step(), differing)


def differences(here: Mapping[str, str], of_job: Mapping[str, str]) -> str:
    """Say in which conditions this process is not as the job began; empty: in none."""
    names = [name for name in sorted({*here, *of_job}) if _differ(here.get(name, ""), of_job.get(name, ""))]
    return "; ".join(f"{name} is {here.get(name)} here, and was {of_job.get(name)}" for name in names)


def _differ(one: str, other: str) -> bool:
    """Compare two conditions; an empty one is not known yet, or was not asked for by an older edl."""
    return bool(one and other) and one != other


class StepPlace(NamedTuple):
    """The place of a step in the data: the same in any life of the job."""

    seed: int
    epoch: int
    number: int  # of the step in its epoch; of a stream, of its first item

    def seed_of(self, virtual: int, call: int) -> int:
        """Return the seed of a virtual worker's random numbers in the `call`-th loop over parts of this step."""
        words = (self.seed % 2**64, self.epoch, self.number, virtual, call)
        return int.from_bytes(hashlib.blake2b(struct.pack("<Qqqqq", *words), digest_size=8).digest(), "little") >> 1


class PartOfStep(NamedTuple):
    """The samples of one virtual worker, among those of this worker."""

    virtual: int
    start: int
    stop: int
    weight: float  # what its gradient is multiplied by, so that the mean over all virtual workers is that of samples


class VirtualParts(NamedTuple):
    place: StepPlace
    computed: int  # virtual workers that have samples in this step
    parts: tuple[PartOfStep, ...]  # of this worker

    rows: int  # of this worker's mini-batch
    batch: int = 0  # samples of a whole step; 0: this one does not count
    others: StepPlace | None = None  # the place of the step, where this worker has no samples in it

    @property
    def common(self) -> StepPlace:
        """Return the place by which all workers' random numbers go on, whether they have samples or not."""
        return self.others or self.place

    @property
    def counts(self) -> bool:
        """Tell whether these are samples of this worker's, and no stand-ins."""
        return self.place.epoch >= 0


def parts_of(spec: DataSpec, lease: Lease, step: int) -> VirtualParts:
    assert lease.part is not None  # it is of a job with virtual workers
    (first, last, virtual), whole = lease.part, lease.whole(step)
    samples = sum(map(len, whole))
    bounds = lease.bounds_of_all(step)
    sizes = [stop - start for start, stop in pairwise(bounds)]
    parts = tuple(
        PartOfStep(number, bounds[number] - bounds[first], bounds[number + 1] - bounds[first], size * virtual / samples)
        for number, size in enumerate(sizes)
        if first <= number < last and size
    )
    place = StepPlace(spec.seed, whole[0].epoch, _number(lease, whole[0])) if whole else nowhere(spec)
    return VirtualParts(place, sum(map(bool, sizes)), parts, bounds[last] - bounds[first], lease.batch)


def _number(lease: Lease, first: Range) -> int:
    """Return a number that no other step of the epoch has: of a stream, the place of its first item."""
    return first.start if lease.by_shard else first.start // lease.batch


def nowhere(spec: DataSpec) -> StepPlace:
    """Return the place of mini-batches that do not count."""
    return StepPlace(spec.seed, -1, 0)


def stand_ins(spec: DataSpec, others: VirtualParts, rows: int) -> VirtualParts:
    """Return the one part of a worker that has no samples in a step of the others."""
    return VirtualParts(
        nowhere(spec), others.computed, (PartOfStep(0, 0, rows, 0.0),), rows, others.batch, others.place
    )


def rehearsed(spec: DataSpec, rows: int) -> VirtualParts:
    """Return the one part of a mini-batch that does not count."""
    return VirtualParts(nowhere(spec), 1, (PartOfStep(0, 0, rows, float(spec.virtual)),), rows)


class PartLoad(NamedTuple):
    """The samples of a part, for a process that loads them."""

    key: tuple[int, int, int]  # epoch, number of the step in it, virtual worker
    ids: Ids  # of a stream, its items, which are at hand
    seed: int

    @property
    def virtual(self) -> int:
        return self.key[2]


def loads(parts: VirtualParts, ids: Ids) -> list[PartLoad]:
    """Return what the parts of a mini-batch with these ids are loaded from."""
    place = parts.place
    return [
        PartLoad(
            (place.epoch, place.number, one.virtual), ids[one.start : one.stop], place.seed_of(one.virtual, LOADING)
        )
        for one in parts.parts
    ]


class PartSums(Protocol):
    """Gradients and statistics of one step, of the parts that this process computes."""

    def begin(self, scales: Scales, virtual: int, trial: StepTrial = UNCHECKED) -> None:
        """Note the statistics of the step's start, and drop gradients that are left from before. What `trial` tells
        goes with the sums.
        """

    def begin_part(self, seed: int) -> None:
        """Put the statistics back, and begin all random numbers by `seed`."""

    def take(self, weight: float, *, digest: bool) -> int:
        """Add a part's gradients and statistics, unless it weighs nothing, and drop these gradients. Return their
        digest, as they were before any rounding; 0 if it is not asked for. Raises UsageError.
        """

    def reduce(self, computed: int) -> bool:
        """Add up what all workers have, and update the scales. True: it is to be computed again, with other scales,
        or as the trial asks for it. A failed collective voids the mini-batch, which is not computed again here.
        """

    def seed(self, seed: int) -> None:
        """Begin all random numbers by `seed`."""

    def conditions(self) -> dict[str, str]:
        """Return what the bits of this framework's kernels depend on, by name."""


class VirtualPort(Protocol):
    """The trainer, as these loops use it."""

    def parts_of_step(self, batch: Any) -> VirtualParts:
        """Return this worker's parts of the mini-batch being worked on. Raises UsageError."""

    def adding_up(self) -> AbstractContextManager[None]:
        """Return a context in which gradients only add up in this worker."""

    def step_of_all_lives(self) -> int:
        """Return the number of the mini-batch being worked on, over all lives of the job."""

    def tell_bits(self, bits: str) -> None:
        """Report that bits are held, or why not."""

    def trial(self, batch: Any, parts: VirtualParts) -> StepTrial:
        """Return what is computed a second time of the mini-batch being worked on. Raises UsageError."""

    def ids_of(self, virtual: int) -> Ids:
        """Return the samples of a virtual worker in the mini-batch being worked on."""

    @property
    def corrupt_since(self) -> int:
        """Return the step in which a worker was first found to compute wrongly; 0: none was."""

    @property
    def keeps_digests(self) -> bool:
        """Tell whether the digests of all parts are kept."""

    def keep_digests(self, loop: int, digests: Sequence[tuple[int, int]]) -> None:
        """Keep the digests of the parts that this worker has computed in a loop of this step, by virtual worker."""


class VirtualSteps:
    """The loops of one trainer over parts of steps."""

    def __init__(self, sums: PartSums, sort: Tensors, port: VirtualPort, virtual: int) -> None:
        self._sums, self._kind = sums, {"machine": machine(), "set of instructions": instructions()}
        self.scales = Scales(self._conditions(), port.step_of_all_lives)
        self._sort = sort
        self._port = port
        self._told = ""
        self._virtual = virtual
        self._calls = (0, 0)  # the newest step, and how many loops it has had
        self._seed = 0  # of the newest part

    def parts(self, batch: Any, most: int | None) -> Iterator[tuple[Any, float]]:
        """Carry out `edl.microbatches`."""
        sums, found = self._sums, self._port.parts_of_step(batch)
        if (call := self._call()) == 0:
            self.scales.begin_step(self._conditions(found.batch))
        if since := self._port.corrupt_since:
            self.scales.lose(f"since step {since}: a worker has computed otherwise than another")
        trial = self._port.trial(batch, found)
        digests: list[tuple[int, int]] = []
        again, keeps = True, self._port.keeps_digests and found.counts
        while again:
            sums.begin(self.scales, self._virtual, trial)
            digests = []
            for part in found.parts:
                self._begin_part(found.place.seed_of(part.virtual, call))
                with self._port.adding_up():
                    yield from self._within(batch, part, found.rows, most)
                digest = sums.take(part.weight, digest=keeps or trial.is_due(part.virtual))
                digests.append((part.virtual, digest))
                trial.note(part.virtual, digest, own=True)
            for virtual in trial.more:
                self._begin_part(found.place.seed_of(virtual, call))
                with self._port.adding_up():
                    yield from self._of_another(batch, virtual, most)
                trial.note(virtual, sums.take(0.0, digest=True), own=False)
            again = sums.reduce(found.computed)
        if keeps:
            self._port.keep_digests(call, digests)
        sums.seed(found.common.seed_of(AFTER, call))
        if self.scales.bits != self._told:
            self._told = self.scales.bits
            self._port.tell_bits(self._told)

    def _begin_part(self, seed: int) -> None:
        self._seed = seed
        self.begin_part()

    def begin_part(self) -> None:
        """Begin the newest part, perhaps once more: its random numbers, and the statistics of its model."""
        self._sums.begin_part(self._seed)

    def _conditions(self, batch: int = 0) -> dict[str, str]:
        return {**self._kind, "batch": str(batch or ""), **self._sums.conditions()}

    def _within(self, batch: Any, part: PartOfStep, rows: int, most: int | None) -> Iterator[tuple[Any, float]]:
        """Yield one virtual worker's samples, in as many pieces as a memory for `most` samples asks for."""
        begin, size = part.start, part.stop - part.start
        if isinstance(batch, LoadedParts):
            batch, begin, rows = batch.of(part.virtual), 0, size
            if not most or most >= size:  # it may be anything that a script's collate_fn has made
                yield batch, 1.0
                return
        for piece in microbatches(size, most or 0):
            yield cut_rows(batch, begin, begin + piece, rows, self._sort), piece / size
            begin += piece

    def _of_another(self, batch: Any, virtual: int, most: int | None) -> Iterator[tuple[Any, float]]:
        """Yield the samples of a virtual worker that this worker does not have, as its own worker does."""
        ids = batch.of(virtual) if isinstance(batch, LoadedParts) else self._port.ids_of(virtual)
        rows = rows_of(ids)
        yield from self._within(ids, PartOfStep(virtual, 0, rows, 0.0), rows, most)

    def begin_numbers(self, ids: Ids) -> None:
        """Begin a script's random numbers for a mini-batch: what loading has drawn depends on who loads which part."""
        self._sums.seed(self._port.parts_of_step(ids).common.seed_of(BEFORE, 0))

    def begin_evaluated(self, first: int) -> None:
        """Begin a script's random numbers for a batch of an evaluation, by its `first` sample; by `AFTER`: those after
        the evaluation, of which each worker computes other batches.
        """
        place = StepPlace(0, EVALUATED, self._port.step_of_all_lives())
        self._sums.seed(place.seed_of(first, 0))

    def begin_anew(self) -> None:
        """Forget the loops of a mini-batch that has ended: if it was void it comes again, with the same seeds."""
        self._calls = (0, 0)

    def _call(self) -> int:
        step, (before, calls) = self._port.step_of_all_lives(), self._calls
        self._calls = step, (calls + 1 if step == before else 0)
        return self._calls[1]


CPUINFO: Final = Path("/proc/cpuinfo")
VECTORS: Final = ("sse", "avx", "fma", "f16c", "amx", "asimd", "sve", "bf16", "i8mm")  # as instructions begin
MOST_COLUMNS: Final = 4  # of a mini-batch that is a list


class LoadedParts:
    """A step's mini-batch of a loader, in a job with virtual workers: `edl.microbatches` gives its parts."""

    def __init__(self, parts: Mapping[int, Any], rows: int) -> None:
        self._parts, self._rows = parts, rows

    def of(self, virtual: int) -> Any:
        return self._parts[virtual]

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[Any]:
        raise UsageError(TAKE_PARTS)

    def __getitem__(self, key: object) -> Any:
        raise UsageError(TAKE_PARTS)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(TAKE_PARTS)


def machine(cpuinfo: Path = CPUINFO) -> str:
    """Return the kind of this machine's processor."""
    return " ".join([platform.machine(), *sorted(_told_of_processors(cpuinfo, "model name"))])


def instructions(cpuinfo: Path = CPUINFO) -> str:
    """Return what kernels of mathematics are chosen by: the vector instructions, of which a virtual machine may hide
    some, and ARM's kinds of processors, which have no names.
    """
    told = [word for words in _told_of_processors(cpuinfo, "flags", "Features") for word in words.split()]
    kinds = _told_of_processors(cpuinfo, "CPU implementer", "CPU part")
    return " ".join(sorted({*kinds, *(word for word in told if word.startswith(VECTORS))}))


def _told_of_processors(cpuinfo: Path, *names: str) -> set[str]:
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.exists() else []
    pairs = (line.partition(":") for line in lines)
    return {value.strip() for name, _, value in pairs if name.strip() in names}


def cut_rows(batch: Any, start: int, stop: int, rows: int, sort: Tensors) -> Any:
    """Return the rows start .. stop-1 of a mini-batch of `rows`: of a sequence, or of all arrays and tensors in it, in
    memory of their own. Raises UsageError.
    """
    if isinstance(batch, Mapping):
        return {name: cut_rows(value, start, stop, rows, sort) for name, value in batch.items()}
    if isinstance(batch, np.ndarray) or sort.form(batch) is not None:
        _check_rows(batch, rows)
        part = batch[start:stop]
        return part.clone() if hasattr(part, "clone") else part.copy() if isinstance(part, np.ndarray) else part
    if isinstance(batch, (tuple, list)):
        is_arrays = all(isinstance(one, (np.ndarray, Mapping)) or sort.form(one) is not None for one in batch)
        if batch and is_arrays and not _are_samples(batch, rows):
            found = [cut_rows(one, start, stop, rows, sort) for one in batch]
            return tuple(found) if isinstance(batch, tuple) else found
        _check_rows(batch, rows)
        return batch[start:stop]
    if not hasattr(batch, "__len__") or not hasattr(batch, "__getitem__"):
        raise UsageError(f"edl.microbatches(batch): a {type(batch).__name__} cannot be cut; give it ids, or a list")
    _check_rows(batch, rows)
    return batch[start:stop]


def _are_samples(batch: Sequence[Any], rows: int) -> bool:
    """Tell whether each of these arrays is a sample, as those of a stream's batches, and not a column of all rows."""
    if len(batch) != rows:
        return False
    if any(_length(one) != rows for one in batch):
        return True
    if rows > MOST_COLUMNS and isinstance(batch, list) and len({getattr(one, "shape", None) for one in batch}) == 1:
        raise UsageError(
            f"edl.microbatches(batch): a list of {rows} arrays of length {rows} may be samples or columns: make one "
            "array of samples, by numpy.stack(batch) or torch.stack(batch), or a tuple of columns"
        )
    return False


def _length(one: Any) -> int:
    one = next(iter(one.values()), ()) if isinstance(one, Mapping) else one
    shape = getattr(one, "shape", None)
    return -1 if shape is None or not len(shape) else int(shape[0])


def rows_of(batch: Any) -> int:
    """Return the rows of a mini-batch, as `cut_rows` counts them."""
    if isinstance(batch, Mapping):
        return rows_of(next(iter(batch.values())))
    if isinstance(batch, (tuple, list)) and batch and hasattr(batch[0], "shape"):
        return len(batch[0])
    return len(batch)


def _check_rows(batch: Any, rows: int) -> None:
    if len(batch) != rows:
        raise UsageError(
            f"edl.microbatches(batch): it has {len(batch)} rows, and this worker has {rows} samples in this step: give "
            "it the mini-batch as the loop has it, or what was made of all of its samples"
        )
