"""Nested Python values with tensors in them, as bytes plus a list of tensors.

Owns: the wire form of an optimizer's state and hyper-parameters. Does not own: moving it (`edl.torch.state`).
Never a pickle: what a peer sends can only ever become numbers, text, containers of these, and tensors.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import torch

from edl.errors import UsageError


class Scalar(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """None, a truth value, a number or text."""

    value: bool | int | float | str | None


class TensorRef(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A tensor; its contents travel beside the tree, in the order of the references."""

    dtype: str
    shape: tuple[int, ...]
    on_cpu: bool


class Sequence(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A list, or a tuple."""

    items: tuple[Node, ...]
    is_tuple: bool


class Dictionary(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A dict in its own order; keys are numbers or text."""

    items: tuple[tuple[int | str, Node], ...]


Node = Scalar | TensorRef | Sequence | Dictionary


def reference(tensor: torch.Tensor) -> TensorRef:
    return TensorRef(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.device.type == "cpu")


def describe(value: Any, path: str, tensors: list[torch.Tensor]) -> Node:
    """The form of `value`; its tensors are appended to `tensors`. `path` names it in an error."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return reference(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return Scalar(value)
    if isinstance(value, numbers.Number) and hasattr(value, "item"):  # of numpy
        return Scalar(value.item())
    if isinstance(value, Mapping):
        return Dictionary(tuple((key, describe(item, f"{path}[{key!r}]", tensors)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        items = tuple(describe(item, f"{path}[{index}]", tensors) for index, item in enumerate(value))
        return Sequence(items, isinstance(value, tuple))
    raise UsageError(
        f"{path} is a {type(value).__qualname__}, which cannot be sent to a newcomer; "
        "numbers, text, tensors, and lists, tuples and dicts of them can"
    )


def rebuild(node: Node, mine: Any, device: torch.device, tensors: list[torch.Tensor]) -> Any:
    """The value that `node` describes, with tensors yet to be filled appended to `tensors`.

    Tensors of `mine` that fit are used again, so that whoever refers to them sees the new contents.
    """
    match node:
        case Scalar(value):
            return value
        case TensorRef():
            tensor = mine if _fits(mine, node) else _empty(node, device)
            tensors.append(tensor)
            return tensor
        case Sequence(items, is_tuple):
            old = _elements(mine, len(items))
            return (tuple if is_tuple else list)(
                rebuild(item, other, device, tensors) for item, other in zip(items, old, strict=True)
            )
        case Dictionary(items):
            known: Callable[[Any], Any] = mine.get if isinstance(mine, Mapping) else lambda _: None
            return {key: rebuild(item, known(key), device, tensors) for key, item in items}


def _fits(mine: Any, node: TensorRef) -> bool:
    return isinstance(mine, torch.Tensor) and reference(mine) == node


def _empty(node: TensorRef, device: torch.device) -> torch.Tensor:
    where = torch.device("cpu") if node.on_cpu else device
    return torch.empty(node.shape, dtype=getattr(torch, node.dtype), device=where)


def _elements(mine: Any, number: int) -> Iterable[Any]:
    return mine if isinstance(mine, (list, tuple)) and len(mine) == number else [None] * number
