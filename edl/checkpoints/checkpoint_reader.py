"""Reading of a checkpoint: its manifest, its files' sizes, their checksums, and then its tensors.

Owns: the checks before anything read is used, and the model as one safetensors file in Hugging Face's layout, which
exists only when it is whole. Does not own: the form of a manifest (`edl.checkpoints.manifest`), nor
what becomes of the tensors.

There are three kinds of failure. *Unfinished*: there is no manifest, so it is no checkpoint. *Broken*: the files differ
from what was written, for good; the checkpoint is passed over. *Unreadable now* (CheckpointError), because of a disk, a
store or a newer edl: no older checkpoint takes its place, because progress that was reported durable would be lost.
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from edl.checkpoints import manifest as manifests
from edl.checkpoints.checkpoint_names import MANIFEST, CheckpointName, owner_of
from edl.checkpoints.checkpoint_paths import JobFolder, Located
from edl.checkpoints.checkpoint_storage import NotAFile, NotThere, StoredBytes
from edl.checkpoints.manifest import (
    CHUNK_BYTES,
    MOST_BYTES,
    Broken,
    Checksum,
    Manifest,
    Slice,
    StoredFile,
    StoredTensor,
    stored_type,
)
from edl.checkpoints.part_layout import PartLayout, lay_out
from edl.errors import CheckpointError, UsageError


class Unfinished(CheckpointError):
    """The checkpoint has no manifest, so it was never reported durable."""


class _Lying(NamedTuple):
    """The place of a slice's bytes."""

    file: str
    begin: int
    slice: Slice


class Checkpoint:
    """A checkpoint whose manifest was read. `verify` tells whether its contents are as they were written."""

    def __init__(self, folder: JobFolder, manifest: Manifest) -> None:
        """Only `open_checkpoint` and `publish` make checkpoints."""
        self.manifest = manifest
        self.tensors = {tensor.name: tensor for tensor in manifest.tensors}
        self._folder = folder
        self._files = {file.file: file for file in manifest.files}
        self._layouts = [self._lay_out(number) for number in range(len(manifest.parts))]
        self._lying = self._places()
        self._at_hand: tuple[str, StoredBytes] | None = None  # the part that was read last

    @property
    def path(self) -> str:
        return self._folder.path(self.manifest.name)

    @property
    def step(self) -> int:
        """The step of the state, counted over all lives."""
        return self.manifest.base + self.manifest.step

    def check_sizes(self) -> None:
        """Check that all files exist and have the sizes that the manifest says. Raises Broken, CheckpointError."""
        for part, layout in zip(self.manifest.parts, self._layouts, strict=True):
            if part.bytes != layout.bytes:
                raise self._broken(f"{part.file} would have {layout.bytes} bytes, and its manifest says {part.bytes}")
        for file in self.manifest.files:
            with closing(self._open(file)):
                pass

    def verify(self) -> None:
        """Read all files and check them. Raises Broken, CheckpointError."""
        for part, layout in zip(self.manifest.parts, self._layouts, strict=True):
            self._verify(part, layout.header)
        for own in self.manifest.own:
            self._verify(own, b"")

    def read(self, tensor: str, into: memoryview) -> None:
        """Read all bytes of one tensor into `into`, which has exactly their size. Call `verify` first. Raises Broken,
        CheckpointError.
        """
        view = into.cast("B")
        wanted = self.tensors[tensor].bytes
        if len(view) != wanted:
            raise UsageError(
                f"tensor {tensor!r} of checkpoint {self.path} has {wanted} bytes, and {len(view)} have room"
            )
        self.read_range(tensor, 0, view)

    def read_range(self, tensor: str, offset: int, into: memoryview) -> None:
        """Read the bytes of a tensor from `offset` on, as many as `into` has. As `read`."""
        view, lying = into.cast("B"), self._lying[tensor]
        end = offset + len(view)
        first = max(0, bisect.bisect_right(lying, offset, key=lambda one: one.slice.offset) - 1)
        for one in itertools.takewhile(lambda one: one.slice.offset < end, lying[first:]):
            begin = max(offset, one.slice.offset)
            within = view[begin - offset : min(end, one.slice.end) - offset]
            self._copy(self._part(one.file), one, one.begin + begin - one.slice.offset, within)

    def close(self) -> None:
        """Close the file that was read last. The checkpoint can be read again."""
        if self._at_hand is not None:
            self._at_hand[1].close()
            self._at_hand = None

    def own(self, number: int) -> bytes | None:
        """Return the content of the own file of the worker of rank `number`; None if there is none. Raises Broken,
        CheckpointError.
        """
        file = next((own for own in self.manifest.own if owner_of(own.file) == number), None)
        return None if file is None else b"".join(self._verified(file))

    def _lay_out(self, number: int) -> PartLayout:
        title = self._folder.title(self.manifest.name, number, len(self.manifest.parts))
        try:
            return lay_out(title, self.manifest.parts[number].tensors, self.tensors)
        except Broken as broken:
            raise self._broken(str(broken)) from None

    def _places(self) -> dict[str, list[_Lying]]:
        found: dict[str, list[_Lying]] = defaultdict(list)
        for part, layout in zip(self.manifest.parts, self._layouts, strict=True):
            for piece, begin in zip(part.tensors, layout.begins, strict=True):
                found[piece.tensor].append(_Lying(part.file, begin, piece))
        for lying in found.values():
            lying.sort(key=lambda one: one.slice.offset)
        return found

    def _part(self, name: str) -> StoredBytes:
        """Open a part and keep it open: successive tensors mostly lie in one part."""
        if self._at_hand is None or self._at_hand[0] != name:
            self.close()
            self._at_hand = (name, self._open(self._files[name]))
        return self._at_hand[1]

    def _open(self, file: StoredFile) -> StoredBytes:
        """Open a file and compare its size with the manifest, before a buffer is allocated for it."""
        try:
            opened = self._folder.files.open(self._folder.folder(self.manifest.name), file.file)
        except (NotThere, NotAFile) as error:
            raise self._broken(str(error)) from None
        if opened.size != file.bytes:
            opened.close()
            raise self._broken(f"{file.file} has {opened.size} bytes, and was written with {file.bytes}")
        return opened

    def _verify(self, file: StoredFile, header: bytes) -> None:
        begun = b""
        for chunk in self._verified(file):
            if len(begun) < len(header):
                begun += chunk[: len(header) - len(begun)]
                if not header.startswith(begun):
                    raise self._broken(f"the header of {file.file} is not that of the part that its manifest describes")

    def _verified(self, file: StoredFile) -> Iterator[bytes]:
        """Yield the file's content; raise Broken at its end if the checksum differs."""
        found = Checksum()
        with closing(self._open(file)) as opened:
            while found.bytes < file.bytes and (chunk := opened.read(found.bytes, CHUNK_BYTES)):
                found.add(chunk)
                yield chunk
        if (found.bytes, str(found)) != (file.bytes, file.checksum):
            raise self._broken(f"{file.file} is not as it was written: {found}, and {file.checksum} is right")

    def _copy(self, opened: StoredBytes, lying: _Lying, begin: int, into: memoryview) -> None:
        done = 0
        while done < len(into):
            chunk = opened.read(begin + done, min(CHUNK_BYTES, len(into) - done))
            if not chunk:
                raise self._broken(f"{lying.file} ends while it is read")
            into[done : done + len(chunk)] = chunk
            done += len(chunk)

    def _broken(self, reason: str) -> Broken:
        return broken(self._folder, self.manifest.name, reason)


def open_checkpoint(folder: JobFolder, name: CheckpointName) -> Checkpoint:
    """Open a checkpoint, and check its manifest and the sizes of its files.

    Raises Unfinished, Broken, CheckpointError.
    """
    content = _manifest(folder, name)
    try:
        manifest = manifests.decode(content)
    except Broken as error:
        raise broken(folder, name, str(error)) from None
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {folder.path(name)} {error}") from None
    if (manifest.job, manifest.name) != (folder.job, name):
        theirs = f"checkpoint {manifest.name} of job {manifest.job}"
        raise broken(folder, name, f"its manifest is that of {theirs}; put it back where it was")
    found = Checkpoint(folder, manifest)
    found.check_sizes()
    return found


def _manifest(folder: JobFolder, name: CheckpointName) -> bytes:
    try:
        opened = folder.files.open(folder.folder(name), MANIFEST)
    except NotThere:
        raise Unfinished(f"checkpoint {folder.path(name)} is unfinished: it has no {MANIFEST}") from None
    except NotAFile as error:
        raise broken(folder, name, str(error)) from None
    with closing(opened):
        if opened.size > MOST_BYTES:
            raise broken(folder, name, f"its manifest has {opened.size} bytes, and {MOST_BYTES} are allowed")
        return opened.read(0, MOST_BYTES)


def broken(folder: JobFolder, name: CheckpointName, reason: str) -> Broken:
    return Broken(f"checkpoint {folder.path(name)} is broken: {reason}")


class PassedOver(NamedTuple):
    name: CheckpointName
    reason: str  # one line that names it


class Newest(NamedTuple):
    """The checkpoint that a job can resume from."""

    checkpoint: Checkpoint | None  # verified; None: there is none
    passed_over: tuple[PassedOver, ...]  # newer ones that are broken


def newest(folder: JobFolder, since: int = 0) -> Newest:
    """Return the newest checkpoint that verifies, of the lives from `since` on.

    Raises CheckpointError if a checkpoint that is not broken cannot be read now: an older one is no substitute for it.
    """
    passed: list[PassedOver] = []
    for name in (one for one in folder.names() if one.life >= since):
        try:
            found = open_checkpoint(folder, name)
            found.verify()
        except Unfinished:
            continue
        except Broken as error:
            passed.append(PassedOver(name, str(error)))
        else:
            return Newest(found, tuple(passed))
    return Newest(None, tuple(passed))


class Chosen(NamedTuple):
    checkpoint: Checkpoint  # verified
    passed_over: tuple[PassedOver, ...]  # newer ones that are broken


def chosen(looked: Located) -> Chosen:
    """Return the checkpoint that a path names, else the newest of the job there, verified. Raises UsageError,
    CheckpointError.
    """
    if len(looked.jobs) > 1:
        names = ", ".join(folder.job for folder in looked.jobs)
        raise UsageError(
            f"{looked.jobs[0].files.where} has checkpoints of jobs {names}: name the folder of one of them"
        )
    folder = looked.jobs[0]
    if looked.name is not None:
        found = open_checkpoint(folder, looked.name)
        found.verify()
        return Chosen(found, ())
    best = newest(folder)
    if best.checkpoint is None:
        why = f"; {best.passed_over[0].reason}" if best.passed_over else ""
        raise CheckpointError(f"no checkpoint of job {folder.job} in {folder.files.where} is durable{why}")
    return Chosen(best.checkpoint, best.passed_over)


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
