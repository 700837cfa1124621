"""The clock of a trainer: it bounds each wait in a ring by the step time-out, and reports a script that hangs.

A thread of its own looks at the ring now and then, so that a usual step costs nothing. Where nothing has moved for a
step time-out that this worker waits for, that thread cuts the ring: this worker and the others get RingBroken. In
another trainer the same thread says where its script stands, as it may be the one that all wait for.

Owns: that thread, how long is too long, and where a script stands. Does not own: what has moved
(`edl.collectives.ring_port`), what follows (`edl.trainer.worker_shell`), nor which worker is lost
(`edl.core.job.deadlines`).
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

import edl
from edl.collectives.ring_port import Ring, RingWaitTimes
from edl.core.job.deadlines import Deadlines
from edl.core.worker.worker_inputs import ScriptStands
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import TrainerState
from edl.protocol.leader_messages import ScriptPlace, clipped
from edl.trainer.ring_waits import RingWait
from edl.trainer.worker_shell import WorkerShell

LONGEST_LOOK_S: Final = 0.25
LOOKS: Final = 16  # in a step time-out, at least
TELL_AGAIN: Final = 8  # times in a step time-out, at most
SHORTEST_SETTLED_S: Final = 0.2
LIBRARIES: Final = tuple(
    {
        str(Path(edl.__file__).parent),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)


class RingWatch:
    """Watch the ring and the script of one trainer. `begin` and `end` belong to the training thread."""

    def __init__(self, shell: WorkerShell) -> None:
        self._shell = shell
        self._over = threading.Event()
        self._patience = RingWaitTimes()
        self._working = (0, 0)  # the generation and the step of which `_since` tells
        self._since = 0.0
        self._told: ScriptPlace | None = None
        self._told_at = 0.0
        self._in_vain = False  # this worker has waited in its ring for a step time-out
        self._over_since: float | None = None  # of the wait that was told of; None: it goes on, or there is none

    def begin(self, ring: Ring) -> None:
        threading.Thread(target=self._run, args=(ring,), name="edl-watching", daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def _run(self, ring: Ring) -> None:
        look_s = min(LONGEST_LOOK_S, self._shell.step_timeout_s / LOOKS)
        while not self._over.wait(look_s):
            now = time.monotonic()
            self.look_at_ring(ring, now)
            self.look_at_script(now)

    # -------------------------------------------------------------------------------------------------- the ring

    def look_at_ring(self, ring: Ring, now: float) -> None:
        """Give up the ring if this worker has waited in it for longer than a step may take."""
        shell, place = self._shell, ring.place
        generation = 0 if place is None or place.size == 1 or waits_for_survivors(shell.machine) else place.generation
        pulse = ring.pulse() if generation else None
        waited_s = self._patience.look((generation, shell.machine.step), pulse, now)
        self._in_vain = pulse is not None and waited_s >= shell.step_timeout_s
        if pulse is None or (generation == shell.waits.newest.generation and shell.waits.newest.waited_s):
            return  # nothing is waited for; or that was given up, and who waits there is about to find it
        if waited_s >= self._bound_s():
            shell.waits.give_up(RingWait(generation, ring.awaits(), round(waited_s, 1)))
        else:
            shell.waits.newest = RingWait(generation, ring.awaits() if waited_s >= self._settled_s() else "")

    def _settled_s(self) -> float:
        """Return the seconds after which a wait counts as one that is not about to end."""
        return max(SHORTEST_SETTLED_S, self._shell.step_timeout_s / 32)

    def _bound_s(self) -> float:
        """Return the seconds after which a wait is in vain.

        Before the first step of a job it is a newcomer's boot: scripts trace and compile then, and one worker may fetch
        the data for all.
        """
        timeout_s = self._shell.step_timeout_s
        return timeout_s if self._shell.machine.step else Deadlines.of(timeout_s).boot_s

    # ------------------------------------------------------------------------------------------------ the script

    def look_at_script(self, now: float) -> None:
        """Tell the daemon where the script stands and what it awaits, once a step has taken half of its time-out."""
        machine, timeout_s = self._shell.machine, self._shell.step_timeout_s
        working = (machine.generation, machine.step + 1)
        if working != self._working or machine.state is not TrainerState.TRAINING or machine.failure:
            self._working, self._since, self._told_at = working, now, 0.0
            return
        awaited = self._shell.waits.newest
        awaits = awaited.what if awaited.generation == machine.generation else ""
        is_news = self._is_over(awaits, now) or now - self._told_at >= timeout_s / TELL_AGAIN
        if now - self._since < timeout_s / 2 or not is_news:
            return
        frame = sys._current_frames().get(self._shell.thread)
        if frame is None:
            return
        found = ScriptPlace(working[1], clipped(place_of(frame)), machine.generation, clipped(awaits), self._in_vain)
        self._told_at = now
        if found != self._told:
            self._told = found
            self._shell.hear(ScriptStands(found))

    def _is_over(self, awaits: str, now: float) -> bool:
        """Tell whether the reported wait has ended, and without an error, which the script would have by now.

        The leader must not take it for one that goes on: others may settle into the next wait meanwhile.
        """
        told = self._told
        if told is None or not told.awaits or (told.awaits == awaits and self._in_vain >= told.in_vain):
            self._over_since = None
            return False
        self._over_since = now if self._over_since is None else self._over_since
        return now - self._over_since >= self._settled_s()


def waits_for_survivors(machine: WorkerMachine) -> bool:
    """Tell whether this worker is a newcomer that waits in a ring that stands beside the one that trains.

    Its members come after a step that may lie far ahead. The leader finds a member that hangs meanwhile, and gives up
    both rings.
    """
    assignment = machine.assignment
    return not machine.generation and assignment is not None and assignment.prepared


def place_of(frame: FrameType) -> str:
    """Say where a thread is, by its innermost `frame`: the innermost line of the script, or of a library's thread."""
    own: FrameType | None = frame
    while own is not None and own.f_code.co_filename.startswith((*LIBRARIES, "<frozen", "<string>")):
        own = own.f_back
    found = frame if own is None else own
    return f"{Path(found.f_code.co_filename).name}:{found.f_lineno} ({found.f_code.co_qualname})"
