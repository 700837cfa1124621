"""`torch_elastic.py`, in whose rings a call raises what is no broken ring.

A line of EDL_TEST_FAULTS, a file, is `CALL ERROR`: of the newcomer that takes it out of there as it begins. The file
beside it that ends in `.old` has the same for those that were there before, in rings of three: as long as it is there,
or where it says `once`, one time.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from edl.torch.torch_process import framework

FILE = Path(os.environ["EDL_TEST_FAULTS"])
OLD = FILE.with_suffix(".old")
ERRORS = {one.__name__: one for one in (ValueError, RuntimeError, MemoryError, KeyboardInterrupt)}
OF_RING = ("prepare", "adopt", "broadcast", "broadcast_begun", "largest", "same", "mean")
OF_AVERAGING = ("expect", "begin", "flush", "wait")


def mine() -> str:
    """Of this worker."""
    first, _, others = FILE.read_text().partition("\n") if FILE.exists() else ("", "", "")
    if first:
        FILE.write_text(others)
    return first


MINE = mine()
NEWCOMER = OLD.exists()  # that file is written when the first workers train


def due(call: str, size: int) -> type[BaseException] | None:
    """What this call raises now, in a ring of so many."""
    if MINE:
        return ERRORS[MINE.split()[1]] if MINE.split()[0] == call and size > 1 else None
    try:
        said = OLD.read_text().split()
    except FileNotFoundError:
        return None
    if NEWCOMER or said[0] != call or size != 3:
        return None
    if "once" in said:
        try:
            OLD.rename(OLD.with_suffix(".taken"))
        except FileNotFoundError:
            return None
    return ERRORS[said[1]]


def patch(owner: Any, call: str) -> None:
    original = getattr(owner, call)

    def faulty(self: Any, *arguments: Any, **more: Any) -> Any:
        size = arguments[0].size if call == "prepare" else framework.ring.size
        error = due(call, 2 if call == "adopt" else size)
        if error is not None:
            raise error("as the test wants it")
        return original(self, *arguments, **more)

    setattr(owner, call, faulty)


for call in OF_RING:
    patch(type(framework.ring), call)
averaging = type(framework.ring.averaging())
if hasattr(framework.ring, "_optimizers"):
    framework.ring._optimizers = 0  # that was none
for call in OF_AVERAGING:
    patch(averaging, call)
sys.argv[0] = str(Path(__file__).with_name("torch_elastic.py"))
runpy.run_path(sys.argv[0], run_name="__main__")
