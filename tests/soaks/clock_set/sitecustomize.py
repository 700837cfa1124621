"""The wall clock of a process, as a benchmark has set it: Python runs this file first where its folder is on the path.

EDL_ variables do not reach the processes of a cluster, so the one that counts here has another name: CLOCK_SET is a
folder. A file in it says how many seconds ahead the clock is of the process that it is named after, and the file
`machine` says it for all others. `python -m edl.scheduler scheduler 1` is the process scheduler-1.
"""

from __future__ import annotations

import os
import sys
import time

FOLDER = os.environ.get("CLOCK_SET", "")
OWN = "-".join(" ".join(sys.orig_argv).partition(" -m edl.scheduler ")[2].split()) or "machine"
true_time = time.time


def set_time() -> float:
    for path in (f"{FOLDER}/{OWN}", f"{FOLDER}/machine"):
        try:
            with open(path, encoding="ascii") as file:  # noqa: PTH123 - nothing else is imported
                return true_time() + float(file.read())
        except OSError:
            continue
    return true_time()


if FOLDER:
    time.time = set_time
