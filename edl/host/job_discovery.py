"""Joining a job by its name alone, with the record that the job's launcher keeps on this machine.

Owns: completing a trainer's settings from that record. Does not own: writing it (`edl.launch.job_records`), nor what
the settings are (`edl.config`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from edl.config import Settings
from edl.errors import ConfigError, UsageError

OVER: Final = frozenset({"finished", "failed", "preempted"})  # as `edl status` says
LIFE: Final = "EDL_LIFE"  # a launcher of a job with checkpoints gives the life's number to the workers


class Left(msgspec.Struct, frozen=True):
    """The part of a launcher's record that a newcomer needs."""

    coordinator: str = ""  # empty until it is known
    state: str = ""


def joined(environ: Mapping[str, str], **keywords: object) -> Settings:
    """Return the settings of a trainer: keywords (None: not given), else EDL_ variables, else this machine's record.

    Raises ConfigError, also when there is a job whose coordinator is unknown.
    """
    settings = completed(Settings.from_environment(environ, **keywords))
    if settings.checkpoint and not environ.get(LIFE):
        raise ConfigError(
            f"EDL_CHECKPOINT={settings.checkpoint}: no launcher has chosen what this process goes on from, and it "
            "would begin anew over what is saved there: start it by `edl run --checkpoint` or horovodrun, or unset "
            "EDL_CHECKPOINT"
        )
    if settings.job is not None and settings.coordinator is None:
        raise ConfigError(_why_no_coordinator(settings.job, _left(settings)))
    return settings


def check_one_ring(comm: object, process_sets: object) -> None:
    """Raise UsageError if a call in Horovod's form asks for another ring than that of all workers."""
    for name, value in {"comm": comm, "process_sets": process_sets}.items():
        if value is not None and not (isinstance(value, Collection) and len(value) == 0):
            raise UsageError(
                f"edl.init({name}={value!r}): a job of edl has one ring of all its workers, which is made anew when "
                "workers come and go: leave it away"
            )


def check_again(settings: Settings, keywords: Mapping[str, object], *, left: bool) -> None:
    """Raise UsageError if a second `init` with these `keywords` differs from the first one, whose `settings` are given,
    or comes after the process has `left` its job.
    """
    if left:
        raise UsageError("edl.init() after edl.shutdown(): a process joins its job once: start another one")
    for name, value in keywords.items():
        if value is not None and value != (now := getattr(settings, name)):
            raise UsageError(f"edl.init({name}={value!r}): this process has joined already, with {name}={now!r}")


def completed(settings: Settings) -> Settings:
    """Add the coordinator and the secret of a running job that was started on this machine."""
    if settings.job is None or settings.secret_file is not None:
        return settings
    left, secret_file = _left(settings) or Left(), settings.job_home / "secret"
    if not left.coordinator or left.state in OVER or settings.coordinator not in {None, left.coordinator}:
        return settings
    if not secret_file.exists():
        return msgspec.structs.replace(settings, coordinator=left.coordinator)
    return msgspec.structs.replace(settings, coordinator=left.coordinator, secret_file=secret_file)


def _why_no_coordinator(job: str, left: Left | None) -> str:
    if left is None:
        return (
            f"EDL_JOB={job} is given without a coordinator: set EDL_COORDINATOR=HOST:PORT too "
            "(only for a job that `edl run` has started on this machine it is known)"
        )
    if left.state in OVER:
        return f"EDL_JOB={job}: that job is over ({left.state}); start it again by `edl run --job {job} ...`"
    return f"EDL_JOB={job}: that job is just being started; try again in a moment"


def _left(settings: Settings) -> Left | None:
    """Read the launcher's record; None if there is none or it cannot be read."""
    try:
        return msgspec.json.decode((settings.job_home / "record.json").read_bytes(), type=Left)
    except (OSError, msgspec.MsgspecError):
        return None
