"""The state of a model and its optimizers in two parts, for a newcomer that gets it beside a step.

Owns: what is of which part, and their bytes. Does not own: what makes up the state (`edl.torch.torch_state`), how bytes
travel (`edl.transport.state_stream`), nor when (`edl.trainer.state_handoff`).

Early: buffers and hyper-parameters, which forward passes and schedules change. Late: parameters and the optimizers'
tensors, which only an update changes; they are read where they lie, and if one was changed meanwhile all the same, that
shows in torch's count of its versions.

The late part may go in portions. One is of some parameters and all that the optimizers keep of these: so from the
update before which it has come on, each of them is changed as the sender's. What an optimizer keeps of none of its
parameters goes first.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
import torch

from edl.core.worker.model_state import cut
from edl.core.worker.worker_inputs import WHOLE, StatePortion
from edl.errors import UsageError
from edl.torch.cuda_streams import StillTensors
from edl.torch.sharded import local_of
from edl.torch.torch_state import (
    Adoption,
    Described,
    Holder,
    Some,
    as_bytes,
    described,
    described_hyper_parameters,
    described_states,
)
from edl.trainer.framework_port import Late, Parted
from edl.trainer.value_tree import Elements

ALIGNED = 16  # each tensor's bytes begin at a multiple of this
TOGETHER_BYTES = 1 << 18  # smaller tensors are sent together
PART_BYTES = 1 << 20


class Whole(Holder, Protocol):
    def check_built(self) -> None:
        """Raises UsageError where the model has not all its parameters yet."""

    def buffers(self) -> set[int]:
        """Return which of the tensors are buffers, by `id`."""


class Portioned(msgspec.Struct, frozen=True):
    """A portion, without contents: of parameters from one number to before another."""

    begin: int
    end: int
    described: Described  # in the first portion and in the last; else of states alone


class TorchApart:
    """`edl.trainer.framework_port.Apart`."""

    def __init__(self, holder: Whole, tensor: Callable[[Any], torch.Tensor]) -> None:
        """`tensor` is the memory of what travels."""
        self._holder = holder
        self._tensor = tensor
        self._cuts = [0]  # the parameters with which portions begin, as long as one is sent in some

    def given(self) -> bool:
        return True

    def size(self) -> int:
        return sum(self._sizes(self._both()[1]))

    def parted(self, portion: StatePortion = WHOLE) -> Parted:
        self._holder.check_built()
        early, learned = self._both()
        if portion.is_first:
            self._cuts = cut(self._sizes(learned), portion.of)
        begin = self._cuts[portion.first]
        end = len(learned) if portion.is_last else self._cuts[portion.until]  # what was added since is of the last
        late, optimizers = learned[begin:end], list(self._holder.optimizers())
        some, late = Some(set(map(id, late)), with_own=begin == 0), list(map(local_of, late))
        states = [described_states(one, late, some) for one in optimizers]
        if portion.is_first or portion.is_last:
            hyper = [described_hyper_parameters(one, early) for one in optimizers]
            whole = described(self._holder, list(self._holder.tensors()), tuple(zip(hyper, states, strict=True)))
        else:
            early, whole = [], Described((), tuple((Elements((), "list"), one) for one in states))
        return Parted(msgspec.msgpack.encode(Portioned(begin, end, whole)), self.raw(early), InPlace(late))

    def expect(self) -> None:
        """Do nothing: each update waits in any case (`edl.torch.torch_reducer`)."""

    def take_early(self, description: bytes, early: memoryview) -> Late:
        self._holder.check_built()
        theirs = msgspec.msgpack.decode(description, type=Portioned)
        if theirs.described.tensors:
            self._take_early(theirs.described, early)

        rest = self._both()[1][theirs.begin : theirs.end]
        some, rest = Some(set(map(id, rest)), with_own=theirs.begin == 0), list(map(local_of, rest))
        adoption = Adoption("the optimizers of this worker are not those of the others", rest)
        optimizers = zip(self._holder.optimizers(), theirs.described.optimizers, strict=True)
        adopt = [adoption.prepare_states(optimizer, states, some) for optimizer, (_, states) in optimizers]
        tensors = [self._tensor(one) for one in rest]
        is_here = all(tensor.device.type == "cpu" for tensor in tensors)

        def take_late(late: memoryview) -> None:
            for one in adopt:
                one()
            _check_size(tensors, late)
            if not is_here:
                _fill(tensors, lambda _: late)

        return Late(take_late, (lambda first: _fill(tensors, first, beside=True)) if is_here else None)

    def _take_early(self, theirs: Described, early: memoryview) -> None:
        holder, first = self._holder, self._both()[0]
        named = list(holder.tensors())
        adoption = Adoption("the model of this worker is not that of the others", first)
        adoption.check(holder, named, theirs)
        adoption.adopt_groups(holder, named, theirs)
        for optimizer, (hyper, _) in zip(holder.optimizers(), theirs.optimizers, strict=True):
            adoption.adopt_hyper_parameters(optimizer, hyper)
        self.put(first, early)

    def _both(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the buffers, then the parameters."""
        buffers, found = self._holder.buffers(), [tensor for _, tensor in self._holder.tensors()]
        early = [tensor for tensor in found if id(tensor) in buffers]
        return early, [tensor for tensor in found if id(tensor) not in buffers]

    def _sizes(self, learned: Sequence[torch.Tensor]) -> list[int]:
        """Return the room that each parameter takes, with what is kept of it."""
        kept = [one.state for one in self._holder.optimizers()]
        return [_room(local_of(one)) + sum(_room_of(state[one]) for state in kept if one in state) for one in learned]

    def raw(self, contents: Sequence[Any]) -> bytes:
        return b"".join(itertools.chain.from_iterable(_padded(self._tensor(one)) for one in contents))

    def put(self, contents: Sequence[Any], raw: memoryview) -> None:
        tensors = [self._tensor(one) for one in contents]
        _check_size(tensors, raw)
        _fill(tensors, lambda _: raw)


def _check_size(tensors: Sequence[torch.Tensor], raw: memoryview) -> None:
    if sum(map(_room, tensors)) != len(raw):
        raise UsageError(
            f"{len(raw)} bytes have come for state of {sum(map(_room, tensors))}: all workers must build the same "
            "model, wrap the same optimizers and register the same values"
        )


def _fill(tensors: Sequence[torch.Tensor], first: Callable[[int], memoryview], *, beside: bool = False) -> None:
    """`first` gives so many bytes of what comes, or more. `beside`: while the script computes, on what is of no weight;
    so this does not count as a change for autograd, which would end its backward pass.
    """
    begin = 0
    for tensor in tensors:
        if count := tensor.numel():
            end = begin + _room(tensor)
            raw = first(end)
            if len(raw) < end:
                return  # `_check_size` says so
            came = torch.frombuffer(raw, dtype=tensor.dtype, count=count, offset=begin)
            with torch.no_grad():
                (tensor.data if beside else tensor.detach()).copy_(came.view(tensor.shape))
            begin = end


class InPlace:
    """`edl.transport.state_stream.Contents` of tensors that nothing changes meanwhile."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._still = StillTensors(self._tensors)
        self._versions = list(map(version_of, self._tensors))
        self._groups = list(_grouped(self._tensors))
        self._begins = [0, *itertools.accumulate(sum(map(_room, group)) for group in self._groups)]
        self._at = -1  # the group whose bytes are at hand
        self._bytes = memoryview(b"")

    @property
    def size(self) -> int:
        return self._begins[-1]

    def part(self, begin: int) -> memoryview:
        """Return a part; the same thread asks for one after the other."""
        at = bisect.bisect_right(self._begins, begin) - 1
        if at != self._at:
            with self._still.reading():
                self._at, self._bytes = at, _together(self._groups[at])
        within = begin - self._begins[at]
        return self._bytes[within : within + PART_BYTES]

    def whole(self) -> bool:
        return self._versions == list(map(version_of, self._tensors))


def _grouped(tensors: Iterable[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    """Group small tensors; large ones stay alone."""
    group: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if not tensor.numel():
            continue
        if group and size + _room(tensor) > TOGETHER_BYTES:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += _room(tensor)
    if group:
        yield group


def _together(group: list[torch.Tensor]) -> memoryview:
    """Join the bytes of a group. A single tensor whose bytes need no padding behind them is not copied."""
    if len(group) == 1 and _room(group[0]) == group[0].numel() * group[0].element_size():
        return _bytes_of(group[0])
    return memoryview(b"".join(itertools.chain.from_iterable(map(_padded, group))))


def _padded(tensor: torch.Tensor) -> tuple[memoryview | bytes, bytes]:
    if not tensor.numel():
        return b"", b""
    lying = _bytes_of(tensor)
    return lying, bytes(_room(tensor) - len(lying))


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    lying: Any = as_bytes(tensor.detach().cpu().contiguous()).numpy()
    return memoryview(lying)


def _room(tensor: torch.Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    return -(-size // ALIGNED) * ALIGNED


def _room_of(state: Any) -> int:
    """Estimate the room of an optimizer's state of one parameter, by the tensors that nearly all optimizers keep."""
    kept = state.values() if isinstance(state, dict) else ()
    return sum(_room(local_of(one)) for one in kept if isinstance(one, torch.Tensor))


def version_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
