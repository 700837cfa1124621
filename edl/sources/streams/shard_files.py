"""The records of a file that is a shard of a stream, from any of its places on.

A place is where the next record begins: a byte of a file of lines or of a tar archive, a row of a Parquet or Arrow
file. What is packed (`.gz`, `.zst`) has no such bytes: it is unpacked again up to its place, and thrown away.

Owns: reading a file forward, its places, and telling what is wrong with it. Does not own: finding files
(`edl.sources.listing`), nor what is made of records (`edl.sources.streams.stream_operators`).
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from edl.errors import ConfigError, DataError, UsageError
from edl.sources.file_errors import corrupt, fault, shrunk, unreadable
from edl.sources.listing import DataFile

LARGEST: Final = 64 << 20  # bytes of a record
CHUNK: Final = 1 << 20
FORMATS: Final = ("text", "jsonl", "webdataset", "parquet", "arrow")
ENDINGS: Final = {
    "txt": "text",
    "text": "text",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "jsonl",
    "tar": "webdataset",
    "parquet": "parquet",
    "arrow": "arrow",
}
PACKED: Final = ("gz", "zst")
SHARD: Final = re.compile(r"-\d+-of-\d+$")  # corpus.jsonl-00003-of-00128


class PlacedRecords(Protocol):
    """The records of one shard that can say where it is, by `state_dict` as Hugging Face's and torchdata's streams."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> None: ...


def format_of_shard(name: str, given: str | None) -> str:
    """Return the format of a shard's file. Raises UsageError."""
    if given is not None:
        if given in FORMATS:
            return given
        raise UsageError(f"ElasticStream(format={given!r}): it must be one of {', '.join(FORMATS)}, mds or litdata")
    parts = SHARD.sub("", name.rpartition("/")[2]).lower().split(".")
    if parts[-1] in PACKED:
        del parts[-1]
    found = ENDINGS.get(parts[-1]) if len(parts) > 1 else None
    if found is None:
        raise UsageError(
            f"ElasticStream(): the name of {name} does not say which format it has: say format=..., one of "
            f"{', '.join(FORMATS)}"
        )
    return found


class ShardFile:
    """Records of a file, as `PlacedRecords`."""

    def __init__(self, file: DataFile, kind: str, largest: int = LARGEST) -> None:
        self._file, self._kind, self._largest = file, kind, largest
        self._place: Any = None
        ending = SHARD.sub("", file.name).rpartition(".")[2].lower()
        self._packed = ending if ending in PACKED else ""
        if self._packed and kind in ("parquet", "arrow"):
            raise UsageError(f"ElasticStream(): {file.name}: a {kind} file is packed inside: give it as it is")

    def state_dict(self) -> Any:
        return self._place

    def load_state_dict(self, state_dict: Any) -> None:
        self._place = state_dict

    def __iter__(self) -> Iterator[Any]:
        file = self._file
        kinds: dict[str, Callable[[], Iterator[Any]]] = {
            "webdataset": self._samples,
            "parquet": self._rows,
            "arrow": self._batches,
        }
        try:
            yield from kinds.get(self._kind, self._lines)()
        except (DataError, ConfigError):
            raise
        except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
            raise corrupt(file.name, f"about {self._told_place()}", f"{error}") from error
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("pyarrow", "zstandard", "compression"):
                raise corrupt(file.name, f"about {self._told_place()}", f"{error}".partition("\n")[0]) from error
            if isinstance(error, OSError):
                raise unreadable(file.name, f"about {self._told_place()}", error) from error
            raise

    def _told_place(self) -> str:
        if self._place is None:
            return "its beginning"
        return (
            f"byte {self._place}" if isinstance(self._place, int) else f"group {self._place[0]}, row {self._place[1]}"
        )

    # ---------------------------------------------------------------------------------------------------- by bytes

    @contextlib.contextmanager
    def _opened(self, offset: int) -> Iterator[Any]:
        """Give a stream of the unpacked bytes from `offset` on."""
        file = self._file
        with Path(file.path).open("rb", buffering=CHUNK) if file.is_local else file.fs.open(file.path, "rb") as raw:
            if not self._packed:
                if file.size < offset:
                    raise shrunk(file.name, file.size, offset)
                raw.seek(offset)
                yield raw
                return
            unpacked = gzip.GzipFile(fileobj=raw) if self._packed == "gz" else io.BufferedReader(Unzstd(raw), CHUNK)
            with unpacked:
                self._skip(unpacked, offset)
                yield unpacked

    def _skip(self, unpacked: Any, count: int) -> None:
        while count:
            skipped = len(unpacked.read(min(CHUNK, count)))
            if not skipped:
                raise shrunk(self._file.name, self._place - count, self._place)
            count -= skipped

    def _lines(self) -> Iterator[Any]:
        offset, largest, name = int(self._place or 0), self._largest, self._file.name
        value = _json if self._kind == "jsonl" else _text
        with self._opened(offset) as stream:
            readline = stream.readline
            while line := readline(largest + 1):
                if len(line) > largest:
                    raise self._too_large(offset)
                begin, offset = offset, offset + len(line)
                if begin == 0 and line.startswith(b"\xef\xbb\xbf"):
                    line = line[3:]
                if self._kind == "jsonl" and not line.strip():
                    continue
                try:
                    record = value(line)
                except ValueError as error:
                    raise corrupt(name, f"byte {begin}", str(error)) from None
                self._place = offset
                yield record
        if not self._packed and offset < self._file.size:
            raise shrunk(name, offset, self._file.size)

    def _too_large(self, offset: int) -> DataError:
        return fault(
            self._file.name,
            f"has a record at byte {offset} that is larger than {self._largest} bytes: leave it out, or say "
            "ElasticStream(largest_record=...)",
        )

    def _samples(self) -> Iterator[dict[str, Any]]:
        """Yield the records of a tar archive, as WebDataset has them: files in a row whose names are alike up to the
        first dot of the base name. The contents are bytes.
        """
        offset = int(self._place or 0)
        with self._opened(offset) as stream:
            sample: dict[str, Any] = {}
            for member in archive_members(stream, self._largest):
                if member.too_large:
                    raise self._too_large(offset)
                begin, offset = offset, offset + member.bytes
                folder, slash, bare = member.name.rpartition("/")
                stem, _, ending = bare.partition(".")
                if folder.startswith("__") or bare.startswith("__") or not stem or not ending:
                    continue
                key = folder + slash + stem
                if sample and sample["__key__"] != key:
                    self._place = begin
                    yield sample
                    sample = {}
                sample.setdefault("__key__", key)
                sample[ending.lower()] = member.content
            if sample:
                self._place = offset
                yield sample

    # ----------------------------------------------------------------------------------------------------- by rows

    def _rows(self) -> Iterator[Any]:
        pq = _pyarrow("pyarrow.parquet")
        group, row = self._place or (0, 0)
        with self._file.fs.open(self._file.path, "rb") as stream:
            table = pq.ParquetFile(stream)
            for number in range(group, table.num_row_groups):
                at, skip = 0, row if number == group else 0
                for batch in table.iter_batches(batch_size=1024, row_groups=[number]):
                    if at + len(batch) > skip:
                        for index, record in enumerate(batch.slice(max(0, skip - at)).to_pylist(), max(at, skip) + 1):
                            self._place = [number, index]
                            yield record
                    at += len(batch)

    def _batches(self) -> Iterator[Any]:
        ipc = _pyarrow("pyarrow.ipc")
        group, row = self._place or (0, 0)
        with self._file.fs.open(self._file.path, "rb") as stream:
            table = ipc.open_file(stream)
            for number in range(group, table.num_record_batches):
                skip = row if number == group else 0
                for index, record in enumerate(table.get_batch(number).slice(skip).to_pylist(), skip + 1):
                    self._place = [number, index]
                    yield record


class ArchiveMember(NamedTuple):
    """A member of a tar archive, and how many bytes of the archive it takes."""

    name: str  # empty: it is no file
    content: bytes
    bytes: int
    too_large: bool = False


def archive_members(stream: Any, largest: int) -> Iterator[ArchiveMember]:
    """Read a tar archive forward. Python's own module takes three times as long for small members.

    Raises tarfile.ReadError, EOFError.
    """
    long_name, extra, read = "", 0, stream.read
    while header := read(512):
        if len(header) < 512:
            raise tarfile.ReadError("unexpected end of data")
        if not any(header):
            return
        if sum(header) - sum(header[148:156]) + 256 != _octal(header[148:156]):
            raise tarfile.ReadError("bad checksum of a header")
        size, kind = _octal(header[124:136]), header[156:157]
        whole = size + -size % 512
        if size > largest:
            yield ArchiveMember("", b"", 0, too_large=True)
        content = read(whole)
        if len(content) < size:
            raise tarfile.ReadError("unexpected end of data")
        extra += 512 + whole
        if kind == b"L":  # of the next member, by GNU tar
            long_name = content[:size].rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif kind == b"x":  # likewise, by POSIX
            long_name = _path_of(content[:size]) or long_name
        elif kind not in {b"g", b"K"}:
            name = long_name or _name_of(header)
            yield ArchiveMember(name if kind in (b"0", b"\0") else "", content[:size], extra)
            long_name, extra = "", 0
    raise tarfile.ReadError("unexpected end of data")


def _octal(field: bytes) -> int:
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise tarfile.ReadError("bad number in a header") from None


def _name_of(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:262] == b"ustar" and header[263:265] == b"00" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")


def _path_of(records: bytes) -> str:
    while records:
        length = int(records.split(b" ", 1)[0])
        key, _, value = records[:length].partition(b" ")[2].partition(b"=")
        if key == b"path":
            return value.rstrip(b"\n").decode("utf-8", "surrogateescape")
        records = records[length:]
    return ""


def _json(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # what it does not take may be JSON to Python's own module: NaN, say
    try:
        return json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no UTF-8 ({error.reason})") from None
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error})") from None


def _text(line: bytes) -> str:
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no UTF-8 ({error.reason})") from None


def _pyarrow(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "Parquet and Arrow need pyarrow, which is not installed: pip install 'horovod-edl[parquet]'"
        ) from error


class Unzstd(io.RawIOBase):
    """The unpacked bytes of a `.zst` file, frame after frame. A frame that is cut off raises EOFError."""

    def __init__(self, packed: Any) -> None:
        self._packed, self._left = packed, b""
        self._new = _zstd()
        self._frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            data = self._packed.read(CHUNK // 4)
            if not data:
                if self._frame is not None:
                    raise EOFError("it ends in the middle of what is packed")
                return 0
            while data:
                frame = self._frame = self._frame or self._new()
                self._left += frame.decompress(data)
                data = b""
                if frame.eof:
                    data, self._frame = frame.unused_data, None
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def _zstd() -> Any:
    """Return what makes an unpacker of one frame: of Python's own module, or of the package."""
    import importlib

    try:
        return importlib.import_module("compression.zstd").ZstdDecompressor
    except ModuleNotFoundError:
        pass
    try:
        package = importlib.import_module("zstandard")
    except ModuleNotFoundError as error:
        raise ConfigError("a .zst file needs zstandard, which is not installed: pip install zstandard") from error
    return lambda: package.ZstdDecompressor().decompressobj()
