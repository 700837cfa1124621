"""A script's loop over a DataLoader with a DistributedSampler, as passes over the job's samples.

Owns: which loader is trained on, which of the script's passes is which epoch of the job, that a newcomer passes over
epochs that are done, and where steps of batches of the script's own end. Does not own: where other steps end
(`edl.torch.loader_conversion`), nor the samples (`edl.trainer.data.shards`).

Passes have numbers: what the script gives `set_epoch()`, else how many it has made. The number of the pass that the
others are in travels to a newcomer with the model. Before that it knows the job's epoch from outside, and goes through
the passes before it without a mini-batch. Its first mini-batch then is its rehearsal, at whose end it enters the ring.
Where the others have come farther meanwhile, it passes over these epochs too; what the script does to schedules there
is taken back, as those of the others have come with the model.
"""

from __future__ import annotations

import linecache
import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import FrameType
from typing import Any, Final, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from edl.core.data.ledgers import FIRST_DEAL, LONGEST_DEAL
from edl.core.data.rounds import evenly
from edl.errors import UsageError
from edl.torch.loader_conversion import ElasticBatches, Order, converted
from edl.torch.torch_process import framework, trainer
from edl.torchrun.refusals import LIBRARIES
from edl.torchrun.worker_group import WorkerGroup

# The job deals positions in runs, a run for each worker; a DistributedSampler gives each worker every n-th sample. So
# positions are sorted by the step in which they are trained while the number of workers stays as it was at the
# beginning. Whatever becomes of the workers, the order of an epoch stays a permutation of its samples.


Numbers = NDArray[np.int64]


@lru_cache(maxsize=2)
def places(total: int, batch: int, size: int) -> Numbers:
    """Return for each position its place in the sequence in which `size` workers train, of `batch` samples a step."""
    steps, within, ranks = [], [], []
    begun, first_step, deal = 0, 0, FIRST_DEAL
    while begun < total:
        dealt, counts = evenly(total - begun, deal, [batch] * size)
        for rank, count in enumerate(counts):
            numbers = np.arange(count)
            steps.append(first_step + numbers // batch)
            within.append(numbers % batch)
            ranks.append(np.full(count, rank))
        begun, first_step, deal = begun + sum(counts), first_step + dealt, min(2 * deal, LONGEST_DEAL)
    sequence = np.lexsort((np.concatenate(ranks), np.concatenate(within), np.concatenate(steps)))
    found = np.empty(total, np.int64)
    found[sequence] = np.arange(total)
    return found


@lru_cache(maxsize=3)
def drawn(total: int, seed: int | None) -> Numbers:
    """Return the samples in the order of a DistributedSampler whose seed, with its epoch, is `seed`; None: unshuffled.

    The sampler repeats some samples where their number does not divide; here none is repeated.
    """
    if seed is None:
        return np.arange(total)
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(total, generator=generator).numpy()


PLACE: Final = "torchrun_place"
TOLD: Final = "_edl_told"  # marks a loader: the batches of an epoch, as len() has told the script
END: Final = object()  # of an iteration
MOST_PARTS: Final = 4096
NO_BATCHES: Final[tuple[type, ...]] = (list, tuple, dict, set, range, str, torch.Tensor, torch.nn.Module)
ITERATES: Final = DataLoader.__iter__  # torch's own
SETS_EPOCH: Final = "_edl_sets_epoch"  # marks a sampler whose script calls set_epoch()


class LoopPlace(TypedDict):
    """The place where the script of all workers is, the same on each."""

    number: int  # of the newest pass
    given: int  # batches of the steps in it, the newest included: the same wherever in a step it is asked
    told: int  # batches that it has, by len(); 0: the script has not asked
    size: int  # of the job at its beginning, by which epochs are ordered
    first: int  # the sampler's epoch minus the job's
    sets_epoch: bool  # else each epoch has the same order
    seed: int  # of the sampler, which a newcomer may not know; below 0: nothing is shuffled


class Trains(Protocol):
    """The rest of the script, as its loaders need it."""

    def trains(self) -> bool:
        """Tell whether the script has a model that is in training now."""


class Script(Trains, Protocol):
    """The rest of the script, as its passes need it."""

    def begin_pass(self) -> None:
        """Note that a pass begins: a checkpoint's state may be about to come."""

    def adds_up(self) -> bool:
        """Tell whether gradients are to be added up where no update was made; else a scaler may have left it out."""

    def kept(self) -> Callable[[], None]:
        """Keep schedules as they are; what is returned puts them back."""

    def take_numbers(self) -> None:
        """Take over what the others' scripts have counted, if it has come."""

    def end_pass(self) -> None:
        """Take note that all workers have come to the end of the same pass."""


class Passes:
    """The passes over one training loader."""

    def __init__(self, loader: DataLoader[Any], group: WorkerGroup, script: Script, parts: int) -> None:
        """`parts`: batches of one update."""
        self.loader = loader
        self._group, self._script, self._parts = group, script, parts
        sampler = sampler_of(loader)
        assert sampler is not None
        self._begun = 0
        self._numbered = (-1, -1)  # the newest pass's epoch by set_epoch(), and its number
        self._taken = 0  # batches of the steps that this script has begun in the newest pass
        self.all_taken = 0  # batches that it was given, in all passes
        self._iterator: Iterator[Any] | None = None
        self._held: list[Any] = []  # what comes next, where the script has not come to its pass
        self._compared = False  # with the place of the others
        self._put_back: Callable[[], None] | None = None
        step = converted(loader, parts, 0, Order(False, 0), as_it_counts=True)
        self.batches = ElasticBatches(step, lambda batch: batch)
        self._shards = step.loader.shards
        self._samples = step.loader.samples_of_step
        step.loader.order_by(self._ordered)
        seed = sampler.seed if sampler.shuffle else -1
        begins = LoopPlace(
            number=self._number(sampler), given=0, told=0, size=group.size(), first=0, sets_epoch=False, seed=seed
        )
        self._extras = trainer.register(**{PLACE: begins})
        trainer.on_resize(lambda _old, _new: None)  # so that a newcomer's place comes before its first mini-batch

    @property
    def place(self) -> LoopPlace:
        found: LoopPlace = getattr(self._extras, PLACE)
        return found

    def counted(self, number: int) -> int:
        """Return the number of a batch in the pass, which the script has counted from where it came in. The number is
        below what `len()` has told for the pass: workers that were lost have left their batches to the others, and a
        script may have made plans for as many as it was told.
        """
        number += self.place["given"] - self._taken
        told = -(-self.place["told"] // self._parts) * self._parts
        return number if number < told or not told else told - self._parts + (number - told) % self._parts

    def tell(self, batches: int) -> None:
        """Note the batches of an epoch as the script is told them within a pass."""
        if self._iterator is not None and not self._group.alone:
            self.place["told"] = max(self.place["told"], batches)

    @property
    def between(self) -> bool:
        """Tell whether the script is between two passes, where all workers do the same."""
        return self.batches.between and not self._group.alone

    def _number(self, sampler: DistributedSampler[Any]) -> int:
        """Return the number of the pass that begins: what set_epoch() says, unless it says the same again."""
        epoch, number = self._numbered
        if not hasattr(sampler, SETS_EPOCH):
            return self._begun
        return sampler.epoch if sampler.epoch != epoch else number + 1

    def trains(self, loader: DataLoader[Any]) -> bool:
        """Tell whether `loader` is the training loader, or one that the script has made anew."""
        mine = self.loader
        return loader is mine or (loader.dataset is mine.dataset and loader.batch_size == mine.batch_size)

    def iterate(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Iterate over the mini-batches of this worker in the script's next pass."""
        sampler = sampler_of(loader)
        assert sampler is not None
        number = self._number(sampler)
        self._begun += 1
        self._numbered = sampler.epoch, number
        if self._is_over(number):
            self._group.passes_over = True
            return
        self._group.passes_over = False
        if self._put_back is not None:
            self._put_back()
            self._put_back = None
        if self._iterator is None or not self._held:
            self._draw_seed(loader)
            self._iterator = iter(self.batches)
        self._note(number, sampler, getattr(loader, TOLD, 0))
        self._script.begin_pass()
        batches = 0  # of the step
        while True:
            item = self._held.pop() if self._held else next(self._iterator, END)
            if not self._compared and self._group.joined:
                self._compared = True
                if self._compare(number, item):
                    return
            if item is END:
                self._iterator = None
                if self._group.joined:
                    self._script.end_pass()
                return
            self._script.take_numbers()
            self._give()
            updates, is_first = framework.updates(), self._parts == 1 and self._group.joined and trainer.step() == 1
            batches = 1 if self.batches.parts.first else batches + 1
            yield item
            if batches < self._parts and framework.updates() != updates and not trainer.voided:
                raise UsageError(
                    f"the script makes an update of {batches} batches, and a step of the job is {self._parts} "
                    "(--accumulate): their number must stay the same"
                )
            if is_first and framework.updates() == updates and not trainer.voided and self._script.adds_up():
                yield from self._counting(item, updates)

    def _counting(self, item: Any, updates: int) -> Iterator[Any]:
        """Find out how many batches the script's update is made of. Raises UsageError, before anything is trained."""
        for count in range(2, MOST_PARTS):
            self._give()
            yield item
            if framework.updates() != updates:
                raise UsageError(
                    f"the script makes one update of {count} batches, and these are one step of the job: say "
                    f"`edl torchrun --accumulate {count}`"
                )
        raise UsageError(f"the script has made no update in {MOST_PARTS} batches: it must call the optimizer's step()")

    def _give(self) -> None:
        """Count a batch that the script is given."""
        if self.batches.parts.first:
            self.place["given"] += self._parts
            self._taken += self._parts
        self.all_taken += 1

    def _note(self, number: int, sampler: DistributedSampler[Any], told: int) -> None:
        """Note the pass that begins."""
        place, self._taken = self.place.copy(), 0
        if not self._held:
            place["number"], place["given"], place["told"] = max(number, place["number"]), 0, told
        if self._group.joined and hasattr(sampler, SETS_EPOCH) and not place["sets_epoch"]:
            place["sets_epoch"], place["first"] = True, sampler.epoch - trainer.epoch()
        setattr(self._extras, PLACE, place)

    def _is_over(self, number: int) -> bool:
        """Tell whether the job is beyond the pass."""
        if self._held:
            return number < self.place["number"]
        return not self._group.joined and not self._compared and number < self._group.epoch_beside()

    def _compare(self, number: int, item: Any) -> bool:
        """Compare this script's first pass in the ring with the others'. Return whether theirs is a later one.

        Raises UsageError where this script is farther than the others, as a script may be that begins from a file.
        """
        there = self.place["number"]
        if number > there:
            raise UsageError(
                f"this worker's script begins with epoch {number}, and the others are in epoch {there}: its own "
                "checkpoint is from after that; leave it to edl, which brings a newcomer to where the others are"
            )
        if number == there:
            return False
        self._held = [item]
        self._put_back = self._script.kept()
        self._group.passes_over = True
        return True

    def _draw_seed(self, loader: DataLoader[Any]) -> None:
        """Draw the number that a DataLoader draws as an iteration begins: the script's random numbers go on alike."""
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def _ordered(self, step: int, ids: Numbers) -> Numbers:
        """Return the samples of a step; of stand-ins, the first."""
        pieces = self._shards.pieces(step)
        if not pieces:
            return self.samples_of(0, ids)
        return np.concatenate([self.samples_of(one.epoch, slice(one.start, one.stop)) for one in pieces])

    def samples_of(self, epoch: int, positions: slice | Numbers) -> Numbers:
        """Return the samples at some positions of an epoch: looked up, as each step asks."""
        place, total = self.place, len(self.loader.dataset)  # type: ignore[arg-type]
        seed = None if place["seed"] < 0 else place["seed"]
        if seed is not None and place["sets_epoch"]:
            seed += place["first"] + epoch
        found: Numbers = drawn(total, seed)[places(total, self._samples, place["size"])[positions]]
        return found


class ScriptSteps:
    """Steps of a script that makes its batches itself: from a forward pass in training to the first one after the
    update. edl does not know the samples.
    """

    def __init__(self) -> None:
        self._updates: int | None = None  # there were as the step began

    def begin(self) -> None:
        """Note that a forward pass in training begins."""
        self.finish()
        if self._updates is None:
            self._updates = framework.updates()

    def finish(self) -> None:
        """End the step if its update is made, or it is void."""
        if self._updates is not None and (trainer.voided or framework.updates() != self._updates):
            self._updates = None
            trainer.notify_batch_end()


class LoaderNames:
    """Stand in for what DataLoaders and DistributedSamplers of a script do."""

    def __init__(self, group: WorkerGroup, script: Trains) -> None:
        self._group, self._script = group, script

    @abstractmethod
    def iterate(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Iterate over the batches of a loader that the script trains on."""

    def is_training_loader(self, loader: DataLoader[Any]) -> bool:
        """Tell whether the script trains on this loader, as far as that is known yet."""
        return bool(getattr(sampler_of(loader), "shuffle", False))

    def has_trained(self, _loader: DataLoader[Any]) -> bool:
        return False

    def batches_of_epoch(self, batch: int, total: int) -> int:
        """Count a worker's batches in training: nothing is dropped."""
        return math.ceil(total / (batch * self._group.size()))

    def tell(self, _loader: DataLoader[Any], _batches: int) -> None:
        """Note that the script was told of so many batches of an epoch."""

    def put(self) -> None:
        """Let all DataLoaders of this process iterate by this."""
        theirs, length, sets = DataLoader.__iter__, DataLoader.__len__, DistributedSampler.set_epoch
        makes, shares = DistributedSampler.__init__, DistributedSampler.__iter__

        def iterate(loader: DataLoader[Any]) -> Any:
            _check_library(loader, sys._getframe(1).f_globals.get("__name__", ""))
            sampler = sampler_of(loader)
            if sampler is None:
                return theirs(loader)
            # A script may call train() inside of the loop, so of the loader that it trains on what counts is gradients.
            trains = self._script.trains() or self.has_trained(loader)
            if not _looks(sys._getframe(1)) and torch.is_grad_enabled() and trains:
                _check_order(sampler)
                return self.iterate(loader)
            self._follow_size(sampler)
            return theirs(loader)

        def count(loader: DataLoader[Any]) -> int:
            sampler = sampler_of(loader)
            if sampler is None:
                return length(loader)
            before = sampler.num_replicas
            _share_out(sampler, self._group.size())
            found = length(loader)
            if loader.batch_size and self.is_training_loader(loader):
                found = self.batches_of_epoch(loader.batch_size, len(sampler.dataset))  # type: ignore[arg-type]
                self.tell(loader, found)
            _share_out(sampler, before)  # an iteration may have begun
            return found

        def set_epoch(sampler: DistributedSampler[Any], epoch: int) -> None:
            setattr(sampler, SETS_EPOCH, True)
            sets(sampler, epoch)

        def make(
            sampler: Any, dataset: Any, num_replicas: Any = None, rank: Any = None, *more: Any, **named: Any
        ) -> None:
            size = self._group.size() if num_replicas is None else num_replicas
            mine = self._group.rank() if rank is None else rank
            # A newcomer is told the size of the beginning.
            makes(sampler, dataset, size if self._group.joined else max(size, mine + 1), mine, *more, **named)
            _share_out(sampler, size)

        def share(sampler: DistributedSampler[Any]) -> Any:
            if sampler.rank >= sampler.num_replicas:  # of a newcomer, which the script iterates over itself
                self._follow_size(sampler)
            return shares(sampler)

        DistributedSampler.__iter__ = share  # type: ignore[method-assign]
        DistributedSampler.__init__ = make  # type: ignore[assignment, method-assign]
        DataLoader.__iter__ = iterate  # type: ignore[method-assign]
        DataLoader.__len__ = count  # type: ignore[method-assign]
        DistributedSampler.set_epoch = set_epoch  # type: ignore[assignment, method-assign]

    def _follow_size(self, sampler: DistributedSampler[Any]) -> None:
        """Let a sampler share out its samples among the workers that there are now."""
        sampler.rank = self._group.rank()
        _share_out(sampler, max(self._group.size(), sampler.rank + 1))


class Loaders(LoaderNames):
    """DataLoaders of a script in a job: the one that it trains on, and those that it evaluates."""

    def __init__(self, group: WorkerGroup, script: Script, parts: int = 1) -> None:
        super().__init__(group, script)
        self._own, self._parts = script, parts
        self.passes: Passes | None = None

    @property
    def between(self) -> bool:
        return self.passes is not None and self.passes.between

    def has_trained(self, loader: DataLoader[Any]) -> bool:
        return self.passes is not None and self.passes.loader is loader

    def is_training_loader(self, loader: DataLoader[Any]) -> bool:
        return super().is_training_loader(loader) if self.passes is None else self.passes.trains(loader)

    def batches_of_epoch(self, batch: int, total: int) -> int:
        return self._parts * super().batches_of_epoch(batch * self._parts, total)

    def tell(self, loader: DataLoader[Any], batches: int) -> None:
        setattr(loader, TOLD, batches)
        if self.passes is not None:
            self.passes.tell(batches)

    def iterate(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Iterate over this worker's mini-batches; over those of a second loader, to evaluate them."""
        if self.passes is None:
            self.passes = Passes(loader, self._group, self._own, self._parts)
        if self.passes.trains(loader):
            return self.passes.iterate(loader)
        sampler = sampler_of(loader)
        assert sampler is not None
        self._follow_size(sampler)
        return _evaluated(ITERATES(loader))

    def counted(self, iterable: Any, start: int = 0) -> Any:
        """Do what `enumerate` does. Over training batches, however they come from the loader, a newcomer counts on from
        where the others are: a script that calls a collective at each tenth batch, say, or has a rate for each, then
        does so at the same batches on all workers.
        """
        if isinstance(iterable, NO_BATCHES):
            return enumerate(iterable, start)  # type: ignore[arg-type] # one that cannot be iterated is the script's error
        return self._counted(iterable, start)

    def _counted(self, iterable: Iterable[Any], start: int) -> Iterator[Any]:
        before = self._all_taken()
        for taken, item in enumerate(iterable, start):
            trains = self.passes is not None and self._all_taken() > before
            yield (start + self.passes.counted(taken - start) if trains and self.passes is not None else taken), item

    def _all_taken(self) -> int:
        return 0 if self.passes is None else self.passes.all_taken


def _share_out(sampler: DistributedSampler[Any], size: int) -> None:
    total = len(sampler.dataset)  # type: ignore[arg-type]
    sampler.num_replicas = size
    sampler.num_samples = total // size if getattr(sampler, "drop_last", False) else math.ceil(total / size)
    sampler.total_size = sampler.num_samples * size


def _check_library(loader: DataLoader[Any], loop: str) -> None:
    """Raise UsageError for a library that shares out the data, or counts an epoch's batches, for as many workers as
    there were once; `loop`: the name of the module that iterates.
    """
    for name in (type(loader).__module__, loop):
        for library, remedy in LIBRARIES.items():
            if name.startswith(library):
                raise UsageError(remedy)


def _evaluated(batches: Iterator[Any]) -> Iterator[Any]:
    """Iterate over batches that are not the training loader's. Raises UsageError where the script trains on them."""
    updates = framework.updates()
    for batch in batches:
        yield batch
        if framework.updates() != updates:
            raise UsageError(
                "the script trains on a second DataLoader with a DistributedSampler, and a job of edl trains on one "
                "source: put both into one loader, by torch.utils.data.ConcatDataset"
            )


def _looks(script: FrameType) -> bool:
    """Tell whether the script only looks at a batch, by `next(iter(loader))`: that begins no pass."""
    return "next(iter(" in linecache.getline(script.f_code.co_filename, script.f_lineno)


def sampler_of(loader: DataLoader[Any]) -> DistributedSampler[Any] | None:
    """Return the DistributedSampler of a loader, if it has one, or what shares out samples by the same attributes."""
    batches = getattr(loader, "batch_sampler", None)
    found = getattr(batches, "sampler", None) if batches is not None else getattr(loader, "sampler", None)
    alike = all(hasattr(found, name) for name in ("dataset", "num_replicas", "rank", "num_samples", "total_size"))
    return found if isinstance(found, DistributedSampler) or alike else None


def _check_order(sampler: DistributedSampler[Any]) -> None:
    """Raise UsageError where a sampler that is trained on has an order of its own."""
    if getattr(type(sampler), "__iter__", None) is not DistributedSampler.__iter__:
        raise UsageError(f"{type(sampler).__name__} chooses its samples itself: take DistributedSampler")
