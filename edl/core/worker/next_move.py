"""Decide a trainer's move at the end of a mini-batch, or while it waits in one: by its location and its orders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edl.protocol.assignment import Assignment, Orders, Verdict

NEVER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Location:
    generation: int  # 0: alone
    step: int
    waiting: bool


@dataclass(frozen=True, slots=True)
class Stay: ...


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for newer orders."""


@dataclass(frozen=True, slots=True)
class Enter:
    """Leave this ring and enter the assigned one."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave the job; others go on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The job is over. `resumable`: it was asked to go, and can be gone on with."""

    reason: str
    resumable: bool = False


@dataclass(frozen=True, slots=True)
class GiveUpWait:
    """The job has failed, and a pipeline's thread hears of it, which must not obey for the training thread."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndReading:
    """A worker that is to leave gets no more samples: so its pipeline ends, and its script."""


@dataclass(frozen=True, slots=True)
class LeaveIteration:
    """The training thread may be taking down the iterator, which waits for the pipeline's thread; the leases that this
    one waits for come only after that.
    """


@dataclass(frozen=True, slots=True)
class UseStandIns:
    """The ring comes to nothing before its data came: the leader may never know that it stood."""


Move = Stay | Wait | Enter | Leave | Stop
WaitMove = Stay | Leave | Stop | GiveUpWait | EndReading | LeaveIteration | UseStandIns


def next_move(where: Location, orders: Orders) -> Move:
    if orders.verdict is Verdict.STOP:
        return Stop(orders.reason, orders.resumable)
    if orders.verdict is Verdict.LEAVE and _leaves_now(where, orders):
        return Leave()
    assignment = orders.assignment
    if assignment is not None and assignment.place.generation > where.generation and _is_due(where, assignment):
        return Enter(assignment)
    return Wait() if where.waiting else Stay()


def next_wait(where: Location, orders: Orders, *, ahead: bool, restarts: bool, lacks_data: bool) -> WaitMove:
    """Return the move of a trainer that waits for samples, or for the others.

    `ahead`: on a pipeline's thread. `restarts`: a broken ring makes the script leave its iteration over the data.
    """
    move = next_move(where, orders)
    if isinstance(move, Leave | Stop) and not ahead:
        return move
    if isinstance(move, Stop) and move.reason:
        return GiveUpWait(move.reason)
    if isinstance(move, Leave | Stop):
        return EndReading()
    if ahead and restarts and is_left(orders, where):
        return LeaveIteration()
    if isinstance(move, Enter) and where.generation in given_up(orders) and lacks_data:
        return UseStandIns()
    return Stay()


def passed_switch(where: Location, orders: Orders) -> int:
    """Return the generation of a planned switch to which no member comes any more; 0: there is none."""
    assignment = orders.assignment
    return assignment.place.generation if assignment is not None and is_passed(where, assignment) else 0


def missed_switch(where: Location, orders: Orders, *, marked: bool) -> int:
    """Return the generation of a switch that was due before its word came, and that cannot come about while no worker
    has samples to go on to; 0: there is none.

    Before the first step, unless that is `marked`, there are samples for a void mini-batch.
    """
    move = next_move(where, orders)
    if not isinstance(move, Enter) or not (move.assignment.after_step or marked):
        return 0
    return move.assignment.place.generation


def given_up(orders: Orders) -> range:
    """Return the generations whose rings are given up, also for a trainer still in one."""
    if orders.verdict is Verdict.STOP or (orders.verdict is Verdict.LEAVE and not orders.leave_after_step):
        return range(NEVER)
    return range(0) if orders.assignment is None else replaced(orders.assignment)


def changes_after(generation: int, step: int, orders: Orders) -> bool:
    """Tell whether it was planned that members leave the ring of `generation` after `step`, for another one or for
    good.
    """
    if orders.verdict is Verdict.LEAVE:
        return orders.leave_after_step == step
    assignment = orders.assignment
    return assignment is not None and assignment.place.generation > generation and assignment.after_step == step


def replaced(assignment: Assignment) -> range:
    """Return the generations that `assignment` replaces: all before it if a ring broke, else those planned since."""
    first = 0 if assignment.after_step is None else assignment.follows + 1
    return range(first, assignment.place.generation)


def are_newer(orders: Orders, known: Orders | None) -> bool:
    """Tell whether orders are newer: those under way for long, or a stale leader's, may come after newer ones (I10)."""
    return known is None or (orders.term, orders.version) > (known.term, known.version)


def attention_step(generation: int, orders: Orders, copied: int = 0) -> int:
    """Return the step from which on its orders may want something of a trainer; it looks at none before.

    `copied`: the newest saving that it is through with.
    """
    return min(_move_step(generation, orders), _copy_step(generation, orders, copied), _hold_step(generation, orders))


def holds_at(generation: int, step: int, orders: Orders) -> bool:
    """Tell whether the trainer waits there until the outcome of a preempted job's checkpoint is known."""
    return step >= _hold_step(generation, orders)


def _hold_step(generation: int, orders: Orders) -> int:
    hold = orders.hold
    return hold.after_step if hold is not None and hold.generation == generation else NEVER


def _copy_step(generation: int, orders: Orders, copied: int) -> int:
    """Return the step after which the trainer copies its part of a checkpoint, or says that it cannot any more."""
    save = orders.save
    return NEVER if save is None or save.number <= copied or save.generation > generation else save.after_step


def _move_step(generation: int, orders: Orders) -> int:
    """Return the step from which `next_move` may return anything else than Stay."""
    if orders.verdict is Verdict.STOP:
        return 0
    marks = [share.mark for share in orders.shares if share.rebatch and share.generation == generation]
    mark = min(marks, default=NEVER)  # where it waits for what follows
    if orders.verdict is Verdict.LEAVE:
        return min(mark, orders.leave_after_step)
    assignment = orders.assignment
    if assignment is None or assignment.place.generation <= generation:
        return mark
    return min(mark, assignment.after_step or 0)


def is_passed(where: Location, assignment: Assignment) -> bool:
    """Tell whether the ring to be left has made a step beyond that of the switch.

    A step takes all its members: so the announcement came too late for all of them, and none has left, nor will.
    """
    if assignment.after_step is None or where.waiting:
        return False
    return 0 < assignment.follows == where.generation and where.step > assignment.after_step


def is_left(orders: Orders, where: Location) -> bool:
    """Tell whether the trainer's ring comes to nothing: it is given up, or the others have left it at a switch that the
    trainer missed.
    """
    if where.generation in given_up(orders):
        return True
    planned = orders.assignment
    if planned is None or planned.after_step is None or not where.generation:
        return False
    is_past = where.step >= planned.after_step and not is_passed(where, planned)
    return planned.place.generation > where.generation and is_past


def _leaves_now(where: Location, orders: Orders) -> bool:
    """Tell whether the trainer leaves now: past its step, the others do not go on without it (`is_passed`)."""
    return where.waiting or not orders.leave_after_step or where.step == orders.leave_after_step


def _is_due(where: Location, assignment: Assignment) -> bool:
    if is_passed(where, assignment):
        return False
    if where.waiting or assignment.after_step is None or where.step >= assignment.after_step:
        return True
    return where.generation < assignment.follows  # the others have gone on without it: there is no step to wait for
