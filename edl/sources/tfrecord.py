"""Records of TFRecord files: length, checksum of the length, data, checksum of the data. The record is the data.

edl has a reader of its own, because the format is four fields, and the well-kept readers come with TensorFlow;
google-crc32c computes the checksums (docs/decisions/files.md).
"""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np

from edl.sources.file_errors import BadRecord
from edl.sources.source_port import Numbers

HEAD = struct.Struct("<QI")  # length, and its checksum
FOOT = struct.Struct("<I")  # checksum of the data
MASK_DELTA = 0xA282EAD8


class TFRecords:
    text = False
    headed = False

    def columns(self, _head: bytes) -> None:
        """Return None: there is no head."""

    def ends(self, data: bytes, last: bool) -> Numbers:
        ends, at = [], 0
        while len(data) - at >= HEAD.size:
            end = at + HEAD.size + _length(data, at) + FOOT.size
            if end > len(data):
                break
            ends.append(end)
            at = end
        if last and at < len(data):
            raise BadRecord(at, "the file ends in the middle of a record")
        return np.array(ends, np.int64)

    def record(self, raw: bytes, _head: bytes) -> bytes:
        data = raw[HEAD.size : -FOOT.size]
        if _checksum(data) != FOOT.unpack_from(raw, len(raw) - FOOT.size)[0]:
            raise ValueError("the checksum of the record's data is wrong")
        return data


def _length(data: bytes, at: int) -> int:
    length, checksum = HEAD.unpack_from(data, at)
    if _checksum(data[at : at + 8]) != checksum:
        raise BadRecord(at, "the checksum of the record's length is wrong (is it a TFRecord file?)")
    return int(length)


def _checksum(data: bytes) -> int:
    """Return the CRC-32C, rotated and shifted as TensorFlow does."""
    crc = google_crc32c.value(data)
    return int((((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF)
