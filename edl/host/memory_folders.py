"""Keep a private folder in memory for a process, such as for a trainer and its daemon.

Owns: where such folders lie, their names, which identify the processes that made them, and the removal of those whose
processes have ended. Does not own: what is written in them.

A daemon removes the folder after its trainer has ended. If both are killed at once neither does; so each process that
makes a folder, and every launch at its end, removes the folders of processes that are gone.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from edl.errors import ConfigError
from edl.host.host_processes import process_start_time

NAME = re.compile(r"edl-(\d+)-(\d+)-(\d+)-\w+")  # pid namespace, pid and start time of the process that made it


def make_folder(parent: Path | None = None) -> Path:
    """Make a folder for this process, in memory unless `parent` is given. Raises ConfigError."""
    if parent is None:
        check_parent()
    parent = parent or _parent()
    sweep(parent)
    name = f"edl-{_namespace()}-{os.getpid()}-{process_start_time(os.getpid())}-"
    return Path(tempfile.mkdtemp(prefix=name, dir=parent))


def check_parent() -> None:
    """Raise ConfigError where XDG_RUNTIME_DIR names a folder in which another user could replace this user's ones."""
    parent = _parent()
    if str(parent) != os.environ.get("XDG_RUNTIME_DIR"):
        return
    facts = parent.stat()
    if facts.st_uid not in {os.geteuid(), 0}:
        reason = f"belongs to another user (uid {facts.st_uid})"
    elif facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX:
        reason = f"can be written to by others (mode {stat.S_IMODE(facts.st_mode):04o})"
    else:
        return
    raise ConfigError(
        f"XDG_RUNTIME_DIR={parent} {reason}, who could take the place of a worker's daemon there: unset it, or name a "
        "folder of your own, of mode 700"
    )


def folder_of(pid: int, parent: Path | None = None) -> list[Path]:
    """Find the folders of one living process of this user."""
    found = (parent or _parent()).glob(f"edl-{_namespace()}-{pid}-{process_start_time(pid)}-*")
    return [folder for folder in found if folder.lstat().st_uid == os.geteuid()]


def sweep(parent: Path | None = None) -> None:
    """Remove the folders of this user's ended processes. Folders of another pid namespace stay, because their processes
    cannot be seen from here.
    """
    for folder in (parent or _parent()).glob("edl-*"):
        match = NAME.fullmatch(folder.name)
        if match is None or match[1] != _namespace() or process_start_time(int(match[2])) == int(match[3]):
            continue
        try:
            ours = folder.stat().st_uid == os.geteuid()
        except FileNotFoundError:  # another process swept
            continue
        if ours:
            shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    """Return a folder in memory if there is one, so that writing the page never waits for a disk."""
    for candidate in (os.environ.get("XDG_RUNTIME_DIR"), "/dev/shm"):  # noqa: S108 - mkdtemp makes a private one in it
        if candidate and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    return Path(tempfile.gettempdir())


def _namespace() -> str:
    """Return the pid namespace's number: containers may share the parent folder, and have pids of their own."""
    return re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
