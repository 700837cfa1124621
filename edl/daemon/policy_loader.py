"""Read the code and data by which this process chooses a job's size and batch, once.

Owns: reading them, and the digest by which a user's code is known to others. Does not own: the form of the flags
(`edl.config`), their meaning (`edl.policy.policy_engine`), nor running code (`edl.daemon.policy_process`).

Nothing that arrives or is on record names code to run (I18). A job's record has a digest. The leader runs its own copy,
which its own settings name, if the digest is the same.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

import msgspec

from edl.config import Settings
from edl.config.value_parsers import AUTO, interval, share
from edl.daemon.policy_process import PolicyProcess
from edl.errors import ConfigError
from edl.policy.policy_engine import GROUP, MOST_WORKERS, Choice
from edl.protocol.checkpoint_record import Auto, Checkpointing
from edl.protocol.divergence_report import Checking, OnDivergence
from edl.protocol.job_policy import Batching, BatchRule, JobPolicy, digest_text

AUTOSCALE: Final = "--autoscale policy"
FUNCTION: Final = "--batch-policy function"


class Code(msgspec.Struct, frozen=True):
    """A user's code, as it was when it was read."""

    option: str  # for messages
    name: str  # as it was typed: FILE.py:NAME, or the name of an entry point
    file: str  # where it was read; empty: an entry point
    source: bytes
    attribute: str

    @property
    def digest(self) -> str:
        """The digest of the code and the name of its part; for an entry point, of the release that has it."""
        return digest_text(hashlib.sha256(b"\n".join((self.source, self.attribute.encode()))).hexdigest())


def read_code(option: str, name: str, copy: Path | None = None) -> Code:
    """Read a user's code. `copy`: the path of the copy made when the option was typed. Raises ConfigError."""
    path, colon, attribute = name.rpartition(":")
    if not colon:
        point = _entry_point(option, name)
        release = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
        return Code(option, name, "", f"{release} {point.value}".encode(), name)
    try:
        return Code(option, name, path, (copy or Path(path)).read_bytes(), attribute)
    except OSError as error:
        raise ConfigError(f"{option}={name}: cannot be read: {error.strerror}") from None


def own_code(settings: Settings) -> Code | None:
    """Return the code of the policy that these settings name; None: they name none. Raises ConfigError."""
    choice = Choice.of(settings.autoscale) if settings.autoscale else None
    if choice is None or not choice.is_users:
        return None
    return read_code(AUTOSCALE, choice.value, settings.policy_file)


def job_policy(settings: Settings, code: Code | None) -> JobPolicy:
    """Return the policy that the job's first worker tells all future leaders. Raises ConfigError."""
    return JobPolicy(
        autoscale=settings.autoscale if code is None else Choice.of(settings.autoscale).naming(code.digest),
        utility=file_of(settings.autoscale),
        every=settings.autoscale_every,
        stragglers=settings.stragglers,
        batching=batching(settings.batch_policy, settings.max_workers),
        checking=Checking(settings.check_weights, OnDivergence(settings.on_divergence), _share(settings)),
        checkpointing=_checkpointing(settings),
    )


def _share(settings: Settings) -> float:
    return share(settings.verify_compute) if settings.verify_compute else 0.0


def _checkpointing(settings: Settings) -> Checkpointing:
    if not settings.checkpoint:
        return Checkpointing()
    chooses = settings.checkpoint_every == AUTO
    every, of_steps = (0.0, False) if chooses else interval(settings.checkpoint_every)
    return Checkpointing(
        folder=settings.checkpoint,
        every_s=0.0 if of_steps else every,
        every_steps=round(every) if of_steps else 0,
        keep=settings.keep_checkpoints,
        last=True,
        life=settings.life,
        auto=Auto(overhead=share(settings.checkpoint_overhead)) if chooses else None,
    )


def try_policy(settings: Settings) -> Code | None:
    """Try the policy where it was typed, as a leader could only report an error. Raises ConfigError."""
    code = own_code(settings)
    if code is not None:
        with PolicyProcess(code) as process:
            process.load()
    elif settings.autoscale:
        Choice.of(settings.autoscale).policy(file_of(settings.autoscale))
    return code


def file_of(text: str) -> str:
    """Return the contents of FILE in `--autoscale utility=FILE`; "" for other policies. Raises ConfigError."""
    choice = Choice.of(text) if text else None
    if choice is None or choice.kind != "utility":
        return ""
    try:
        return Path(choice.value).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--autoscale utility={choice.value}: cannot be read: {error}") from None


def batching(text: str, most_workers: int | None) -> Batching:
    """Parse a batch policy of valid form. A function is asked once, for all possible sizes. Raises ConfigError."""
    rule, _, value = text.partition("=")
    match rule:
        case BatchRule.TABLE:
            with PolicyProcess(read_code(FUNCTION, value)) as process:
                return Batching(BatchRule.TABLE, table=process.table(most_workers or MOST_WORKERS))
        case "table":
            pairs = (pair.split(":") for pair in value.split(","))
            return Batching(BatchRule.TABLE, table=tuple((int(workers), int(batch)) for workers, batch in pairs))
        case _:
            return Batching(BatchRule(text.partition(",")[0]), most=int(value) if value else 0)


def tabulated(text: str, most_workers: int | None) -> str:
    """Return the batch policy without code: a function becomes its table, for processes that inherit it. Raises
    ConfigError.
    """
    if not text.startswith(f"{BatchRule.TABLE}="):
        return text
    pairs = batching(text, most_workers).table
    return f"table={','.join(f'{workers}:{batch}' for workers, batch in pairs)}"


def _entry_point(option: str, name: str) -> EntryPoint:
    known = {point.name: point for point in entry_points(group=GROUP)}
    if name not in known:
        there = f"; there are {', '.join(sorted(known))}" if known else ""
        raise ConfigError(f"{option}={name}: is neither FILE.py:CLASS nor an entry point of {GROUP}{there}")
    return known[name]
