"""Plan a simulated job's faults beforehand: what goes wrong, and when, so that a seed always tells the same story.

Owns: the kinds of fault, and drawing a plan of them. Does not own: carrying one out (`tests.model.fault_actions`).
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class SimFault(StrEnum):
    JOIN = "join"  # one more worker is started
    LEAVE = "leave"  # SIGTERM
    KILL = "kill a trainer"  # its daemon tells
    VANISH = "vanish"  # host and all: only the session's end tells
    KILL_WORKER = "kill a worker"  # trainer and daemon at once: another daemon of its host tells, if there is one
    STALL = "stall"  # a trainer hangs: asleep, stopped, or without samples; its daemon lives
    STRAY = "stray"  # a script waits for a collective that the others' scripts do not come to, and does so again
    DEAFEN = "deafen"  # the word reaches one worker late
    CHANGE_LEADER = "change leader"  # another takes over; the old one does not know it yet, and goes on talking
    CRASH_LEADER = "crash leader"  # what it was about to write is lost, or is written and not told
    RENEW_DAEMON = "renew a daemon"  # it died: the trainer starts another, which registers again
    SCALE = "scale"  # another size is asked for
    AWAY = "the coordinator is away"  # for a while it answers no call, and ends no session
    CUT_STATE = "cut a state"  # on its way to a newcomer, beside a step; the ring is well
    BREAK_LIMB = "break one limb's ring"  # and no other limb's
    LOSE_LIMB = "kill one limb"
    CUT_OFF = "cut off"  # from now on a worker can be part of no ring but one of its own; its daemon is well


class Moment(Enum):
    """Moments that a fault can wait for: of a worker, or of the leader."""

    BOOTING = "boots"
    REHEARSING = "rehearses"
    READY = "is ready"
    ENTERING = "waits for its new ring"
    FORMING = "is in a ring that just forms"
    SITTING = "sits in its new ring"
    STEPPING = "takes part in a step"
    LAST_STEP = "takes part in the last step before a switch"
    LEAVING = "was told to leave"
    DECIDING = "the leader has decided, and not written it"
    SWITCHING = "a switch was announced"
    PREPARING = "begins to form its next ring, beside the one that trains"
    PREPARED = "has formed its next ring, beside the one that trains"
    SENDING = "sends its state to a newcomer, or is sent one, beside a step"
    SAVING = "a checkpoint was announced"
    COPYING = "copies its part of a checkpoint"
    STORING = "its daemon stores that"
    PUBLISHING = "the leader publishes a checkpoint"


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault at a time in seconds, or the `count`-th time that a moment comes: then that moment's worker is struck."""

    fault: SimFault
    at: float | Moment
    count: int = 1


BESIDE: Final = (Moment.PREPARING, Moment.PREPARED)  # only where rings are prepared
SAVED: Final = (Moment.SAVING, Moment.COPYING, Moment.STORING, Moment.PUBLISHING)  # only where a job is
APART: Final = (*BESIDE, Moment.SENDING, *SAVED)
ANY: Final = tuple(moment for moment in Moment if moment not in APART)

# Where a fault finds its victim, if it waits for a moment at all; and how often it is drawn.
DRAWN: tuple[tuple[SimFault, int, tuple[Moment, ...]], ...] = (
    (SimFault.JOIN, 6, (Moment.SWITCHING, Moment.DECIDING, Moment.READY)),
    (SimFault.LEAVE, 4, (Moment.STEPPING, Moment.SWITCHING, Moment.READY, Moment.ENTERING, Moment.REHEARSING)),
    (SimFault.KILL, 4, ANY),
    (SimFault.VANISH, 3, ANY),
    (SimFault.STALL, 2, ANY),
    (SimFault.DEAFEN, 2, (Moment.STEPPING, Moment.SWITCHING, Moment.DECIDING)),
    (SimFault.CHANGE_LEADER, 3, (Moment.DECIDING, Moment.SWITCHING, Moment.ENTERING, Moment.SITTING, Moment.READY)),
    (SimFault.CRASH_LEADER, 3, (Moment.DECIDING,)),
    (SimFault.RENEW_DAEMON, 2, (Moment.READY, Moment.ENTERING, Moment.SITTING, Moment.STEPPING, Moment.LEAVING)),
    (SimFault.SCALE, 4, (Moment.SWITCHING, Moment.ENTERING, Moment.DECIDING)),
)


STRIKES: Final = (
    SimFault.KILL,
    SimFault.KILL,
    SimFault.VANISH,
    SimFault.STALL,
    SimFault.LEAVE,
    SimFault.RENEW_DAEMON,
)
ANYWHERE: Final = (Moment.SITTING, Moment.STEPPING, Moment.LAST_STEP, Moment.SWITCHING, Moment.LEAVING)
AROUND: Final = (SimFault.JOIN, SimFault.CHANGE_LEADER, SimFault.CRASH_LEADER, SimFault.SCALE)


def with_witnesses(plan: list[Planned], source: random.Random) -> list[Planned]:
    """Return the same plan, but some of the workers that vanish leave their host there, with others of the job."""
    return [
        dataclasses.replace(one, fault=SimFault.KILL_WORKER)
        if one.fault is SimFault.VANISH and source.random() < 0.5
        else one
        for one in plan
    ]


def draw_beside(source: random.Random) -> list[Planned]:
    """Draw faults that strike while rings are prepared."""
    kinds = (*STRIKES, SimFault.CUT_OFF, *AROUND, SimFault.DEAFEN)
    count = source.choice((0, 1, 1, 2, 3))
    return [Planned(source.choice(kinds), source.choice(BESIDE), source.randint(1, 8)) for _ in range(count)]


def draw_sending(source: random.Random) -> list[Planned]:
    """Draw faults that strike while state goes to newcomers beside a step: its ends or other workers."""
    kinds = (SimFault.CUT_STATE, *STRIKES, *AROUND)
    count = source.choice((0, 1, 1, 2))
    return [Planned(source.choice(kinds), Moment.SENDING, source.randint(1, 4)) for _ in range(count)]


def draw_strays(source: random.Random) -> list[Planned]:
    """Draw, in few jobs, scripts that do not do the same as those of the others."""
    count = source.choice((0, 0, 0, 0, 0, 0, 1, 2))
    return [Planned(SimFault.STRAY, source.choice(ANYWHERE), source.randint(1, 8)) for _ in range(count)]


def draw_limbs(source: random.Random) -> list[Planned]:
    """Draw faults that strike a limb of a worker, and not the others."""
    moments = (Moment.STEPPING, Moment.LAST_STEP, Moment.FORMING, Moment.SENDING, Moment.COPYING, *BESIDE, *ANYWHERE)
    kinds = (SimFault.BREAK_LIMB, SimFault.BREAK_LIMB, SimFault.LOSE_LIMB)
    count = source.choice((0, 1, 2, 3, 5))
    return [Planned(source.choice(kinds), source.choice(moments), source.randint(1, 12)) for _ in range(count)]


def draw_remnants(source: random.Random, within_s: float) -> list[Planned]:
    """Draw deaths of several workers at about the same time, and what comes together with them."""
    deaths = (SimFault.KILL, SimFault.KILL, SimFault.KILL, SimFault.LOSE_LIMB)
    kinds = [source.choice(deaths) for _ in range(source.choice((2, 2, 3, 4)))]
    kinds += source.sample((*AROUND, SimFault.VANISH, SimFault.RENEW_DAEMON), source.choice((0, 0, 1, 2)))
    if source.random() < 0.4:
        at, spread = source.random() * within_s, source.choice((0.005, 0.02, 0.1))
        return [Planned(kind, at + spread * source.random()) for kind in kinds]
    moment, count = source.choice((*ANYWHERE, Moment.FORMING, Moment.COPYING)), source.randint(1, 20)
    return [Planned(kind, moment, count) for kind in kinds]


def draw_saved(source: random.Random) -> list[Planned]:
    """Draw faults that strike while a job is saved."""
    kinds = (
        SimFault.KILL,
        SimFault.VANISH,
        SimFault.STALL,
        SimFault.LEAVE,
        SimFault.RENEW_DAEMON,
        SimFault.DEAFEN,
        SimFault.AWAY,
    )
    others = (
        SimFault.JOIN,
        SimFault.CHANGE_LEADER,
        SimFault.CHANGE_LEADER,
        SimFault.CRASH_LEADER,
        SimFault.CRASH_LEADER,
        SimFault.SCALE,
    )
    count = source.choice((0, 0, 1, 2, 3))
    return [Planned(source.choice((*kinds, *others)), source.choice(SAVED), source.randint(1, 6)) for _ in range(count)]


def draw(source: random.Random, count: int, within_s: float) -> list[Planned]:
    """Draw `count` faults. One in four comes together with the one before."""
    kinds, weights, moments = zip(*DRAWN, strict=True)
    plan: list[Planned] = []
    for index in source.choices(range(len(kinds)), weights, k=count):
        at: float | Moment = source.random() * within_s
        number = 1
        if plan and source.random() < 0.25:
            at, number = plan[-1].at, plan[-1].count
        elif source.random() < 0.6:
            at = source.choice(moments[index])
            number = source.randint(1, 30) if at is Moment.STEPPING else source.randint(1, 4)
        plan.append(Planned(kinds[index], at, number))
    return plan
