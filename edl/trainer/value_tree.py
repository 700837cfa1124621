"""A tree that describes nested Python values, with the contents of arrays, tensors and modules beside it.

Owns: the form in which registered values and optimizers' states travel, and the port to what has contents. Does not
own: making trees and values of each other (`edl.trainer.packing`), nor moving them (each framework's `broadcast`).
Never a pickle: what a peer sends can only ever become numbers, text, bytes, containers of these, arrays and tensors.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np


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
    name: str
    tensor: Any
    is_statistic: bool = False  # what forward passes update by themselves, in each worker for itself (batch norm)
    is_own: bool = False  # each worker's own in any case: what a metric has counted


class Destination(NamedTuple):
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


SORT = "array"

AnyArray = np.ndarray[Any, Any]


class Arrays:
    """`edl.trainer.value_tree.Tensors`. Contents are contiguous bytes."""

    def is_of(self, form: Form) -> bool:
        return form.sort == SORT

    def form(self, value: object) -> Form | None:
        if not isinstance(value, np.ndarray):
            return None
        if value.dtype.hasobject:
            raise CannotTravel(
                "an array of dtype object cannot travel to a newcomer; give it a dtype of numbers or text"
            )
        if isinstance(value, np.ma.MaskedArray):
            raise CannotTravel("a masked array cannot travel to a newcomer; register its .data and its .mask")
        return Form(SORT, dtype_text(value.dtype), value.shape)

    def contents(self, value: AnyArray) -> AnyArray:
        return as_bytes(np.ascontiguousarray(value))

    def place(self, form: Form, mine: object) -> Destination:
        if not isinstance(mine, np.ndarray) or not mine.flags.writeable or self.form(mine) != form:
            whole = np.empty(form.shape, dtype_of(form.dtype))
            return Destination(as_bytes(whole), lambda: whole)
        if mine.flags.c_contiguous:
            return Destination(as_bytes(mine), lambda: mine)
        packed = np.empty(form.shape, mine.dtype)

        def unpacked() -> object:
            mine[...] = packed
            return mine

        return Destination(as_bytes(packed), unpacked)

    def parts(self, value: object) -> Sequence[TensorPart] | None:  # noqa: ARG002 - the port's
        return None


def as_bytes(array: AnyArray) -> AnyArray:
    """View the same memory as bytes; `array` is contiguous."""
    return array.reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, np.uint8)


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return the type as numpy's own files have it; its name for types from elsewhere, such as bfloat16."""
    known = dtype.kind != "V" or dtype.type is np.void
    return str(np.lib.format.dtype_to_descr(dtype) if known else dtype.name)  # type: ignore[no-untyped-call]


def dtype_of(text: str) -> np.dtype[Any]:
    if not text.startswith("["):
        return np.dtype(text)
    found: np.dtype[Any] = np.lib.format.descr_to_dtype(ast.literal_eval(text))  # type: ignore[no-untyped-call]
    return found
