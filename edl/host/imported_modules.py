"""List the installed modules that this process has imported: its launcher may import them ahead for later workers.

Owns: telling installed modules from the script's own, and the file by which a trainer tells the launcher on its host of
them. Does not own: the folder that this file lies in (`edl.host.memory_folders`), nor what is done with the modules
(`edl.launch.forking`).
"""

from __future__ import annotations

import logging
import os
import re
import site
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import msgspec

import edl
from edl.host.memory_folders import folder_of

logger = logging.getLogger("edl")

FILE = "modules.json"
MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Imported(msgspec.Struct, frozen=True):
    modules: tuple[str, ...]  # installed ones, in the order of their imports
    own: tuple[str, ...]  # those that are not installed, such as the script's
    installed: tuple[str, ...]  # folders of what is installed


def installed_folders() -> tuple[str, ...]:
    """Return the folders of Python's own library, of what pip installs, and of edl."""
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
    """Return a module's file or a package's folder; None where it has neither, such as one that is built in. Only the
    spec is asked: some modules are objects that answer for any attribute.
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
    """Write what this process has imported into the folder that the trainer has to itself. A module may be imported by
    another thread meanwhile.
    """
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
