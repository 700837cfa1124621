"""A fork of a process that plain horovodrun has started: the copy trains, the original becomes its stand-in.

Why: `edl.horovodrun`. How: a fork, because the script has run so far and must not run twice. A fork takes no threads
along, so the script must not have started any that are needed; `edl.init()` belongs at its top.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import edl
from edl.config import Settings
from edl.errors import ConfigError, UsageError
from edl.host import horovodrun_env
from edl.host.host_processes import die_with_parent
from edl.protocol.assignment import RingKind

TOLD = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_HOSTNAME", "HOROVOD_RANK")
MODULE = "edl.horovodrun"
DEVICES = "/dev/nvidia"


def is_due(environ: Mapping[str, str]) -> bool:
    """Tell whether horovodrun itself has started this process, and nothing of ours."""
    return all(environ.get(name) for name in TOLD) and not (environ.get("EDL_STAND_IN") or environ.get("EDL_SLOT"))


def split() -> None:
    """Fork; return in the copy, with its job's settings in the environment. Raises UsageError, ConfigError."""
    horovodrun_env.of(os.environ)
    settings = Settings.from_given({}, os.environ)  # what is wrong is said here, before there are two processes
    if settings.ring == RingKind.TORCH:
        raise ConfigError(
            f"EDL_RING={settings.ring}: under horovodrun the ring is Horovod's; unset it, or start the workers by "
            f"`edl run --ring {settings.ring}`"
        )
    _check()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    told, tell = os.pipe()
    outputs = [os.pipe(), os.pipe()]
    original = os.getpid()
    copy = os.fork()
    if copy:
        _become_stand_in(copy, [tell, outputs[0][0], outputs[1][0]])
    die_with_parent(original, signal.SIGTERM)  # which is a graceful leave
    os.close(tell)
    for number, (reader, writer) in enumerate(outputs, start=1):
        os.close(reader)
        os.dup2(writer, number)
        os.close(writer)
    os.environ.update(_heard(told))


def _check() -> None:
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if others:
        raise UsageError(f"under horovodrun call edl.init() before any thread is started ({', '.join(others)} run)")
    tasks = sum(1 for _ in Path("/proc/self/task").iterdir())
    usual = max(2, os.cpu_count() or 1)  # NumPy's library has as many
    if tasks > usual or _uses_gpu():
        raise UsageError(
            "under horovodrun call edl.init() at the top of the script, before a model is built or a device is used: "
            "the process is forked there"
        )


def _uses_gpu() -> bool:
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            if str(entry.readlink()).startswith(DEVICES):
                return True
    return False


def _become_stand_in(trainer: int, descriptors: list[int]) -> None:
    """Replace the original by its stand-in. Does not return."""
    try:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        paths = [str(Path(edl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        numbers = [str(number) for number in (trainer, *descriptors)]
        argv = [sys.executable, "-P", "-m", MODULE, *numbers, "--", *sys.orig_argv[1:]]
        os.execve(sys.executable, argv, environ)  # noqa: S606 - no shell is meant
    finally:  # an exception here must not run the script on in two processes
        os._exit(70)


def _heard(told: int) -> dict[str, str]:
    """Return the environment that the stand-in has found."""
    with os.fdopen(told, "rb") as pipe:
        words = pipe.read()
    try:
        answer = json.loads(words)
    except ValueError:
        raise ConfigError("the worker's stand-in ended before it could say where the job is") from None
    if reason := answer.get("error"):
        raise ConfigError(reason)
    return {str(name): str(value) for name, value in answer["environment"].items()}
