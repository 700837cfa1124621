"""The parts of `edl prove`: a job that grows, shrinks and loses workers; its audit; and steps beside torchrun's.

Owns: the order of the parts, their bounds in time, and what must hold. Does not own: figures of notes
(`edl.proof.step_figures`), nor how a report looks (`edl.proof.proof_report`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from edl import __version__
from edl.launch.function_run import INTERRUPTED_WITH_PARENT
from edl.proof.measured_job import MeasuredJob, audited, edl_run
from edl.proof.paired_turns import MODELS, launches, paired_turns
from edl.proof.proof_report import Kill, Machine, PairedTurns, Proof, ProofOutcome, Resize
from edl.proof.step_figures import AFTER_STEPS, BEFORE_STEPS, NotedWorker, pause_figures, recovery_figures
from edl.proof.step_notes import compared, set_file

JOB = "proof"
BOOT_S, PATIENCE_S = 240.0, 90.0
AROUND_KILL = 30  # steps of each worker before a kill, and after the replacement has joined
EPOCHS_MORE = 3  # until the end: each worker reads of the end before it comes


class ProofPlan(msgspec.Struct, frozen=True):
    """The rounds and seconds of each part of the proof, which ends with whichever comes first."""

    workers: int
    ring: str
    device: str
    step_ms: float = 20.0
    resizes: int = 10  # there and back
    resizes_s: float = 210.0
    kills: int = 6
    kills_s: float = 150.0
    turns: int = 20
    turns_s: float = 90.0


QUICK = {"resizes": 2, "kills": 1, "turns": 3}


class UninterruptedJob(MeasuredJob):
    """A job that a terminal's Ctrl-C does not reach: this process ends it."""

    own_session = True


class ProofJob:
    """The job of which pauses, recovery and the audit are measured, in a folder of its own."""

    def __init__(self, plan: ProofPlan, folder: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        worker = [sys.executable, "-P", "-m", "edl.proof.proof_worker", str(folder), plan.device, str(plan.step_ms)]
        flags = ("--ring", plan.ring, "--max-restarts", str(plan.kills + 1), "--min-np", "1")
        command = [
            *INTERRUPTED_WITH_PARENT,
            *edl_run(plan.workers, JOB, *flags, "--audit", str(folder / "audit")),
            *worker,
        ]
        self._audit = folder / "audit"
        self._job = UninterruptedJob(folder, command, name=JOB, OMP_NUM_THREADS="1", TMPDIR=str(folder))

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """End the job's processes at the end, whatever happens."""
        try:
            yield
        finally:
            if self._job.launcher.poll() is None:
                self._job.launcher.send_signal(signal.SIGINT)
            self._job.end()

    def resizes(self) -> list[Resize]:
        """Make the job grow by a worker and shrink again, so many times."""
        few, found, began = self._plan.workers, list[Resize](), time.monotonic()
        self._job.wait(lambda: self._job.trains(few, BEFORE_STEPS), f"{few} workers train", BOOT_S)
        for number in range(self._plan.resizes):
            if time.monotonic() - began > self._plan.resizes_s:
                break
            found += [self._resize(few, few + 1), self._resize(few + 1, few)]
            there, back = found[-2:]
            told = f"{there.pause_ms:.0f} ms as the job grew, {back.pause_ms:.0f} ms as it shrank"
            self._say(f"change {number + 1} of {self._plan.resizes}: survivors paused for {told}")
        return found

    def _resize(self, before: int, after: int) -> Resize:
        job = self._job
        survivors = {pid for pid, steps in job.notes.steps().items() if steps and steps[-1]["size"] == before}
        asked = time.monotonic()
        job.edl("scale", JOB, str(after))
        job.wait(lambda: job.trains(after, AFTER_STEPS, asked), f"{after} workers train", BOOT_S)
        noted = job.notes.steps()
        figures = pause_figures([noted[pid] for pid in survivors if noted[pid][-1]["size"] == after], asked)
        return Resize(before, after, round(figures["pause"], 2), round(figures["step"], 2))

    def kills(self) -> list[Kill]:
        """Kill a worker, so many times: of each rank in turns."""
        size, found, began = self._plan.workers + 1, list[Kill](), time.monotonic()
        since = began
        self._job.edl("scale", JOB, str(size))
        for number in range(self._plan.kills):
            if found and time.monotonic() - began > self._plan.kills_s:
                break
            kill, since = self._kill(number % size, size, since)
            found.append(kill)
            told = f"{found[-1].first_ms:.0f} ms, {found[-1].steps_lost} steps lost"
            self._say(f"kill -9 {number + 1} of {self._plan.kills}: the others trained on after {told}")
        return found

    def _kill(self, rank: int, size: int, since: float) -> tuple[Kill, float]:
        """Kill the worker of that rank; return what it cost, and the moment. All rings of present members began after
        `since`.
        """
        job = self._job
        job.wait(lambda: self._train(size, since), f"{size} workers train", BOOT_S)
        victim = next(one for one in self._workers() if one.since(since) and one.since(since)[-1]["ring"][0] == rank)
        killed = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        job.wait(
            lambda: sum(bool(one.since(killed)) for one in self._workers()) >= size - 1, "the others go on", PATIENCE_S
        )
        joins = time.monotonic()
        job.wait(lambda: self._train(size, killed), f"{size} workers train again", BOOT_S)
        alive = [one for one in self._workers() if one.pid == victim.pid or one.noted["step"][-1]["at"] > killed]
        figures = recovery_figures(alive, victim.pid, killed, joins, size)
        kill = Kill(
            rank,
            first_ms=round(figures["first"], 1),
            whole_ms=round(figures["back"], 1),
            steps_lost=int(figures["again"]),
            void=int(figures["void"]),
        )
        return kill, killed

    def _workers(self) -> list[NotedWorker]:
        return [NotedWorker(pid, noted) for pid, noted in self._job.notes.read().items() if noted["step"]]

    def _train(self, size: int, since: float) -> bool:
        return sum(one.trains(size, since, AROUND_KILL) for one in self._workers()) >= size

    def finish(self) -> ProofOutcome:
        """End the job with an epoch; return what its audit and its workers' states say."""
        begun = max(note["epoch"] for note in self._job.notes.all() if note["kind"] == "step")
        set_file(self._job.folder / "epochs", str(begun + EPOCHS_MORE))
        self._job.wait(lambda: self._job.launcher.poll() is not None, "the end of the job", PATIENCE_S)
        states, samples = compared(self._job.notes.all()), audited(self._audit)
        return ProofOutcome(
            exit_code=self._job.launcher.returncode,
            trained=samples["trained"],
            lost=samples["lost"],
            repeated=samples["repeated"],
            wrong=samples["wrong"],
            states_compared=states["compared"],
            states_different=states["different"],
        )


def prove(plan: ProofPlan, folder: Path, say: Callable[[str], None]) -> Proof:
    """Carry out all parts in `folder`. Raises EdlError when a job does not come as far as it should."""
    began = time.monotonic()
    say(f"{plan.workers} workers train on {plan.device}; then the job grows and shrinks")
    job = ProofJob(plan, folder, say)
    with job.ended():
        resizes, kills = job.resizes(), job.kills()
        outcome = job.finish()
    say(f"audit: {outcome.trained:,} samples trained, {outcome.lost} lost, {outcome.repeated} repeated")
    say("the same script in turns, under torchrun and under edl torchrun")
    ways = launches(plan.workers, plan.ring)
    turns = paired_turns(ways, MODELS["mlp"], plan.turns, plan.workers, plan.device, plan.turns_s)
    written_mb = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    return Proof(
        edl=__version__,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=machine(plan.device),
        workers=plan.workers,
        ring=plan.ring,
        device=plan.device,
        step_ms=plan.step_ms,
        resizes=resizes,
        kills=kills,
        outcome=outcome,
        turns=PairedTurns(turns["edl"][1:], turns["torchrun"][1:]),  # a first turn boots what later ones have
        took_s=round(time.monotonic() - began, 1),
        written_mb=round(written_mb, 1),
    )


def machine(device: str) -> Machine:
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    gpus = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())] if device == "cuda" else []
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(memory, 1),
        gpus=gpus,
        system=f"{platform.system()} {platform.machine()}",
        kernel=platform.release(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        load=round(os.getloadavg()[0], 1),
    )
