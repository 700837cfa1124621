"""The form of a part: a safetensors file, so that any tool opens it.

Owns: its header, and where each slice lies. Does not own: which slices (`edl.checkpoints.part_files`), nor their
bytes.

A header is never parsed. It follows from the manifest, byte by byte; a reader makes it anew and compares. So a header
cannot mislead a reader: a file whose header differs is broken.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.manifest import PLAIN, Broken, Slice, StoredTensor, stored_type

FORMAT = 2  # of a part; the folder's own may be a newer one
HEADER_ALIGNED = 64  # contents begin at a multiple of this, so that elements of any type are aligned


class PartTitle(NamedTuple):
    """The identity of a part, as its header has it."""

    job: str
    name: CheckpointName
    number: int
    of: int

    def __str__(self) -> str:
        return f"part {self.number} of {self.of} of checkpoint {self.name} of job {self.job}"


class PartLayout(NamedTuple):
    header: bytes
    begins: tuple[int, ...]  # offset of each slice in the file
    bytes: int  # size of the whole file


def lay_out(title: PartTitle, slices: Sequence[Slice], tensors: Mapping[str, StoredTensor]) -> PartLayout:
    """Lay out `slices` one behind the other in this order. Raises Broken if two of them would have one name."""
    ends = list(itertools.accumulate((piece.bytes for piece in slices), initial=0))
    notes = {"format": f"edl {FORMAT}", "edl": str(title)}
    entries: dict[str, Any] = {"__metadata__": notes}
    for piece, begin in zip(slices, ends, strict=False):
        entry = entry_of(piece, tensors[piece.tensor])
        if entry in entries:
            raise Broken(f"two pieces of a part would be called {entry!r}: give that tensor another name")
        entries[entry] = _stored_as(piece, tensors[piece.tensor], begin)
        if (note := _note(piece, tensors[piece.tensor])) is not None:
            notes[entry] = note
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    length = -(-(len(text) + 8) // HEADER_ALIGNED) * HEADER_ALIGNED
    header = struct.pack("<Q", length - 8) + text.ljust(length - 8)
    return PartLayout(header, tuple(length + begin for begin in ends[:-1]), length + ends[-1])


def entry_of(piece: Slice, tensor: StoredTensor) -> str:
    """Return a slice's name in its file, which is the tensor's name if the slice is the whole tensor."""
    return tensor.name if piece.bytes == tensor.bytes else f"{tensor.name}[{piece.offset}:{piece.end}]"


def _stored_as(piece: Slice, tensor: StoredTensor, begin: int) -> dict[str, Any]:
    stored = stored_type(tensor.dtype)
    whole = stored is not None and piece.bytes == tensor.bytes
    shape = list(tensor.shape) if whole else [piece.bytes // tensor.element_bytes]
    return {"dtype": (stored or PLAIN).name, "shape": shape, "data_offsets": [begin, begin + piece.bytes]}


def _note(piece: Slice, tensor: StoredTensor) -> str | None:
    """Describe the tensor if the slice's entry in the file does not do so."""
    if piece.bytes == tensor.bytes and stored_type(tensor.dtype) is not None:
        return None
    told = {"tensor": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, "offset": piece.offset}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)
