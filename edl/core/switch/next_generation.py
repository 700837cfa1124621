"""Decide which generation should follow: a pure function of the record and the observations.

Owns: its roster, and whether it is needed. Does not own: after which step, its data, its number, nor that it
becomes the plan (`edl.core.switch.generation_switch`).

One next generation at a time: what comes up while one is planned waits for the one after, merged.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from edl.core.job.local_ranks import grouped
from edl.core.job.observations import Observations
from edl.core.resize import host_migration
from edl.core.resize.scale_requests import BOOTING, GOING
from edl.core.switch.ring_blame import condemned, suspects
from edl.facts import counted
from edl.protocol.record import Member, Plan, Record, WorkerState

NAMED: Final = 4  # of a thousand that a reason may be about


@dataclass(frozen=True, slots=True)
class Situation:
    record: Record
    members: Mapping[str, Member]  # of the record, by id
    seen: Observations
    torn: bool = False  # of a switch whose word came too late for some, the others wait for these
    spent: bool = False  # nothing is left to be trained
    unmet: frozenset[str] = frozenset()  # newcomers that the others do not reach
    leaves_as: Mapping[str, str] = field(default_factory=dict)  # why each leaver was told to leave, if known

    @property
    def minimum(self) -> int:
        """A job that is to go waits for no others: those that are left save it. Nor does one that has nothing left to
        be trained: those that are left only come to the ends of their scripts.
        """
        return 1 if self.record.checkpoints.preemption is not None or self.spent else self.record.limits.minimum


@dataclass(frozen=True, slots=True)
class Follow:
    """A generation of `roster` is needed. `forced`: at once, as the ring before is broken or will be.

    `after_step`: it takes the place of the planned one, after the same step. `why`: for people. `leavers`: members that
    are told to leave with it, as their host is left.
    """

    roster: tuple[str, ...]
    forced: bool
    after_step: int | None = None
    why: str = ""
    leavers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestartWait:
    """The planned generation cannot stand, and none follows: not enough are left for the first one, or only workers
    that are at the end of their scripts, or are to leave.
    """


@dataclass(frozen=True, slots=True)
class Postpone:
    """The word of the switch came too late for all: the old ring goes on, and the same is planned anew later."""

    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No generation can follow, and one must."""

    reason: str


@dataclass(frozen=True, slots=True)
class TooFew:
    """A generation is needed, and would be smaller than the job allows: others may come, within bounds."""

    reason: str


Decision = Follow | RestartWait | Postpone | TooFew | GiveUp | None


def decide(now: Situation) -> Decision:
    record, plan = now.record, now.record.plan
    if plan is not None and _is_passed(now, plan):
        return Postpone("the ring of before has made a step beyond it: its word came too late for all")
    lacks = lacks_member(now, plan.roster if plan else record.roster) or _ended_before(now)
    forced = is_broken(now) or lacks or now.torn or _has_left(now)
    if plan is not None and not forced:
        return Postpone(f"its word came too late for {_names(missing(now))}") if missed_by_all(now) else None
    if _no_worker_would_come(now):
        return RestartWait() if plan is not None else None
    broken = forced and kept_step(now) is None
    roster = wanted_roster(now, forced, leavers_too=broken)
    if not forced and (roster == record.roster or _is_ending(now) or record.checkpoints.preemption is not None):
        return None  # a job that is to go changes only what is broken
    return _first(now, roster) if record.generation == 0 else _following(now, roster, forced)


def _following(now: Situation, roster: tuple[str, ...], forced: bool) -> Decision:
    record = now.record
    if not any(worker in record.roster or is_ahead(now, worker) for worker in roster):
        # A new leader hears of a step that one of them alone has in a moment.
        return GiveUp(_why_none_has_the_state(now)) if all(map(now.seen.is_known, roster)) else None
    if len(roster) < now.minimum:
        here = f"{counted(len(roster), 'worker')} {'is' if len(roster) == 1 else 'are'}"
        return TooFew(f"{here} left and the job needs {now.minimum}")
    if instead := _instead(now, roster):
        return instead
    roster = wanted_roster(now, forced, leavers_too=forced)
    outgoing = _outgoing(now, _able(now, forced, leavers_too=forced), forced)
    leavers = tuple(worker for worker in record.roster if worker in outgoing and worker not in roster)
    leavers += tuple(sorted(outgoing.difference(record.roster)))
    return Follow(roster, forced, why=why(now, roster, leavers), leavers=leavers)


def wanted_roster(now: Situation, forced: bool, *, leavers_too: bool = False) -> tuple[str, ...]:
    """Return survivors in their order, then newcomers in order of arrival: ranks move as little as they can.

    So later rings are not grouped by host. Local ranks do not depend on it (`edl.core.job.local_ranks`). `leavers_too`:
    each leaver may have made a step that no other has, and takes part once more; it leaves with the ring after.
    """
    record = now.record
    base = record.plan.roster if record.plan else record.roster
    leavers = _leavers(now)
    able = _able(now, forced, leavers_too=leavers_too)
    staying = _moved(now, able, forced)
    most = record.limits.maximum or len(now.members)
    if staying.intersection(_outgoing(now, able, forced)):  # it hands the model on: the job is no larger for that
        most = max(record.target, 2)
    if not staying.intersection(record.roster).difference(leavers) and not any(map(partial(_has_newest, now), staying)):
        # None that stays has the model: they hand it on.
        # All have the newest state unless the ring broke, and one is enough to hand it on: the others make room.
        staying.update(leavers if forced else leavers[: max(1, most - len(staying))])
        if forced:
            staying -= _readers_of_a_plan(now, staying, leavers)
    kept = [worker for worker in base if worker in staying]
    new = sorted(staying.difference(base), key=lambda w: (w not in record.roster, now.members[w].number))
    # Members of the present ring have the model: where not all have room, newcomers wait for the next generation.
    first = sorted([*kept, *new], key=lambda worker: worker not in record.roster)[:most]
    return tuple(worker for worker in (*kept, *new) if worker in first)


def _readers_of_a_plan(now: Situation, staying: set[str], leavers: Sequence[str]) -> set[str]:
    """Return newcomers whose pipelines read by the leases of a plan in which those of leavers were given to others, or
    may: it is not known whether they came to that ring. They await their state, and all that had it there are gone. A
    leaver hands it on, and may have read its own yet (I7).
    """
    if not leavers:
        return set()
    of = {worker: now.seen.leases_of(worker) for worker in [*staying, *leavers] if now.seen.get(worker)}
    theirs = max(of.get(worker, now.record.generation) for worker in leavers)  # a new leader may not have heard yet
    new = staying.difference(now.record.roster)
    return {one for one in new if of.get(one, 0) > theirs or _may_sit(now, one, beyond=theirs)}


def _may_sit(now: Situation, newcomer: str, beyond: int = 0) -> bool:
    """Tell whether a newcomer may sit in a planned ring, and go by its leases, without having said so yet. `beyond`: in
    a ring after this generation.
    """
    record = now.record
    plans = [*record.superseded, *([record.plan] if record.plan else [])]
    told = max(now.seen.generation(newcomer), now.seen.leases_of(newcomer) if now.seen.get(newcomer) else 0, beyond)
    return any(plan.ledger and newcomer in plan.roster and told < plan.generation for plan in plans)


def awaits_newcomer(now: Situation) -> bool:
    """Tell whether a newcomer's report is awaited: no member that stays is left of the ring on record, and the newcomer
    has not said whether it came to the planned ring.

    If it has trained there, leavers outside the planned ring are not needed.
    """
    record, plan = now.record, now.record.plan
    if plan is None or not lacks_member(now, plan.roster) or not _leavers(now):
        return False
    staying = [worker for worker in plan.roster if worker in now.members and now.members[worker].state not in GOING]
    return not set(staying).intersection(record.roster) and any(_may_sit(now, worker) for worker in staying)


def _able(now: Situation, forced: bool, *, leavers_too: bool) -> set[str]:
    record = now.record
    base = record.plan.roster if record.plan else record.roster
    staying = {worker for worker, member in now.members.items() if _could_enter(now, member)}
    if leavers_too:  # not those that a plan is without: others may have been leased their samples, and have read them
        planned = [base, *(plan.roster for plan in record.superseded)]
        staying.update(worker for worker in _leavers(now) if all(worker in roster for roster in planned))
    if not forced:
        staying -= now.unmet
        # A member that is done keeps its seat, until the ring must be made anew for those that are not.
        staying.update(worker for worker in record.roster if _is(now, worker, WorkerState.DONE))
    return _without_the_unproven(now, staying, forced)


def _moved(now: Situation, able: set[str], forced: bool) -> set[str]:
    """Return the workers of `able` that the next ring is to have while a host is left
    (`edl.core.resize.host_migration`).
    """
    record, outgoing = now.record, _outgoing(now, able, forced)
    able = able - host_migration.spare(record, able)
    if not outgoing:
        held = able & host_migration.held_back(record)
        if not forced:
            held |= able & host_migration.came_in_vain(record)
        missing = host_migration.lost(record)
        return able - set(sorted(held, key=lambda worker: now.members[worker].number)[missing:])
    rest = able - outgoing
    if rest.intersection(record.roster).difference(_leavers(now)):
        return rest
    # None of the others has the model. Members that have it are half of the next ring, and leave with the one after.
    old = [worker for worker in record.roster if worker in outgoing and worker in able]
    return rest.union(old[: max(1, record.target // 2)])


def _outgoing(now: Situation, able: set[str], forced: bool) -> frozenset[str]:
    """Return the workers whose host is left. A broken ring is first made anew with all that it had."""
    return frozenset() if forced else host_migration.outgoing(now.record, able)


def _leavers(now: Situation) -> list[str]:
    """Return the leavers that could hand the model on, if any other member is there to take it."""
    if not now.record.generation or all(member.state in GOING for member in now.members.values()):
        return []
    return [worker for worker in now.record.roster if _is(now, worker, WorkerState.LEAVING)]


def _why_none_has_the_state(now: Situation) -> str:
    if any(_is(now, worker, WorkerState.LEAVING) for worker in now.record.roster):
        return "no worker stays that has the model's state: those that have it were told to leave"
    return "no worker is left that has the model's state"


def _no_worker_would_come(now: Situation) -> bool:
    """Tell whether all are at the end of their scripts, also if a member is lost there.

    A worker that left the ring on record for one that failed still waits for another ring.
    """
    at_the_end = now.spent and now.record.plan is None and not is_broken(now) and not _has_left(now)
    return at_the_end or outlived(now.record.roster, now.members)


def _without_the_unproven(now: Situation, staying: set[str], forced: bool) -> set[str]:
    """A ring that comes to nothing for a newcomer's sake is made anew without it. It is tried once more, alone, when
    the others train again (I14). Where too few would be left, as many newcomers stay as make up the least size, those
    first that have failed least. A newcomer that sat in that ring stays, too: its pipeline has read by its leases, and
    it could not come again after others were given these; or it has made a step that the others have not.
    """
    record, trials = now.record, now.record.trials
    staying = staying - {trials.left_out} - condemned(trials)
    newest = record.plan.generation if record.plan else record.generation
    doubted = set(suspects(trials, record.roster)) if record.roster else set()
    if trials.judged == newest and record.roster:
        doubted = staying.difference(record.roster)
    sure = staying - {worker for worker in doubted if not now.seen.has_leases(worker) and not is_ahead(now, worker)}
    if (needed := now.minimum - len(sure)) > 0:
        struck = suspects(trials, record.roster)
        least = sorted(staying - sure, key=lambda worker: (struck.get(worker, 0), now.members[worker].number))
        return sure.union(least[:needed])
    trains = now.seen.newest_step(record.roster)[0] > record.began_step
    others = sure - host_migration.held_back(record)  # these may wait for just that newcomer
    if not forced and trains and others.issubset(record.roster):
        order = sorted(staying & doubted, key=lambda worker: now.members[worker].number)
        sure.update(order[:1])
    return sure


def is_ahead(now: Situation, worker: str) -> bool:
    """Tell whether the worker has made a step that no member of the present ring has, in a ring that the leader never
    saw stand.

    If all members of the present ring are gone, it is not known how far they were, so nor whether the others have their
    newest state.
    """
    record, seen = now.record, now.seen.observation(worker)
    if seen is None or seen.generation <= record.generation:
        return False
    return any(map(now.members.__contains__, record.roster)) and seen.step > now.seen.newest_step(record.roster)[0]


def _has_newest(now: Situation, worker: str) -> bool:
    """Tell whether the worker is ahead of all that are left of the present ring, which have told their steps."""
    left = [one for one in now.record.roster if one in now.members]
    return is_ahead(now, worker) and all(map(now.seen.is_known, left))


def outlived(roster: tuple[str, ...], members: Mapping[str, Member]) -> bool:
    """Tell whether a ring has only members left whose scripts have ended, or that were told to leave."""
    states = {members[worker].state for worker in roster if worker in members}
    return WorkerState.DONE in states and states.issubset(GOING)


def left_behind(now: Situation) -> tuple[str, ...]:
    """Return workers that sat in a ring that came to nothing, while another stands without them: others have their
    samples.

    What their pipelines have read is not what they would be leased now (I7).
    """
    record = now.record
    plans = [*record.superseded, *([record.plan] if record.plan else [])]
    known = {0, record.generation, *(plan.generation for plan in plans)}  # whose leases may be gone by yet
    # A worker left out to see whether it is unfit is judged when the others make a step.
    out = {record.trials.left_out} | condemned(record.trials)
    left = now.members.keys() - {*record.roster, *out} if record.generation else set()
    left = {worker for worker in left if now.seen.get(worker) and now.seen.leases_of(worker) not in known}
    return tuple(worker for worker in sorted(left) if now.members[worker].state not in GOING)


def is_broken(now: Situation) -> bool:
    """Tell whether the newest ring has failed a member, as it says, or as a leader has found: by now that member may
    boot alone, or have another daemon.
    """
    generation = now.record.plan.generation if now.record.plan else now.record.generation
    if generation and generation == now.record.trials.judged:
        return True
    return any(now.seen.breaks(worker, generation) for worker in now.seen.broken if worker in now.members)


def fails_unexplained(now: Situation) -> bool:
    """Tell whether the standing ring has failed some members, others have yet to tell, and no member is gone."""
    record = now.record
    if record.plan is not None or not record.generation or not is_broken(now) or lacks_member(now, record.roster):
        return False
    return any(now.seen.trains(worker, record.generation) for worker in record.roster)


def missing(now: Situation) -> tuple[str, ...]:
    """Return the workers that the announcement of the planned switch reached too late."""
    plan = now.record.plan
    if plan is None or plan.after_step is None or not now.seen.late:
        return ()
    return tuple(worker for worker in plan.roster if now.seen.misses(worker, plan.generation))


def _is_passed(now: Situation, plan: Plan) -> bool:
    """Tell whether a member has passed the step of the switch: a step takes all members, so none has left."""
    record, after_step = now.record, plan.after_step
    if after_step is None or not record.generation:
        return False
    here = (worker for worker in record.roster if now.seen.generation(worker) == record.generation)
    return any(now.seen.step(worker) > after_step for worker in here)


def missed_by_all(now: Situation) -> bool:
    """Tell whether no survivor has left the old ring for the planned one, nor will."""
    plan = now.record.plan
    missed = missing(now)
    staying = (worker for worker in plan.roster if worker in now.record.roster) if plan else ()
    return bool(missed) and all(_trains_behind(now, worker, missed) for worker in staying)


def _trains_behind(now: Situation, worker: str, missed: Container[str]) -> bool:
    """Tell whether the worker has missed the switch, or will never make it; it may have tried another ring since."""
    behind = worker in missed and now.seen.generation(worker) == now.record.generation
    return behind or _is(now, worker, WorkerState.DONE)


def _instead(now: Situation, roster: tuple[str, ...]) -> Follow | None:
    """Keep to the planned step where only newcomers fail, with a ring of members that were planned for, as they have
    met.

    If these are too few, or all leave, the ring has others too: the ring that works is needed until then.
    """
    plan, after_step = now.record.plan, kept_step(now)
    if plan is None or after_step is None:
        return None
    known = tuple(worker for worker in roster if worker in plan.roster or worker in now.record.roster)
    stays = any(not _is(now, worker, WorkerState.LEAVING) for worker in known)
    known = known if stays and len(known) >= now.minimum else roster
    return Follow(known, forced=False, after_step=after_step, why=why(now, known))


def kept_step(now: Situation) -> int | None:
    """Return the step of the planned switch, if only newcomers are gone, or cannot come to their ring. The others train
    up to that step, so that no mini-batch is void, and go from there to another ring.

    None: a member of the ring that trains is gone, done or has failed, too; or a worker is seen in the next one.
    """
    record, plan, seen = now.record, now.record.plan, now.seen
    if plan is None or not record.generation or now.torn:
        return None
    states = [now.members[worker].state for worker in record.roster if worker in now.members]
    if len(states) < len(record.roster) or WorkerState.DONE in states:
        return None
    stands = any(seen.sits(worker, plan.generation) for worker in plan.roster)
    fails = any(seen.breaks(worker, plan.generation) for worker in record.roster)
    return None if stands or fails else plan.after_step


def why(now: Situation, roster: tuple[str, ...], leavers: tuple[str, ...] = ()) -> str:
    """Tell people what has changed since the previous ring, or since the plan that a ring of `roster` replaces."""
    record, plan = now.record, now.record.plan
    before = plan.roster if plan else record.roster
    if not before:
        return f"all {len(roster)} that were asked for are here" if len(roster) > 1 else "the first worker is here"
    gone = [worker for worker in before if worker not in now.members]
    had, has = set(before), set(roster)
    out = [worker for worker in before if worker in now.members and worker not in has]
    leaving = [worker for worker in out if _is(now, worker, WorkerState.LEAVING) or worker in leavers]
    parts = [f"{_are(gone)} gone"] if gone else _failures(now)
    moved = host_migration.reason(record) if leavers else ""
    reasons = {worker: now.leaves_as.get(worker, moved) for worker in leaving}
    for reason in dict.fromkeys(reasons.values()):
        named = [worker for worker in leaving if reasons[worker] == reason]
        parts.append(f"{_names(named)} {'leaves' if len(named) == 1 else 'leave'}{f' ({reason})' if reason else ''}")
    if ended := [worker for worker in out if _is(now, worker, WorkerState.DONE)]:
        parts.append(f"{_names(ended)} {'has' if len(ended) == 1 else 'have'} come to the end of the script")
    if others := [worker for worker in out if worker not in leaving and worker not in ended]:
        parts.append(f"{_are(others)} left out for now")
    if new := [worker for worker in roster if worker not in had]:
        parts.append(f"{_are(new)} ready")
    return "; ".join(parts)


def _failures(now: Situation) -> list[str]:
    plan = now.record.plan
    generation = plan.generation if plan else now.record.generation
    failed = [worker for worker in sorted(now.seen.broken) if now.seen.breaks(worker, generation)]
    late = missing(now) if now.torn else ()
    told = [f"the ring of generation {generation} has failed {_names(failed)}"] if failed else []
    return [*told, f"the word of generation {generation} has come too late for {_names(late)}"] if late else told


def _are(workers: Sequence[str]) -> str:
    return f"{_names(workers)} {'is' if len(workers) == 1 else 'are'}"


def _names(workers: Sequence[str]) -> str:
    more = len(workers) - NAMED
    return ", ".join(workers[:NAMED]) + (f" and {more} others" if more > 0 else "")


def lacks_member(now: Situation, roster: tuple[str, ...]) -> bool:
    """Tell whether a member of `roster` is gone without leave: its ring is broken, or will be, or does not form."""
    return not all(map(now.members.__contains__, roster))


def _ended_before(now: Situation) -> bool:
    """A member of a ring that is planned at once came to the end of its script in the one before, and comes to no
    other: the leader had not heard of it yet.
    """
    plan = now.record.plan
    if plan is None or plan.after_step is not None or not now.record.generation:
        return False
    ended = (worker for worker in plan.roster if _is(now, worker, WorkerState.DONE))
    return any(not now.seen.sits(worker, plan.generation) for worker in ended)


def _first(now: Situation, roster: tuple[str, ...]) -> Decision:
    """The first generation needs all that were asked for; for one lost before it stands another is awaited.

    No worker has a rank to keep yet, so its ranks go host by host, as Horovod's do.
    """
    record = now.record
    if len(roster) >= record.target and not _may_be_ahead(now):
        # A worker that sat in a ring that came to nothing may have trained there, and keeps what it was leased.
        forced = record.plan is not None or record.begun
        roster = grouped(roster[: record.target], now.members)
        return Follow(roster, forced, why=why(now, roster))
    return RestartWait() if record.plan is not None else None


def _may_be_ahead(now: Situation) -> bool:
    """A worker has sat in a first ring that came to nothing, and it is not known whether a member has: it may have made
    a step there, which a ring without it would make again.
    """
    staying = (one for one, member in now.members.items() if member.state not in GOING)
    return now.record.begun and not all(map(now.seen.is_known, staying))


def _could_enter(now: Situation, member: Member) -> bool:
    """Tell whether a member may enter a ring. No ring waits for a boot (I4), except before any worker has sat in one:
    then no training is held up.

    Of the members planned for the first ring some may have sat in it before it failed, and some not.
    """
    if member.state in GOING:
        return False
    if not now.record.begun:
        return True
    return member.state not in BOOTING and (now.record.generation > 0 or now.seen.has_booted(member.identity.id))


def _has_left(now: Situation) -> bool:
    """A member left the ring that stood for one that came to nothing, or that was put off in the moment in which it
    stood, and too few were left to plan another. Before the switch was due it has not left, and trains on. Another
    leader waits until it has told.
    """
    record = now.record
    here = [one for one in record.roster if _is(now, one, WorkerState.READY) or _is(now, one, WorkerState.TRAINING)]
    told = [worker for worker in here if now.seen.generation(worker) >= record.generation]
    return record.plan is None and any(not now.seen.trains(worker, record.generation) for worker in told)


def _is_ending(now: Situation) -> bool:
    """Tell whether a member's script has ended, and left the ring: no other generation follows of its own accord."""
    return any(_is(now, worker, WorkerState.DONE) for worker in now.record.roster)


def _is(now: Situation, worker: str, state: WorkerState) -> bool:
    return worker in now.members and now.members[worker].state is state
