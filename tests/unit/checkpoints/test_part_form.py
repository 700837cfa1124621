"""A part is a safetensors file by the rules of that format, read here by a reader that knows nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from stored import TENSORS, content, folder_at, save, tensor

from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.manifest import Broken, Slice, stored_type
from edl.checkpoints.part_files import shares
from edl.checkpoints.part_layout import entry_of, lay_out

NAME = CheckpointName(1, 2, 30)
WIDTHS = {"BOOL": 1, "U8": 1, "BF16": 2, "F32": 4, "I64": 8}


def read(path: Path) -> tuple[dict[str, str], dict[str, tuple[Any, bytes]]]:
    """Metadata, and entries with their bytes. No holes, no overlap, nothing behind: so the format has it."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert raw[8:9] == b"{"
    entries = json.loads(raw[8 : 8 + length])
    metadata = entries.pop("__metadata__")
    assert all(isinstance(value, str) for value in metadata.values())
    data, at = raw[8 + length :], 0
    found = {}
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == at
        assert end - begin == math.prod(entry["shape"]) * WIDTHS[entry["dtype"]]
        found[name], at = (entry, data[begin:end]), end
    assert at == len(data)
    return metadata, found


def test_parts_are_safetensors_files_and_say_what_they_are_part_of(tmp_path) -> None:
    save(folder_at(tmp_path), NAME, parts=2)
    whole: dict[str, bytearray] = {one.name: bytearray(one.bytes) for one in TENSORS}
    for path in sorted((tmp_path / "mnist" / str(NAME)).glob("part-*")):
        metadata, found = read(path)
        number = int(path.name[5:9])
        assert metadata["format"] == "edl 2", "parts of older folders are read"
        assert metadata["edl"] == f"part {number} of 2 of checkpoint {NAME} of job mnist"
        for name, (_, data) in found.items():
            told: dict[str, Any] = json.loads(metadata[name]) if name in metadata else {"tensor": name, "offset": 0}
            whole[told["tensor"]][told["offset"] : told["offset"] + len(data)] = data
    assert {name: bytes(value) for name, value in whole.items()} == {
        one.name: content(30, one.name, one.bytes) for one in TENSORS
    }


def test_a_whole_tensor_keeps_its_name_type_and_shape(tmp_path) -> None:
    save(folder_at(tmp_path), NAME, parts=1)
    metadata, found = read(tmp_path / "mnist" / str(NAME) / "part-0000-of-0001.safetensors")
    assert {name: (entry["dtype"], entry["shape"]) for name, (entry, _) in found.items()} == {
        "norm.count": ("I64", []), "layer.weight": ("F32", [40, 64]), "layer.bias": ("F32", [40]),
        "half": ("BF16", [3, 5]), "flags": ("BOOL", [7]), "text": ("U8", [60]),
    }  # fmt: skip
    assert set(metadata) == {"edl", "format", "text"}
    assert json.loads(metadata["text"]) == {"tensor": "text", "dtype": "<U5", "shape": [3], "offset": 0}


def test_two_pieces_of_one_name_are_refused() -> None:
    odd = (tensor("t", "uint8", (8192,)), tensor("t[0:4096]", "uint8", (8,)))
    by_name = {one.name: one for one in odd}
    slices = (Slice("t", 0, 4096), Slice("t[0:4096]", 0, 8))
    assert entry_of(slices[0], odd[0]) == entry_of(slices[1], odd[1])
    with pytest.raises(Broken, match=r"two pieces of a part would be called 't\[0:4096\]'"):
        lay_out(folder_at(Path()).title(NAME, 0, 1), slices, by_name)


def test_numpys_names_of_types_are_those_of_frameworks() -> None:
    assert stored_type("<f4") == stored_type("float32")
    assert stored_type("complex128") is stored_type("<U5") is None


def test_large_tensors_are_cut_small_ones_are_not() -> None:
    state = (tensor("large", "float32", (100, 1000)), *(tensor(f"s{n}", "float32", (10,)) for n in range(9)))
    parts = shares(state, 4)
    assert [len(part) for part in parts] == [1, 1, 1, 10]
    assert [part[0].offset for part in parts] == [0, 98304, 196608, 299008]
