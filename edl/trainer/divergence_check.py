"""Comparison of the states of a ring's workers, and the consequences of a difference (I15).

Owns: comparing, at the end of a mini-batch, and what follows for this trainer. Does not own: when it is due, which
workers are right (`edl.core.worker.divergence_finder`), what is compared (the adapters), nor whether the job ends
(`edl.core.job.leader_machine`).

One number of each member goes into one small all-reduce. Only if these differ, all members exchange all fingerprints.
In a ring whose members were equal before, training goes on while that number travels, and they look at the answer a
step later. A large state is read meanwhile, too, until its next update; if members' collectives meet by name, the
number leaves as soon as all is read, else with that update. What the script does with the state by then may be read
along: so after a difference found this way, members compare once more, in line, before it counts.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from edl import background
from edl.collectives.ring_port import Ring, of_all_members
from edl.core.worker.compute_check import ComputeVerdict
from edl.core.worker.digest import of_all
from edl.core.worker.divergence_finder import Consequence, difference, is_corrupt, outcome, told
from edl.core.worker.worker_inputs import StatesDiffer
from edl.errors import JobFailed, RingBroken
from edl.protocol.divergence_report import Divergence, Fingerprint, SameValue
from edl.trainer.framework_port import Framework
from edl.trainer.registered_state import RegisteredState
from edl.trainer.worker_shell import WorkerShell

logger = logging.getLogger("edl")

READ_EVERY: Final = 16  # steps of a pass: where passes are shorter, the state at their ends is not read

Reading: TypeAlias = Callable[[], list[Fingerprint]]  # waits until all is read


class _Teller(msgspec.Struct, frozen=True):
    """A member's report of itself, if members differ."""

    worker: str
    fingerprints: list[Fingerprint]
    is_new: bool  # it has come to a ring that trained, and has not been equal for long
    joined: int  # the step after which it has


class _Begun:
    """A comparison whose answer is on its way, or whose state is being read. Any thread may use it."""

    def __init__(self, ring: Ring, step: int, reading: Reading | None, fingerprints: list[Fingerprint]) -> None:
        self.step = step
        self.reading = reading  # beside the mini-batch
        self.fingerprints = fingerprints
        self._ring = ring
        self._turn = threading.Lock()
        self._answer: Callable[[], bool] | None = None
        self._is_vain = False

    @property
    def is_asked(self) -> bool:
        return self._answer is not None

    def ask(self) -> Callable[[], bool]:
        """Ask the ring, at the first call only. Raises RingBroken."""
        if self.reading is not None:
            self.fingerprints = self.reading()
        with self._turn:
            if self._is_vain:
                raise RingBroken("the ring of this comparison is left")
            if self._answer is None:
                self._answer = self._ring.same(of_all(self.fingerprints))
            return self._answer

    def give_up(self) -> None:
        """Ask nothing in the next ring."""
        with self._turn:
            self._is_vain = True


class DivergenceCheck:
    """Compare one trainer's state with the others'. Belongs to the training thread."""

    def __init__(self, framework: Framework, shell: WorkerShell, extras: RegisteredState) -> None:
        self._framework = framework
        self._shell = shell
        self._extras = extras
        self._names: list[str] = []  # of the ring's members, by rank, once they differed
        self._begun: _Begun | None = None
        self._told: Divergence | None = None  # nothing was made of it yet
        self.corrupt_since = 0  # the step in which a worker was first found to compute wrongly; 0: none was
        # the state after what may be the script's last step
        self._last: tuple[int, list[Fingerprint]] = (0, [])

    def rehearse(self) -> None:
        # The first comparison takes long: a newcomer makes one in its ring of one.
        self._framework.ring.same(of_all(self._fingerprints()))()

    def begin(self) -> bool:
        """Begin a comparison, on all members after the same step; `finish` takes the answer after the next one.

        Returns False if it must be made in line, as the one before has found a difference. Raises RingBroken.
        """
        if self._told is not None:
            return False
        reading = self._framework.fingerprints_begun(self._extras.compared())
        ring, known = self._framework.ring, [] if reading else self._fingerprints()
        begun = self._begun = _Begun(ring, self._shell.machine.step, reading, known)
        if reading is None:
            begun.ask()
        elif ring.pairs_by_name:  # so the answer is here by the end of the mini-batch
            background.begin(begun.ask)
        return True

    @property
    def is_asked(self) -> bool:
        """Tell whether all members ask for the answer of what is begun, whatever their scripts do now."""
        begun = self._begun
        return begun is not None and (begun.is_asked or self._framework.ring.pairs_by_name)

    def before_update(self) -> None:
        """Ask before the state that is being read changes. On the training thread while something is read, else on any.

        If the ring is broken, its next collective fails, too.
        """
        if self._begun is not None and not self._begun.is_asked:
            with contextlib.suppress(RingBroken):
                self._begun.ask()

    def finish(self, timeout_s: float) -> bool:
        """Tell whether a comparison was begun, and found all equal. Raises JobFailed, and what ends a script."""
        if (begun := self._take_begun()) is None:
            return False
        try:
            if self._waiting(begun.ask()):
                return True
            mine = begun.fingerprints
            if begun.reading is not None:
                mine = self._fingerprints()
                if self._waiting(self._framework.ring.same(of_all(mine))):
                    return True
            found = self._exchanged(mine, begun.step, persists=False)
        except RingBroken:  # which its next collective meets, too
            return False
        self._tell(found)
        self._told = found
        if not self._goes_on(found):
            self._wait_for_the_end(found, timeout_s)
        return False

    def read_last(self, passes: int) -> None:
        """Read the state, as no more data is expected: what the script does with its weights afterwards is its own.

        `passes` have ended by this step. All workers that end after it read at the same moment, also late ones, as that
        follows from both numbers alone. A script of short passes reads its state at its end instead.
        """
        step = self._shell.machine.step
        if step >= READ_EVERY * passes:
            self._last = (step, self._fingerprints())

    def last(self) -> list[Fingerprint]:
        """Return the state after the last step of a script that has ended.

        The ring is asked nothing any more: each member reports its own state, and the leader compares, however far
        apart in time their scripts end.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.give_up()
        step, found = self._last
        return found if step == self._shell.machine.step else self._fingerprints()

    def make(self, timeout_s: float) -> None:
        """Compare in line, on all members after the same step. Raises RingBroken, JobFailed, and what ends a script."""
        known, self._told = self._told, None
        if known is not None and known.generation == self._shell.machine.generation:
            self._part(known)
        found = self._difference(persists=False)
        if found is None:
            return
        heals = self._outcome(found) is Consequence.HEAL
        if known is None or not heals:
            self._tell(found)
        if heals:
            self._shell.heal(self._names.index(found.root), current=not self._differs(found))
            found = self._difference(persists=True)
            if found is None:
                return
            self._tell(found)
        if self._goes_on(found):
            self._part(found)
        self._wait_for_the_end(found, timeout_s)

    def _difference(self, *, persists: bool) -> Divergence | None:
        """Return the difference, which all members find alike."""
        mine = self._fingerprints()
        if self._waiting(self._framework.ring.same(of_all(mine))):
            return None
        return self._exchanged(mine, self._shell.machine.step, persists=persists)

    def _exchanged(self, mine: list[Fingerprint], step: int, *, persists: bool) -> Divergence:
        """Exchange fingerprints among members that differ after `step`."""
        ring, shell, machine = self._framework.ring, self._shell, self._shell.machine
        said = _Teller(shell.link.worker, mine, machine.model.is_new, machine.model.joined)
        members = [
            msgspec.msgpack.decode(one, type=_Teller) for one in of_all_members(ring, msgspec.msgpack.encode(said))
        ]
        names = self._names = [member.worker for member in members]
        found = difference(
            [one.fingerprints for one in members], [one.is_new for one in members], [one.joined for one in members]
        )
        if found is None:
            raise RuntimeError("the workers' digests differ, and nothing that they are of does")
        return Divergence(
            generation=machine.generation,
            step=step,
            equal_step=machine.unusual.equal_step,
            corrupt=is_corrupt(found, machine.unusual.checking.compute),
            first=found.first,
            differing=found.differing,
            compared=found.compared,
            workers=tuple(names[rank] for rank in found.ranks),
            root=names[found.root],
            majority=found.majority,
            newcomers=found.newcomers,
            persists=persists,
            held=tuple(SameValue(value, tuple(names[rank] for rank in ranks)) for value, ranks in found.held),
            joined=tuple(members[rank].joined for rank in found.ranks),
        )

    def judge(self, found: ComputeVerdict, timeout_s: float) -> None:
        """Act on what all members have found in the step being worked on. Raises RingBroken if some must leave, and on
        these JobFailed, and what ends a script.
        """
        shell, machine = self._shell, self._shell.machine
        # Before names are exchanged: the first to know them may be given up for it, and that breaks off the exchange.
        self._note_corrupt(machine.step + 1)
        worker = shell.link.worker
        names = [one.decode() for one in of_all_members(self._framework.ring, worker.encode())]
        ranks = found.wrong or found.suspects
        told_of = Divergence(
            generation=machine.generation,
            step=machine.step + 1,
            equal_step=machine.unusual.equal_step,
            first=f"the part of virtual worker {found.virtual}",
            differing=1,
            compared=1,
            workers=tuple(names[rank] for rank in ranks),
            root=next((name for rank, name in enumerate(names) if rank not in ranks), ""),
            majority=bool(found.wrong),
            persists=found.persists,
            corrupt=True,
            virtual=found.virtual,
        )
        self._tell(told_of)
        if not self._goes_on(told_of):
            self._wait_for_the_end(told_of, timeout_s)
        self._part(told_of)

    def _take_begun(self) -> _Begun | None:
        # If the mini-batch is void, its ring is left, and the next one's members compare anew.
        begun, self._begun = self._begun, None
        if begun is not None and self._shell.machine.void is not None:
            begun.give_up()
            return None
        return begun

    def _outcome(self, found: Divergence) -> Consequence:
        return outcome(found, self._shell.machine.unusual.checking.on_divergence)

    def _differs(self, found: Divergence) -> bool:
        return self._shell.link.worker in found.workers

    def _fingerprints(self) -> list[Fingerprint]:
        return self._framework.fingerprints(self._extras.compared())

    def _waiting(self, answer: Callable[[], bool]) -> bool:
        began = time.perf_counter_ns()
        same = answer()
        self._shell.link.page.add_waited(time.perf_counter_ns() - began)
        return same

    def _tell(self, found: Divergence) -> None:
        if found.corrupt:
            self._note_corrupt(found.step)
        self._shell.hear(StatesDiffer(found))

    def _note_corrupt(self, step: int) -> None:
        self.corrupt_since = self.corrupt_since or max(1, step)

    def _goes_on(self, found: Divergence) -> bool:
        """Tell whether this script goes on: all get the state that counts, or only others leave."""
        follows = self._outcome(found)
        return follows in {Consequence.HEAL, Consequence.TELL} or (
            follows is Consequence.PART and not self._differs(found)
        )

    def _part(self, found: Divergence) -> None:
        """Raise RingBroken if members that differ leave the ring: this worker trains on in the next one."""
        if self._outcome(found) is Consequence.PART:
            raise RingBroken(f"{', '.join(found.workers)} differed from the others, and left")

    def _wait_for_the_end(self, found: Divergence, timeout_s: float) -> None:
        # The leader ends the job, or this worker's part in it, and says why. Without a leader it ends by itself (I12).
        link, until = self._shell.link, time.monotonic() + timeout_s
        while time.monotonic() < until:
            self._shell.while_ending()
            link.wait_news(link.orders)
        raise JobFailed(told(found))
