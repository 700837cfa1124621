"""The manifest: the list of a checkpoint's contents. A checkpoint exists once its manifest does.

Owns: its form, the types of tensors' elements in it, reading it from untrusted bytes, and the checks of a manifest that
was read; and the checksum of files, CRC-32C, which object stores keep too, at a fifth of the cost of SHA-256
(docs/decisions/checkpoints.md). Does not own: the files that it names (`edl.checkpoints.checkpoint_reader`).

`manifest.json` is one JSON object with three members: `format`, `checksum` (of the bytes of `manifest`) and `manifest`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

import google_crc32c
import msgspec

from edl.checkpoints.checkpoint_names import CheckpointName, owner_of, part_of
from edl.errors import CheckpointError
from edl.protocol.data_nouns import LedgerSnapshot

CHUNK_BYTES = 1 << 20


class Checksum:
    def __init__(self) -> None:
        self._crc = 0
        self.bytes = 0  # number of bytes so far

    def add(self, chunk: bytes) -> None:
        self._crc = google_crc32c.extend(self._crc, chunk)
        self.bytes += len(chunk)

    def __str__(self) -> str:
        return f"crc32c:{self._crc:08x}"


def checksum_of(content: bytes) -> str:
    found = Checksum()
    found.add(content)
    return str(found)


def chunks_of(content: memoryview) -> Iterator[bytes]:
    """Yield copies of the content's chunks: the checksum takes only bytes, and a copy cannot change between checksum
    and write.
    """
    plain = content.cast("B")
    for begin in range(0, len(plain), CHUNK_BYTES):
        yield bytes(plain[begin : begin + CHUNK_BYTES])


def summed(chunks: Iterable[bytes], into: Checksum) -> Iterator[bytes]:
    """Yield the same chunks, and add each to the checksum `into`."""
    for chunk in chunks:
        into.add(chunk)
        yield chunk


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
    """Return how a dtype is stored; None means as plain bytes, as text, records and
    quantized numbers of other sorts are. `dtype` is a name of PyTorch's or TensorFlow's, or the
    code of numpy's files.
    """
    return _BY_NAME.get(_OF_NUMPY.get(dtype, dtype))


FORMAT: Final = 3  # version of the form of the folder and of all files in it
OLDEST: Final = 1  # oldest format that can be read; it had no `versions`, and format 2 no `stages`
MOST_BYTES: Final = 64 << 20  # largest size of a manifest

_MOST: Final = 1 << 53  # largest integer on which all readers of JSON agree
Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Number = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Sum = Annotated[str, msgspec.Meta(pattern=r"\Acrc32c:[0-9a-f]{8}\Z")]
JobName = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.+\Z)[A-Za-z0-9._-]{1,64}\Z")]

Belongs = Literal["model", "optimizer", "registered", "stage"]


class Broken(CheckpointError):
    """The files differ from what was written, or are no checkpoint at all: a reader passes such a checkpoint over."""


class StoredTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Label
    dtype: Label  # as its framework calls it
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]
    bytes: Count
    # A parameter or buffer of the model, a tensor of an optimizer, or a registered value. "stage": a buffer of a stage,
    # whose name an earlier stage has, too.
    belongs: Belongs = "model"

    @property
    def element_bytes(self) -> int:
        return (stored_type(self.dtype) or PLAIN).bytes


class Slice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bytes of a tensor that lie in one part."""

    tensor: Label  # name of the tensor
    offset: Count  # of the slice's first byte in the tensor
    bytes: Number

    @property
    def end(self) -> int:
        return self.offset + self.bytes


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that is durable."""

    file: Label
    bytes: Count
    checksum: Sum


class StoredPart(StoredFile, frozen=True, forbid_unknown_fields=True):
    """The share of the state that a process of a worker writes, in the form of safetensors."""

    tensors: tuple[Slice, ...]  # in the order in which they lie in the file

    @classmethod
    def of(cls, stored: StoredFile, tensors: Iterable[Slice]) -> StoredPart:
        return cls(stored.file, stored.bytes, stored.checksum, tuple(tensors))


class StageState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state that some processes of each worker hold, as those of one stage of a pipeline do, without its bytes."""

    processes: tuple[Count, ...]  # by their numbers in the worker
    tensors: Count  # how many of the manifest's, which are in the order of the stages
    state: bytes  # the framework adapter's description of model and optimizers, without their tensors
    registered: bytes  # the tree of registered values, without their tensors


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The state of the job after a step: its position, and the files that hold the state."""

    job: JobName
    life: Number  # number of the life; a life lasts from one start of the job to its end
    base: Count  # steps of all earlier lives
    step: Count  # of this life
    number: Count  # place among the checkpoints begun in this life
    generation: Count
    size: Number  # number of workers of the generation
    batch: Count  # samples of a step, of all workers together; 0: not known
    at: float  # when the checkpoint was asked for, by the leader's clock
    edl: Text  # version of edl that wrote the checkpoint
    framework: Text
    versions: dict[Label, Text] = {}  # versions of Python and the libraries that rank 0 computed with
    ledger: LedgerSnapshot | None  # position in the data as of this step; None: the script reads its data itself
    state: bytes  # the framework adapter's description of model and optimizers, without their tensors
    registered: bytes  # the tree of registered values, without their tensors
    tensors: tuple[StoredTensor, ...]
    parts: tuple[StoredPart, ...]  # by number
    own: tuple[StoredFile, ...]  # files of state that only one worker has, such as its random generators
    stages: tuple[StageState, ...] = ()  # of several; then `state` and `registered` are empty

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.life, self.number, self.step)

    @property
    def files(self) -> tuple[StoredFile, ...]:
        return (*self.parts, *self.own)

    @property
    def processes(self) -> int:
        """The processes of each worker: each has written a part."""
        return max(1, len(self.parts) // max(1, self.size))

    @property
    def heads(self) -> tuple[StageState, ...]:
        """The descriptions of the state: one, or that of each stage."""
        one = StageState(tuple(range(self.processes)), len(self.tensors), self.state, self.registered)
        return self.stages or (one,)

    @property
    def total_bytes(self) -> int:
        """The size of all files that the manifest names."""
        return sum(file.bytes for file in self.files)


class _Head(msgspec.Struct):
    """The member that every format has."""

    format: int


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    checksum: str
    manifest: msgspec.Raw


def encode(manifest: Manifest) -> bytes:
    """Raise CheckpointError if no reader would accept the manifest."""
    check(manifest)
    inner = msgspec.json.encode(manifest)
    sealed = msgspec.json.encode(_Sealed(FORMAT, checksum_of(inner), msgspec.Raw(inner)))
    if len(sealed) > MOST_BYTES:
        raise CheckpointError(
            f"a manifest of {len(sealed)} bytes is too large ({MOST_BYTES} are allowed): register large values as "
            "arrays or tensors, not as bytes"
        )
    decode(sealed)  # msgspec encodes values that it refuses to decode: numbers out of range, names that are too long
    return sealed


def decode(content: bytes) -> Manifest:
    """Decode and check a manifest. Raises Broken, and CheckpointError for a format that is newer than this edl."""
    head = _read(content, _Head, "its manifest")
    if head.format > FORMAT:
        raise CheckpointError(
            f"was written by a newer edl (format {head.format}, this one reads up to {FORMAT}): install that edl"
        )
    if head.format < OLDEST:
        raise Broken(f"its manifest has format {head.format}, and there is none below {OLDEST}")
    sealed = _read(content, _Sealed, "its manifest")
    if checksum_of(bytes(sealed.manifest)) != sealed.checksum:
        raise Broken("its manifest is not as it was written: the checksum differs")
    manifest = _read(bytes(sealed.manifest), Manifest, "its manifest")
    check(manifest)
    return manifest


AnyStruct = TypeVar("AnyStruct", bound=msgspec.Struct)


def _read(content: bytes, kind: type[AnyStruct], what: str) -> AnyStruct:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Broken(f"{what} cannot be read: {(str(error).splitlines() or [type(error).__name__])[0]}") from None


# ------------------------------------------------------------------------------------------------ what must be true


def check(manifest: Manifest) -> None:
    """Check that the parts hold each byte of each tensor once, and that all files have the names of this checkpoint's
    files. Raises Broken.
    """
    for tensor in manifest.tensors:
        _check_tensor(tensor)
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    if len(tensors) < len(manifest.tensors):
        raise Broken(f"its manifest names tensor {_twice(tensor.name for tensor in manifest.tensors)!r} twice")
    _check_files(manifest)
    _check_stages(manifest)
    for part in manifest.parts:
        for piece in part.tensors:
            _check_slice(piece, tensors.get(piece.tensor), part.file)
    _check_coverage(manifest.parts, manifest.tensors)


def _check_tensor(tensor: StoredTensor) -> None:
    stored, elements = stored_type(tensor.dtype), math.prod(tensor.shape)
    fits = tensor.bytes == elements * stored.bytes if stored else _divides(elements, tensor.bytes)
    if not fits:
        shape = list(tensor.shape)
        raise Broken(f"its manifest has tensor {tensor.name!r}, {tensor.dtype}{shape}, with {tensor.bytes} bytes")
    if tensor.name == "__metadata__":
        raise Broken("its manifest has a tensor called '__metadata__', which no safetensors file can hold")


def _divides(elements: int, size: int) -> bool:
    return size % elements == 0 if elements else size == 0


def _check_files(manifest: Manifest) -> None:
    numbers = [part_of(part.file) for part in manifest.parts]
    of = len(manifest.parts)
    if numbers != [(number, of) for number in range(of)]:
        odd = next(part.file for number, part in enumerate(manifest.parts) if part_of(part.file) != (number, of))
        raise Broken(f"its manifest names {odd!r}, which is no name of one of its {of} parts")
    owners: set[int | None] = {None}
    for own in manifest.own:
        if (owner := owner_of(own.file)) in owners:
            raise Broken(f"its manifest names {own.file!r}, which is no name of a worker's own state, or one of two")
        owners.add(owner)


def _check_stages(manifest: Manifest) -> None:
    processes = sorted(process for stage in manifest.heads for process in stage.processes)
    if processes != list(range(manifest.processes)):
        raise Broken(f"its manifest has stages of processes {processes}, and its workers have {manifest.processes}")
    if (told := sum(stage.tensors for stage in manifest.heads)) != len(manifest.tensors):
        raise Broken(f"its manifest has stages of {told} tensors, and {len(manifest.tensors)} tensors")


def _check_slice(piece: Slice, tensor: StoredTensor | None, file: str) -> None:
    if tensor is None:
        raise Broken(f"its part {file} has bytes of {piece.tensor!r}, and there is no such tensor")
    if piece.end > tensor.bytes or piece.offset % tensor.element_bytes or piece.bytes % tensor.element_bytes:
        raise Broken(
            f"its part {file} has bytes {piece.offset} to {piece.end} of {piece.tensor!r}, a tensor of {tensor.bytes} "
            f"bytes with {tensor.element_bytes} to an element"
        )


def _check_coverage(parts: Sequence[StoredPart], tensors: Sequence[StoredTensor]) -> None:
    reached = dict.fromkeys((tensor.name for tensor in tensors), 0)
    pieces = sorted((piece for part in parts for piece in part.tensors), key=lambda piece: piece.offset)
    for piece in pieces:
        if piece.offset != reached[piece.tensor]:
            what = "more than once" if piece.offset < reached[piece.tensor] else "nowhere"
            raise Broken(f"byte {min(piece.offset, reached[piece.tensor])} of tensor {piece.tensor!r} lies {what}")
        reached[piece.tensor] = piece.end
    for tensor in tensors:
        if reached[tensor.name] != tensor.bytes:
            raise Broken(f"byte {reached[tensor.name]} of tensor {tensor.name!r} lies nowhere")


def _twice(names: Iterable[str]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
