"""Messages between `edl prove --hosts` and its part on each host: lines of JSON, over the part's stdin and stdout.

Owns: the messages and their lines. Does not own: what a part does with them (`edl.proof.host_part`), nor who asks
(`edl.proof.proof_hosts`).
"""

from __future__ import annotations

import msgspec

from edl.proof.proof_report import Machine


class StartProcess(msgspec.Struct, frozen=True, tag=True):
    """Start a process. In its words and variables {folder} and {interface} stand for the host's own."""

    command: list[str]
    environ: dict[str, str]


class KillProcess(msgspec.Struct, frozen=True, tag=True):
    """Kill a process by SIGKILL."""

    pid: int


class PutFile(msgspec.Struct, frozen=True, tag=True):
    """Write a file, which only the user may read, into the host's folder."""

    name: str
    text: str


class AskClock(msgspec.Struct, frozen=True, tag=True):
    """Ask for the host's clock, after all that was asked and seen before."""

    number: int


class HostReady(msgspec.Struct, frozen=True, tag=True):
    edl: str
    machine: Machine
    port: int  # that is free


class ProcessStarted(msgspec.Struct, frozen=True, tag=True):
    pid: int


class ProcessKilled(msgspec.Struct, frozen=True, tag=True):
    pid: int
    at: float  # by the host's clock


class ProcessExited(msgspec.Struct, frozen=True, tag=True):
    pid: int
    code: int
    last_words: str  # of its output, after a failure


class FileGrown(msgspec.Struct, frozen=True, tag=True):
    """A file of the host's folder has more bytes, one for each character of `text`."""

    name: str
    text: str
    first: bool


class ToldClock(msgspec.Struct, frozen=True, tag=True):
    number: int
    clock_s: float
    written: int  # bytes in the host's folder


class PartFailed(msgspec.Struct, frozen=True, tag=True):
    """The part cannot go on."""

    reason: str


ToHost = StartProcess | KillProcess | PutFile | AskClock
FromHost = HostReady | ProcessStarted | ProcessKilled | ProcessExited | FileGrown | ToldClock | PartFailed

_ASKED: msgspec.json.Decoder[ToHost] = msgspec.json.Decoder(ToHost)
_TOLD: msgspec.json.Decoder[FromHost] = msgspec.json.Decoder(FromHost)


def line_of(message: ToHost | FromHost) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def asked_by(line: bytes) -> ToHost:
    return _ASKED.decode(line)


def told_by(line: bytes) -> FromHost:
    return _TOLD.decode(line)
