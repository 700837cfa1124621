"""The processes of one worker's trainer, its limbs, as their daemon holds them: connection, page and status of each.

Where one has died, the others are of no use to the job, unless the other workers lose processes, too: then what each
worker has left may be needed together. So they are stopped at once (SIGSTOP), go on only to copy what they hold, and
are killed when the job needs them no more. A file beside the one by which they met, locked as long, asks what has
started them for time.

Owns: these, one status and one page of all, and holding or ending the other limbs where one has died. Does not own:
which limb counts for which fact (`edl.core.worker.limb_votes`), nor what the daemon does about it
(`edl.daemon.daemon`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from edl.core.worker.limb_votes import combined, combined_copy, ends_worker
from edl.core.worker.next_move import NEVER
from edl.host.host_processes import LIFE, halted, holding_mark, used_by, watch_exit, watch_life
from edl.protocol import trainer_messages as say
from edl.protocol.leader_messages import Phase, clipped
from edl.protocol.tally import HELD, LimbSeen
from edl.transport.pipe import Connection
from edl.transport.shared_page import SharedPage


class LimbSeat:
    """The daemon's view of a single process of its worker."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid = pid
        self.folder = folder
        self.page = SharedPage.open(folder / "page")
        self.page.attention_step, self.page.flags = NEVER, 0
        self.connection: Connection | None = None
        self.status = say.TrainerStatus()
        self.gone = False
        self.held = False  # it is stopped, or copies what it holds, as another process has died

    def signal(self, number: signal.Signals) -> None:
        if not self.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def status_in_full(self) -> say.TrainerStatus:
        """Return the newest status, with the whole paths of the files of a copy."""
        copied = self.status.copied
        if not copied.files:
            return self.status
        files = tuple(str(self.folder / name) for name in copied.files)
        return msgspec.structs.replace(self.status, copied=msgspec.structs.replace(copied, files=files))


class LimbSeats:
    """The daemon's view of all processes of its worker. The first has started it; the others come by their Hello.

    The pages of all together are one page to `edl.daemon.trainer_view`: a step counts where every limb has applied it.
    """

    def __init__(
        self, processes: int, pid: int, folder: Path, on_exit: Callable[[LimbSeat], None], meeting: Path | None = None
    ) -> None:
        """`meeting`: the file by which they have met."""
        self._processes = processes
        self._mark = None if meeting is None else holding_mark(meeting)
        self._lock: int | None = None  # descriptor of that file, as long as processes are held
        self._on_exit = on_exit
        self._seats = {0: LimbSeat(pid, folder)}
        self._watches: list[Callable[[], object]] = []

    def watch_first(self) -> None:
        """Watch the process that has started this daemon, on the running loop."""
        self._watch(self._seats[0])

    def greet(self, connection: Connection, hello: say.Hello) -> None:
        """Take a process's Hello, its first or a later one."""
        seat = self._seats.get(hello.limb)
        if seat is None:
            seat = self._seats[hello.limb] = LimbSeat(connection.pid, Path(hello.folder))
            self._watch(seat)
        seat.connection, seat.status = connection, hello.status

    def take(self, connection: Connection, status: say.TrainerStatus) -> None:
        for seat in self._seats.values():
            if seat.connection is connection:
                seat.status = status

    def hung_up(self, connection: Connection) -> None:
        for seat in self._seats.values():
            if seat.connection is connection:
                seat.connection = None  # the watch of its process tells whether it ended

    @property
    def complete(self) -> bool:
        """Tell whether all processes have said Hello to this daemon."""
        return len(self._seats) == self._processes and all(
            seat.connection is not None or seat.status.over for seat in self._seats.values()
        )

    @property
    def status(self) -> say.TrainerStatus:
        status = self._placed(combined([seat.status_in_full() for _, seat in sorted(self._seats.items())]))
        if held := [seat.status_in_full() for _, seat in sorted(self.held.items())]:
            return msgspec.structs.replace(status, copied=combined_copy([one.copied for one in held]))
        return status

    def send(self, message: msgspec.Struct) -> None:
        for seat in self._seats.values():
            if seat.connection is not None:
                seat.connection.send(message)

    def promise(self) -> None:
        """Count the orders that were sent."""
        for seat in self._seats.values():
            seat.page.flags += 1

    def attend(self, step: int) -> None:
        """Let all processes look at their orders after `step`."""
        for seat in self._seats.values():
            seat.page.attention_step = step

    def end_with(self, dead: LimbSeat, *, holds: bool) -> bool:
        """Note that a process has ended. A death ends the others at once: they would wait for it. Return False where
        the process has come to its good end, and others are on their way there.

        `holds`: if it was killed, or has crashed, the others are stopped, and held.
        """
        dead.gone, was_held, dead.held = True, dead.held, False
        others = [seat for seat in self._seats.values() if not seat.gone]
        if was_held or not ends_worker(dead.status, others=bool(others)):
            return False
        if holds and self._mark is not None and not any(seat.status.over for seat in self._seats.values()):
            self._hold(others)
        else:
            for seat in others:
                seat.signal(signal.SIGKILL)
        return True

    def _hold(self, seats: list[LimbSeat]) -> None:
        for seat in seats:
            seat.held = True
            seat.signal(signal.SIGSTOP)
        assert self._mark is not None
        with contextlib.suppress(OSError):
            self._lock = os.open(self._mark, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def held(self) -> dict[int, LimbSeat]:
        """Return the processes that are held, by their places."""
        return {limb: seat for limb, seat in self._seats.items() if seat.held}

    def copy_held(self, message: msgspec.Struct, limbs: tuple[int, ...]) -> bool:
        """Let these of the held processes copy what they hold, as `message` says, and end the others. Return False
        where some of these are not there any more.
        """
        held = self.held
        for limb, seat in held.items():
            if limb not in limbs:
                seat.held = False
                seat.signal(signal.SIGKILL)
        if not all(limb in held and held[limb].connection is not None for limb in limbs):
            return False
        for seat in self.held.values():
            if seat.connection is not None:
                seat.connection.send(message)  # it lies there as the process goes on
                seat.signal(signal.SIGCONT)
        return True

    def stop_held(self) -> None:
        """Stop what is held again: it has copied, and would go on to fail."""
        for seat in self.held.values():
            seat.signal(signal.SIGSTOP)

    def free_held(self) -> None:
        """Kill what is held: the job needs it no more. Harmless if nothing is."""
        for seat in self.held.values():
            seat.held = False
            seat.signal(signal.SIGKILL)
        if self._lock is not None and self._mark is not None:
            os.close(self._lock)
            self._lock = None
            with contextlib.suppress(OSError):
                self._mark.unlink(missing_ok=True)

    def kill(self) -> None:
        for seat in self._seats.values():
            seat.signal(signal.SIGKILL)

    def close(self) -> None:
        for cancel in self._watches:
            cancel()

    def remove_folders(self) -> None:
        for seat in self._seats.values():
            shutil.rmtree(seat.folder, ignore_errors=True)

    # ---------------------------------------------------------------------------------- the pages of all, as one page

    @property
    def step(self) -> int:
        return min(seat.page.step for seat in self._seats.values())

    @property
    def waited_ns(self) -> int:
        return self._seats[0].page.waited_ns

    @property
    def loaded_ns(self) -> int:
        return self._seats[0].page.loaded_ns

    def used(self) -> tuple[float, int]:
        """Return seconds of CPU and bytes of memory of all processes."""
        used = [used_by(seat.pid) for seat in self._seats.values()]
        return sum(cpu_s for cpu_s, _ in used), sum(memory for _, memory in used)

    def seen(self) -> tuple[LimbSeen, ...]:
        """Return the condition of each process; nothing if there is only one."""
        if self._processes == 1:
            return ()
        return tuple(
            LimbSeen(seat.pid, "gone" if seat.gone else HELD if seat.held else seat.status.phase.value, seat.page.step)
            for _, seat in sorted(self._seats.items())
        )

    def halted(self) -> str:
        """Say what the system holds a process up by."""
        return next((word for seat in self._seats.values() if (word := halted(seat.pid))), "")

    def _placed(self, status: say.TrainerStatus) -> say.TrainerStatus:
        """Let the status say where each process stands, where they stand apart: then each may wait for another."""
        places = self._places()
        if places and status.phase is Phase.FAILED:
            return msgspec.structs.replace(status, reason=clipped(f"{status.reason} (at {places})"))
        if places and status.whereabouts is not None:
            stands = msgspec.structs.replace(status.whereabouts, place=clipped(places))
            return msgspec.structs.replace(status, whereabouts=stands)
        return status

    def _places(self) -> str:
        """Say at which lines the processes stand; empty: at the same one, or some have not told where they are."""
        stand: dict[int, str] = {}
        for limb, seat in sorted(self._seats.items()):
            told = seat.status.whereabouts
            if told is not None and told.step == seat.page.step + 1:
                stand[limb] = told.place
        if len(stand) < self._processes or len(set(stand.values())) < 2:
            return ""
        return ", ".join(f"{place} in process {limb}" for limb, place in stand.items())

    def _watch(self, seat: LimbSeat) -> None:
        self._watches.append(watch_exit(seat.pid, lambda _: self._exited(seat)).cancel)
        watch_life(seat.folder / LIFE, seat.pid, lambda _: self._exited(seat))

    def _exited(self, seat: LimbSeat) -> None:
        if not seat.gone:  # its lock is released before its pidfd is ready
            self._on_exit(seat)
