"""Simulated daemons: what those of a job's workers tell a leader, and what they hear of it, late, twice or overtaken.

Owns: registering, reports, and orders on their way to trainers. Does not own: what becomes of a report
(`tests.model.model_leader`), nor what a trainer does with its orders (`tests.model.model_trainers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edl.core.job.leader_inputs import Reported
from edl.core.job.orders import OrderBook
from edl.core.worker.next_move import are_newer
from edl.core.worker.observed_trainer import CALM_S
from edl.core.worker.worker_inputs import OrdersHeard
from edl.core.worker.worker_states import TrainerState
from edl.protocol.assignment import Assignment, Orders, Verdict
from edl.protocol.leader_messages import Observation, Phase, Register
from edl.protocol.record import OVER, Identity, Record, WorkerState
from tests.model.model_rings import STEP_S
from tests.model.model_worker import SESSION_S, SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

REPORT_S = 0.02
LATE_S = 0.06  # a late message: several steps
HEARD_S = REPORT_S + LATE_S  # at most, until a leader that is there hears of what presses
GRACE_S = 0.05  # until a script that does not hear of its job's end is interrupted


class SimDaemons:
    def __init__(self, job: SimJob) -> None:
        self.job = job
        self._roll: set[str] = set()  # whose daemons have a session

    # -------------------------------------------------------------------------------------------------- sessions

    @property
    def roll(self) -> frozenset[str]:
        return frozenset(self._roll)

    def lose_session(self, worker: SimWorker) -> None:
        self._roll.discard(worker.id)

    def see_dead(self, victim: SimWorker) -> set[str]:
        """Let the host's living daemons see the death. Return the workers whose daemons can tell a leader."""
        beside = [one for one in self.job.workers.values() if one.host == victim.host and one.daemon and one.alive]
        beside = [one for one in beside if one.doing is not TrainerState.OVER]
        for worker in beside:
            worker.dead = (*worker.dead, victim.id)
            self.stir(worker)
        return {worker.id for worker in beside if worker.admitted and worker.presented}

    def refuses(self, identity: Identity) -> bool:
        """Tell whether the host says that this daemon has died; a host that has vanished says nothing."""
        worker = self.job.workers[identity.id]
        return not worker.vanished and worker.identity() != identity

    def durable(self, record: Record) -> None:
        """`record` was written: the daemon of a worker that is done, or no member, goes once its trainer has."""
        members = {member.identity.id: member.state for member in record.members}
        for worker in self.job.workers.values():
            if worker.doing is TrainerState.OVER and members.get(worker.id) in (None, WorkerState.DONE):
                self._roll.discard(worker.id)

    def begin(self, worker: SimWorker) -> None:
        self._roll.add(worker.id)
        self._register(worker)

    def _register(self, worker: SimWorker) -> None:
        """Register again and again until a leader has taken the registration, or refused it."""
        if worker.daemon and worker.alive and not worker.admitted and worker.doing is not TrainerState.OVER:
            self.job.call(self._registration(worker), lambda taken: self._registered(worker, taken))
            self.job.after(SESSION_S, self._register, worker)

    def _registration(self, worker: SimWorker) -> Register:
        resumed = None if self.job.inherits is None else self.job.inherits.resumed
        about = worker.identity(), *self.job.limits, worker.answering, self.job.policy
        return Register(*about, resumed=resumed, processes=self.job.processes)

    def _registered(self, worker: SimWorker, taken: bool) -> None:
        if taken:
            self.job.checks.writing.registered(worker.id)
        if taken and not worker.admitted:
            worker.admitted = True
            self.stir(worker)
            self.hear_from_leader(worker)
        elif not taken and not worker.admitted:
            self.job.shells.fail(worker, "was refused")

    def renew(self, worker: SimWorker) -> None:
        """Register another daemon, which its trainer greets."""
        worker.daemon += 1
        worker.sent, worker.presented = None, False
        worker.lose_daemon()
        worker.dead = ()  # it has not seen those alive
        self.job.meetings.give_up(worker, "its daemon died")
        self.job.next_rings.give_up(worker)
        self._present(worker, worker.daemon)

    def _present(self, worker: SimWorker, daemon: int) -> None:
        """Present the worker again and again until a leader has taken that; before, the daemon reports nothing."""
        if worker.daemon == daemon and not worker.presented and self.job.durable.state not in OVER:
            self.job.call(self._registration(worker), lambda _: self._presented(worker, daemon))
            self.job.after(SESSION_S, self._present, worker, daemon)

    def _presented(self, worker: SimWorker, daemon: int) -> None:
        if worker.daemon == daemon and not worker.presented:
            worker.present()
            self.job.savings.tell_again(worker)
            self.stir(worker)

    # --------------------------------------------------------------------------------------------------- reports

    def stir(self, worker: SimWorker, *, calm: bool = False) -> None:
        """Let the daemon report soon, or a moment later where it is calm."""
        if worker.daemon and worker.admitted and worker.presented and not worker.report_due:
            worker.report_due = True
            self.job.after((CALM_S if calm else 0.0) + REPORT_S * self.job.random.random(), self.report, worker)

    def report(self, worker: SimWorker) -> None:
        """Report now, if there is anything that the daemon has not said."""
        worker.report_due = False
        if worker.phase is Phase.DONE and self.job.savings.is_storing(worker):
            return  # it says so when that is done
        self.job.checks.reports(worker)
        observation = worker.observation(STEP_S)
        if worker.daemon and worker.presented and observation != worker.sent:
            worker.sent = observation
            self._tell(worker, observation)

    def _tell(self, worker: SimWorker, observation: Observation) -> None:
        """Tell the present leader; another one will be told everything."""
        said = Reported(worker.id, msgspec.structs.replace(observation, at=self.job.now))
        self.job.call(said, term=self.job.term)

    def find_leader(self) -> None:
        """Find another leader: all daemons tell it everything again, and those that no leader has answered register."""
        for worker in self.job.workers.values():
            worker.sent = None
            self.stir(worker)
            if worker.id in self._roll:
                self._register(worker)
            self._present(worker, worker.daemon)

    # ---------------------------------------------------------------------------------------------------- orders

    def publish(self, book: OrderBook, *, pressing: bool) -> None:
        """Send orders to all that wait for them, at once or when their calls end."""
        for worker in self._listeners():
            held = 0.0 if pressing else self.job.lead_times.hold_s * self.job.random.random()
            late = max(held, worker.deaf_until - self.job.now)
            self.job.after(late + self.job.delay(), self.hear, worker, book)
            if self.job.random.random() < 0.03:
                self.job.after(late + self.job.delay() + LATE_S, self.hear, worker, book)

    def repeat(self, book: OrderBook) -> None:
        """A leader that is none any more goes on answering for a while."""
        for worker in self._listeners():
            self.job.after(self.job.random.random() * LATE_S, self.hear, worker, book)

    def hear_from_leader(self, worker: SimWorker) -> None:
        """Let a daemon that has just been admitted hear the present leader's orders."""
        self.job.after(self.job.delay(), self.hear, worker, self.job.leader.book)

    def _listeners(self) -> list[SimWorker]:
        return [worker for worker in self.job.workers.values() if self.listens(worker)]

    def listens(self, worker: SimWorker) -> bool:
        if not worker.daemon or not worker.admitted:
            return False
        return worker.doing is not TrainerState.OVER or bool(worker.left)

    def hear(self, worker: SimWorker, book: OrderBook) -> None:
        orders = book.orders(worker.id)
        if worker.left and worker.daemon and are_newer(orders, worker.orders):
            worker.orders = orders
            self._command_held(worker, orders)
            return
        if not are_newer(orders, worker.orders) or not worker.alive or not worker.daemon:
            return
        self.job.checks.heard(worker, orders, book.record)
        before, worker.orders = worker.orders, orders
        self.job.roll_calls.follow(
            worker, orders.summons, book.record.roll_call.roster if book.record.roll_call else ()
        )
        if worker.stalled:  # all of the process, say
            return
        worker.attention = worker.observed.attention_step(orders)
        if late := worker.deliver(orders):
            self.job.after(late, self._reach, worker, orders, before)
        else:
            self._reach(worker, orders, before)

    def _command_held(self, worker: SimWorker, orders: Orders) -> None:
        """Let what is left of a worker copy what it has, or go where it is needed no more."""
        if orders.save is not None and orders.save.limbs:
            self.job.savings.copy_rest(worker, orders)
        elif orders.verdict is not Verdict.STAY:
            worker.left = ()

    def _reach(self, worker: SimWorker, orders: Orders, before: Orders | None) -> None:
        """Let the trainer hear of orders."""
        if not worker.alive or worker.stalled:
            return
        if worker.assignment is not None and _generation(orders.assignment) != _generation(worker.assignment):
            self.job.meetings.give_up(worker, "its ring was given up")
        self.job.shells.tell(worker, OrdersHeard(orders))
        if orders.going and not (before is not None and before.going):
            self.stir(worker)
        if orders.resumable:
            self.job.after(GRACE_S, self._interrupt, worker)
        self.job.next_rings.heard(worker, worker.newest_heard(orders))
        if before is not None:  # another thread has looked at these earlier, and comes later
            self.job.shells.tell(worker, OrdersHeard(before))
        if worker.sits and worker.machine.has_share:
            self.job.rings.arm(self.job.rings.rings[worker.generation])
        if worker.waits or worker.is_held:
            self.job.shells.look(worker)
        elif worker.busy_until <= self.job.now:
            self.job.shells.wait_on(worker)

    def _interrupt(self, worker: SimWorker) -> None:
        """End a script that is at something of its own, as its job is gone."""
        if worker.alive and not worker.stalled and worker.doing is TrainerState.TRAINING:
            self.job.shells.end_script(worker)


def _generation(assignment: Assignment | None) -> int:
    return 0 if assignment is None else assignment.place.generation
