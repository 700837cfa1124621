"""Errors about files, in words: which file, where in it, on which host, and the remedy."""

from __future__ import annotations

import socket

from edl.errors import DataError

UNCHANGED = "files must stay as they are while a job trains on them"


class BadRecord(ValueError):
    """The bytes from `offset` on are no record."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


def unreadable(name: str, place: str, error: BaseException) -> DataError:
    """Describe `error`, which came instead of the file's content."""
    if isinstance(error, FileNotFoundError):
        return fault(name, f"is gone (it was wanted at {place}): bring it back; {UNCHANGED}")
    if isinstance(error, PermissionError):
        return fault(name, f"may not be read by this user (at {place}): {error}")
    return fault(name, f"cannot be read at {place}: {_told(error)}")


def shrunk(name: str, end: int, size: int) -> DataError:
    return fault(name, f"has shrunk: it ends at byte {end} and had {size} bytes; {UNCHANGED}")


def changed(name: str, place: str) -> DataError:
    return fault(name, f"has changed at {place} since its records were counted; {UNCHANGED}")


def corrupt(name: str, place: str, reason: str) -> DataError:
    """Describe a file that can be read but does not follow its format."""
    return fault(name, f"is corrupt at {place}: {reason}; mend the file, or leave it out and start the job again")


def fault(name: str, what: str) -> DataError:
    return DataError(f"{name} on host {socket.gethostname()} {what}")


def _told(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__
