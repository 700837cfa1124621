"""A tree that describes nested Python values, with the contents of arrays, tensors and modules beside it.

Owns: the form in which registered values and optimizers' states travel, and the port to what has contents. Does not
own: making trees and values of each other (`edl.trainer.packing`), nor moving them (each framework's `broadcast`).
Never a pickle: what a peer sends can only ever become numbers, text, bytes, containers of these, arrays and tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec


class Scalar(msgspec.Struct, frozen=True, array_like=True, tag=0):
    value: bool | int | float | str | None


class Binary(msgspec.Struct, frozen=True, array_like=True, tag=1):
    value: bytes


class BigInteger(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """An integer of more than 64 bits, as states of random numbers have."""

    digits: str


class Item(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A single number of numpy's."""

    dtype: str
    value: bytes


class Form(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """An array, tensor or variable; its contents travel beside the tree, in the order of the forms."""

    sort: str
    dtype: str
    shape: tuple[int, ...]
    on_cpu: bool = True

    def __str__(self) -> str:
        more = self.sort.partition(" ")[2]  # how a part of a sharded one lies
        return (
            f"{self.dtype}{list(self.shape)}" + (f" {more}" if more else "") + ("" if self.on_cpu else " on a device")
        )


class Parts(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Tensors, by name, of a module, a model or a layer."""

    parts: tuple[tuple[str, Form], ...]


class Stateful(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Result of `state_dict()` of a scheduler, an optimizer, a GradScaler and their like."""

    state: Node


class Elements(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A list, or another of `CONTAINERS`."""

    items: tuple[Node, ...]
    container: str


class Dictionary(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """A dict in its own order."""

    items: tuple[tuple[Node, Node], ...]


Node = Scalar | Binary | BigInteger | Item | Form | Parts | Stateful | Elements | Dictionary

CONTAINERS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}


class CannotTravel(Exception):
    """A tensor's sort says why this one cannot travel, and what could."""


class Differs(Exception):
    """A value here cannot take over what comes."""


class TensorPart(NamedTuple):
    """A tensor of a module."""

    name: str
    tensor: Any
    is_statistic: bool = False  # what forward passes update by themselves, in each worker for itself (batch norm)
    is_own: bool = False  # each worker's own in any case: what a metric has counted


class Destination(NamedTuple):
    """Destination of contents at the receiver."""

    contents: Any
    value: Callable[[], Any]  # what has become of it once they are there


class Tensors(Protocol):
    """A sort of values with contents: numpy's arrays, or a framework's tensors, variables and modules."""

    def is_of(self, form: Form) -> bool:
        """Tell whether a peer's value was of this sort."""

    def form(self, value: object) -> Form | None:
        """Describe a value; None if it is not of this sort. Raises CannotTravel."""

    def contents(self, value: Any) -> Any:
        """Return the contents of a value that has a form."""

    def place(self, form: Form, mine: object) -> Destination:
        """Return `mine` itself if it fits, so that all that refers to it sees the new contents. Raises Differs."""

    def parts(self, value: object) -> Sequence[TensorPart] | None:
        """Return the tensors of a module, a model, a layer; None for other values. Raises CannotTravel."""


class Content(NamedTuple):
    """Contents beside the tree."""

    path: str
    sort: Tensors
    tensor: Any
    is_statistic: bool = False

    @property
    def contents(self) -> Any:
        """Contents as the framework's `broadcast` takes them."""
        return self.sort.contents(self.tensor)
