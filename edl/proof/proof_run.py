"""The parts of `edl prove`: a job that grows, shrinks and loses workers; its audit; and steps beside torchrun's.

Owns: the order of the parts, their bounds in time, and what must hold. Does not own: figures of notes
(`edl.proof.step_figures`), nor how a report looks (`edl.proof.proof_report`).
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from edl import __version__
from edl.facts import counted
from edl.proof.measured_job import audited, program
from edl.proof.paired_turns import HOROVOD_SCRIPT, MODELS, horovod_launches, host_turns, launches, paired_turns
from edl.proof.proof_hosts import ProofHosts
from edl.proof.proof_job import BOOT_S, PATIENCE_S, HostsProofJob, LocalProofJob, ProofJob, ProofPlan
from edl.proof.proof_report import HorovodTurns, Kill, PairedTurns, Proof, ProofOutcome, Resize, machine
from edl.proof.step_figures import AFTER_STEPS, BEFORE_STEPS, NotedWorker, compared, pause_figures, recovery_figures

JOB = "proof"
AROUND_KILL = 30  # steps of each worker before a kill, and after the replacement has joined
EPOCHS_MORE = 3  # until the end: each worker reads of the end before it comes
QUICK = {"resizes": 2, "kills": 1, "turns": 3}
HOROVOD_SHARE = 2  # so many times fewer turns beside Horovod than beside torchrun


class Trial:
    def __init__(self, job: ProofJob, plan: ProofPlan, say: Callable[[str], None]) -> None:
        self._job, self._plan, self._say = job, plan, say

    def resizes(self) -> list[Resize]:
        """Make the job grow by a worker and shrink again, as often as the plan says."""
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
        job.resize(after)
        job.wait(lambda: job.trains(after, AFTER_STEPS, asked), f"{after} workers train", BOOT_S)
        noted = job.notes.steps()
        figures = pause_figures([noted[pid] for pid in survivors if noted[pid][-1]["size"] == after], asked)
        return Resize(before, after, round(figures["pause"], 2), round(figures["step"], 2))

    def kills(self) -> list[Kill]:
        """Kill as many workers as the plan says, of each rank in turns."""
        size, found, began = self._plan.workers + 1, list[Kill](), time.monotonic()
        since = began
        self._job.resize(size)
        for number in range(self._plan.kills):
            if found and time.monotonic() - began > self._plan.kills_s:
                break
            kill, since = self._kill(number % size, size, since)
            found.append(kill)
            told = f"{found[-1].first_ms:.0f} ms, {found[-1].steps_lost} steps lost"
            self._say(f"kill -9 {number + 1} of {self._plan.kills}: the others trained on after {told}")
        return found

    def _kill(self, rank: int, size: int, since: float) -> tuple[Kill, float]:
        """Return what the kill cost, and its moment. All rings of present members began after `since`."""
        job = self._job
        job.wait(lambda: self._train(size, since), f"{size} workers train", BOOT_S)
        victim = next(one for one in self._workers() if one.since(since) and one.since(since)[-1]["ring"][0] == rank)
        killed = job.kill(victim.pid)
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
        self._job.put("epochs", str(begun + EPOCHS_MORE))
        code = self._job.finished()
        states, samples = compared(self._job.notes.all()), audited(self._job.folder / "audit")
        return ProofOutcome(
            exit_code=code,
            trained=samples["trained"],
            lost=samples["lost"],
            repeated=samples["repeated"],
            wrong=samples["wrong"],
            states_compared=states["compared"],
            states_different=states["different"],
        )


def prove(plan: ProofPlan, folder: Path, say: Callable[[str], None], hosts: ProofHosts | None = None) -> Proof:
    """Carry out all parts in `folder`, here or on `hosts`. Raises EdlError when a job does not come as far as it
    should.
    """
    began = time.monotonic()
    where = counted(len(hosts.links), "host") if hosts else "this machine"
    say(f"{plan.workers} workers train on {plan.device} of {where}; then the job grows and shrinks")
    job = _begun(plan, folder, hosts)
    with job.ended():
        trial = Trial(job, plan, say)
        resizes, kills = trial.resizes(), trial.kills()
        outcome = trial.finish()
    say(f"audit: {outcome.trained:,} samples trained, {outcome.lost} lost, {outcome.repeated} repeated")
    say("the same script in turns, under torchrun and under edl torchrun")
    turns = _turns(plan, folder, hosts)
    beside = _horovod_turns(plan, say) if hosts is None else None
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if hosts is not None:
        hosts.sync()
        written += hosts.written
    told = hosts.told() if hosts else []
    return Proof(
        edl=__version__,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=told[0].machine if told else machine(plan.device),
        workers=plan.workers,
        ring=plan.ring,
        device=plan.device,
        step_ms=plan.step_ms,
        resizes=resizes,
        kills=kills,
        outcome=outcome,
        turns=PairedTurns(turns["edl"][1:], turns["torchrun"][1:]),  # a first turn boots what later ones have
        took_s=round(time.monotonic() - began, 1),
        written_mb=round(written / 1e6, 1),
        horovod=beside,
        hosts=told,
    )


def _begun(plan: ProofPlan, folder: Path, hosts: ProofHosts | None) -> ProofJob:
    worker = [sys.executable, "-P", "-m", "edl.proof.proof_worker", "{folder}", plan.device, str(plan.step_ms)]
    if hosts is None:
        return LocalProofJob(JOB, plan, folder, worker)
    return HostsProofJob(JOB, plan, folder, hosts, [*worker, "{clock}"])


def _turns(plan: ProofPlan, folder: Path, hosts: ProofHosts | None) -> dict[str, list[float]]:
    if hosts is not None:
        return host_turns(plan, folder, hosts, MODELS["mlp"])
    ways = launches(plan.workers, plan.ring)
    return paired_turns(ways, MODELS["mlp"], plan.turns, plan.workers, plan.device, plan.turns_s)


def _horovod_turns(plan: ProofPlan, say: Callable[[str], None]) -> HorovodTurns | None:
    """Compare with Horovod's own optimizer, if Horovod is installed; in fewer turns."""
    if importlib.util.find_spec("horovod") is None or not Path(program("horovodrun")).exists():
        return None
    say("steps of Horovod in turns, under horovodrun and under edl run --ring horovod")
    model = msgspec.structs.replace(MODELS["mlp"], script=HOROVOD_SCRIPT)
    few = max(2, plan.turns // HOROVOD_SHARE)
    ways = horovod_launches(plan.workers)
    turns = paired_turns(ways, model, few, plan.workers, plan.device, plan.turns_s / HOROVOD_SHARE)
    return HorovodTurns(turns["edl"][1:], turns["horovodrun"][1:])
