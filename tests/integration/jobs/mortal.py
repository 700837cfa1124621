"""Death on cue: a script that imports this is killed, as if from outside, at the moment that EDL_TEST_DIE names.

Or at that of the first line of the file EDL_TEST_DEATHS, which is taken out of it: one line for each worker to come.
"""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from edl.collectives.horovod_ring import HorovodRing
from edl.core.worker.worker_inputs import BreakIteration, CopyState, EndScript, Fail
from edl.errors import RingBroken
from edl.protocol.assignment import Orders, Place
from edl.trainer.worker_shell import WorkerShell


def next_death() -> str:
    deaths = Path(os.environ.get("EDL_TEST_DEATHS", ""))
    mine, _, others = deaths.read_text().partition("\n") if deaths.is_file() else ("", "", "")
    if mine:
        deaths.write_text(others)
    return mine


MOMENT = os.environ.get("EDL_TEST_DIE") or next_death()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before_rehearsed() -> None:
    """To be called at the end of the rehearsal's mini-batch. It may be made long, for a test that wants to see it."""
    time.sleep(float(os.environ.get("EDL_TEST_REHEARSAL_S", "0")))
    if MOMENT == "rehearsing":
        die()
    if MOMENT == "ready":
        threading.Timer(0.1, die).start()  # the word is given when notify_batch_end() begins; the switch comes later


def in_step(moment: str, rank: int, step: int) -> None:
    """To be called at this moment of each step: in that which EDL_TEST_DIE_STEP names, the third worker dies of it."""
    if (moment, rank, str(step)) == (MOMENT, 2, os.environ.get("EDL_TEST_DIE_STEP")):
        die()


def _forming(form: Any) -> Any:
    """In line, or beside the ring that it sits in."""

    def dying(ring: HorovodRing, place: Place, timeout_s: float, **more: bool) -> None:
        if place.size > 1 and MOMENT == "entering":
            die()
        if place.size > 1 and MOMENT == "cut off":  # it lives, and so does its daemon
            raise RingBroken("the ring did not form: connect: no route to host")
        if place.size > 1 and MOMENT == "holding up" and _is_first():  # until the others do not want it any more
            while ring._released < place.generation:
                time.sleep(0.01)
            raise RingBroken("the ring did not form: it was aborted")
        if place.size > 1 and MOMENT == "connecting":
            threading.Timer(0.02, die).start()
        form(ring, place, timeout_s, **more)
        if place.size > 1 and MOMENT == "prepared":
            die()

    return dying


def _adopting(adopt: Any) -> Any:
    def dying(ring: HorovodRing, generation: int) -> None:
        if MOMENT == "adopting":  # a newcomer does so as soon as the switch is announced
            die()
        adopt(ring, generation)

    return dying


def _synchronizing(synchronize: Any) -> Any:
    def dying(shell: WorkerShell, command: CopyState) -> None:
        if MOMENT == "receiving the state":
            die()
        if MOMENT == "sending the state" and command.is_root and shell.machine.step and _is_first():
            die()
        synchronize(shell, command)

    return dying


def _is_first() -> bool:
    """Of all processes that share EDL_TEST_DIED, a path of nothing yet."""
    try:
        Path(os.environ["EDL_TEST_DIED"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _taking_news(take: Any) -> Any:
    """The job's coordinator dies in the moment in which a switch is announced: EDL_TEST_ZOOKEEPER has its pid. Or a
    newcomer does, once it is called to the next ring.
    """

    def killing(shell: WorkerShell, orders: Orders) -> None:
        take(shell, orders)
        planned = orders.assignment
        if MOMENT == "called" and orders.summons is not None:
            die()
        if (
            MOMENT == "announced"
            and shell.machine.generation
            and planned is not None
            and planned.after_step
            and _is_first()
        ):
            os.kill(int(Path(os.environ["EDL_TEST_ZOOKEEPER"]).read_text()), signal.SIGKILL)

    return killing


def _leaving(end: Any) -> Any:
    def dying(shell: WorkerShell, command: EndScript | Fail | BreakIteration) -> None:
        if command == EndScript("") and MOMENT == "leaving":
            die()
        end(shell, command)

    return dying


if MOMENT == "importing":
    die()
HorovodRing.enter = _forming(HorovodRing.enter)  # type: ignore[method-assign]
HorovodRing.prepare = _forming(HorovodRing.prepare)  # type: ignore[method-assign]
HorovodRing.adopt = _adopting(HorovodRing.adopt)  # type: ignore[method-assign]
WorkerShell._copy_state = _synchronizing(WorkerShell._copy_state)  # type: ignore[method-assign]
WorkerShell.take_news = _taking_news(WorkerShell.take_news)  # type: ignore[method-assign]
WorkerShell._end = _leaving(WorkerShell._end)  # type: ignore[method-assign]
