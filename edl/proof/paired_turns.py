"""Step times of one script under `torchrun` and under `edl torchrun`, or under two others: both live, and take turns.

Turns of some steps alternate, so that what else the machine does strikes both alike. `edl.proof.paired_script` is the
script, `edl.proof.horovod_turns_script` that of Horovod. Owns: the two jobs, on one machine or on several hosts, and
the order of turns. Does not own: a verdict.
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
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from edl.errors import EdlError
from edl.launch.function_run import INTERRUPTED_WITH_PARENT
from edl.launch.host_slots import spread
from edl.proof.measured_job import EDL, END_S, edl_run, program
from edl.proof.proof_hosts import ProofHosts, address_name
from edl.proof.proof_job import HostsProofJob, ProofPlan

SCRIPT = Path(__file__).with_name("paired_script.py")
HOROVOD_SCRIPT = Path(__file__).with_name("horovod_turns_script.py")
PATIENCE_S = 300.0
LOOK_S = 0.05
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


class PairedModel(msgspec.Struct, frozen=True):
    width: int
    layers: int
    samples: int  # of a step, of one worker
    steps: int  # of a turn
    script: Path = SCRIPT

    def words(self, turns: int, folder: str, kind: str, device: str) -> list[str]:
        numbers = (self.width, self.layers, self.samples, turns, self.steps)
        return [*map(str, numbers), folder, kind, device]


MODELS = {"mlp": PairedModel(256, 6, 32, 100), "large": PairedModel(2048, 6, 8, 8)}


def launches(workers: int, ring: str | None = None) -> dict[str, Sequence[str]]:
    """Return the two ways to start the script, by name."""
    nodes = ["--standalone", "--nproc-per-node", str(workers)]
    flags = ["--ring", ring] if ring else []
    return {"torchrun": [*TORCHRUN, *nodes], "edl": [*EDL, "torchrun", *nodes, *flags]}


def horovod_launches(workers: int) -> dict[str, Sequence[str]]:
    """Return the two ways to start Horovod's script, by name."""
    count = ["-np", str(workers)]
    edl = edl_run(workers, "turns", "--ring", "horovod")
    return {"horovodrun": [program("horovodrun"), *count, sys.executable], "edl": [*edl, sys.executable]}


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
    with tempfile.TemporaryDirectory(prefix="edl-turns-") as name, contextlib.ExitStack() as jobs:
        folder = Path(name)
        environ = {**os.environ, "EDL_HOME": f"{folder}/home", "OMP_NUM_THREADS": "1", "TMPDIR": name}
        logs = {kind: folder / f"{kind}.log" for kind in ways}
        started: dict[str, subprocess.Popen[bytes]] = {}
        for kind, way in ways.items():
            words = model.words(turns, str(folder), kind, device)
            command = [*INTERRUPTED_WITH_PARENT, *way, str(model.script), *words]
            with logs[kind].open("w") as log:
                job = subprocess.Popen(
                    command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            jobs.callback(_end, job)
            started[kind] = job

        def begin(turn: str) -> None:
            (folder / turn).touch()

        def said(kind: str) -> str:
            return logs[kind].read_text(errors="replace")

        def look() -> None:
            for kind, job in started.items():
                if job.poll():  # one that has trained all its turns ends well
                    raise EdlError(f"{kind}: ended with {job.returncode}:\n{said(kind)[-2000:]}")

        return alternate(folder, list(ways), TurnLimits(turns, workers, within_s), begin, said, look)


class TurnLimits(msgspec.Struct, frozen=True):
    turns: int
    workers: int  # that each end a turn by a file
    within_s: float  # no turn begins later


def alternate(
    folder: Path,
    kinds: Sequence[str],
    limits: TurnLimits,
    begin: Callable[[str], None],
    log: Callable[[str], str],
    look: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Let running jobs take turns. `begin` gives one of them the word, `log` returns what its workers have said, and
    `look` is called while workers are waited for.
    """
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    began = time.monotonic()
    for turn in range(limits.turns):
        if time.monotonic() - began > limits.within_s:
            break
        for kind in kinds[:: -1 if turn % 2 else 1]:
            begin(f"turn {turn} {kind}")
            files = [folder / f"done {turn} {kind} {rank}" for rank in range(limits.workers)]
            deadline = time.monotonic() + PATIENCE_S
            while not all(one.exists() for one in files):
                look()
                if time.monotonic() > deadline:
                    raise EdlError(f"{kind}: no turn after five minutes:\n{log(kind)[-2000:]}")
                time.sleep(LOOK_S)
            found[kind].append(statistics.median(itertools.chain.from_iterable(map(_steps_ms, files))))
    return found


def _steps_ms(path: Path) -> list[float]:
    """Leave out the first step of the turn, which waited for the turn."""
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


JOB = "turns"


def host_turns(plan: ProofPlan, folder: Path, hosts: ProofHosts, model: PairedModel) -> dict[str, list[float]]:
    """Return the median step of each turn in milliseconds, by way. Raises EdlError when a job does not train."""

    def words(kind: str) -> list[str]:
        return [str(model.script), *model.words(plan.turns, "{folder}", kind, plan.device)]

    _start_torchrun(plan, hosts, words("torchrun"))
    own = folder / JOB
    own.mkdir()
    alone = msgspec.structs.replace(plan, kills=0)
    job = HostsProofJob(JOB, alone, own, hosts, [sys.executable, "-P", "-m", "edl.torchrun", *words("edl")])

    def look() -> None:
        if (code := job.launcher.poll()) is not None:
            raise EdlError(f"the job of the comparison ended with exit code {code}:\n{job.log()}")
        job.look()

    with job.ended():
        limits = TurnLimits(plan.turns, plan.workers, plan.turns_s)
        return alternate(folder, ["torchrun", "edl"], limits, hosts.put, lambda _: job.log(), look)


def _start_torchrun(plan: ProofPlan, hosts: ProofHosts, words: list[str]) -> None:
    used = list(spread(plan.workers, [link.host for link in hosts.links]))
    first = hosts.links[0]
    for rank, (host, link) in enumerate(zip(used, hosts.links, strict=False)):
        nodes = ["--nnodes", str(len(used)), "--node-rank", str(rank), "--nproc-per-node", str(host.slots)]
        place = ["--master-addr", address_name(first.host), "--master-port", str(first.port)]
        link.start([*TORCHRUN, *nodes, *place, *words], {"OMP_NUM_THREADS": "1"})
