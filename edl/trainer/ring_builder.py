"""Forming the next ring on a thread of its own, beside the ring in which the training thread works, and going there.

Owns: that thread, and that there is one at a time; the change from one ring to the next, and its time. Does not own:
when a ring is prepared, adopted or let go of (`edl.core.worker.next_ring`), nor how (`edl.collectives.ring_port`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from edl.core.worker.worker_inputs import (
    AdoptRing,
    EnterRing,
    Input,
    RingFailed,
    RingFormed,
    RingNotPrepared,
    RingPrepared,
)
from edl.errors import EdlError, RingBroken, RingFault
from edl.protocol.assignment import Assignment, Place
from edl.protocol.leader_messages import Pause
from edl.trainer.framework_port import Framework
from edl.trainer.state_handoff import StateHandoff

logger = logging.getLogger("edl")

BEGIN_S = 10.0  # between the word that a ring begins and its thread


class RingBuilder:
    """Prepare rings for one trainer. `tell` gets each result, on the thread of its ring."""

    def __init__(
        self, framework: Framework, beside: StateHandoff, tell: Callable[[RingPrepared | RingNotPrepared], object]
    ) -> None:
        self._framework = framework
        self._beside = beside
        self._tell = tell
        self._thread: threading.Thread | None = None  # the newest
        self._failure = (0, "")  # the newest that did not form, and why
        self._released = 0  # rings up to this generation are not wanted any more
        self._begun = 0  # of the newest thread
        self._turn = threading.Condition()
        self.exchange: Callable[[int, int], list[int]] | None = None  # of a worker of several processes
        self._offers: tuple[int, list[int]] = (0, [])  # of the members of that ring, by rank

    def offer_of(self, generation: int, rank: int) -> int:
        """Return where the process of that rank in the prepared ring gives its state; 0: nowhere."""
        known, offers = self._offers
        return offers[rank] if known == generation else 0

    def begin(self, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        """Begin from any thread, and return at once."""
        with self._turn:
            arguments = (place, timeout_s, all_prepare, self._thread)
            thread = threading.Thread(target=self._prepare, args=arguments, name="edl-preparing", daemon=True)
            self._begun = place.generation
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:  # this process may have no more of them
                fault: RingFault | None = RingFault.of(error)
            else:
                self._thread, fault = thread, None
            self._turn.notify_all()
        if fault is not None:
            self._tell_failed(place.generation, str(fault))

    def release(self, generation: int) -> None:
        """Release, from any thread, this ring and all before it: they will never be adopted."""
        with self._turn:
            self._released = max(self._released, generation)
        self._let_go(generation)

    def wait_formed(self, generation: int) -> None:
        """Wait until the ring that was begun last is formed, or has failed in its own time-out. Raises RingBroken.

        The thread that hears the daemon may still be on its way to `begin`.
        """
        with self._turn:
            if not self._turn.wait_for(lambda: self._begun >= generation, BEGIN_S):
                raise RingBroken(f"the ring was not begun within {BEGIN_S:g} s")
            thread = self._thread
        if thread is not None:
            thread.join()
        failed, why = self._failure
        if failed == generation:
            raise RingBroken(why)

    def _prepare(self, place: Place, timeout_s: float, all_prepare: bool, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # it was let go of, and is bounded by its own time-out (I12)
        if place.generation <= self._released:
            return
        self._form(place, timeout_s, all_prepare=all_prepare)

    def _form(self, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        try:
            self._framework.ring.prepare(place, timeout_s, all_prepare=all_prepare)
            offer = self._beside.offer(place, timeout_s) if all_prepare and place.rank == 0 else 0
            if all_prepare and self.exchange is not None:  # the leader tells of one process of each worker
                self._offers = (place.generation, self.exchange(place.generation, offer))
        except RingBroken as error:
            self._tell_failed(place.generation, str(error))
        except BaseException as error:  # the leader would wait for this member's word in vain
            self._tell_failed(place.generation, str(RingFault.of(error)))
            raise
        else:
            self._tell_stands(place.generation, offer)

    def _tell_failed(self, generation: int, why: str) -> None:
        self._failure = (generation, why)
        self._tell(RingNotPrepared(generation, why, able=self._framework.ring.prepares))

    def _tell_stands(self, generation: int, offer: int) -> None:
        """Report success, unless the ring was released just before it began to form: then release it for good."""
        if generation <= self._released:
            self._let_go(generation)
        else:
            self._tell(RingPrepared(generation, offer))

    def _let_go(self, generation: int) -> None:
        self._framework.ring.release(generation)
        self._beside.withdraw(generation)


class RingSwitch:
    """The changes of one trainer from its ring to another one, and what they cost. On the training thread."""

    def __init__(self, framework: Framework, beside: StateHandoff, builder: RingBuilder) -> None:
        self._framework, self._beside, self._builder = framework, beside, builder
        self._moments: list[float] = []  # of the change under way

    def begin(self) -> None:
        """Note that a mini-batch has ended after which this worker waits for another ring."""
        self._moments = [time.monotonic()]

    def end(self) -> None:
        """Note that a mini-batch counts in the ring that this worker has come to."""
        self._moments = []

    def enter(self, command: EnterRing | AdoptRing, timeout_s: float) -> Input:
        """Leave this ring for the assigned one: form it now, unless it stands beside this one already."""
        now = time.monotonic()
        self._moments = [self._moments[0] if self._moments else now, now]
        self._beside.drop()
        try:
            if isinstance(command, AdoptRing):
                self._adopt(command.assignment)
            else:
                self._form(command, timeout_s)
        except RingBroken as error:
            return RingFailed(str(error))
        except Exception as error:
            if isinstance(error, EdlError):
                raise
            return failed_by(error)
        self._moments.append(time.monotonic())
        return RingFormed()

    def _adopt(self, assignment: Assignment) -> None:
        place = assignment.place
        self._framework.discard()
        self._moments.append(time.monotonic())
        self._framework.ring.adopt(place.generation)
        if assignment.beside and place.rank == 0:
            self._beside.keep_offer(place.generation)
        else:
            self._beside.withdraw(place.generation)

    def _form(self, command: EnterRing, timeout_s: float) -> None:
        ring, place = self._framework.ring, command.assignment.place
        if command.begun:
            ring.abort(range(place.generation))
        else:
            if command.cut:
                ring.abort()
            ring.leave()
        self._framework.discard()
        self._moments.append(time.monotonic())
        if command.begun:
            self._builder.wait_formed(place.generation)
            ring.adopt(place.generation)
        else:
            ring.enter(place, timeout_s)

    @property
    def pause(self) -> Pause:
        """Return the cost of the change of rings that ends now, in milliseconds. `total` begins at the end of a void
        batch, and has the wait for orders in it; else it begins when the worker leaves its ring.
        """
        began, started, left, entered = self._moments
        done = time.monotonic()
        parts = (left - started, entered - left, done - entered, done - began)
        return Pause(*(round(1000 * seconds, 2) for seconds in parts))


def failed_by(error: Exception) -> RingFailed:
    """Take an error that is no broken ring for a ring that failed to form: another ring may not meet it."""
    fault = RingFault.of(error)
    logger.warning("a ring was not entered: %s", fault, exc_info=error)
    return RingFailed(str(fault))
