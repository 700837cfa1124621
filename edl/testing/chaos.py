"""Faults on a real job of this machine: planned by step, or at random from a seed. docs/chaos.md.

    from edl.testing.chaos import At, Chaos, Fault, What

    with Chaos("mnist", seed=1) as chaos:
        chaos.follow([At(40, Fault(What.KILL_TRAINER, "leader")), At(80, Fault(What.FREEZE_DAEMON, "rank 1", 3.0))])
        chaos.rage(60.0)

or, beside a job that runs: `python -m edl.testing.chaos mnist --seconds 60`.

Owns: choosing a victim, striking it, thawing what was frozen. Does not own: whether the job took it well: its audit
says that (`edl data verify`, `edl.testing.fixtures`). Acts on processes of this machine and of this user only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from edl import client
from edl.errors import EdlError, UsageError
from edl.launch.job_records import find
from edl.protocol.record import OVER, Status, WorkerState, WorkerStatus

LOOK_S = 0.02
MEANWHILE_S = 0.5
SERVERS = (  # what the command lines of ZooKeeper, etcd and the embedded coordinator have
    b"org.apache.zookeeper",
    b"--listen-client-urls",
    b"edl.coordination.embedded",
)
SITTING = (WorkerState.TRAINING, WorkerState.SWITCHING)


class What(StrEnum):
    """The faults that a job, or a part of it, is given.

    >>> What("kill trainer") is What.KILL_TRAINER
    True
    """

    KILL_TRAINER = "kill trainer"  # -9; its daemon tells
    KILL_DAEMON = "kill daemon"  # its trainer starts another
    KILL_WORKER = "kill worker"  # both at once: another daemon of this machine tells, or the session's end
    FREEZE_TRAINER = "freeze trainer"
    FREEZE_DAEMON = "freeze daemon"
    FREEZE_WORKER = "freeze worker"
    LEAVE = "leave"  # SIGTERM
    JOIN = "join"  # one more worker is asked for: `edl run` starts it
    KILL_COORDINATOR = "kill coordinator"  # the ZooKeeper or etcd of `edl run`, which starts it anew
    FREEZE_COORDINATOR = "freeze coordinator"


OF_THE_JOB = (What.JOIN, What.KILL_COORDINATOR, What.FREEZE_COORDINATOR)
FREEZING = (What.FREEZE_TRAINER, What.FREEZE_DAEMON, What.FREEZE_WORKER, What.FREEZE_COORDINATOR)
# A daemon that is frozen for long loses its session, and its trainer the seat. Of one that is killed there is another.
COSTS_A_TRAINER = (
    *(what for what in FREEZING if what is not What.FREEZE_COORDINATOR),
    What.KILL_TRAINER,
    What.KILL_WORKER,
    What.LEAVE,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inflict: on `any`, the `leader`, a `follower`, a `newcomer`, `rank N`, or a worker by its id.

    >>> str(Fault(What.KILL_TRAINER, "leader"))
    'kill trainer of leader'
    """

    what: What
    who: str = "any"
    lasts_s: float = 1.0  # of a frozen process: then it goes on

    def __str__(self) -> str:
        of = "" if self.what in OF_THE_JOB else f" of {self.who}"
        return f"{self.what.value}{of}{f' for {self.lasts_s:.1f} s' if self.what in FREEZING else ''}"


@dataclass(frozen=True, slots=True)
class At:
    """A fault that strikes once the job has come to a step.

    >>> At(step=100, fault=Fault(What.KILL_TRAINER)).step
    100
    """

    step: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that has struck: when, at which step, and which processes.

    >>> Struck(0.0, 7, Fault(What.KILL_TRAINER), "w1", (4711,)).pids
    (4711,)
    """

    ts: float
    step: int
    fault: Fault
    worker: str  # empty where it was none
    pids: tuple[int, ...]

    def __str__(self) -> str:
        pids = ", ".join(map(str, self.pids))
        return (
            f"step {self.step}: {self.fault}{f' ({self.worker})' if self.worker else ''}{f', {pids}' if pids else ''}"
        )


@dataclass(frozen=True, slots=True)
class Rage:
    """Faults that strike at random, and their bounds.

    >>> Rage(every_s=(1.0, 2.0), fewest=1).every_s
    (1.0, 2.0)
    """

    faults: tuple[What, ...] = tuple(What)
    every_s: tuple[float, float] = (5.0, 10.0)
    freeze_s: tuple[float, float] = (0.3, 10.0)
    fewest: int = 2  # trainers that are alive and not frozen, before one of them is struck
    most: int = 4  # workers asked for


class Chaos:
    """Strike one job with faults. As a context, thaw at its end what is frozen.

    >>> with Chaos("mnist", seed=1) as chaos:
    ...     struck = chaos.inflict(Fault(What.KILL_TRAINER))
    >>> struck is None or len(struck.pids)  # None: nothing could be struck just now
    1
    """

    def __init__(self, job: str, *, seed: int = 0, say: Callable[[str], object] | None = None) -> None:
        self.struck: list[Struck] = []
        self._job = client.Job(job)
        self._home = Path(os.environ.get("EDL_HOME") or "~/.edl").expanduser()
        self._random = random.Random(seed)  # noqa: S311 - repeatable is the point
        self._say = say
        self._frozen: dict[int, threading.Timer] = {}  # thawed in time, whatever this thread waits for
        self._gone: set[int] = set()  # whom we have ended: their job may not know it yet

    def __enter__(self) -> Chaos:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw()
        self._job.close()

    # ------------------------------------------------------------------------------------------------------ striking

    def inflict(self, fault: Fault) -> Struck | None:
        """Inflict the fault now. Return None when there is no process to be struck, or no longer."""
        status = self.status()
        if status is None:
            return None
        worker = None if fault.what in OF_THE_JOB else self._victim(fault, status)
        if worker is None and fault.what not in OF_THE_JOB:
            return None
        pids = self._strike(fault, worker, status)
        if pids is None:
            return None
        struck = Struck(time.time(), status.step, fault, worker.id if worker else "", pids)
        self.struck.append(struck)
        if self._say is not None:
            self._say(str(struck))
        return struck

    def follow(self, plan: Sequence[At]) -> list[Struck]:
        """Inflict each fault of `plan` at its step, in order. Return after the last, or when the job is over."""
        begun = len(self.struck)
        for at in sorted(plan, key=lambda at: at.step):
            if not self.wait_step(at.step):
                break
            self.inflict(at.fault)
        return self.struck[begun:]

    def rage(self, seconds: float, how: Rage = Rage(), meanwhile: Callable[[], object] = lambda: None) -> list[Struck]:
        """Inflict faults at random for so long, or until the job is over.

        `meanwhile` is called twice a second between them, and ends it by what it raises.
        """
        begun, until = len(self.struck), time.monotonic() + seconds
        while time.monotonic() < until:
            due = min(until, time.monotonic() + self._random.uniform(*how.every_s))
            while (left_s := due - time.monotonic()) > 0:
                self.wait(min(left_s, MEANWHILE_S))
                meanwhile()
            status = self.status()
            if status is not None and status.state in OVER:
                break
            if time.monotonic() < until:
                self.strike(how)
        return self.struck[begun:]

    def strike(self, how: Rage = Rage()) -> Struck | None:
        """Inflict a random fault now. Return None when the job cannot take any, or its status is not known."""
        status = self.status()
        fault = None if status is None or status.state in OVER else self._draw(how, status)
        return None if fault is None else self.inflict(fault)

    def wait(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def wait_step(self, step: int) -> bool:
        """Wait until the job has come to this step. Return False when it is over before that."""
        while True:
            status = self.status()
            if status is not None and (status.step >= step or status.state in OVER):
                return status.step >= step
            self.wait(LOOK_S)

    def thaw(self) -> None:
        """Let all frozen processes go on."""
        for pid, timer in list(self._frozen.items()):
            timer.cancel()
            self._thaw(pid)

    def status(self) -> Status | None:
        """Return the job's status; None while it is not known."""
        try:
            return self._job.status()
        except EdlError:
            return None

    # --------------------------------------------------------------------------------------------------- small parts

    def _victim(self, fault: Fault, status: Status) -> WorkerStatus | None:
        here = [worker for worker in status.workers if worker.host == socket.gethostname()]
        who, _, number = fault.who.partition(" ")
        match who:
            case "any":
                found = [worker for worker in here if worker.rank is not None]
            case "leader":
                found = [worker for worker in here if worker.id == status.leader]
            case "follower":
                found = [worker for worker in here if worker.rank is not None and worker.id != status.leader]
            case "newcomer":
                found = [worker for worker in here if worker.rank is None]
            case "rank" if number.isdecimal():
                found = [worker for worker in here if worker.rank == int(number)]
            case _:
                found = [worker for worker in here if worker.id == fault.who]
        return self._random.choice(sorted(found, key=lambda worker: worker.id)) if found else None

    def _strike(self, fault: Fault, worker: WorkerStatus | None, status: Status) -> tuple[int, ...] | None:
        if fault.what is What.JOIN:
            with contextlib.suppress(EdlError):
                self._job.scale(status.target + 1)
                return ()
            return None
        pids = self._coordinator() if worker is None else _processes(fault.what, worker)
        if fault.what is What.LEAVE:
            signum = signal.SIGTERM
        else:
            signum = signal.SIGSTOP if fault.what in FREEZING else signal.SIGKILL
        reached = tuple(pid for pid in pids if _send(pid, signum))
        if signum is signal.SIGSTOP:
            for pid in reached:
                self._freeze(pid, fault.lasts_s)
        else:
            self._gone |= set(reached)
        return reached or None

    def _coordinator(self) -> tuple[int, ...]:
        """Return the coordinator that `edl run` has started for this job; none where the job has another."""
        folder = find(self._home, self._job.name)
        record = None if folder is None else folder.read()
        if record is None or not record.own_coordinator:
            return ()
        return tuple(
            pid for pid in _children(record.launcher_pid) if any(mark in _command_line(pid) for mark in SERVERS)
        )

    def _freeze(self, pid: int, seconds: float) -> None:
        if (before := self._frozen.get(pid)) is not None:
            before.cancel()
        timer = threading.Timer(seconds, self._thaw, (pid,))
        timer.daemon = True
        self._frozen[pid] = timer
        timer.start()

    def _thaw(self, pid: int) -> None:
        if self._frozen.pop(pid, None) is not None:
            _send(pid, signal.SIGCONT)

    def _draw(self, how: Rage, status: Status) -> Fault | None:
        """Draw a fault that the job can take, if its promises hold: a worker that trains is left."""
        hit = set(self._frozen) | self._gone
        able = [
            w for w in status.workers if w.state in SITTING and w.rank is not None and not hit & {w.pid, w.daemon_pid}
        ]
        alive = sum(_command_line(worker.pid) != b"" for worker in able)
        fair = [what for what in how.faults if what not in COSTS_A_TRAINER or alive > how.fewest]
        fair = [what for what in fair if what is not What.JOIN or status.target < how.most]
        fair = [what for what in fair if what is not What.LEAVE or status.target > how.fewest]
        if not fair:
            return None
        if status.target <= how.fewest and What.JOIN in fair:
            return Fault(What.JOIN)
        return Fault(self._random.choice(fair), lasts_s=self._random.uniform(*how.freeze_s))


def _processes(what: What, worker: WorkerStatus) -> tuple[int, ...]:
    match what:
        case What.KILL_DAEMON | What.FREEZE_DAEMON:
            return (worker.daemon_pid,)
        case What.KILL_WORKER | What.FREEZE_WORKER:
            return (worker.daemon_pid, worker.pid)
        case _:
            return (worker.pid,)


def _send(pid: int, signum: signal.Signals) -> bool:
    """Send a signal. Return False when the process is gone, as it may be at any time."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry.name))
    return found


def _command_line(pid: int) -> bytes:
    """Return the command line; empty for a process that is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@dataclass
class _Arguments:
    job: str = ""
    seconds: float = 60.0
    seed: int = 0
    every: list[float] = field(default_factory=lambda: [5.0, 10.0])
    faults: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m edl.testing.chaos", description="Strike a job of this machine with faults at random."
    )
    parser.add_argument("job", help="name of the job")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of what strikes whom (default 0)")
    parser.add_argument("--every", type=float, nargs=2, default=[5.0, 10.0], metavar="S", help="seconds (default 5 10)")
    names = [what.value for what in What]
    parser.add_argument("--faults", nargs="+", default=[], choices=names, metavar="FAULT", help=", ".join(names))
    given = parser.parse_args(namespace=_Arguments())
    faults = tuple(map(What, given.faults)) or tuple(What)
    try:
        with Chaos(given.job, seed=given.seed, say=print) as chaos:
            chaos.rage(given.seconds, Rage(faults=faults, every_s=(given.every[0], given.every[1])))
    except (UsageError, EdlError) as error:
        sys.stderr.write(f"edl: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
