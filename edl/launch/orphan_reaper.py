"""A small process beside `edl run` that cleans up after a launcher that was killed.

The kernel kills each trainer with its launcher, but not what the trainer has started. The guard holds one end of a
pipe to which nothing is written: its end means that the launcher is dead. One that has cleaned up ends its guard first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

import edl
from edl.launch.job_processes import MARK, end_marked
from edl.launch.job_records import Folder

PATIENCE_S = 3.0  # for daemons to notice that their trainers are gone, and to say so to the leader


class OrphanReaper:
    """The guard, as its launcher holds it."""

    def __init__(self, folder: Folder, mark: str) -> None:
        environ = unmarked(os.environ)
        with (folder.logs / "guard.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "edl.launch.orphan_reaper",
                    str(folder.path),
                    mark,
                ],  # -P: not the job's folder
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environ,
                start_new_session=True,
            )

    def dismiss(self) -> None:
        """End the guard, as nothing of the launch is left."""
        self._process.kill()
        self._process.communicate()


def unmarked(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a process of edl's beside the launch, which must not count as the launch's own."""
    source = str(Path(edl.__file__).parent.parent)
    kept = {name: value for name, value in environ.items() if name != MARK}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [source, environ.get("PYTHONPATH")]))}


def main(folder: Path, mark: str) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_marked(mark, PATIENCE_S, threading.Event())
    record = Folder(folder).read()
    if record is not None and record.mark == mark:
        over = msgspec.structs.replace(record, state="failed", reason="edl run was killed", ended=time.time())
        Folder(folder).update(over)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
