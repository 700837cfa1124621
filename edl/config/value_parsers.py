"""Parsers of settings' values: each takes the text that was given, and returns the value.

Each raises ValueError, which says what the text must be. Does not own: which setting uses which parser
(`edl.config.settings_table`).
"""

from __future__ import annotations

import ipaddress
import math
import re
import socket
from collections.abc import Callable
from pathlib import Path

from edl.errors import did_you_mean

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+):(\d{1,5})")
AUTO = "auto"  # the job chooses the interval between its checkpoints


def name(text: str) -> str:
    if not NAME.fullmatch(text) or set(text) == {"."}:
        raise ValueError("must be 1 to 64 letters, digits, '.', '_' or '-'")
    return text


def whole_number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
            raise ValueError(f"must be a whole number of at least {least}")
        return int(text)

    return parse


def port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError("must be a port from 1 to 65535")
    return int(text)


def any_port(text: str) -> int:
    """Parse a port number; 0 means any free port. Raises ValueError."""
    try:
        return 0 if text == "0" else port(text)
    except ValueError:
        raise ValueError("must be a port from 1 to 65535, or 0 for any that is free") from None


def ip_address(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError("must be an IPv4 address of this machine, such as 127.0.0.1, or 0.0.0.0 for all") from None


def seconds(least: float, most: float) -> Callable[[str], float]:
    return _number("seconds", least, most)


def milliseconds(least: float, most: float) -> Callable[[str], float]:
    return _number("milliseconds", least, most)


def _number(unit: str, least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise ValueError(f"must be a number of {unit} from {least:g} to {most:g}")
        return value

    return parse


def coordinator(text: str) -> str:
    kind, named, rest = text.partition("://")
    if kind == "embedded" and rest.startswith("/"):
        return text  # the socket of a job on this machine
    if named and kind not in {"zookeeper", "etcd"}:
        raise ValueError("begins with zookeeper:// or etcd://, or with HOST:PORT of a ZooKeeper")
    if kind == "etcd" and rest.startswith("/"):
        return text  # the socket of an etcd that `edl run` has started
    hosts, slash, chroot = (rest if named else text).partition("/")
    for address in hosts.split(","):
        match = ADDRESS.fullmatch(address)
        if not match or not 1 <= int(match[2]) <= 65535:
            raise ValueError(
                "must be HOST:PORT, of an etcd etcd://HOST:PORT, more of them after commas, and perhaps a /path at the "
                "end"
            )
    if slash and not all(chroot.split("/")):
        raise ValueError("ends in a /path with an empty part; write it like /training/edl")
    return text


def path(text: str) -> Path:
    if not text:
        raise ValueError("must be a path")
    return Path(text).expanduser().absolute()


def autoscale(text: str) -> str:
    """Check only the form; `edl.policy.policy_engine` reads the text."""
    number = r"[0-9]+(\.[0-9]+)?"
    policy = rf"(efficiency={number}|utility=[^,]+|policy=[^,]+)"
    if not re.fullmatch(rf"{policy}(,(stride|batches|cooldown)={number}|,dry-run)*", text):
        raise ValueError("must be efficiency=S, utility=FILE or policy=NAME, with options like stride=2 after commas")
    return text


def batch_policy(text: str) -> str:
    """Check only the form; `edl.daemon.policy_loader` reads the text. `table=` has the results of a `function=`, as
    `edl run` hands them to workers.
    """
    fixed, function = r"fixed-local(,most=[1-9][0-9]*)?|fixed-global", r"function=[^,]+:[A-Za-z_][A-Za-z_0-9]*"
    pair = r"[1-9][0-9]{0,8}:[1-9][0-9]{0,8}"
    if not re.fullmatch(rf"{fixed}|{function}|table={pair}(,{pair})*", text):
        raise ValueError("must be fixed-local, fixed-local,most=N, fixed-global or function=FILE.py:NAME")
    return text


def place(text: str) -> str:
    """Parse a folder or a URL."""
    if not text:
        raise ValueError("must be a folder or a URL")
    return text if "://" in text or "::" in text else str(Path(text).expanduser().absolute())


def interval(text: str) -> tuple[float, bool]:
    """Return the number, and True if it counts steps or False if it counts seconds. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s|([1-9][0-9]{0,8})steps", text)
    if match is None or (match[1] and float(match[1]) < 1):
        raise ValueError("must be a number of seconds, at least 1, or of steps: 30s or 500steps; or auto")
    return (float(match[1]), False) if match[1] else (float(match[2]), True)


def interval_text(text: str) -> str:
    if text != AUTO:
        interval(text)
    return text


def share(text: str) -> float:
    """Parse a percentage and return it as a fraction of 1. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text)
    if match is None or not 0.01 <= float(match[1]) <= 100:
        raise ValueError("must be a percentage from 0.01% to 100%, such as 1%")
    return float(match[1]) / 100


def share_text(text: str) -> str:
    share(text)
    return text


def resume(text: str) -> str:
    return text if text in ("auto", "never", "must") else place(text)


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be {', '.join(words[:-1])} or {words[-1]}{did_you_mean(text, words)}")
        return text

    return parse


def log_level(text: str) -> str:
    return one_of("debug", "info", "warning", "error")(text.lower())


def driver_slot(text: str) -> str:
    if not re.fullmatch(r"[^\s:]+:[0-9]+", text):
        raise ValueError("must be HOST:NUMBER")
    return text


def interface(text: str) -> str:
    names = [name for _, name in socket.if_nameindex()]
    if text not in names:
        raise ValueError(f"is no network interface of this machine; it has {', '.join(names)}")
    return text
