"""A checkpoint is read: its manifest, its files' sizes, their checksums, and then its tensors.

Owns: what is believed of what lies there. Does not own: the form of a manifest (`edl.checkpoints.manifest`), nor what
becomes of the tensors.

Three things are told apart. *Unfinished*: there is no manifest, so it is no checkpoint. *Broken*: it is not what was
written, and never will be; it is passed over. *Not to be read now* (CheckpointError), for a disk, a store or a newer
edl: no older checkpoint takes its place, as what was told durable would be lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from edl.checkpoints import manifest as manifests
from edl.checkpoints.checksum import CHUNK_BYTES, Checksum
from edl.checkpoints.layout import PartLayout, lay_out
from edl.checkpoints.manifest import MOST_BYTES, Broken, Manifest, Slice, StoredFile
from edl.checkpoints.names import MANIFEST, CheckpointName, owner_of
from edl.checkpoints.places import JobFolder, Located
from edl.checkpoints.port import NotAFile, NotThere, StoredBytes
from edl.errors import CheckpointError, UsageError


class Unfinished(CheckpointError):
    """It has no manifest: it was not told durable, and is no checkpoint."""


class _Lying(NamedTuple):
    """Where a slice's bytes are."""

    file: str
    begin: int
    slice: Slice


class Checkpoint:
    """One that is there, by its manifest. `verify` says whether its contents are what was written."""

    def __init__(self, folder: JobFolder, manifest: Manifest) -> None:
        """`open_checkpoint` makes one."""
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
        """Of all lives together."""
        return self.manifest.base + self.manifest.step

    def check_sizes(self) -> None:
        """All files are there, and as long as they should be. Raises Broken, CheckpointError."""
        for part, layout in zip(self.manifest.parts, self._layouts, strict=True):
            if part.bytes != layout.bytes:
                raise self._broken(f"{part.file} would have {layout.bytes} bytes, and its manifest says {part.bytes}")
        for file in self.manifest.files:
            with closing(self._open(file)):
                pass

    def verify(self) -> None:
        """Reads all of it. Raises Broken, CheckpointError."""
        for part, layout in zip(self.manifest.parts, self._layouts, strict=True):
            self._verify(part, layout.header)
        for own in self.manifest.own:
            self._verify(own, b"")

    def read(self, tensor: str, into: memoryview) -> None:
        """All bytes of one tensor, for which `into` has room. Raises Broken, CheckpointError. `verify` first."""
        view = into.cast("B")
        wanted = self.tensors[tensor].bytes
        if len(view) != wanted:
            raise UsageError(
                f"tensor {tensor!r} of checkpoint {self.path} has {wanted} bytes, and {len(view)} have room"
            )
        for lying in self._lying[tensor]:
            self._copy(self._part(lying.file), lying, view[lying.slice.offset : lying.slice.end])

    def close(self) -> None:
        """Of what was open to be read. It can be read again."""
        if self._at_hand is not None:
            self._at_hand[1].close()
            self._at_hand = None

    def own(self, number: int) -> bytes | None:
        """What the worker of that rank had for itself; None: there is none. Raises Broken, CheckpointError."""
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
        return found

    def _part(self, name: str) -> StoredBytes:
        """Tensors that follow each other lie in one part, mostly."""
        if self._at_hand is None or self._at_hand[0] != name:
            self.close()
            self._at_hand = (name, self._open(self._files[name]))
        return self._at_hand[1]

    def _open(self, file: StoredFile) -> StoredBytes:
        """Of the size that the manifest says, before any room is made for it."""
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
        """Its content; raises Broken at the end of what was not written so."""
        found = Checksum()
        with closing(self._open(file)) as opened:
            while found.bytes < file.bytes and (chunk := opened.read(found.bytes, CHUNK_BYTES)):
                found.add(chunk)
                yield chunk
        if (found.bytes, str(found)) != (file.bytes, file.checksum):
            raise self._broken(f"{file.file} is not as it was written: {found}, and {file.checksum} is right")

    def _copy(self, opened: StoredBytes, lying: _Lying, into: memoryview) -> None:
        done = 0
        while done < len(into):
            chunk = opened.read(lying.begin + done, min(CHUNK_BYTES, len(into) - done))
            if not chunk:
                raise self._broken(f"{lying.file} ends while it is read")
            into[done : done + len(chunk)] = chunk
            done += len(chunk)

    def _broken(self, reason: str) -> Broken:
        return broken(self._folder, self.manifest.name, reason)


def open_checkpoint(folder: JobFolder, name: CheckpointName) -> Checkpoint:
    """Its manifest is right in itself, and all files are as long as that says.

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
    """A checkpoint that is of no use, and why."""

    name: CheckpointName
    reason: str  # one line that names it


class Newest(NamedTuple):
    """What a job can go on from."""

    checkpoint: Checkpoint | None  # verified; None: there is none
    passed_over: tuple[PassedOver, ...]  # newer ones that are broken


def newest(folder: JobFolder, since: int = 0) -> Newest:
    """The newest one that verifies, of the lives from `since` on.

    Raises CheckpointError where one that is not broken cannot be read now: an older one is no substitute for it.
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
    """What a user's path stands for."""

    checkpoint: Checkpoint  # verified
    passed_over: tuple[PassedOver, ...]  # newer ones that are broken


def chosen(looked: Located) -> Chosen:
    """Verified: the one that a path names, else the newest of the job there. Raises UsageError, CheckpointError."""
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
