"""Checks of this machine, with a remedy for each problem.

Owns: the checks behind `edl doctor`, each of which returns values and changes nothing, and how they are printed.
Does not own: setting anything right (scripts/setup does), nor where Java and ZooKeeper are looked for
(`edl.coordination.local_coordinator`), nor what settings mean (`edl.config`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path

import msgspec

import horovod_edl
from edl.config import Settings
from edl.config.settings import OWN_HOME
from edl.coordination.coordinator_settings import EMBEDDED, ETCD, ZOOKEEPER
from edl.coordination.local_coordinator import (
    INSTALL_ETCD,
    INSTALL_ZOOKEEPER,
    OWN,
    LocalChoice,
    choose,
    find_etcd,
    find_jars,
    find_java,
)
from edl.core.job.deadlines import Deadlines
from edl.core.job.lead_times import LeadTimes
from edl.errors import ConfigError
from edl.launch.supervisor import EndTimeouts

PYTHON = (3, 11)  # what scripts/setup makes, with Horovod
PYTHONS = (PYTHON, (3, 12), (3, 13))  # what was tried
ENOUGH_FILES = 1024  # a worker holds a few sockets to each of its peers
PROBE_TIMEOUT_S = 60
REBUILD = (
    "run scripts/setup from a clone of edl, or for another environment scripts/build-horovod: it builds Horovod 0.28.1 "
    "for the frameworks that it finds"
)
PREPARED = f"{REBUILD}; or train with `edl run --ring torch`, whose rings always form beside training"


class Health(StrEnum):
    """`warn` is for what works here and may fail elsewhere or later."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Checked(msgspec.Struct, frozen=True):
    name: str
    outcome: Health
    found: str
    remedy: str = ""  # one line; there whenever the outcome is not OK


# ----------------------------------------------------------------------------------------------- Python and packages


def check_python(version: tuple[int, ...] = sys.version_info[:3], executable: str = sys.executable) -> Checked:
    found = f"{'.'.join(map(str, version))} ({executable})"
    if version[:2] in PYTHONS:
        return Checked("Python", Health.OK, found)
    remedy = f"use Python {PYTHON[0]}.{PYTHON[1]}: EDL_PYTHON=/path/to/python3.11 scripts/setup makes a .venv with it"
    if version[:2] > PYTHONS[-1]:
        return Checked("Python", Health.WARN, f"{found}: edl was tried up to {PYTHONS[-1][0]}.{PYTHONS[-1][1]}", remedy)
    return Checked("Python", Health.FAIL, found, remedy)


def check_edl_package() -> Checked:
    # Distribution `edl`, a parser, has such a package too: `import edl` must mean us, and go on to.
    complaint = horovod_edl.foreign_package()
    if complaint:
        found, _, remedy = complaint.partition(" Remedy: ")
        return Checked("package edl", Health.FAIL, found, remedy)
    place = str(Path(__file__).parents[1])
    others = list(importlib.metadata.distributions(name="edl"))
    if not others:
        return Checked("package edl", Health.OK, place)
    return Checked(
        "package edl",
        Health.FAIL,
        f"{place}, but distribution edl {others[0].version} is installed too and has such a package",
        "`pip uninstall edl`, then install horovod-edl again with --force-reinstall: each overwrites the other's files",
    )


# ------------------------------------------------------------------------------------------------------- the ring

# Run in an interpreter of its own: a library that does not fit may end the process, and TensorFlow and PyTorch need not
# be loaded into this one. TensorFlow's libraries are enough for Horovod's, and ten times quicker than the import.
PROBE = """
import ctypes, sys
framework, folder, library, version = sys.argv[1:]
if framework == "torch":
    import torch
else:
    for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
        ctypes.CDLL(folder + "/" + name, ctypes.RTLD_GLOBAL)
horovod = ctypes.CDLL(library)
print(*(name for name in ("gloo", "nccl", "mpi") if getattr(horovod, f"horovod_{name}_built")()))
from edl.collectives.horovod_libraries import hindrance
print(hindrance(f"horovod.{framework}", library, version))
"""


def check_horovod_for(framework: str) -> Checked:
    """Check that Horovod's library was built against the installed version of the framework, and loads."""
    title = f"Horovod for {framework}"
    folder, horovod = _package_folder(framework), _package_folder("horovod")
    if folder is None:
        remedy = f"needed only by scripts that import edl.{framework}: `pip install horovod-edl[{framework}]`"
        return Checked(title, Health.WARN, f"{framework} is not installed", remedy)
    if horovod is None:
        return _without(title, framework, "horovod is not installed")
    installed, built = _framework_version(framework, folder), _built_for(horovod).get(framework)
    library = next(iter(sorted((horovod / framework).glob("mpi_lib*.so"))), None)
    if library is None or built is None:
        return _without(title, framework, f"Horovod was built without {framework}")
    if built != installed:
        return Checked(title, Health.FAIL, f"built for {framework} {built}, but {installed} is installed", REBUILD)
    return _try_library(title, framework, installed, [str(folder), str(library)])


def _without(title: str, framework: str, found: str) -> Checked:
    if framework == "torch":
        return Checked(title, Health.OK, f"{found}: `edl run` takes PyTorch's own process groups (--ring auto)")
    return Checked(title, Health.FAIL, found, REBUILD)


def _try_library(title: str, framework: str, version: str, places: list[str]) -> Checked:
    command = [sys.executable, "-c", PROBE, framework, *places, version]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Checked(title, Health.FAIL, f"its library did not load within {PROBE_TIMEOUT_S} s", REBUILD)
    if probe.returncode:
        reason = (probe.stderr.strip().splitlines() or [f"ended with {probe.returncode}"])[-1]
        return Checked(title, Health.FAIL, f"its library does not load: {reason}", REBUILD)
    operations, *hindrance = probe.stdout.splitlines()
    found = f"{framework} {version}, {operations}"
    if "gloo" not in operations.split():
        return Checked(title, Health.FAIL, f"{found}; gloo is missing", REBUILD)
    if why := " ".join(hindrance):
        in_line = f"{found}; at a change of size training stands still until the next ring is formed: {why}"
        return Checked(title, Health.WARN, in_line, PREPARED if framework == "torch" else REBUILD)
    return Checked(title, Health.OK, f"{found}; the next ring forms beside training")


def _package_folder(name: str) -> Path | None:
    """Return the folder of a top-level package without importing it."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _framework_version(framework: str, folder: Path) -> str:
    # A local tag, such as +cpu, is in the module's version; PyTorch's metadata need not carry it.
    if framework == "torch":
        match = re.search(r"__version__ = '([^']+)'", (folder / "version.py").read_text())
        return match[1] if match else "unknown"
    for distribution in ("tensorflow-cpu", "tensorflow"):
        for found in importlib.metadata.distributions(name=distribution):
            return found.version
    return "unknown"


def _built_for(horovod: Path) -> dict[str, str]:
    """Return the versions of frameworks that Horovod's build recorded."""
    try:
        versions = msgspec.json.decode((horovod / "metadata.json").read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}
    return {"torch" if name == "pytorch" else name: version for name, version in versions.items()}


# ------------------------------------------------------------------------------------------------- the coordinator


def check_coordinator(environ: Mapping[str, str]) -> Checked:
    if named := environ.get("EDL_COORDINATOR"):
        return Checked("coordinator", Health.OK, f"EDL_COORDINATOR={named}")
    try:
        chosen = _chosen(environ)
    except ConfigError as error:
        return Checked("coordinator", Health.FAIL, "`edl run` can have none of its own", str(error))
    if chosen.kind == EMBEDDED:
        remedy = f"`{INSTALL_ZOOKEEPER}`, or `{INSTALL_ETCD}`, or name a running one in EDL_COORDINATOR"
        return Checked("coordinator", Health.WARN, OWN, remedy)
    name = {ZOOKEEPER: "a ZooKeeper", ETCD: "an etcd"}[chosen.kind]
    return Checked("coordinator", Health.OK, f"{name} of each job's or cluster's own, as none is named")


def check_java(environ: Mapping[str, str]) -> Checked:
    try:
        java = find_java(environ)
    except ConfigError as error:
        return Checked("Java", _without_zookeeper(environ), "none found", str(error))
    try:
        probe = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        remedy = "install a Java runtime (Debian: openjdk-17-jre-headless), or set JAVA_HOME to one"
        return Checked("Java", Health.FAIL, f"{java} does not run: {error}", remedy)
    version = re.search(r'version "([^"]+)"', probe.stderr + probe.stdout)
    return Checked("Java", Health.OK, f"{version[1] if version else 'unknown version'} ({java})")


def check_zookeeper(environ: Mapping[str, str]) -> Checked:
    try:
        jars = find_jars(environ)
    except ConfigError as error:
        return Checked("ZooKeeper", _without_zookeeper(environ), "its jars were not found", str(error))
    return Checked("ZooKeeper", Health.OK, f"{jars[0]} and {len(jars) - 1} more")


def check_pdeathsig() -> Checked:
    found = shutil.which("setpriv")
    if found:
        return Checked("setpriv", Health.OK, found)
    remedy = "install util-linux: without it a local ZooKeeper outlives an `edl run` that is killed outright"
    return Checked("setpriv", Health.WARN, "not found", remedy)


def check_etcd(environ: Mapping[str, str]) -> Checked:
    """Look for an etcd, which is needed only if ZooKeeper is missing or etcd is asked for."""
    try:
        etcd = find_etcd(environ)
    except ConfigError as error:
        wanted = environ.get("EDL_LOCAL_COORDINATOR") == ETCD or environ.get("EDL_ETCD")
        if wanted or _without_zookeeper(environ) is Health.FAIL:
            return Checked("etcd", Health.FAIL, "none found", str(error))
        return Checked("etcd", Health.OK, "none found, and none needed for jobs of this machine")
    try:
        probe = subprocess.run([etcd, "--version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Checked("etcd", Health.WARN, f"{etcd} does not run: {error}", f"`{INSTALL_ETCD}`, or unset EDL_ETCD")
    version = re.search(r"etcd Version: (\S+)", probe.stdout)
    return Checked("etcd", Health.OK, f"{version[1] if version else 'unknown version'} ({etcd})")


def _without_zookeeper(environ: Mapping[str, str]) -> Health:
    """Return how bad a missing Java or ZooKeeper is: `edl run` may have another coordinator in its place."""
    try:
        _chosen(environ)
    except ConfigError:
        return Health.FAIL
    return Health.WARN


def _chosen(environ: Mapping[str, str]) -> LocalChoice:
    alone = not environ.get("EDL_ZOOKEEPER_PORT")
    return choose(environ.get("EDL_LOCAL_COORDINATOR"), environ, alone=alone)


# ------------------------------------------------------------------------------------------------------ this machine


def check_ports(environ: Mapping[str, str]) -> Checked:
    """Check that the loopback interface has a free port, and that the port of the local ZooKeeper is free."""
    try:
        port = Settings.from_given({}, environ).zookeeper_port or 0
    except ConfigError as error:
        return Checked("ports", Health.FAIL, "a setting is wrong", str(error))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError as error:
            where = f"EDL_ZOOKEEPER_PORT={port}" if port else "any port of 127.0.0.1"
            remedy = "end what uses it, or unset EDL_ZOOKEEPER_PORT and a free one is chosen"
            return Checked("ports", Health.FAIL, f"{where}: {error.strerror}", remedy)
    return Checked("ports", Health.OK, f"127.0.0.1:{port} is free" if port else "127.0.0.1 can be listened on")


def check_timeouts(environ: Mapping[str, str]) -> Checked:
    """Show what follows from the two time-outs (I12)."""
    try:
        settings = Settings.from_given({}, environ)
    except ConfigError as error:
        return Checked("time-outs", Health.FAIL, "a setting is wrong", str(error))
    session_s, step_s = settings.session_timeout_s, settings.step_timeout_s
    lead, deadlines = LeadTimes.of(session_s), Deadlines.of(step_s)
    found = (
        f"session {session_s:g} s: leases {lead.lease_s:g} s ahead, more when {lead.more_at_s:g} s are left, "
        f"calls to the leader held {lead.hold_s:g} s, "
        f"a crash in doubt {EndTimeouts.of(session_s, step_s).doubt_s:g} s; "
        f"step {step_s:g} s: a worker that holds it up has {deadlines.finding_s:g} s more, "
        f"a seat in a ring {deadlines.seat_s:g} s, a boot {deadlines.boot_s:g} s"
    )
    return Checked("time-outs", Health.OK, found)


def check_open_files(limits: tuple[int, int] | None = None) -> Checked:
    # `edl run` and daemons raise the soft limit to the hard one.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE) if limits is None else limits
    unlimited = resource.RLIM_INFINITY
    found = "no limit" if hard == unlimited else str(hard)
    if soft != hard:
        found += f" ({soft} at first; `edl run` and daemons raise it)"
    if hard == unlimited or hard >= ENOUGH_FILES:
        return Checked("open files", Health.OK, found)
    remedy = f"`ulimit -Hn {ENOUGH_FILES}` or more for larger jobs; ask the machine's administrator"
    return Checked("open files", Health.WARN, f"at most {found}", remedy)


def check_home(environ: Mapping[str, str]) -> Checked:
    """Check that records of jobs, which hold secrets, can be kept and are closed to other users."""
    home = Path(environ.get("EDL_HOME") or "~/.edl").expanduser()
    there = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Checked("EDL_HOME", Health.FAIL, f"{there} cannot be written to", OWN_HOME)
    if there != home:
        return Checked("EDL_HOME", Health.OK, f"{home}, to be made")
    status = home.stat()
    if status.st_uid != os.geteuid():
        return Checked("EDL_HOME", Health.FAIL, f"{home} belongs to another user ({status.st_uid})", OWN_HOME)
    if status.st_mode & 0o077:
        return Checked("EDL_HOME", Health.WARN, f"{home} is open to other users", f"`chmod 700 {home}`")
    return Checked("EDL_HOME", Health.OK, str(home))


# ------------------------------------------------------------------------------------------------------------ all


def look(environ: Mapping[str, str]) -> list[Checked]:
    """Return all checks in the order in which they are shown. They run side by side, as some start a process."""
    checks: tuple[Callable[[], Checked], ...] = (
        check_python,
        check_edl_package,
        lambda: check_horovod_for("torch"),
        lambda: check_horovod_for("tensorflow"),
        lambda: check_coordinator(environ),
        lambda: check_java(environ),
        lambda: check_zookeeper(environ),
        lambda: check_etcd(environ),
        check_pdeathsig,
        lambda: check_ports(environ),
        lambda: check_timeouts(environ),
        check_open_files,
        lambda: check_home(environ),
    )
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        return [future.result() for future in [pool.submit(check) for check in checks]]


def table(checks: Iterable[Checked]) -> str:
    """Return a line for each check, followed by a line with its remedy if it has one."""
    lines = []
    for check in checks:
        lines.append(f"{check.outcome:<5} {check.name:<23} {check.found}")
        if check.remedy:
            lines.append(f"      -> {check.remedy}")
    return "\n".join(lines)


def run(json: bool) -> int:
    """Return the exit code of `edl doctor`."""
    checks = look(os.environ)
    print(msgspec.json.encode(checks).decode() if json else table(checks))
    return int(any(check.outcome is Health.FAIL for check in checks))
