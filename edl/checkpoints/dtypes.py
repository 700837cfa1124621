"""The types of tensors' elements: as frameworks call them, as safetensors does, and how many bytes each takes.

A type that is not listed (text, records, quantized numbers of other sorts) is stored as plain bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class StoredType(NamedTuple):
    """An element type as a safetensors file names it, and its size."""

    name: str
    bytes: int


PLAIN: Final = StoredType("U8", 1)
_BY_NAME: Final = {
    "bool": StoredType("BOOL", 1),
    "uint8": PLAIN,
    "int8": StoredType("I8", 1),
    "uint16": StoredType("U16", 2),
    "int16": StoredType("I16", 2),
    "uint32": StoredType("U32", 4),
    "int32": StoredType("I32", 4),
    "uint64": StoredType("U64", 8),
    "int64": StoredType("I64", 8),
    "float16": StoredType("F16", 2),
    "bfloat16": StoredType("BF16", 2),
    "float32": StoredType("F32", 4),
    "float64": StoredType("F64", 8),
    "complex64": StoredType("C64", 8),
    "float8_e4m3fn": StoredType("F8_E4M3", 1),
    "float8_e5m2": StoredType("F8_E5M2", 1),
}
_OF_NUMPY: Final = {
    "|b1": "bool", "|u1": "uint8", "|i1": "int8", "<u2": "uint16", "<i2": "int16", "<u4": "uint32", "<i4": "int32",
    "<u8": "uint64", "<i8": "int64", "<f2": "float16", "<f4": "float32", "<f8": "float64", "<c8": "complex64",
}  # fmt: skip


def stored_type(dtype: str) -> StoredType | None:
    """Return how a dtype is stored; None means as plain bytes. `dtype` is a name of PyTorch's or TensorFlow's, or the
    code of numpy's files.
    """
    return _BY_NAME.get(_OF_NUMPY.get(dtype, dtype))
