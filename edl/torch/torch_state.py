"""The state of a model and its optimizers, from one rank to all others.

Owns: what makes up that state, and moving it. Does not own: when it moves, and from whom (`edl.trainer.trainer`).

A newcomer's own state is whatever its rehearsal left: it may have slots that the root does not have yet, or none at
all. So the root first says what there is; the others make their own look like it; then the contents follow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
import torch

from edl.core.worker.digest import leaves
from edl.errors import RingBroken, UsageError
from edl.torch.sharded import local_of
from edl.torch.tensor_ring import TensorRing
from edl.torch.torch_tensors import TorchTensors, WholeTensors, form, whole_form
from edl.trainer.first_state import ALIKE
from edl.trainer.packing import Packing, Unpacking
from edl.trainer.value_tree import Dictionary, Elements, Form, Node, Scalar

LARGE_BYTES = 256 * 1024  # from here on a tensor travels alone and in place; smaller ones share a message


class Described(msgspec.Struct, frozen=True):
    """The root's state, without the contents of its tensors."""

    tensors: tuple[tuple[str, Form], ...]  # parameters and buffers, by name
    optimizers: tuple[tuple[Node, Node], ...]  # hyper-parameters and state of each
    groups: tuple[tuple[tuple[int, ...], ...], ...] = ()  # of each optimizer: of which of the tensors; (): not known
    trained: tuple[int, ...] = ()  # which of the tensors take gradients


class Holder(Protocol):
    """The parts of the state; the calls of `edl.torch.Optimizer` fill them."""

    def tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Return parameters and buffers, named, in the same order on all workers."""

    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        """Return the optimizers in the order of their wrapping."""


@runtime_checkable
class Growing(Protocol):
    """An optimizer that takes over groups of parameters which the script here has not added yet."""

    def expect_again(self, group: dict[str, Any]) -> None:
        """Expect that the script adds this group, too, and ignore that once: the group is there already."""


def synchronize(holder: Holder, ring: TensorRing, root: int) -> int:
    """Carry out `Framework.synchronize`."""
    place = ring.place
    if place is None:
        raise RingBroken("this process is in no ring")
    if place.size == 1:
        return 0
    with torch.no_grad():
        named = list(holder.tensors())
        contents = [local_of(tensor) for _, tensor in named]
        if place.rank == root:
            head = _describe(holder, named, contents)
            ring.broadcast(head, root)
        else:
            head = ring.broadcast(None, root)
            Adoption(f"the model of rank {place.rank} is not that of rank {root}", contents).adopt(holder, named, head)
        return len(head) + broadcast_tensors(ring, contents, root, receive=place.rank != root)


def synchronize_rest(
    optimizers: list[torch.optim.Optimizer], buffers: list[torch.Tensor], ring: TensorRing, root: int
) -> None:
    """Carry out `Framework.synchronize_rest`."""
    place = ring.place
    if place is None or place.size == 1:
        return
    contents = list(buffers)
    if optimizers:
        mine = list(buffers)
        groups = [described_hyper_parameters(optimizer, mine) for optimizer in optimizers]
        head = ring.broadcast(msgspec.msgpack.encode(groups) if place.rank == root else None, root)
        if place.rank == root:
            contents = mine
        else:
            adoption = Adoption(f"the optimizers of rank {place.rank} are not those of rank {root}", contents)
            for optimizer, hyper in zip(optimizers, msgspec.msgpack.decode(head, type=list[Node]), strict=True):
                adoption.adopt_hyper_parameters(optimizer, hyper)
    with torch.no_grad():
        broadcast_tensors(ring, contents, root, receive=place.rank != root)


# ---------------------------------------------------------------------------------------------------- description


def _describe(holder: Holder, named: list[tuple[str, torch.Tensor]], contents: list[torch.Tensor]) -> bytes:
    """Describe the root's state; append the optimizers' tensors to `contents`."""
    optimizers = tuple(
        (described_hyper_parameters(optimizer, contents), described_states(optimizer, contents))
        for optimizer in holder.optimizers()
    )
    return msgspec.msgpack.encode(described(holder, named, optimizers))


def described(
    holder: Holder,
    named: list[tuple[str, torch.Tensor]],
    optimizers: tuple[tuple[Node, Node], ...],
    form_of: Callable[[torch.Tensor], Form] = form,
) -> Described:
    """Describe a state whose optimizers are described already."""
    places = {id(tensor): place for place, (_, tensor) in enumerate(named)}
    return Described(
        tuple((name, form_of(tensor)) for name, tensor in named),
        optimizers,
        tuple(_groups(optimizer, places) for optimizer in holder.optimizers()),
        tuple(place for place, (_, tensor) in enumerate(named) if tensor.requires_grad),
    )


def _groups(optimizer: torch.optim.Optimizer, places: dict[int, int]) -> tuple[tuple[int, ...], ...]:
    """Return which of the tensors each group has; () where its parameters are not among them, as when an optimizer goes
    alone.
    """
    groups = [[places.get(id(parameter), -1) for parameter in group["params"]] for group in optimizer.param_groups]
    return () if any(-1 in group for group in groups) else tuple(map(tuple, groups))


class Some(NamedTuple):
    """A part of what optimizers keep: of these parameters, by `id`, and what is of none."""

    parameters: Collection[int]
    with_own: bool

    def has(self, key: Any) -> bool:
        """Tell whether what is kept under `key` belongs to this part."""
        return self.with_own if isinstance(key, str) else id(key) in self.parameters


class Adoption:
    """Make the optimizers here look like the root's, and list their tensors in the root's order.

    `whole`: what comes are whole tensors, of which this process may hold a part; they are listed as they are here.
    """

    def __init__(
        self, complaint: str, contents: list[torch.Tensor], remedy: str = ALIKE, *, whole: bool = False
    ) -> None:
        self._complaint = complaint
        self._remedy = remedy
        self._contents = contents
        self._whole = whole

    def adopt(
        self, holder: Holder, named: list[tuple[str, torch.Tensor]], head: bytes, *, trained: bool = True
    ) -> None:
        """`trained`: what is frozen there is frozen here, too."""
        described = msgspec.msgpack.decode(head, type=Described)
        self.check(holder, named, described)
        self.adopt_groups(holder, named, described, trained=trained)
        for optimizer, (hyper, states) in zip(holder.optimizers(), described.optimizers, strict=True):
            self.adopt_hyper_parameters(optimizer, hyper)
            self.adopt_states(optimizer, states)

    def check(self, holder: Holder, named: list[tuple[str, torch.Tensor]], described: Described) -> None:
        """Check that tensors and optimizers here are of the described form. Raises UsageError."""
        self._check_tensors(described, named)
        self._check_number("optimizers", len(list(holder.optimizers())), len(described.optimizers))

    def adopt_groups(
        self, holder: Holder, named: list[tuple[str, torch.Tensor]], described: Described, *, trained: bool = True
    ) -> None:
        """Repeat what the root's script has thawed, frozen and added to an optimizer while it trained."""
        if trained:
            _adopt_trained(named, set(described.trained))
        for optimizer, groups in zip(holder.optimizers(), described.groups, strict=False):
            for group in groups[len(optimizer.param_groups) :]:
                _add_group(optimizer, [named[place] for place in group])

    def adopt_hyper_parameters(self, optimizer: torch.optim.Optimizer, node: Node) -> None:
        """Adopt the root's hyper-parameters; tensors among them are listed, and filled later."""
        theirs = node.items if isinstance(node, Elements) else ()
        self._check_number("parameter groups", len(optimizer.param_groups), len(theirs))
        for group, hyper in zip(optimizer.param_groups, theirs, strict=True):
            group.update(self._adopted(hyper, _hyper_parameters(group), _device(group["params"]), "param_groups"))

    def adopt_states(self, optimizer: torch.optim.Optimizer, node: Node, some: Some | None = None) -> None:
        """Adopt what the root's optimizer keeps of its updates, of `some` parameters or all."""
        self.prepare_states(optimizer, node, some)()

    def prepare_states(
        self, optimizer: torch.optim.Optimizer, node: Node, some: Some | None = None
    ) -> Callable[[], None]:
        """List the tensors of the optimizer's state, which may be filled from now on; the returned function gives them
        to the optimizer.
        """
        parameters = list(parameters_of(optimizer))
        states: dict[Any, Any] = optimizer.state
        found: dict[Any, Callable[[], Any]] = {}
        for position, inner in node.items if isinstance(node, Dictionary) else ():
            at = position.value if isinstance(position, Scalar) else None
            key = parameters[at] if isinstance(at, int) else at
            like = key if isinstance(key, torch.Tensor) else None
            found[key] = self._prepared(inner, states.get(key), _device([key, *parameters]), "optimizer.state", like)

        def adopt() -> None:
            for key in list(states):
                if some is None or some.has(key):
                    del states[key]  # slots that the root does not have would be ahead of their time
            for key, value in found.items():
                states[key] = value()

        return adopt

    def _adopted(self, node: Node, mine: Any, device: torch.device, path: str) -> Any:
        """Return the root's value; its tensors are there already, and are filled later."""
        return self._prepared(node, mine, device, path)()

    def _prepared(
        self, node: Node, mine: Any, device: torch.device, path: str, like: torch.Tensor | None = None
    ) -> Callable[[], Any]:
        unpacking = Unpacking([WholeTensors(device, like) if self._whole else TorchTensors(device)])
        value = unpacking.of(node, mine, path)
        self._contents.extend(unpacking.contents)
        return value

    def _check_tensors(self, described: Described, named: list[tuple[str, torch.Tensor]]) -> None:
        for (my_name, tensor), (name, theirs) in zip(named, described.tensors, strict=False):
            mine = whole_form(tensor) if self._whole else form(tensor)
            if (my_name, mine.sort, mine.dtype, mine.shape) != (name, theirs.sort, theirs.dtype, theirs.shape):
                raise self._different(f"{my_name} ({mine})", f"{name} ({theirs})")
        self._check_number("parameters and buffers", len(named), len(described.tensors))

    def _check_number(self, what: str, mine: int, theirs: int) -> None:
        if mine != theirs:
            raise self._different(f"{mine} {what}", f"{theirs}")

    def _different(self, mine: str, theirs: str) -> UsageError:
        return UsageError(f"{self._complaint}: {mine} here, {theirs} there. {self._remedy}")


def _adopt_trained(named: list[tuple[str, torch.Tensor]], trained: set[int]) -> None:
    for place, (_, tensor) in enumerate(named):
        if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad != (place in trained):
            tensor.requires_grad_(place in trained)


def _add_group(optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Add a group whose hyper-parameters and state come from the root, as those of others do."""
    with_names = "param_names" in optimizer.param_groups[0]
    optimizer.add_param_group({"params": list(named) if with_names else [tensor for _, tensor in named]})
    if isinstance(optimizer, Growing):
        optimizer.expect_again(optimizer.param_groups[-1])


def hyper_parameters(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [_hyper_parameters(group) for group in optimizer.param_groups]


def named_hyper_parameters(optimizer: torch.optim.Optimizer, which: str) -> Iterator[tuple[str, Any]]:
    """Name hyper-parameters one by one, as people know them, the learning rate first; `which` names this optimizer."""
    for number, group in enumerate(hyper_parameters(optimizer)):
        for key in sorted(group, key=lambda key: (key != "lr", key)):
            value = group[key].item() if _is_number(group[key]) else group[key]  # some keep a rate in a tensor
            name = "learning rate" if key == "lr" else key
            for path, leaf in leaves(value, ""):
                yield f"{name}{path} of group {number}{which}", leaf


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0


def described_hyper_parameters(optimizer: torch.optim.Optimizer, contents: list[torch.Tensor]) -> Node:
    """Describe the hyper-parameters as a tree; append their tensors to `contents`."""
    return _described(hyper_parameters(optimizer), "param_groups", contents)


def described_states(optimizer: torch.optim.Optimizer, contents: list[torch.Tensor], some: Some | None = None) -> Node:
    """Describe what an optimizer keeps of its updates, of `some` parameters or all; append tensors to `contents`."""
    return _described(states(optimizer, some), "optimizer.state", contents)


def _described(value: Any, path: str, contents: list[torch.Tensor]) -> Node:
    packing = Packing([TorchTensors()])
    node = packing.of(value, path)
    contents.extend(local_of(content.tensor) for content in packing.contents)
    return node


def _hyper_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in {"params", "param_names"}}


def states(optimizer: torch.optim.Optimizer, some: Some | None = None) -> dict[int | str, Any]:
    """Return the state by position of its parameter; some optimizers also keep state of their own under a name."""
    kept: dict[Any, Any] = {key: value for key, value in optimizer.state.items() if some is None or some.has(key)}
    of_parameters = {
        position: kept[parameter] for position, parameter in enumerate(parameters_of(optimizer)) if parameter in kept
    }
    return of_parameters | {key: value for key, value in kept.items() if isinstance(key, str)}


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _device(candidates: Iterable[Any]) -> torch.device:
    return next((item.device for item in candidates if isinstance(item, torch.Tensor)), torch.device("cpu"))


# ------------------------------------------------------------------------------------------------------- contents


def broadcast_tensors(ring: TensorRing, tensors: list[torch.Tensor], root: int, receive: bool) -> int:
    """Give all members the contents of `tensors` of rank `root`; return the bytes moved.

    No ring fuses broadcasts, so small tensors are packed here; large ones go in place, all at once.
    """
    finishing: list[Callable[[], None]] = []
    small: dict[torch.device, list[torch.Tensor]] = {}
    moved = 0
    try:
        for number, tensor in enumerate(tensors):
            size = tensor.numel() * tensor.element_size()
            moved += size
            if size >= LARGE_BYTES:
                finishing.append(_send_alone(ring, tensor, root, f"edl.state.{number}", receive))
            elif size:
                small.setdefault(tensor.device, []).append(tensor)
        for number, together in enumerate(small.values()):
            finishing.append(_send_packed(ring, together, root, f"edl.state.small.{number}", receive))
        for finish in finishing:
            finish()
    except RingBroken as error:
        raise RingBroken(f"the state of rank {root} did not arrive: {error}") from error
    return moved


def _send_alone(ring: TensorRing, tensor: torch.Tensor, root: int, name: str, receive: bool) -> Callable[[], None]:
    sent = tensor.detach().contiguous()  # the tensor itself, unless its layout is unusual
    wait = ring.broadcast_begun(as_bytes(sent), root, name)

    def finish() -> None:
        wait()
        if receive and sent.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(sent)

    return finish


def _send_packed(
    ring: TensorRing, tensors: list[torch.Tensor], root: int, name: str, receive: bool
) -> Callable[[], None]:
    pieces = [as_bytes(tensor.detach().contiguous()) for tensor in tensors]
    packed = torch.cat(pieces)
    wait = ring.broadcast_begun(packed, root, name)

    def finish() -> None:
        wait()
        if receive:
            for tensor, piece in zip(tensors, torch.split(packed, [len(piece) for piece in pieces]), strict=True):
                tensor.detach().copy_(piece.clone().view(tensor.dtype).view(tensor.shape))

    return finish


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as bytes, so that every type travels, also those that Horovod does not know."""
    return tensor.reshape(-1).view(torch.uint8)
