"""Which job a command is about, and how to reach it: by this machine's records, or by a coordinator that is named."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

import msgspec

from edl.config import Settings
from edl.coordination.settings import Coordinator
from edl.errors import ConfigError, EdlError, UsageError
from edl.launch.records import OVER, Folder, Record, find, records
from edl.protocol.job import JobState, Status
from edl.runtime.access import coordinator_of, with_secret
from edl.runtime.client import JobClient


class Target(msgspec.Struct, frozen=True):
    """One job. At least one of record and coordinator is there."""

    job: str
    folder: Folder | None  # with its record, if it was started on this machine
    record: Record | None
    coordinator: Coordinator | None  # where to ask; None when all that is left of it is the record
    secret: bytes

    def client(self) -> JobClient:
        """A connection to the job. Raises ConfigError when there is none, or none yet."""
        if self.coordinator is None:
            why = "is just being started" if self.record is not None and self.record.alive else "is over"
            raise ConfigError(f"job {self.job} {why}: there is nobody to ask")
        return JobClient(self.coordinator, self.job, self.secret)


def locate(arguments: argparse.Namespace) -> Target:
    """The job that was named, else the only one that runs here. Raises ConfigError or UsageError."""
    settings = Settings.from_given(arguments.given, os.environ)
    job = arguments.job or settings.job or only_living(records(settings.home))
    settings = msgspec.structs.replace(settings, job=job).with_record()
    folder = find(settings.home, job)
    record = folder.read() if folder else None
    if record is not None and settings.coordinator in {None, record.coordinator}:
        return Target(job, folder, record, _coordinator(settings, record), settings.secret())
    if settings.coordinator is None:
        raise ConfigError(
            f"no job {job} was started on this machine: `edl status` lists those that were; "
            "for one that runs elsewhere add --coordinator HOST:PORT"
        )
    return Target(job, None, None, coordinator_of(settings), settings.secret())


def only_living(known: Iterable[tuple[Folder, Record]]) -> str:
    living = [record.job for _, record in known if record.alive]
    if len(living) == 1:
        return living[0]
    if living:
        raise UsageError(f"several jobs run here, name one: {', '.join(living)}")
    raise UsageError("no job runs here: name one, or see `edl status` for those that ran")


def _coordinator(settings: Settings, record: Record) -> Coordinator | None:
    """A coordinator of the launcher's own is gone with it; another can be asked after the job's end, too."""
    if not record.own_coordinator:
        return coordinator_of(settings)
    if not record.alive or not record.coordinator:
        return None
    return with_secret(Coordinator(record.coordinator), settings.secret())


async def read_status(target: Target) -> Status:
    """The job as its leader shows it; when nobody answers, as it was seen last. Raises EdlError."""
    if target.coordinator is not None:
        try:
            async with target.client() as job:
                return await job.status()
        except EdlError:
            if target.record is None:
                raise
    assert target.folder is not None and target.record is not None
    return recorded_status(target.folder, target.record)


def recorded_status(folder: Folder, record: Record) -> Status:
    """What the launcher has kept. How the launch ended counts more than what the last leader made of its end."""
    try:
        status = msgspec.json.decode(folder.status.read_bytes(), type=Status)
    except (OSError, msgspec.MsgspecError):
        status = _blank(record)
    if record.alive:
        return status
    state, reason = (record.state, record.reason) if record.state in OVER else ("failed", "edl run was killed")
    return msgspec.structs.replace(status, state=JobState(state), reason=reason)


def _blank(record: Record) -> Status:
    """A job of which no leader was ever heard."""
    return Status(
        job=record.job,
        state=JobState(record.state),
        reason=record.reason,
        term=0,
        generation=0,
        leader="",
        step=0,
        epoch=0,
        size=0,
        target=record.np,
        min_workers=record.min_workers,
        max_workers=record.max_workers or 0,
        workers=(),
        data=None,
        spec=None,
    )
