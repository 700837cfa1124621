"""Where a trainer sits: its ring, the step it has committed, its share of the data; and how it changes all three.

Owns: leaving and entering rings, agreeing on the newest state, weights. Does not own: when (`edl.core.seat` decides
from the leader's orders, `edl.trainer.trainer` asks at the end of a mini-batch), nor the talk (`edl.trainer.link`).
Belongs to the training thread, except for `hear`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator

from edl.core.agreement import Beginning, begin, has_state
from edl.core.divergence import next_check
from edl.core.seat import NEVER, Enter, Leave, Move, Seat, Stop, given_up, next_move, replaced
from edl.errors import JobFailed, RingBroken
from edl.protocol import link as say
from edl.protocol.assignment import Assignment, Orders
from edl.protocol.data import DataSpec
from edl.protocol.divergence import Checking, Divergence
from edl.protocol.messages import Pause
from edl.protocol.ring import solo
from edl.trainer.data.audit import Audit
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.endings import Leaving
from edl.trainer.extras import Extras
from edl.trainer.framework import Framework
from edl.trainer.kept import Kept
from edl.trainer.link import DaemonLink
from edl.transport.page import Page


class Sitting:
    """One trainer's seat in the job."""

    def __init__(self, framework: Framework, feed: SharedLeases, extras: Extras) -> None:
        self.rank, self.size, self.local_rank = 0, 1, 0
        self.generation = 0
        self.even_until = NEVER  # the weight holds up to this step
        self.weightless = False  # nobody has samples in the mini-batch being worked on
        self.rate_until = NEVER  # learning rates are multiplied by the same up to this step
        self.check_at = NEVER  # the step after which this ring compares its members' states
        self.equal_step = 0  # the newest after which it did, and found them equal
        self.checking = Checking()
        self.diverged: Divergence | None = None  # the newest difference found
        self.void: BaseException | None = None  # why the mini-batch in flight is void
        self.count = Page.unshared().count()  # in the daemon's page, once there is one
        self.opened: DataSpec | None = None
        self.rehearsed = False
        self.models_may_differ = False  # the first generation has begun, and nobody's model was sent yet
        self.ending_batch = False  # the training thread is where rings change
        self.restarts = False  # a broken ring makes the script leave its iteration over the data, and begin another
        self.failure = ""  # why the script ends, when it does not end well
        self.audit = Audit()
        self._framework = framework
        self._feed = feed
        self._extras = extras
        self._link: DaemonLink | None = None
        self._leases_of = 0  # the generation by whose leases `step` was trained
        self._broke: say.Broke | None = None  # the ring failed, and no other one stands yet
        self._entered_step = 0  # the step that this generation took over after
        self._failed_generation = 0  # a newer one that could not be entered
        self._missed = 0  # the newest generation whose switch this trainer has missed
        self._leave_asked = False
        self._ended: say.Ended | None = None
        self._tainted = False  # a synchronization broke off: this state must not become anybody's
        self._marked = (0, 0)  # as the daemon was told
        self._kept = Kept(framework, extras)
        self._evenness = threading.Lock()  # guards `even_until`, which the link's thread may draw nearer
        self._weighing = threading.Lock()  # between a pipeline's thread and the one that changes rings

    @property
    def link(self) -> DaemonLink:
        """The daemon's end of everything."""
        if self._link is None:
            raise RuntimeError("no daemon was started yet")
        return self._link

    @link.setter
    def link(self, link: DaemonLink) -> None:
        self._link = link
        count = link.page.count()
        count.step, count.usual_until = self.count.step, self.count.usual_until
        self.count = count

    @property
    def step(self) -> int:
        """The newest committed step: the state that this trainer has is that step's."""
        return self.count.step

    def refresh(self) -> None:
        """After a change of what makes the end of a mini-batch unusual."""
        with self._evenness:
            self._refresh()

    def _refresh(self) -> None:
        unusual = not self.generation or self.void is not None or self.models_may_differ
        self.count.usual_until = 0 if unusual else min(self.even_until, self.rate_until, self.check_at)

    def note_checked(self) -> None:
        """The states of this ring's members are equal after the present step."""
        self.equal_step = self.step
        self.check_at = next_check(self.step, self.checking.every, self.size)
        self.refresh()

    # ------------------------------------------------------------------------------------------------------- seats

    def take_solo(self, local_rank: int, timeout_s: float) -> None:
        """A ring of one, in which the script boots and rehearses (I4)."""
        self._framework.ring.enter(solo(self.link.worker, local_rank), timeout_s)
        self.local_rank = local_rank
        self._framework.set_weight(1.0)
        self._broke = None  # the first ring, if it was needed for that, does without it

    def take_first(self, assignment: Assignment, timeout_s: float) -> bool:
        """A seat in the first generation. False: its ring did not form, and who is needed for the next may change."""
        if not self._enter(assignment, time.monotonic(), timeout_s, booted=False):
            return False
        self.refresh()
        return True

    def change_ring(self, timeout_s: float) -> None:
        """Wait for the seat in the next generation, and take it. Comes back only in a ring that stands."""
        began = time.monotonic()
        orders: Orders | None = self.link.orders
        while True:
            move = None if orders is None else next_move(self._seat(waiting=True), orders)
            self.obey_endings(move)
            if isinstance(move, Enter) and self._enter(move.assignment, began, timeout_s) and self._await_share():
                break
            orders = self.link.wait_news(orders)
        self.void = None
        self.refresh()

    def first_move(self, orders: Orders) -> Move:
        """What orders mean before the first seat."""
        return next_move(self._seat(waiting=True), orders)

    def attend(self, timeout_s: float) -> None:
        """The daemon asked for attention: see what the orders mean now.

        At a mark it waits for what follows: here, as only here it could follow to another ring.
        """
        orders = self.link.orders
        while orders is not None:
            move = next_move(self._seat(), orders)
            self.obey_endings(move)
            if isinstance(move, Enter):
                return self.change_ring(timeout_s)
            self.hear(orders)
            if not self._feed.holds_at(self.step):
                return None
            orders = self.link.wait_news(orders)
        return None

    @property
    def held(self) -> bool:
        """At a mark."""
        return self._feed.holds_at(self.step)

    def obey_endings(self, move: Move | None) -> None:
        """Leave the job, or stop with it."""
        if not isinstance(move, Leave | Stop):
            return
        self._framework.ring.leave()
        self._feed.close()  # a pipeline that waits for samples would hold up whatever the script closes on its way out
        if isinstance(move, Stop) and move.reason:
            self.failure = move.reason
            sys.exit(f"edl: {move.reason}")
        raise Leaving

    def say_broken(self, reason: str) -> None:
        """The ring failed; the mini-batch in flight is void unless a peer has applied it."""
        self._broke = say.Broke(self.generation, self.step, reason)
        self.link.send(self._broke)

    def _enter(self, assignment: Assignment, began: float, timeout_s: float, *, booted: bool = True) -> bool:
        """Leave this ring, enter the assigned one, take over the state of its most advanced member (I5)."""
        ring, place = self._framework.ring, assignment.place
        moments = [began, time.monotonic()]
        if self.generation in replaced(assignment):
            ring.abort()  # a member is gone: do not negotiate the end with it, and free those who wait for it
        ring.leave()
        self._framework.discard()
        moments.append(time.monotonic())
        try:
            ring.enter(place, timeout_s)
            moments.append(time.monotonic())
            step = self._agree_on_state(assignment, booted)
        except RingBroken as error:
            ring.leave()
            self._failed_generation = place.generation
            self._broke = say.Broke(place.generation, self.step, str(error))
            self.link.send(self._broke)
            return False
        moments.append(time.monotonic())
        self.models_may_differ = step == 0 and place.size > 1
        self._sit(assignment, step)
        orders = self.link.orders
        if orders is not None:
            self.hear(orders)  # if the ring agreed on the planned step, its leases are here already
        self.link.send(say.Entered(place.generation, step, self._leases_of, _pause(moments)))
        return True

    def _agree_on_state(self, assignment: Assignment, booted: bool) -> int:
        """The ring's newest step, with the state that belongs to it on everybody. Raises RingBroken, JobFailed."""
        rank, able = assignment.place.rank, has_state(self.step, tainted=self._tainted)
        how = {"has_state": able, "voided": self.void is not None, "booted": booted}
        beginning = self._talk(begin(assignment, self.generation, self.step, **how))
        root = beginning.root
        if root is None:
            return beginning.step
        if beginning.whole:
            self.synchronize(root, rank, current=beginning.current)
        else:
            self._framework.synchronize_rest(root, only_statistics=not beginning.unsure)
            if beginning.unsure:  # a void mini-batch may have changed them, on some
                self._extras._synchronize(self._framework, root, is_root=rank == root)
            else:
                self._extras._synchronize_statistics(self._framework, root)
        return beginning.step

    def _talk(self, talk: Generator[int, int, Beginning]) -> Beginning:
        """Each number is an all-reduce of its own."""
        try:
            number = next(talk)
            while True:
                number = talk.send(self._framework.ring.agree(number))
        except StopIteration as over:
            found: Beginning = over.value
            return found

    def synchronize(self, root: int, rank: int, *, current: bool = False) -> None:
        """Give everybody the state of rank `root`. Raises RingBroken.

        `current`: ours is that of the same step already. Then half of theirs among it does no harm if this breaks off.
        """
        self._tainted = rank != root and not current
        self._framework.synchronize(root)
        self._extras._synchronize(self._framework, root, is_root=rank == root)
        self._tainted = False

    def _sit(self, assignment: Assignment, step: int) -> None:
        place = assignment.place
        self.rank, self.size, self.local_rank = place.rank, place.size, place.local_rank
        with self._weighing:
            self._entered_step = self.count.step = step
            self.generation, self._failed_generation, self._broke = place.generation, 0, None
            self.even_until, self.weightless = NEVER, False
            self._framework.set_weight(1.0 / place.size)
        self.checking, self.equal_step = assignment.checking, 0
        # Before the first step there is nothing to compare yet: it begins from rank 0's model.
        at_once = step > 0 and place.size > 1
        self.check_at = step if at_once else next_check(step, self.checking.every, place.size)
        self.audit.sat(place, step)

    def _seat(self, waiting: bool = False) -> Seat:
        return Seat(max(self.generation, self._failed_generation), self.step, waiting)

    # -------------------------------------------------------------------------------------------------------- data

    def take_news(self, orders: Orders) -> None:
        """On the link's thread: what cannot wait for the end of a mini-batch."""
        self.hear(orders)
        if self.generation and (rings := given_up(orders)):
            self._framework.ring.abort(rings)  # somebody is gone, or hangs: do not wait for it in a collective

    def hear(self, orders: Orders) -> bool:
        """Take the share of this generation, if it is there. On the link's thread too: a generator may wait for it."""
        for share in orders.shares:
            if (share.generation, share.after_step) == (self.generation, self._entered_step):
                self._feed.adopt(share, (orders.term, orders.version), at_work=self.step + 1)
                self._leases_of = share.generation
                self._heed_mark()
                return True
        return False

    def _heed_mark(self) -> None:
        """What comes beyond a mark may weigh otherwise than was thought: it is to be looked at again there."""
        with self._evenness:
            marked = self._feed.marked
            if marked == self._marked:
                return
            self._marked = marked
            if marked[0]:
                self.even_until = min(self.even_until, marked[1])
                self._refresh()
        self.link.send(say.Marked(*marked))

    def while_waiting(self) -> None:
        """Between two looks at something that does not come: is there still a job?"""
        orders = self.link.orders
        if orders is not None:
            seat = self._seat()
            move = next_move(seat, orders)
            self.obey_endings(move)
            self._tell_missed(seat, move)

    def while_pipeline_waits(self) -> None:
        """The same on a thread that fetches samples, while the training thread waits for them, or trains.

        A worker that is to leave gets no more samples: so its pipeline ends, and its script.
        """
        orders = self.link.orders
        if orders is None:
            return
        seat = self._seat()
        move = next_move(seat, orders)
        if self.ending_batch:  # seen after the step was: it may be about to obey
            return
        if isinstance(move, Stop) and move.reason:
            self.failure = move.reason
            raise JobFailed(move.reason)
        if isinstance(move, Leave | Stop):
            self._feed.close()
        elif self.restarts and _is_left(orders, seat):
            # The training thread may be taking down the iterator, which waits for this one; the leases that this one
            # waits for come only after that.
            raise RingBroken("Horovod's ring is given up, and with it this iteration over the data")
        self._tell_missed(seat, move)

    def _tell_missed(self, seat: Seat, move: Move) -> None:
        """A switch that was due before its word came, and cannot come about while nobody has samples to go on to."""
        if not isinstance(move, Enter) or self._feed.covers(seat.step + 1):
            return
        if not move.assignment.after_step and not self._feed.marked[0]:  # else there are samples for a void mini-batch
            return
        generation = move.assignment.place.generation
        if seat.generation and generation > self._missed:
            self._missed = generation
            self.link.send(say.Missed(generation))

    def weigh(self, step: int) -> None:
        """Set this worker's weight for `step` and those like it: the averaged gradient is that of all samples.

        On a pipeline's thread too. What that one finds for a ring that is left meanwhile says nothing of the next one,
        whose steps are weighed by the thread that trains.
        """
        generation = self.generation
        while not self._feed.covers(step):
            if self._feed.ends_before(step):
                return
            self.while_waiting()
            self.link.wait_news(self.link.orders)
        with self._weighing:
            if self.generation == generation and step > self.step:
                self._weigh(step)

    def _weigh(self, step: int) -> None:
        self.weightless = not self._feed.samples(step)
        self._framework.set_weight(self._feed.weight(step), weightless=self.weightless)
        if not self._feed.own(step):
            self._kept.keep_statistics(of_nobody=self.weightless)
        with self._evenness:
            self.even_until = self._feed.constant_until(step)
            self._refresh()

    def keep_schedules(self) -> None:
        """Nobody has samples in this mini-batch, and the script has come to its gradients."""
        self._kept.keep_schedules()

    def forget_stand_ins(self) -> None:
        """The mini-batch is over: if it was one of stand-ins, its forward pass leaves nothing behind."""
        self._kept.put_back()

    def weigh_if_known(self, step: int) -> None:
        """The same, without waiting: whoever needs the weight before the data has come waits in `weigh`."""
        if self._feed.covers(step):
            self.weigh(step)

    def _await_share(self) -> bool:
        """The data of this generation: told with the plan, or after the ring has agreed on its step.

        False: it never comes, as another generation follows at once. Somebody was lost before the leader knew that this
        ring stands, so that it counts for nothing; and nobody has trained in it without data.
        """
        self._feed.forget_before(self.step + 1)
        if self.opened is None:
            return True
        orders = self.link.orders
        while orders is None or not self.hear(orders):
            move = None if orders is None else next_move(self._seat(waiting=True), orders)
            self.obey_endings(move)
            if isinstance(move, Enter):
                return False
            orders = self.link.wait_news(orders)
        self.even_until = self.step  # so that the next step is weighed
        self.weigh_if_known(self.step + 1)
        return True

    # ---------------------------------------------------------------------------------------------------- the daemon

    def ask_to_leave(self) -> None:
        """On any thread. Noted first: whichever daemon there is hears it now or in the story."""
        self._leave_asked = True
        self.link.send(say.LeaveAsked())

    def say_ended(self) -> None:
        """The script has come to its end, a good one unless a failure was noted."""
        self._ended = say.Ended(self.failure)
        self.link.send(self._ended)

    def story(self) -> list[say.FromTrainer]:
        """What a daemon must know of this trainer, whenever it comes."""
        story: list[say.FromTrainer] = [say.Hello(self.link.had_orders)]
        if self.opened is not None:
            story.append(say.Opened(self.opened))
        if self.generation:
            story.append(say.Entered(self.generation, self._entered_step, self._leases_of, None))
        elif self.rehearsed:
            story.append(say.Rehearsed())
        if self._marked[0]:
            story.append(say.Marked(*self._marked))
        if self._missed > self.generation:
            story.append(say.Missed(self._missed))
        if self._broke is not None:
            story.append(self._broke)
        if self.diverged is not None:
            story.append(say.Diverged(self.diverged))
        if self._leave_asked:  # perhaps of a daemon that the same signal has ended
            story.append(say.LeaveAsked())
        if self._ended is not None:
            story.append(self._ended)
        return story


def _is_left(orders: Orders, seat: Seat) -> bool:
    """The ring of `seat` comes to nothing: it is given up, or the others have left it at a switch that was missed."""
    if seat.generation in given_up(orders):
        return True
    planned = orders.assignment
    if planned is None or planned.after_step is None or not seat.generation:
        return False
    return planned.place.generation > seat.generation and seat.step >= planned.after_step


def _pause(moments: list[float]) -> Pause:
    """Milliseconds; `total` runs from the end of the last batch, waiting for orders included."""
    began, started, left, entered, done = moments
    parts = (left - started, entered - left, done - entered, done - began)
    return Pause(*(round(1000 * seconds, 2) for seconds in parts))
