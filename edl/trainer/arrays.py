"""Arrays of numpy among the values that travel (`edl.trainer.value_tree`).

Owns: their form, and which are filled in place. Does not own: moving them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np

from edl.trainer.value_tree import CannotTravel, Destination, Form, TensorPart

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
