"""Step times of one script under `torchrun` and under `edl torchrun`: both jobs live, and train in turns.

Turns of some steps alternate, so that what else the machine does strikes both alike. `edl.proof.paired_script` is the
script. Owns: the two jobs and the order of turns. Does not own: a verdict.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edl.errors import EdlError
from edl.launch.function_run import INTERRUPTED_WITH_PARENT
from edl.proof.measured_job import EDL, END_S, wait_true

SCRIPT = Path(__file__).with_name("paired_script.py")
PATIENCE_S = 300.0
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


class PairedModel(msgspec.Struct, frozen=True):
    width: int
    layers: int
    samples: int  # of a step, of one worker
    steps: int  # of a turn
    script: Path = SCRIPT


MODELS = {"mlp": PairedModel(256, 6, 32, 100), "large": PairedModel(2048, 6, 8, 8)}


def launches(workers: int, ring: str | None = None) -> dict[str, Sequence[str]]:
    """Return the two ways to start the script, by name."""
    nodes = ["--standalone", "--nproc-per-node", str(workers)]
    flags = ["--ring", ring] if ring else []
    return {"torchrun": [*TORCHRUN, *nodes], "edl": [*EDL, "torchrun", *nodes, *flags]}


def paired_turns(
    ways: dict[str, Sequence[str]],
    model: PairedModel,
    turns: int,
    workers: int = 2,
    device: str = "cpu",
    within_s: float = PATIENCE_S,
) -> dict[str, list[float]]:
    """Return the median step of each turn in milliseconds, by way. No turn begins after `within_s`.

    Raises EdlError when a job does not train.
    """
    found: dict[str, list[float]] = {kind: [] for kind in ways}
    with tempfile.TemporaryDirectory(prefix="edl-turns-") as name, contextlib.ExitStack() as jobs:
        folder = Path(name)
        numbers = [str(one) for one in (model.width, model.layers, model.samples, turns, model.steps)]
        environ = {**os.environ, "EDL_HOME": f"{folder}/home", "OMP_NUM_THREADS": "1", "TMPDIR": name}
        logs = {kind: folder / f"{kind}.log" for kind in ways}
        for kind, way in ways.items():
            command = [*INTERRUPTED_WITH_PARENT, *way, str(model.script), *numbers, str(folder), kind, device]
            with logs[kind].open("w") as log:
                job = subprocess.Popen(
                    command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            jobs.callback(_end, job)
        began = time.monotonic()
        for turn in range(turns):
            if time.monotonic() - began > within_s:
                break
            for kind in list(ways)[:: -1 if turn % 2 else 1]:
                (folder / f"turn {turn} {kind}").touch()
                files = [folder / f"done {turn} {kind} {rank}" for rank in range(workers)]
                if not wait_true(lambda files=files: all(one.exists() for one in files), PATIENCE_S):  # type: ignore[misc]
                    raise EdlError(
                        f"{kind}: no turn after five minutes:\n{logs[kind].read_text(errors='replace')[-2000:]}"
                    )
                found[kind].append(statistics.median(itertools.chain.from_iterable(map(_steps_ms, files))))
    return found


def _steps_ms(path: Path) -> list[float]:
    """Read the steps of one worker's turn, but for the first, which waited for the turn."""
    starts = [float(at) for at in path.read_text().split()]
    return [1000 * (later - earlier) for earlier, later in itertools.pairwise(starts)][1:]


def _end(job: subprocess.Popen[bytes]) -> None:
    if job.poll() is None:
        job.terminate()
    try:
        job.wait(END_S)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()
