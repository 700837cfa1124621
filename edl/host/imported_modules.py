"""List the installed modules that this process has imported: its launcher may import them ahead for later workers.

Owns: telling installed modules from the script's own, the file by which a trainer tells the launcher on its host of
them, and the folder that this file lies in: private to the user, in memory, shared by a trainer with its daemon. Does
not own: what is done with the modules (`edl.launch.forking`).

The daemon removes the folder after its trainer has ended. If both are killed at once neither does; so each process that
makes a folder, and every launch at its end, removes the folders of trainers that are gone. A folder's name identifies
the process that made it. `edl.run` keeps its functions in such folders, too.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import site
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import msgspec

import edl
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
    """Find those of one living process of this user."""
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


logger = logging.getLogger("edl")

FILE = "modules.json"
MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Imported(msgspec.Struct, frozen=True):
    """The modules that one process has imported."""

    modules: tuple[str, ...]  # installed ones, in the order of their imports
    own: tuple[str, ...]  # those that are not installed, such as the script's
    installed: tuple[str, ...]  # folders of what is installed


def installed_folders() -> tuple[str, ...]:
    """Python's own library, what pip installs, and edl."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    paths.append(str(Path(edl.__file__).parent))
    return tuple(dict.fromkeys([*paths, *map(os.path.realpath, paths)]))


def sort_out(modules: Mapping[str, ModuleType], folders: Sequence[str], first: str) -> Imported:
    """`folders`: where modules are installed. `first`: where Python looks first, which is the script's folder."""
    places = tuple(os.path.join(folder, "") for folder in folders)  # noqa: PTH118 - with its end
    firsts = {first, os.path.realpath(first)} if first else set()
    installed, own = [], []
    for name, module in modules.items():
        spec = _spec(module)
        place = _place(module)
        if spec is None or spec.name != name or place is None or not MODULE_NAME.fullmatch(name):
            continue
        package = name.partition(".")[0]
        top = (_place(modules.get(package)) or "").removesuffix(os.sep)
        is_script = package != "edl" and os.path.dirname(top) in firsts  # noqa: PTH120 - there are thousands of them
        if place.startswith(places) and not is_script:
            installed.append(name)
        elif "." not in name:
            own.append(name)
    return Imported(tuple(installed), tuple(own), tuple(folders))


def _place(module: ModuleType | None) -> str | None:
    """A module's file or a package's folder; None where it has neither, such as one that is built in. Only the spec is
    asked: some modules are objects that answer for any attribute.
    """
    spec = _spec(module)
    if spec is None:
        return None
    for path in spec.submodule_search_locations or ():
        return os.path.join(path, "")  # noqa: PTH118 - with its end
    return spec.origin if spec.has_location else None


def _spec(module: ModuleType | None) -> ModuleSpec | None:
    try:
        # A module that is loaded lazily loads itself when it is asked for an attribute.
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return None
    return spec if isinstance(spec, ModuleSpec) else None


def tell_imported(folder: Path) -> None:
    """Leave it in the folder that this trainer has to itself. A module may be imported by another thread meanwhile."""
    first = "" if sys.flags.safe_path or not sys.path else sys.path[0]
    working = folder / f".{FILE}"
    try:
        told = sort_out(dict(sys.modules), installed_folders(), first)
        working.write_bytes(msgspec.json.encode(told))
        working.rename(folder / FILE)
    except Exception as error:  # noqa: BLE001 - no room in memory, a strange module: training goes on without warm starts
        logger.info("what this worker has imported is not told, for warm starts: %r", error)


def told_by(pid: int) -> Imported | None:
    """Return what this user's trainer of that pid has told; None until it has."""
    for folder in folder_of(pid):
        try:
            return msgspec.json.decode((folder / FILE).read_bytes(), type=Imported)
        except (OSError, msgspec.MsgspecError):
            continue
    return None
