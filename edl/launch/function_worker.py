"""A worker of `edl.run`: calls the function in a folder, and leaves its result or exception there.

    python -m edl.launch.function_worker FOLDER

It imports no framework: the function does.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from edl.errors import ConfigError, JobFailed, PeerError
from edl.launch.function_files import Raised, open_call, read_call, write_raised, write_result


def main(folder: Path) -> None:
    sys.argv = ["edl.run"]
    try:
        file = open_call(folder)
    except ConfigError as error:
        sys.exit(f"edl: {error}")
    worker = os.getpid()
    try:
        call = read_call(file)
        result = call.function(*call.args, **call.kwargs)
        if os.getpid() == worker:  # a process that the function has forked may return from it, too
            write_result(folder, int(os.environ.get("EDL_LIFE", "1")), _rank(), result)
    except (Exception, SystemExit) as error:
        if not (isinstance(error, SystemExit) and error.code in {None, 0}):  # a worker that was told to leave
            _tell(folder, error)
        raise


def _tell(folder: Path, error: BaseException) -> None:
    trace = error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, trace and trace.tb_next))
    follows = isinstance(error, JobFailed | PeerError)
    write_raised(folder, Raised(at=time.time(), rank=_rank(), text=text, follows=follows))


def _rank(of_those: tuple[str, ...] = ("edl.torch.torch_process", "edl.tensorflow.tf_process")) -> int:
    """Return this worker's rank in the job's last generation; without a job, the number that its launcher gave it."""
    for name in of_those:
        trainer: Any = getattr(sys.modules.get(name), "trainer", None)
        if trainer is not None and trainer.began:
            rank: int = trainer.rank()
            return rank
    return int(os.environ.get("EDL_SLOT", "0"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
