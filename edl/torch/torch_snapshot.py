"""The state of a model and its optimizers as a checkpoint has it, and back.

Owns: which tensors there are under which names, and their bytes. Does not own: what makes up the state
(`edl.torch.torch_state`), when it is taken (`edl.trainer.snapshot_writer`), nor files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch

from edl.checkpoints.checkpoint_names import optimizer_tensor
from edl.errors import UsageError
from edl.torch.cuda_streams import StillTensors
from edl.torch.sharded import held_by, held_here, is_sharded, local_of
from edl.torch.torch_state import Adoption, Described, as_bytes, described, hyper_parameters, states
from edl.torch.torch_state_split import Whole, version_of
from edl.torch.torch_tensors import WholeTensors, whole_form
from edl.trainer.framework_port import Fill, StatePiece
from edl.trainer.packing import Packing
from edl.trainer.value_tree import Node

CUDA = "torch.cuda."


class TorchSnapshot:
    """`edl.trainer.framework_port.Snapshot`."""

    def __init__(self, holder: Whole, processes: int = 1, *, beside: bool = False) -> None:
        """`processes`: those of a worker. `beside`: by another thread than the one that trains. Raises UsageError where
        the model has not all its parameters yet.
        """
        holder.check_built()
        buffers, named = holder.buffers(), list(holder.tensors())
        found = [_Tensor(name, tensor, True, id(tensor) in buffers) for name, tensor in named]
        optimizers: list[tuple[Node, Node]] = []
        for number, optimizer in enumerate(holder.optimizers()):
            hyper, of_hyper = _described(hyper_parameters(optimizer), "param_groups")
            state, of_state = _described(states(optimizer), "state")
            optimizers.append((hyper, state))
            found += [_Tensor(optimizer_tensor(number, path), tensor, False, True) for path, tensor in of_hyper]
            found += [_Tensor(optimizer_tensor(number, path), tensor, False, False) for path, tensor in of_state]
            _check_kept(optimizer)
        order = sorted(range(len(found)), key=lambda at: not found[at].is_early)
        state_of_all = described(holder, named, tuple(optimizers), whole_form)
        self.description = msgspec.msgpack.encode(_Ordered(state_of_all, tuple(order), _kinds(holder)))
        still = StillTensors([local_of(one.tensor) for one in found], wait=beside)
        self.early: Sequence[StatePiece] = [one.piece(still) for one in found if one.is_early]
        self.late: Sequence[StatePiece] = [one.piece(still, processes) for one in found if not one.is_early]
        self.whole: Callable[[], bool] = _Versions([local_of(one.tensor) for one in found if not one.is_early]).same


class _Versions:
    """Versions of tensors, apart from all that describes the tensors: that description is let go of before the copying
    ends.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._versions = list(map(version_of, tensors))

    def same(self) -> bool:
        return self._versions == list(map(version_of, self._tensors))


class _Tensor(NamedTuple):
    """A tensor of the state, where it lies."""

    name: str
    tensor: torch.Tensor
    of_model: bool
    is_early: bool

    def piece(self, still: StillTensors, processes: int = 1) -> StatePiece:
        described, size = whole_form(self.tensor), self.tensor.numel() * self.tensor.element_size()
        of = (self.name, described.dtype, described.shape, size)
        read = partial(_read, still, local_of(self.tensor))
        return StatePiece(of, read, self.of_model, held_by(self.tensor, processes))


class _Ordered(msgspec.Struct, frozen=True):
    described: Described
    order: tuple[int, ...]  # of each stored tensor: which one it is of those that are described
    kinds: tuple[str, ...] = ()  # of the optimizers: their classes; empty: edl of before did not say


def restore(holder: Whole, description: bytes, fill: Fill) -> None:
    """Carry out `Framework.restore`."""
    holder.check_built()
    head = msgspec.msgpack.decode(description, type=_Ordered)
    named = list(holder.tensors())
    contents = [tensor for _, tensor in named]
    _check_kinds(_kinds(holder), head.kinds)
    remedy = "Build the model and wrap the optimizers that the job trained, in the same order"
    adoption = Adoption("the checkpoint is of another model", contents, remedy, whole=True)
    with torch.no_grad():
        # What is frozen is what the script says, which may be another one by now.
        adoption.adopt(holder, named, msgspec.msgpack.encode(head.described), trained=False)
        for number, which in enumerate(head.order):
            fill_stored(contents[which], partial(fill, number))


def fill_stored(tensor: torch.Tensor, fill: Callable[[memoryview, int], None]) -> None:
    """Fill a tensor, or the part of a sharded one that is here, from the bytes of the whole one."""
    local = local_of(tensor)
    raw = memoryview(bytearray(local.numel() * local.element_size()))
    at = 0
    for one in held_here(tensor):
        if one.length:
            fill(raw[at : at + one.length], one.offset)
        at += one.length
    if local.numel():
        with torch.no_grad():
            came = torch.frombuffer(raw, dtype=local.dtype, count=local.numel())
            local.detach().copy_(came.view(local.shape))


def _check_kept(optimizer: torch.optim.Optimizer) -> None:
    """Refuse state of a sharded parameter that is not sharded with it: each process has a part of unknown place."""
    for parameter, kept in optimizer.state.items():
        if is_sharded(parameter) and isinstance(kept, dict):
            for name, value in kept.items():
                if isinstance(value, torch.Tensor) and not is_sharded(value) and value.numel() > 1:
                    raise UsageError(
                        f"{type(optimizer).__name__} keeps {name!r} of a sharded parameter as a tensor that is not "
                        "sharded: such state is not saved"
                    )


def _kinds(holder: Whole) -> tuple[str, ...]:
    return tuple(type(optimizer).__name__ for optimizer in holder.optimizers())


def _check_kinds(here: tuple[str, ...], there: tuple[str, ...]) -> None:
    """An optimizer takes over whatever state it is given, and some do so of any other. Raises UsageError."""
    for number, (mine, theirs) in enumerate(zip(here, there, strict=False)):
        if mine != theirs:
            raise UsageError(f"optimizer {number} is {mine} here, {theirs} in the checkpoint. Wrap the same ones")


def _read(still: StillTensors, tensor: torch.Tensor) -> memoryview:
    with still.reading():
        return bytes_of(tensor)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the tensor's bytes. In the main memory they are not copied, unless their layout is unusual."""
    if not tensor.numel():
        return memoryview(b"")
    lying: Any = as_bytes(tensor.detach().cpu().contiguous()).numpy()
    return memoryview(lying)


def random_states() -> dict[str, bytes]:
    """Return the states of the main memory's generator and, where CUDA is in use, of the current GPU's."""
    found = {"torch": bytes_of(torch.get_rng_state()).tobytes()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # `is_available` would start the driver
        found[f"{CUDA}{torch.cuda.current_device()}"] = bytes_of(torch.cuda.get_rng_state()).tobytes()
    return found


def put_random_states(taken: dict[str, bytes]) -> None:
    """Put random states back; other libraries' are left alone. Raises RuntimeError, TypeError for what is no such
    state.
    """
    for name, raw in taken.items():
        state = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        if name == "torch":
            torch.set_rng_state(state)
        elif name.startswith(CUDA) and torch.cuda.is_available():
            torch.cuda.set_rng_state(state)


def _described(value: Any, path: str) -> tuple[Node, list[tuple[str, torch.Tensor]]]:
    packing = Packing([WholeTensors()])
    node = packing.of(value, path)
    return node, [(content.path, content.tensor) for content in packing.contents]
