"""The leader is killed while a job trains and while it grows: what do the others notice of it, and who leads next?

    python -m tests.soaks.leaders [--victims daemon worker] [--phases steady ...] [--workers 3] [--session-timeout 5]
                                 [--epochs "at once"] [--coordinator etcd] [--json]

One job of `edl run` for each victim. In each phase the leader's daemon, or its daemon and its trainer at once, get a
`kill -9` in the moment that the event is heard; between two phases the job stands again and is as large as before. The
first two rows are of the same job, without a fault. The script asks for all its epochs at once; with `--epochs "one by
one"` for another one whenever one has ended (1.5 s), for which a leader must be there. Figures:

    gap         the longest time between two steps of a survivor, from the kill until the job stands, less a median one
    at          when that gap began, after the kill
    leader      from the kill until the next leader has taken over
    scaled      from the kill until the size that was asked for trains; `-`: nothing was asked for
    stands      from the kill until the job has all its workers again, each with a daemon

Exit code 1 if a job fails, does not stand again, or its audit is not clean.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import DigitsJob, EventWatch, wait_true
from edl import client
from edl.errors import EdlError
from edl.events import Kind
from edl.protocol.record import JobState, Status, WorkerStatus

QUIET, GROWING, STEADY = "no fault, steady", "no fault, growing", "steady"
MOMENTS = (
    Kind.SCALE_ASKED,
    Kind.WORKER_JOINING,
    Kind.WORKER_WARMING,
    Kind.WORKER_READY,
    Kind.SWITCH_SCHEDULED,
    Kind.SCALED,
)
PHASES = (STEADY, *(moment.value for moment in MOMENTS))
STEP_S = 0.02
EPOCHS = {"at once": ("--epochs", "1000000"), "one by one": ()}
STEPS = 60  # made between two phases
PATIENCE_S = 120.0

Found = dict[str, Any]


class Trial:
    """One job, whose leaders are killed one after the other."""

    def __init__(self, victim: str, options: argparse.Namespace, folder: Path) -> None:
        self.victim = victim
        self._workers, self._session_s = options.workers, options.session_timeout
        asked = options.epochs
        flags = ["--max-restarts", "1000", "--session-timeout", f"{self._session_s:g}"]
        flags += ["--local-coordinator", options.coordinator]
        self.job = DigitsJob("torch", folder, options.workers, STEP_S, *EPOCHS[asked], flags=flags)
        self.job.wait_training()

    def run(self, phases: list[str], kit: client.Job, watch: EventWatch) -> list[Found]:
        self._kit, self._watch = kit, watch
        found = [self._strike(phase) for phase in (QUIET, GROWING, *phases)]
        self._on(round(3 * self._session_s / STEP_S))  # what the last victim held comes after what others hold
        return found

    def _strike(self, phase: str) -> Found:
        leader = self._ready()
        began, heard = time.monotonic(), len(self._watch.heard)
        grows = phase not in (QUIET, STEADY)
        wanted = self._workers + grows
        asking = Asking(wanted)
        if grows:
            asking.start()
        moment = next((moment for moment in MOMENTS if moment.value == phase), None)
        if moment is not None and self._watch.wait_kind(moment, heard, PATIENCE_S) is None:
            raise SystemExit(f"never: {phase}\n{self.job.log()}")
        faulty = phase not in (QUIET, GROWING)
        if faulty:
            self._kill(leader)
        killed, wall, known = time.monotonic(), time.time(), len(self._watch.heard)
        if faulty:
            self._watch.wait_kind(Kind.LEADER_ELECTED, known, PATIENCE_S)
        if grows:
            asking.join(PATIENCE_S)
        stands = self._stands(wanted) and self._on()
        until = time.monotonic()
        status = self._status()
        story = self._watch.heard[heard:]
        elected = next((event for event in story if event.kind is Kind.LEADER_ELECTED and event.ts > wall), None)
        done = next((e for e in story if e.kind is Kind.SCALED and e.details["to"] == wanted and grows), None)
        print(f"{self.victim}, {phase}: {until - killed:.1f} s", file=sys.stderr, flush=True)
        return {
            "victim": self.victim,
            "phase": phase,
            "window": (began, killed, until),
            "leader_s": None if elected is None else elected.ts - wall,
            "scaled_s": None if done is None else done.ts - wall,
            "asked": asking.answer,
            "stands": stands,
            "stands_s": until - killed,
            "wanted": wanted,
            "size": 0 if status is None else status.size,
            "target": 0 if status is None else status.target,
            "void": sum(event.kind is Kind.BATCH_VOIDED for event in story),
            "lost": sum(event.kind is Kind.WORKER_LOST for event in story),
            "plans": sum(event.kind is Kind.SWITCH_SCHEDULED for event in story),
        }

    def _kill(self, leader: WorkerStatus) -> None:
        os.kill(leader.daemon_pid, signal.SIGKILL)
        if self.victim == "worker":
            os.kill(leader.pid, signal.SIGKILL)

    def _ready(self) -> WorkerStatus:
        """The job stands as large as at first, and has made some steps so; its leader."""
        with_fewer = self._status()
        if with_fewer is None or with_fewer.target != self._workers:
            self._kit.scale(self._workers)
        if not self._stands(self._workers) or not self._on():
            raise SystemExit(f"the job does not stand again: {self._status()}\n{self.job.log()}")
        status = self._kit.status()
        return next(worker for worker in status.workers if worker.id == status.leader)

    def _on(self, steps: int = STEPS) -> bool:
        """Some steps later."""
        until = self.job.newest_step() + steps
        return wait_true(lambda: self.job.newest_step() >= until, PATIENCE_S)

    def _stands(self, size: int) -> bool:
        def there() -> bool:
            if self.job.launcher.poll() is not None:
                raise SystemExit(f"the job has ended\n{self.job.log()}")
            status = self._status()
            if status is None or status.state is not JobState.RUNNING or (status.size, status.target) != (size, size):
                return False
            led = any(worker.id == status.leader for worker in status.workers)
            return led and len(status.workers) == size and all(map(_lives, status.workers))

        return wait_true(there, PATIENCE_S)

    def _status(self) -> Status | None:
        try:
            return self._kit.status()
        except EdlError:
            return None


class Asking(threading.Thread):
    """`Job.scale` beside what else happens; its answer."""

    def __init__(self, size: int) -> None:
        super().__init__(daemon=True)
        self._size = size
        self.answer = ""

    def run(self) -> None:
        try:
            with client.Job("digits") as kit:
                self.answer = repr(kit.scale(self._size))
        except EdlError as error:
            self.answer = f"{type(error).__name__}: {error}"


def _lives(worker: WorkerStatus) -> bool:
    return all(_state(pid) not in ("", "Z") for pid in (worker.pid, worker.daemon_pid))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def measured(found: Found, steps: dict[int, list[float]]) -> Found:
    """With the longest gap of a worker that made steps before the kill and after it."""
    began, killed, until = found.pop("window")
    survivors = [ends for ends in steps.values() if ends and ends[0] < began and ends[-1] > until]
    gaps = [(later - one, one) for ends in survivors for one, later in itertools.pairwise(ends)]
    median = statistics.median(gap for gap, _ in gaps)
    longest, at = max((gap, at) for gap, at in gaps if killed < at + gap and at < until)
    return {**found, "survivors": len(survivors), "gap_ms": 1000 * (longest - median), "at_s": at - killed}


def trial(victim: str, options: argparse.Namespace) -> tuple[list[Found], Found]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["EDL_HOME"] = str(folder / "home")  # where the client finds the job
        one = Trial(victim, options, folder)
        try:
            with client.Job("digits") as kit, EventWatch("digits", str(folder / "home")) as watch:
                found = one.run(options.phases, kit, watch)
            one.job.break_off()
        finally:
            one.job.launcher.terminate()  # all that it has started ends with it
            one.job.launcher.wait()
        audit, steps = {"victim": victim, **harness.audited(folder / "audit")}, one.job.ends_of_steps()
        return [measured(phase, steps) for phase in found], audit


def shown(found: Found) -> str:
    def seconds(name: str) -> str:
        return "-" if found[name] is None else f"{found[name]:.1f} s"

    scaled = "before" if (found["scaled_s"] or 0) < 0 else seconds("scaled_s")
    outcome = f"{found['size']} of {found['wanted']}" if found["stands"] else f"DOES NOT STAND, {found['size']}"
    return (
        f"{found['victim']:<7} {found['phase']:<17}  gap {found['gap_ms']:6.0f} ms at {found['at_s']:5.1f} s  "
        f"leader {seconds('leader_s'):>6}  scaled {scaled:>6}  stands {found['stands_s']:5.1f} s  {outcome}; "
        f"{found['plans']} rings planned, {found['void']} void, {found['lost']} lost  {found['asked']}"
    )


def main() -> int:
    parser = harness.arguments(__doc__)
    parser.add_argument("--victims", nargs="+", default=["daemon", "worker"], choices=["daemon", "worker"])
    parser.add_argument("--phases", nargs="+", default=list(PHASES), choices=PHASES)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--session-timeout", type=float, default=5.0)
    parser.add_argument("--epochs", default="at once", choices=EPOCHS, help="how the script asks for them")
    parser.add_argument("--coordinator", default="zookeeper", choices=["zookeeper", "etcd"])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of the ends of all that was started
    sound = True
    for victim in options.victims:
        phases, audit = trial(victim, options)
        sound = sound and all(phase["stands"] for phase in phases)
        sound = sound and not (audit["lost"] or audit["repeated"] or audit["wrong"])
        if options.json:
            print(json.dumps({"phases": phases, "audit": audit}), flush=True)
            continue
        print("\n".join(map(shown, phases)))
        print(f"  {audit['epochs']} epochs, {audit['lost']} samples lost, {audit['repeated']} repeated", flush=True)
    if not options.json:
        print("load averages: " + " ".join(f"{load:.1f}" for load in os.getloadavg()))
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
