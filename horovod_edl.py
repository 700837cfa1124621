"""The way in from the command line, kept outside the package `edl` on purpose.

Another distribution, a parser of edit decision lists called `edl`, installs a package of the same name. Where both are
there, `import edl` may find the other one, and then nothing inside our package is in a position to say so.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

HELD_BACK = (signal.SIGTERM, signal.SIGHUP)


def foreign_package() -> str | None:
    """What `import edl` finds if it is not ours: one line with the remedy."""
    try:
        found = importlib.import_module("edl")
        if getattr(found, "__distribution__", None) == "horovod-edl":
            return None
    except ImportError:  # the other one fails thus when what it needs itself is missing
        pass
    spec = importlib.util.find_spec("edl")
    if spec is None:
        return "`import edl` finds nothing. Remedy: install horovod-edl again with --force-reinstall."
    place = spec.origin or ", ".join(spec.submodule_search_locations or ())
    return (
        f"`import edl` finds another package, {place}, and not horovod-edl. Remedy: `pip uninstall edl`, then install "
        "horovod-edl again with --force-reinstall; if that file or folder is your own, give it another name."
    )


def main() -> int:
    """The console script `edl`."""
    runs = sys.argv[1:2] in (["run"], ["torchrun"])
    if runs and sys.platform != "linux":
        print(
            f"edl: `edl {sys.argv[1]}` needs Linux, and this is {sys.platform}: start it in a container or on a host "
            "of Linux",
            file=sys.stderr,
        )
        return 2
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, as in `edl run &`
    if heeded:
        signal.signal(signal.SIGINT, _interrupted)
    if runs:  # `edl.cli.run` lets them through, once it is known what they mean
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        complaint = foreign_package()
        if complaint:
            print(f"edl: {complaint}", file=sys.stderr)
            return 2
        from edl.cli import main as command_line

        return command_line()
    finally:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    """Ctrl-C before anything was started. A KeyboardInterrupt could get lost: imports swallow it in their callbacks."""
    os.write(2, b"edl: interrupted\n")
    os._exit(1)
