"""The model of a checkpoint as one safetensors file, in Hugging Face's layout: whole tensors by the model's names.

Owns: the file's header, and that FILE exists only when it is whole. Does not own: reading and checking the checkpoint
(`edl.checkpoints.checkpoint_reader`).
"""

from __future__ import annotations

import itertools
import json
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

from edl.checkpoints.checkpoint_reader import Checkpoint
from edl.checkpoints.manifest import StoredTensor, stored_type
from edl.errors import UsageError

ALIGNED = 8  # contents begin at a multiple of this
FORMATS = {"torch": "pt", "tensorflow": "tf"}  # as Hugging Face's libraries call the frameworks


class ExportedModel(NamedTuple):
    tensors: int
    bytes: int  # of the whole file


def export_model(found: Checkpoint, path: Path) -> ExportedModel:
    """Write the model's tensors of a verified checkpoint to `path`. Raises UsageError, CheckpointError, OSError."""
    if path.exists():
        raise UsageError(f"{path} exists already: name another file, or remove it first")
    tensors = [tensor for tensor in found.manifest.tensors if tensor.belongs == "model"]
    if not tensors:
        raise UsageError(f"{found.path} has no model: the script gave edl.Optimizer no model=")
    header = header_of(tensors, FORMATS.get(found.manifest.framework, found.manifest.framework))
    working = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with working.open("xb") as file:
            file.write(header)
            for tensor in tensors:
                content = bytearray(tensor.bytes)
                if content:
                    found.read(tensor.name, memoryview(content))
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        working.rename(path)
    finally:
        working.unlink(missing_ok=True)
    return ExportedModel(len(tensors), path.stat().st_size)


def header_of(tensors: list[StoredTensor], form: str) -> bytes:
    """Make the header of a file with these tensors in this order. Raises UsageError."""
    ends = itertools.accumulate((tensor.bytes for tensor in tensors), initial=0)
    entries: dict[str, Any] = {"__metadata__": {"format": form}}
    for tensor, begin in zip(tensors, ends, strict=False):
        if (stored := stored_type(tensor.dtype)) is None:
            raise UsageError(f"{tensor.name} is of {tensor.dtype}, which a safetensors file cannot hold")
        offsets = [begin, begin + tensor.bytes]
        entries[tensor.name] = {"dtype": stored.name, "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    length = -(-len(text) // ALIGNED) * ALIGNED
    return struct.pack("<Q", length) + text.ljust(length)
