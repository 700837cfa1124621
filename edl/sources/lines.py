"""Records that are lines: text, and JSON Lines; how bytes are cut into lines, and the value of each."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl.sources.source_port import Numbers


def mask_of(characters: bytes) -> NDArray[np.bool_]:
    """Return an array that says for each byte value whether it is one of `characters`."""
    mask = np.zeros(256, np.bool_)
    mask[list(characters)] = True
    return mask


BLANK = mask_of(b" \t\r\n")


def line_ends(data: bytes, last: bool) -> Numbers:
    """Return where lines of `data` end, each behind its newline. `last` means that nothing follows `data`, so a rest
    without a newline is a line too.
    """
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    if last and len(data) > (ends[-1] if ends.size else 0):
        ends = np.append(ends, len(data))
    return ends


def decoded(raw: bytes) -> str:
    """Decode UTF-8. Raises ValueError with a message for people."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} of the record is no UTF-8 ({error.reason})") from None


class TextLines:
    """The layout of text: every line, even an empty one, is a record: a str without its newline (LF or CRLF)."""

    text = True
    headed = False

    def columns(self, _head: bytes) -> None:
        """Return None: there is no head."""

    def ends(self, data: bytes, last: bool) -> Numbers:
        return line_ends(data, last)

    def record(self, raw: bytes, _head: bytes) -> str:
        return decoded(raw).removesuffix("\n").removesuffix("\r")


class JsonLines:
    """The layout of JSON Lines: every line that is not blank is a record, the value that Python's
    json reads from it.
    """

    text = True
    headed = False

    def columns(self, _head: bytes) -> None:
        """Return None: there is no head."""

    def ends(self, data: bytes, last: bool) -> Numbers:
        ends = line_ends(data, last)
        if not ends.size:
            return ends
        starts = np.append(0, ends[:-1])
        suspects = np.flatnonzero(BLANK[np.frombuffer(data, np.uint8)[starts]])
        blank = [line for line in suspects.tolist() if not data[starts[line] : ends[line]].strip()]
        return np.delete(ends, blank) if blank else ends

    def record(self, raw: bytes, _head: bytes) -> Any:
        try:
            return json.loads(decoded(raw))
        except json.JSONDecodeError as error:
            raise ValueError(f"no JSON: {error}") from None
