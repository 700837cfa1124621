"""A manifest may hold anything: what is not right is refused in one line, before anything is done with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stored import folder_at, manifest_of

from edl.checkpoints import manifest as manifests
from edl.checkpoints.checkpoint_names import CheckpointName, is_ours, parse_name
from edl.checkpoints.manifest import (
    Broken,
    Manifest,
    Slice,
    StageState,
    StoredFile,
    StoredPart,
    StoredTensor,
    checksum_of,
)
from edl.errors import CheckpointError

SUM = "crc32c:00000000"
TENSOR = StoredTensor("t", "float32", (4, 4), 64)
PART = StoredPart("part-0000-of-0001.safetensors", 264, SUM, (Slice("t", 0, 64),))
OWN = StoredFile("own-0000.msgpack", 3, SUM)


def right(**changes: object) -> Manifest:
    found = manifest_of(folder_at(Path()), CheckpointName(1, 2, 30), (TENSOR,), (PART,), own=(OWN,))
    return msgspec.structs.replace(found, **changes)


def stage(process: int, tensors: int = 1) -> dict[str, Any]:
    return msgspec.to_builtins(StageState((process,), tensors, b"", b""))


def sealed(inner: bytes, number: int = manifests.FORMAT) -> bytes:
    return b'{"format":%d,"checksum":"%s","manifest":%s}' % (number, checksum_of(inner).encode(), inner)


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    """What a hostile hand makes of a right manifest, with a checksum that is right too."""
    inner = json.loads(msgspec.json.encode(right()))
    change(inner)
    return sealed(json.dumps(inner).encode())


def test_what_is_written_is_read_again() -> None:
    assert manifests.decode(manifests.encode(right())) == right()


def test_a_name_that_comes_twice_among_very_many_is_found_at_once() -> None:
    own = [{**msgspec.to_builtins(OWN), "file": f"own-{number:06d}.msgpack"} for number in range(100_000)]
    with pytest.raises(Broken, match=r"'own-099999\.msgpack', which is no name of .* or one of two"):
        manifests.decode(changed(lambda manifest: manifest.update(own=[*own, own[-1]])))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda m: m.pop("job"), "missing required field `job`"),
        (lambda m: m.update(job="../x"), "regex"),
        (lambda m: m.update(job=".."), "regex"),
        (lambda m: m.update(code="os.system"), "unknown field `code`"),
        (lambda m: m.update(step=-1), ">= 0"),
        (lambda m: m.update(step=10**30), "step"),
        (lambda m: m.update(step="30"), "Expected `int`"),
        (lambda m: m.update(state="!"), "base64"),
        (lambda m: m["tensors"][0].update(shape=[-4, -4]), ">= 0"),
        (lambda m: m["tensors"][0].update(shape=[2**53, 2**53]), "'t', float32"),
        (lambda m: m["tensors"][0].update(shape=[1] * 65), "length <= 64"),
        (lambda m: m["tensors"][0].update(shape=[4, 5]), "'t', float32[4, 5], with 64 bytes"),
        (lambda m: m["tensors"][0].update(dtype="<U9", shape=[3]), "'t', <U9[3], with 64 bytes"),
        (lambda m: m["tensors"][0].update(name=""), "length >= 1"),
        (lambda m: m["tensors"][0].update(name="__metadata__"), "__metadata__"),
        (lambda m: m["tensors"][0].update(belongs="shell"), "Invalid enum value"),
        (lambda m: m["tensors"].append(m["tensors"][0]), "names tensor 't' twice"),
        (lambda m: m["tensors"].append({**m["tensors"][0], "name": "u"}), "byte 0 of tensor 'u' lies nowhere"),
        (lambda m: m["parts"].clear(), "byte 0 of tensor 't' lies nowhere"),
        (lambda m: m["parts"][0].update(file="/etc/passwd"), "'/etc/passwd', which is no name"),
        (lambda m: m["parts"][0].update(file="../part-0000-of-0001.safetensors"), "which is no name"),
        (lambda m: m["parts"][0].update(file="part-0000-of-0001.safetensors/../x"), "which is no name"),
        (lambda m: m["parts"][0].update(file="part-0000-of-0001.safetensors\n"), "which is no name"),
        (lambda m: m["parts"][0].update(file="part-0001-of-0001.safetensors"), "which is no name of one of its 1 p"),
        (lambda m: m["parts"].append(m["parts"][0]), "which is no name of one of its 2 parts"),
        (lambda m: m["parts"][0].update(bytes=-1), ">= 0"),
        (lambda m: m["parts"][0].update(checksum="md5:00"), "regex"),
        (lambda m: m["parts"][0]["tensors"][0].update(offset=-64), ">= 0"),
        (lambda m: m["parts"][0]["tensors"][0].update(bytes=0), ">= 1"),
        (lambda m: m["parts"][0]["tensors"][0].update(bytes=68), "bytes 0 to 68 of 't', a tensor of 64 bytes"),
        (lambda m: m["parts"][0]["tensors"][0].update(bytes=2), "with 4 to an element"),
        (lambda m: m["parts"][0]["tensors"][0].update(tensor="u"), "has bytes of 'u', and there is no such tensor"),
        (lambda m: m["parts"][0]["tensors"][0].update(offset=4, bytes=60), "byte 0 of tensor 't' lies nowhere"),
        (lambda m: m["parts"][0]["tensors"][0].update(bytes=60), "byte 60 of tensor 't' lies nowhere"),
        (lambda m: m["parts"][0]["tensors"].append({"tensor": "t", "offset": 0, "bytes": 4}), "lies more than once"),
        (lambda m: m["parts"][0]["tensors"].append({"tensor": "t", "offset": 60, "bytes": 4}), "lies more than once"),
        (lambda m: m["own"][0].update(file="own-0000.pickle"), "no name of a worker's own state"),
        (lambda m: m["own"].append({**m["own"][0], "file": "own-0000.1.msgpack"}), "or one of two"),
        (lambda m: m["ledger"].update(step="x"), "ledger.step"),
        (lambda m: m.update(versions={"torch": 2}), "Expected `str`"),
        (lambda m: m.update(stages=[stage(0), stage(0)]), "stages of processes [0, 0], and its workers have 1"),
        (lambda m: m.update(stages=[stage(1)]), "stages of processes [1], and its workers have 1"),
        (lambda m: m.update(stages=[stage(0, tensors=2)]), "stages of 2 tensors, and 1 tensors"),
        (lambda m: m.update(stages=[{**stage(0), "code": "x"}]), "unknown field `code`"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(change, line) -> None:
    with pytest.raises(Broken) as caught:
        manifests.decode(changed(change))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format":1}', b"[" * 100_000, b'{"a":' * 100_000, b"0" * 1000,
     b'{"format":1,"checksum":"crc32c:00000000","manifest":{}}', b'{"format":"1"}', b'{"format":0}',
     sealed(b"{" + b'"a":{' * 10_000 + b"}" * 10_001), sealed(b'"\\ud800"'), b"\x00" * 4096],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(content) -> None:
    with pytest.raises(Broken, match="its manifest"):
        manifests.decode(content)


def test_a_bit_that_flipped_is_noticed() -> None:
    content = bytearray(manifests.encode(right()))
    place = content.index(b'"step":30') + 7
    content[place] ^= 1
    with pytest.raises(Broken, match="the checksum differs"):
        manifests.decode(bytes(content))


def test_a_manifest_cut_off_anywhere_is_none() -> None:
    content = manifests.encode(right())
    for length in range(len(content)):
        with pytest.raises(Broken):
            manifests.decode(content[:length])


def test_a_newer_format_is_not_broken_but_wants_a_newer_edl() -> None:
    with pytest.raises(CheckpointError, match="written by a newer edl") as caught:
        manifests.decode(sealed(b'{"what":"nothing of today"}', number=manifests.FORMAT + 1))
    assert not isinstance(caught.value, Broken)


@pytest.mark.parametrize(("number", "without"), [(1, ("versions", "stages")), (2, ("stages",))])
def test_a_manifest_of_an_older_format_is_read(number: int, without: tuple[str, ...]) -> None:
    inner = json.loads(msgspec.json.encode(right()))
    for field in without:
        del inner[field]
    older = right() if number > 1 else right(versions={})
    assert manifests.decode(sealed(json.dumps(inner).encode(), number=number)) == older


def test_nothing_is_written_that_is_not_read() -> None:
    with pytest.raises(Broken, match=">= 1"):
        manifests.encode(right(size=0))
    with pytest.raises(CheckpointError, match=r"too large.*register large values as arrays"):
        manifests.encode(right(registered=bytes(50 << 20)))


@pytest.mark.parametrize("name", [CheckpointName(1, 1, 1), CheckpointName(12345, 999_999, 10**13)])
def test_names_are_read_as_they_are_written(name) -> None:
    assert parse_name(str(name)) == name


@pytest.mark.parametrize(
    "text", ["", "1-1-1", "00001-000001-000000000001", "0001-000001-000000000001 ", "..", "latest"]
)
def test_other_folders_are_no_checkpoints(text) -> None:
    assert parse_name(text) is None


def test_what_is_newer_sorts_later_also_as_text() -> None:
    names = [CheckpointName(1, 1, 900), CheckpointName(1, 2, 800), CheckpointName(1, 10, 810), CheckpointName(2, 1, 5)]
    assert sorted(names) == names == sorted(names, key=str)


def test_only_files_of_checkpoints_are_ours_to_remove() -> None:
    ours = ["manifest.json", "part-0000-of-0001.safetensors", "own-0000.1.msgpack", ".manifest.json.0123abcd.tmp"]
    assert all(map(is_ours, ours))
    assert not any(map(is_ours, ["notes.txt", ".", "..", "part-0000-of-0001.safetensors.bak", ".hidden"]))
