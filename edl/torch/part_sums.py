"""Gradients and batch statistics of virtual workers in PyTorch, added up so that the bits do not depend on who adds.

Owns: rounding and adding up, in whole numbers of 32 bits, what each part of a step gives, and the operation of the
ring. Does not own: the scales (`edl.core.worker.fixed_point`), whether they suffice (`edl.trainer.part_notes`), the
order of parts and their seeds (`edl.trainer.virtual_steps`), nor what a failure leads to (`edl.trainer.trainer`).

All numbers of a step travel in one tensor: the gradients, the statistics that forward passes have moved, and behind
them, for each of these, by how many virtual workers it was given, and how many of these had nan or infinities in it;
and how often a scale did not suffice. What is not finite anywhere is filled with nan or infinity everywhere, so that a
GradScaler and a script see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from edl.collectives.ring_port import is_fault
from edl.core.worker.digest import of_all
from edl.core.worker.fixed_point import following, units
from edl.core.worker.rounding import add_all_rounded, mean_of
from edl.errors import RingBroken, RingFault, UsageError
from edl.torch.loading_seeds import begin_with
from edl.torch.tensor_ring import TensorRing
from edl.torch.torch_fingerprints import fingerprints
from edl.torch.torch_reducer import Reducer
from edl.trainer.framework_port import StepPort
from edl.trainer.part_notes import PartNotes, TimesGiven
from edl.trainer.recomputed_parts import UNCHECKED, StepTrial
from edl.trainer.virtual_steps import Scales

CACHED: Final = 1 << 16  # elements that stay in a processor's cache from one operation to the next
IN_PLACE: Final = "with virtual workers write into it, as by copy_(), or start the job without --virtual-workers"
NO_SUM: Final = "virtual workers cannot add that up; set it before training, or start the job without --virtual-workers"
SUMMED: Final = (torch.float32, torch.float16, torch.bfloat16)


class _Layout(NamedTuple):
    """The tensors that are added up, one behind the other."""

    names: list[str]
    shapes: list[torch.Size]
    starts: list[int]  # and the length of all
    notes: int = 0  # numbers behind them

    @property
    def length(self) -> int:
        return self.starts[-1]

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        pieces = torch.split(flat[: self.length], [end - start for start, end in pairwise(self.starts)])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]


class _Statistic(NamedTuple):
    """A buffer of a model as the step found it."""

    buffer: torch.Tensor
    start: torch.Tensor

    @property
    def has_moved(self) -> bool:
        """Compare contents: batch norm writes into buffers without a new version."""
        if torch.equal(self.buffer, self.start):
            return False
        return not torch.allclose(self.buffer, self.start, rtol=0.0, atol=0.0, equal_nan=True)

    def move(self) -> torch.Tensor:
        now, start = self.buffer.detach(), self.start
        return now - start if start.is_floating_point() else now.int() - start.int()


class TorchPartSums:
    """`edl.trainer.virtual_steps.PartSums`."""

    def __init__(
        self,
        trainer: StepPort,
        ring: TensorRing,
        reducers: Sequence[Reducer],
        named: Callable[[], Iterator[tuple[str, torch.Tensor]]],
        buffers: Callable[[], set[int]],
    ) -> None:
        self._trainer, self._ring, self._reducers = trainer, ring, reducers
        self._named, self._buffers = named, buffers
        self._scales, self._virtual = Scales(), 1
        self._layout = _Layout([], [], [0])
        self._total = torch.zeros(0, dtype=torch.int32)
        self._pieces: list[torch.Tensor] = []  # of it, one for each tensor
        self._arrays: list[Any] = []  # the same, in main memory
        self._units: list[float] = []  # in 1.0, of each of these in this step
        self._means = torch.zeros(0)
        self._mean_views: list[torch.Tensor] = []  # of it, one for each tensor, in its shape
        self._mean_arrays: list[Any] = []  # the same, in main memory
        self._rounded = torch.zeros(1)
        self._whole = torch.zeros(1, dtype=torch.int32)
        self._notes = PartNotes(self._scales, [], short=False)
        self._empty = True  # nothing was added yet
        self._parameters: dict[str, torch.Tensor] = {}
        self._statistics: dict[str, _Statistic] = {}
        self._flags: dict[str, _Statistic] = {}  # buffers of truth values, which no sum can merge
        self._used: dict[int, torch.Tensor] = {}  # gradients that were added up, whose memory is still held
        self._summed_in = 0  # the mini-batch of the newest sum

    # -------------------------------------------------------------------------------------------------- the parts

    def begin(self, scales: Scales, virtual: int, trial: StepTrial = UNCHECKED) -> None:
        self._scales, self._virtual = scales, virtual
        buffers = self._buffers()
        named = [(name, one) for name, one in self._named() if not is_lazy(one)]
        self._parameters = {name: one for name, one in named if one.requires_grad and id(one) not in buffers}
        found = {name: _Statistic(one, one.detach().clone()) for name, one in named if id(one) in buffers}
        self._flags = {name: one for name, one in found.items() if one.start.dtype is torch.bool}
        self._statistics = {name: one for name, one in found.items() if name not in self._flags}
        if self._summed_in == self._trainer.step():  # a script may keep gradients of an earlier loop of its mini-batch
            self._hold_means(torch.zeros_like(self._means))
        for reducer in self._reducers:
            reducer.begin_parts(self._used)
        tensors = {**self._parameters, **{name: one.buffer for name, one in self._statistics.items()}}
        known = [name for name in tensors if name in scales.exponents]
        self._empty = True
        short = any(name not in scales.exponents for name in self._parameters)
        self._notes = PartNotes(scales, known, short=short, trial=trial)
        self._units = [units(scales.exponents[name], virtual) for name in known]
        shapes = [tensors[name].shape for name in known]
        if (known, shapes, self._notes.length) != (self._layout.names, self._layout.shapes, self._layout.notes):
            self._lay_out(known, [tensors[name] for name in known])

    def _lay_out(self, names: list[str], tensors: list[torch.Tensor]) -> None:
        starts = [0]
        for one in tensors:
            starts.append(starts[-1] + one.numel())
        self._used.clear()
        self._layout = _Layout(names, [one.shape for one in tensors], starts, self._notes.length)
        device = tensors[0].device if tensors else None
        self._total = torch.zeros(starts[-1] + self._notes.length, dtype=torch.int32, device=device)
        self._pieces = list(torch.split(self._total[: starts[-1]], [end - start for start, end in pairwise(starts)]))
        self._hold_means(torch.zeros(starts[-1], device=device))
        self._arrays = [one.numpy() for one in self._pieces] if self._total.device.type == "cpu" else []
        most = max((one.numel() for one in tensors), default=0)
        size = max(1, most if device is not None and device.type != "cpu" else min(most, CACHED))
        self._rounded = torch.zeros(size, device=device)
        self._whole = torch.zeros(size, dtype=torch.int32, device=device)

    def _hold_means(self, means: torch.Tensor) -> None:
        self._means, self._mean_views = means, self._layout.views(means)
        self._mean_arrays = [one.numpy() for one in self._mean_views] if means.device.type == "cpu" else []

    def begin_part(self, seed: int) -> None:
        self._put_back()
        begin_with(seed)

    def seed(self, seed: int) -> None:
        begin_with(seed)

    def conditions(self) -> dict[str, str]:
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        cudnn = torch.backends.cudnn
        return {
            "torch": str(torch.__version__),
            "number of threads": str(torch.get_num_threads()),
            "choice of kernels": torch.backends.cpu.get_cpu_capability(),
            "GPU": torch.cuda.get_device_name() if on_gpu else "none",
            "setting of cuDNN": f"deterministic {cudnn.deterministic}, benchmark {cudnn.benchmark}"
            if on_gpu
            else "none",
            "setting of deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
            "precision of products": torch.get_float32_matmul_precision(),
        }

    def take(self, weight: float, *, digest: bool) -> int:
        given = self._gradients()
        if not weight and not digest:
            return 0
        for name, one in self._statistics.items():
            if one.has_moved:
                given[name] = one.move()
        found = of_all(fingerprints(given.items())) if digest else 0
        if not weight:
            return found
        for name, size in self._added(given, weight).items():
            self._notes.note(name, size * weight, is_whole=not given[name].is_floating_point())
        self._empty = False
        return found

    def _added(self, given: Mapping[str, torch.Tensor], weight: float) -> dict[str, float]:
        """Add what a part has given, unless a scale did not suffice; return the largest element of each tensor."""
        extremes: list[tuple[str, torch.return_types.aminmax]] = []
        plain: list[int] = []  # the numbers of those in main memory, as nearly all are
        if self._notes.short:
            extremes = [(name, torch.aminmax(tensor)) for name, tensor in given.items() if tensor.numel()]
            return _largest(extremes)
        for number, name in enumerate(self._layout.names):
            if (tensor := given.get(name)) is None:
                if self._empty:
                    self._pieces[number].zero_()
            elif _is_plain(tensor):
                plain.append(number)
            else:
                extremes += [(name, pair) for pair in self._add(number, tensor, weight)]
        found = self._add_plain(plain, given, weight)
        if len(found) < len(given):
            known = {*found, *(name for name, _ in extremes)}
            extremes += [(name, torch.aminmax(one)) for name, one in given.items() if name not in known and one.numel()]
            found.update(_largest(extremes))
        return found

    def _add_plain(self, numbers: list[int], given: Mapping[str, torch.Tensor], weight: float) -> dict[str, float]:
        """Add tensors in main memory; return the largest element of each."""
        names = [self._layout.names[number] for number in numbers]
        sources = [given[name].detach().numpy() for name in names]
        targets = [self._arrays[number] for number in numbers]
        factors = [weight * self._units[number] for number in numbers]
        return dict(zip(names, add_all_rounded(sources, targets, factors, self._empty), strict=True))

    def _add(self, number: int, given: torch.Tensor, weight: float) -> Iterator[torch.return_types.aminmax]:
        """Add a tensor in pieces that stay in a cache. Yields the extremes of each."""
        target = self._pieces[number]
        source = given.detach().reshape(-1)
        if not source.is_floating_point():
            yield torch.aminmax(source)
            target.copy_(source) if self._empty else target.add_(source)
            return
        source = source.float() if source.dtype.itemsize < torch.float32.itemsize else source
        factor = weight * self._units[number]
        size = len(self._rounded)
        for piece, into in zip(torch.split(source, size), torch.split(target, size), strict=True):
            yield torch.aminmax(piece)
            rounded = self._rounded[: len(piece)]
            torch.mul(piece, factor, out=rounded).round_()
            if self._empty:
                into.copy_(rounded)
            else:
                whole = self._whole[: len(piece)]
                into.add_(whole.copy_(rounded))

    def _gradients(self) -> dict[str, torch.Tensor]:
        """Take the gradients of a part, by name."""
        found, used = {}, self._used
        for name, parameter in self._parameters.items():
            if (gradient := parameter.grad) is not None:
                if gradient.layout is not torch.strided or gradient.dtype not in SUMMED:
                    kind = "sparse" if gradient.layout is not torch.strided else str(gradient.dtype)
                    raise UsageError(
                        f"{name} has a {kind} gradient, which virtual workers cannot add up: make it dense, and of "
                        "torch.float32, float16 or bfloat16, or start the job without --virtual-workers"
                    )
                parameter.grad = None
                if gradient.is_cpu:
                    used[id(parameter)] = gradient
                found[name] = gradient
        return found

    # ----------------------------------------------------------------------------------------------------- the sum

    def _check_buffers(self) -> None:
        """Raise UsageError for a buffer that a forward pass has changed in a way that has no sum."""
        if not (self._statistics or self._flags):
            return
        for name, tensor in self._named():
            if name in self._statistics and self._statistics[name].buffer is not tensor:
                raise UsageError(f"the model assigns its buffer {name} anew: {IN_PLACE}")
        for name, one in self._flags.items():
            if one.has_moved:
                raise UsageError(f"a forward pass changes the flag {name}: {NO_SUM}")
        for name, one in self._statistics.items():
            if one.has_moved and not bool(one.start.isfinite().all()):
                raise UsageError(f"a forward pass changes {name}, which is not finite: {NO_SUM}")

    def reduce(self, computed: int) -> bool:
        if not self._empty:
            self._check_buffers()
        self._put_back()
        self._trainer.before_reduce()
        try:
            if not self._trainer.voided and not self._are_summed(computed):
                return True
        except Exception as error:
            if not (isinstance(error, RingBroken) or is_fault(self._ring, error)):
                raise
            broken = error if isinstance(error, RingBroken) else RingFault.of(error)
            self._ring.is_failure(broken)
            self._trainer.void(RingBroken(f"the gradients were not averaged: {broken}"))
        if self._trainer.voided:
            for parameter in self._parameters.values():
                parameter.grad = torch.zeros_like(parameter)
        for reducer in self._reducers:
            reducer.note_summed()
        return False

    def _are_summed(self, computed: int) -> bool:
        """Add up what all workers have. False: their scales did not suffice, and are others now."""
        layout, total = self._layout, self._total
        if self._empty:
            total.zero_()
        if any(name not in self._scales.exponents for name in self._parameters):  # on all workers alike
            self._agree()
            return False
        total[layout.length :] = torch.tensor(self._notes.told(), dtype=torch.int32)
        if self._ring.size > 1:
            self._ring.sum_begun(total, "edl.parts")()
        given = self._notes.hear(total[layout.length :].tolist())
        if given is None:
            self._agree()
            return False
        if self._notes.again:
            return False
        self._take_over(given, computed)
        self._summed_in = self._trainer.step()
        return True

    def _agree(self) -> None:
        largest = self._ring.largest if self._ring.size > 1 else list
        self._notes.agree(list(self._parameters), list(self._statistics), largest)

    def _take_over(self, found: Sequence[TimesGiven], computed: int) -> None:
        """Make gradients and statistics of the sums, and the scales of the coming step."""
        layout, exponents = self._layout, self._scales.exponents
        whole = {name for name, one in self._statistics.items() if not one.start.is_floating_point()}
        norms: dict[str, float] = {}
        if self._arrays:
            for number, name in enumerate(layout.names):
                norms[name] = mean_of(self._arrays[number], self._mean_arrays[number], self._share(name))
        else:
            norms = _largest([pair for number, name in enumerate(layout.names) for pair in self._mean(number, name)])
        for number, name in enumerate(layout.names):
            mean, given = self._mean_views[number], found[number].times
            if (filled := found[number].filling) is not None:
                mean.fill_(filled)
            elif given and name not in whole:
                exponents[name] = following(norms[name], exponents[name], self._virtual)
            if (parameter := self._parameters.get(name)) is not None:
                parameter.grad = mean.to(parameter.dtype) if given else None
            elif given:
                buffer, start = self._statistics[name]
                total = self._pieces[number].view(start.shape)
                moved = torch.div(total, computed, rounding_mode="floor") if name in whole else mean
                buffer.copy_(start + moved.to(start.dtype))

    def _share(self, name: str) -> float:
        """Return what a sum of whole numbers is multiplied by to be a mean."""
        return 1.0 / (units(self._scales.exponents[name], self._virtual) * self._virtual)

    def _mean(self, number: int, name: str) -> Iterator[tuple[str, torch.return_types.aminmax]]:
        """Make the mean of a sum, in pieces that stay in a cache. Yields the extremes of each."""
        factor = self._share(name)
        size, target = len(self._rounded), self._means[self._layout.starts[number] : self._layout.starts[number + 1]]
        for piece, into in zip(torch.split(self._pieces[number], size), torch.split(target, size), strict=True):
            if len(piece):
                yield name, torch.aminmax(torch.mul(piece, factor, out=into))

    def _put_back(self) -> None:
        """Put back the statistics that forward passes have moved."""
        if not self._statistics:
            return
        with torch.no_grad():
            for one in self._statistics.values():
                if one.has_moved:
                    one.buffer.copy_(one.start)


def _is_plain(given: torch.Tensor) -> bool:
    """Tell whether a tensor is passed over in main memory as it lies there."""
    return given.dtype is torch.float32 and given.is_cpu and given.is_contiguous()


def _largest(extremes: Sequence[tuple[str, torch.return_types.aminmax]]) -> dict[str, float]:
    """Return the largest absolute value of each tensor, by the extremes of its pieces; nan if it has any."""
    if not extremes:
        return {}
    pairs = torch.stack([torch.stack([one.min, one.max]).to(torch.float32) for _, one in extremes]).tolist()
    found: dict[str, float] = {}
    for (name, _), (least, most) in zip(extremes, pairs, strict=True):
        largest = max(-least, most)
        before = found.get(name, 0.0)
        found[name] = before if math.isnan(before) or largest <= before else largest
    return found
