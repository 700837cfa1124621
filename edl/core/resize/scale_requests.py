"""Answer requests for another size: a pure decision from the record of the job.

A request for a size (`edl scale JOB 4`) says where to go, whatever is under way: it is merged into that, and always
taken. A request for more or fewer workers (`scale_out` and `scale_in`, the scheduler's calls of the EDL paper) is
relative to a size, so it is taken only while that stands still: during a change the answer is RETRY.

The target is the account: each request that is taken moves it by exactly what it says, once, however often it comes,
because the record keeps the ids of the newest ones. A request that can never be served is refused without a RETRY.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.job.leader_inputs import Refuse
from edl.protocol.leader_messages import AskScale, AskScaleIn, AskScaleOut, Scaling
from edl.protocol.record import Limits, Member, Record, WorkerState

KEPT = 100  # requests remembered; each is asked again for seconds only

GOING = (WorkerState.LEAVING, WorkerState.DONE)
BOOTING = (WorkerState.JOINING, WorkerState.WARMING)
COMING = (*BOOTING, WorkerState.READY)


@dataclass(frozen=True, slots=True)
class Change:
    """The request is taken: have `target` workers, and tell `leavers` to leave."""

    target: int
    leavers: tuple[str, ...] = ()


def answer(asked: Scaling, record: Record) -> Change | Refuse:
    match asked:
        case AskScale(size):
            return _outside(size, record.limits) or Change(size, _leavers(record, size))
        case AskScaleOut(workers):
            target = record.target + workers
            return _outside(target, record.limits) or _under_way(record) or Change(target)
        case AskScaleIn(workers):
            return _fewer(workers, record)


def _fewer(workers: int | tuple[str, ...], record: Record) -> Change | Refuse:
    if isinstance(workers, int):
        target = record.target - workers
        return _outside(target, record.limits) or _under_way(record) or Change(target, _leavers(record, target))
    if is_driven(record):
        return Refuse("horovodrun's driver decides who leaves: give a number instead of workers' ids")
    leavers = tuple(dict.fromkeys(workers))
    target = record.target - len(leavers)
    return _outside(target, record.limits) or _unfit(leavers, record) or Change(target, leavers)


def awaited(record: Record, change: Change) -> int:
    """Return how many workers will have come in all once those that `change` asks for are there."""
    present = sum(member.identity.id not in change.leavers for member in staying(record))
    return record.arrivals + max(0, change.target - present)


def lacking(asked: Scaling, record: Record) -> int:
    """Return how many workers are missing that none is to bring, and that `asked` asks for again: some died, and were
    not replaced.
    """
    if not isinstance(asked, AskScale) or asked.size < record.target or is_driven(record):
        return 0
    is_coming = record.arrivals < record.awaited or not record.generation
    return 0 if is_coming else max(0, record.target - len(staying(record)))


def is_driven(record: Record) -> bool:
    """Tell whether an elastic horovodrun starts workers and says which leave (`edl.core.driver.horovod_counts`)."""
    return record.sizing.driver is not None


def staying(record: Record) -> list[Member]:
    """Return the workers that count. Those that come for others, who leave their host, do once these are out of it."""
    coming = record.migration.newcomers if record.migration is not None else ()
    return [member for member in record.members if member.state not in GOING and member.identity.id not in coming]


def _leavers(record: Record, size: int) -> tuple[str, ...]:
    """Return who leaves for a smaller size; none yet under horovodrun, which counts on all that it has not freed."""
    return () if is_driven(record) else surplus(record, size)


def surplus(record: Record, size: int) -> tuple[str, ...]:
    """Return workers to leave: those that cannot train yet first, then those that came last, so that ranks stay."""
    order = sorted(staying(record), key=lambda member: (member.state not in BOOTING, -member.number))
    return tuple(member.identity.id for member in order[: max(0, len(order) - size)])


# ------------------------------------------------------------------------------------------------------- refusals


def _outside(size: int, limits: Limits) -> Refuse | None:
    least, most = max(limits.minimum, 1), limits.maximum
    if size < least:
        return Refuse(f"the job needs at least {least} workers, so not {size}: {_remedy(least, most)}")
    if most and size > most:
        return Refuse(f"the job may have at most {most} workers, so not {size}: {_remedy(least, most)}")
    return None


def _remedy(least: int, most: int) -> str:
    if not most:
        return f"ask for {least} or more (--min-np sets it when a job starts)"
    return f"ask for {least} to {most} (--min-np and --max-np set that when a job starts)"


def _unfit(names: tuple[str, ...], record: Record) -> Refuse | None:
    states = {member.identity.id: member.state for member in record.members}
    strangers = [name for name in names if states.get(name, WorkerState.DONE) is WorkerState.DONE]
    if strangers:
        return Refuse(f"no worker {', '.join(strangers)} trains in this job: `edl status {record.job}` lists them")
    if busy := _under_way(record):
        return busy
    least, left = max(record.limits.minimum, 1), len(staying(record)) - len(names)
    return Refuse(f"only {left} workers would be left, and the job needs {least}: name fewer") if left < least else None


def _under_way(record: Record) -> Refuse | None:
    """Return why a relative request has to wait. Each reason ends by itself but the last, which `edl scale` ends."""
    present = staying(record)
    coming = [member.identity.id for member in present if member.state in COMING]
    leaving = [member.identity.id for member in record.members if member.state is WorkerState.LEAVING]
    if record.generation == 0:
        reason = f"the job is starting: {len(present)} of {record.target} workers are here"
    elif record.plan is not None:
        reason = f"a switch from {len(record.roster)} to {len(record.plan.roster)} workers is under way"
    elif record.migration is not None:
        reason = f"its workers are leaving {record.migration.host}"
    elif leaving:
        reason = f"still leaving: {', '.join(leaving)}"
    elif coming:
        reason = f"still joining: {', '.join(coming)}"
    elif record.arrivals < record.awaited and len(present) < record.target:
        reason = (
            f"{len(present)} of the {record.target} workers asked for are here; "
            f"if the others are not to be started, `edl scale {record.job} {len(present)}` takes that back"
        )
    else:
        return None
    return Refuse(reason, retry=True)
