"""Records of the jobs started on this machine: one folder per job under $EDL_HOME/jobs.

Owns: who may use a job's name here, and the names of jobs that were given none; the files of a record and their modes,
and when old ones go. Does not own: what the job is doing (`edl.outside.job_client` asks its leader); it keeps the last
status for later.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from edl.clock import SystemClock
from edl.config import Settings
from edl.config.settings import OWN_HOME, check_home
from edl.errors import ConfigError
from edl.file_lock import hold, is_held, open_lock, turn
from edl.host.host_processes import pid_space, process_start_time
from edl.launch.job_processes import is_running

QUALITIES = (
    "amber", "bold", "brave", "brisk", "calm", "clear", "clever", "cosy", "eager", "early", "fair", "fleet",
    "fresh", "gentle", "glad", "golden", "grand", "happy", "jolly", "keen", "kind", "light", "lively", "lucky",
    "mellow", "merry", "mild", "neat", "nimble", "noble", "plain", "proud", "quick", "quiet", "ready", "rosy",
    "sharp", "silver", "smart", "spry", "steady", "sunny", "swift", "tidy", "warm", "wise", "witty", "young",
)  # fmt: skip
ANIMALS = (
    "badger", "beaver", "bison", "crane", "deer", "dove", "eagle", "falcon", "finch", "fox", "gecko", "goose",
    "hare", "hawk", "heron", "horse", "ibex", "jay", "koala", "lark", "lemur", "lion", "llama", "lynx", "magpie",
    "marten", "mole", "moose", "newt", "otter", "owl", "panda", "pony", "puffin", "quail", "raven", "robin", "seal",
    "shrew", "sparrow", "stork", "swan", "tapir", "tern", "tiger", "trout", "turtle", "vole", "weasel", "whale",
    "wolf", "wren", "yak", "zebra",
)  # fmt: skip


def invent(chance: random.Random) -> str:
    """Return a name like brisk-otter-42."""
    return f"{chance.choice(QUALITIES)}-{chance.choice(ANIMALS)}-{chance.randrange(10, 100)}"


KEEP = 20  # records of jobs that are over
OVER = frozenset({"finished", "failed", "preempted"})


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    launcher_pid: int
    launcher_start: int  # with the pid: the launcher and no other process
    mark: str  # what all processes of this launch carry in their environment
    started: float
    command: tuple[str, ...]
    np: int
    min_workers: int
    max_workers: int | None
    directory: str = ""  # in which the command was given
    ring: str = ""
    virtual_workers: int = 0  # 0: none
    checkpoint: str = ""  # where the job is saved; empty: it is not
    audit: str = ""  # where its workers record what they train; empty: nowhere
    own_coordinator: bool  # it lives and dies with the launcher
    launcher: str = "edl run"  # for people
    coordinator: str = ""  # empty until it is known
    state: str = "starting"  # as in `edl status`
    warm_starts: str = ""  # for people: whether later workers are forked
    reason: str = ""  # of a failure
    ended: float | None = None
    events_before: int = 0  # lines of its events that are of earlier lives
    host: str = msgspec.field(default_factory=socket.gethostname)
    space: str = msgspec.field(default_factory=lambda: pid_space() or "")  # in which the launcher's pid means it
    lives_there: bool = False  # as it was read: the launcher lives in another space, as on another machine

    @property
    def here(self) -> bool:
        """Tell whether the launcher's pid is valid in this process's pid namespace."""
        return self.space == (pid_space() or "")

    @property
    def alive(self) -> bool:
        """Tell whether the launcher lives, also on another machine that shares this home, if its file system has
        locks.
        """
        lives = is_running(self.launcher_pid, self.launcher_start) if self.here else self.lives_there
        return self.state not in OVER and lives

    @property
    def launcher_words(self) -> str:
        return f"{self.launcher}, pid {self.launcher_pid}" + ("" if self.here else f" on {self.host}")

    @property
    def shown_state(self) -> str:
        # A launcher that was killed together with its guard could not write down the end of its job.
        return self.state if self.alive or self.ended is not None else "failed"


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.secret = path / "secret"
        self.policy = path / "policy.py"
        self.zookeeper = path / "zookeeper"
        self.etcd = path / "etcd"
        self.logs = path / "logs"
        self.output = self.logs / "output.log"  # what `edl run` has shown, and before it output.log.1
        self.events = path / "events.jsonl"
        self.figures = path / "figures.jsonl"
        self.status = path / "status.json"
        self.wanted = path / "wanted.json"
        self.life = path / "life"  # a lock that the launcher holds

    def read(self) -> LaunchRecord | None:
        """Return None if the record is missing or unreadable."""
        try:
            record = msgspec.json.decode((self.path / "record.json").read_bytes(), type=LaunchRecord)
        except (OSError, msgspec.MsgspecError):
            return None
        return record if record.here else msgspec.structs.replace(record, lives_there=is_held(self.life))

    def write(self, record: LaunchRecord) -> None:
        self._replace(self.path / "record.json", msgspec.json.encode(record))

    def update(self, record: LaunchRecord) -> None:
        """Replace the record of a job that trains. Where that fails, as on a full disk or after the folder was removed,
        the job goes on, and its record remains as it was.
        """
        with contextlib.suppress(OSError):
            self.write(record)

    def write_secret(self, secret: bytes) -> None:
        self._replace(self.secret, secret)

    def write_policy(self, source: bytes) -> None:
        self._replace(self.policy, source)

    def write_status(self, status: bytes) -> None:
        self._replace(self.status, status)

    def append_events(self, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        with open(self.events, "ab", opener=_private) as file:
            file.write(text.encode())

    def append_figures(self, line: bytes) -> None:
        with open(self.figures, "ab", opener=_private) as file:
            file.write(line)

    @staticmethod
    def _replace(path: Path, content: bytes) -> None:
        # A reader must see the old content or the new, never a part.
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with open(draft, "wb", opener=_private) as file:
            file.write(content)
        draft.replace(path)


def claim(home: Path, record: LaunchRecord) -> Folder:
    """Make a fresh folder for a job. Raises ConfigError if a job of that name lives here, or elsewhere with this
    home.
    """
    folder = Folder(home / "jobs" / record.job)
    with _lock(home):
        before = folder.read()
        if before is not None and before.alive:
            raise ConfigError(
                f"job {record.job} is running here already ({before.launcher_words}): "
                f"give this one another name by --job, or end that one by `edl stop {record.job}`"
            )
        _remove(folder.path)
        folder.logs.mkdir(mode=0o700, parents=True)
        folder.path.chmod(0o700)
        hold(folder.life)
        folder.write(record)
        _prune(home, keep=KEEP)
    return folder


def renew(folder: Folder, record: LaunchRecord) -> LaunchRecord:
    """Begin another life of the same launch. Events and logs of the former one stay."""
    _remove(folder.zookeeper)
    _remove(folder.etcd)
    lines = folder.events.read_bytes().count(b"\n") if folder.events.exists() else 0
    record = msgspec.structs.replace(record, events_before=lines)
    folder.write(record)
    return record


def launch_record(settings: Settings, command: Sequence[str]) -> LaunchRecord:
    started = process_start_time(os.getpid())
    assert started is not None
    return LaunchRecord(
        job=settings.job_home.name,
        launcher_pid=os.getpid(),
        launcher_start=started,
        mark=secrets.token_hex(8),
        started=SystemClock().wall(),
        command=tuple(command),
        np=settings.np,
        min_workers=settings.min_workers,
        max_workers=settings.max_workers,
        directory=str(Path.cwd()),
        ring=settings.ring,
        virtual_workers=settings.virtual_workers or 0,
        checkpoint=settings.checkpoint,
        audit="" if settings.audit is None else str(settings.audit.absolute()),
        own_coordinator=settings.coordinator is None,
    )


def new_name(home: Path) -> str:
    chance = random.Random()  # noqa: S311 - a name, no secret
    while find(home, name := invent(chance)) is not None:
        pass
    return name


def keep(home: Path, file: Path, content: bytes) -> None:
    """Write a file beside the record of a job, which may have none here. Raises ConfigError or OSError."""
    with _lock(home):  # else it may come into a folder that is just being cleared
        file.parent.mkdir(mode=0o700, exist_ok=True)
        Folder._replace(file, content)


def find(home: Path, job: str) -> Folder | None:
    """Return the record of a job started on this machine. Raises ConfigError if another user keeps it."""
    folder = Folder(home / "jobs" / job)
    check_home(home, folder.path.parent, folder.path, folder.secret)
    return None if folder.read() is None else folder


def records(home: Path) -> list[tuple[Folder, LaunchRecord]]:
    """List all records of this machine, the latest launch first."""
    jobs = home / "jobs"
    check_home(home, jobs)
    folders = [Folder(path) for path in jobs.iterdir() if path.is_dir()] if jobs.is_dir() else []
    known = [(folder, record) for folder in folders if (record := folder.read()) is not None]
    return sorted(known, key=lambda pair: pair[1].started, reverse=True)


def _prune(home: Path, keep: int) -> None:
    over = [folder for folder, record in records(home) if not record.alive]
    for folder in over[keep:]:
        _remove(folder.path)


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(f"cannot remove the old record {path}: {error.strerror}; remove it by hand") from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def _lock(home: Path) -> Iterator[None]:
    """Let only one launcher at a time take a name. The kernel frees the lock of a dead launcher. Raises ConfigError."""
    check_home(home, home / "jobs")
    try:
        for folder in (home, home / "jobs"):  # one by one: `parents=True` would not give the mode to the first
            folder.mkdir(mode=0o700, parents=folder is home, exist_ok=True)
        file = open_lock(home / "lock")
    except OSError as error:
        raise ConfigError(f"EDL_HOME={home}: cannot keep records there: {error.strerror}; {OWN_HOME}") from None
    with turn(file):
        yield
