"""The agent of one node, as a machine: which orders it carries out, and what it reports.

It starts each worker at most once, whatever its orders are and however often it dies itself, and no worker on a device
that another worker still has (I17). A worker that runs and is in no order is a stray: it is killed. An agent of the
node that was paused with older orders may still start a worker; before such a worker is reported gone, its id is
barred.

Owns: these rules. Does not own: processes (`edl.scheduler.agent_process` carries out the commands, and so does the
simulation), nor the decisions (`scheduler`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from edl.cluster.queue.end_causes import TAIL_BYTES, EndEvidence
from edl.cluster.queue.queue_entries import WorkerOrder, WorkerSeen, WorkerWish

KILL_EVERY_S: Final = 2.0  # a process that is told to die may fork meanwhile


@dataclass(frozen=True, slots=True)
class OrdersCame:
    """The orders are complete: they replace those before."""

    orders: tuple[WorkerOrder, ...]


@dataclass(frozen=True, slots=True)
class WorkerFound:
    """A worker that an earlier process of this agent had started, or at least claimed."""

    id: str
    devices: tuple[int, ...]
    pid: int
    gone: EndEvidence | None  # None: a process of the worker is left


@dataclass(frozen=True, slots=True)
class WorkerBegan:
    id: str
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerClaimed:
    """The worker's id was claimed before: by an agent that has died, or by another agent, which continues after a
    pause.
    """

    id: str


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The last process of a worker is gone."""

    id: str
    evidence: EndEvidence


@dataclass(frozen=True, slots=True)
class AgentLooked:
    """Time has passed, and nothing else has happened."""


AgentInput = OrdersCame | WorkerFound | WorkerBegan | WorkerClaimed | WorkerGone | AgentLooked


@dataclass(frozen=True, slots=True)
class StartOne:
    """Claim the id for good, then start the worker; a worker whose id is claimed already is never started again."""

    order: WorkerOrder


@dataclass(frozen=True, slots=True)
class EndOne:
    """End a worker. `kill`: kill all of its processes at once; else ask its script to leave."""

    id: str
    kill: bool


@dataclass(frozen=True, slots=True)
class BarOne:
    """Make sure that no agent starts the worker any more. Answer with WorkerFound, or with WorkerGone if no process of
    it is there. The command is repeated until it is answered.
    """

    id: str


AgentCommand = StartOne | EndOne | BarOne


@dataclass(frozen=True, slots=True)
class _Kept:
    devices: tuple[int, ...]
    pid: int = 0
    gone: EndEvidence | None = None
    at: float = 0.0
    told: WorkerWish = WorkerWish.RUN
    told_at: float = 0.0
    unclear: bool = False  # another agent may have started the worker


class AgentMachine:
    def __init__(self) -> None:
        self._workers: dict[str, _Kept] = {}
        self._orders: dict[str, WorkerOrder] = {}
        self._told = False  # whether any orders have come

    def handle(self, happened: AgentInput, now: float) -> list[AgentCommand]:
        """Return the commands to carry out now. The report changes, too."""
        match happened:
            case OrdersCame(orders):
                self._orders, self._told = {order.id: order for order in orders}, True
            case WorkerFound(id_, devices, pid, gone):
                self._workers[id_] = _Kept(devices, pid, gone and gone.cut(TAIL_BYTES), now)
            case WorkerBegan(id_, pid):
                self._workers[id_] = replace(self._workers[id_], pid=pid)
            case WorkerClaimed(id_):
                self._workers[id_] = replace(self._workers[id_], unclear=True)
            case WorkerGone(id_, evidence):
                self._end(id_, evidence, now)
            case AgentLooked():
                pass
        return self._act(now) if self._told else []

    @property
    def report(self) -> tuple[WorkerSeen, ...]:
        """Report all workers that are here, and those gone that are still in the orders."""
        return tuple(
            WorkerSeen(id_, kept.gone is not None, kept.gone, kept.pid, kept.at)
            for id_, kept in sorted(self._workers.items())
        )

    @property
    def living(self) -> tuple[str, ...]:
        return tuple(id_ for id_, kept in self._workers.items() if kept.gone is None)

    def validate(self) -> None:
        """Check I17."""
        devices = [device for kept in self._workers.values() if kept.gone is None for device in kept.devices]
        assert len(devices) == len(set(devices)), f"two workers on one device: {self._workers}"

    def _end(self, id_: str, evidence: EndEvidence, now: float) -> None:
        kept = self._workers[id_]
        if kept.gone is None:
            told = evidence.told or kept.told is not WorkerWish.RUN
            gone = msgspec.structs.replace(evidence.cut(TAIL_BYTES), told=told)
            self._workers[id_] = replace(kept, gone=gone, at=now)

    def _act(self, now: float) -> list[AgentCommand]:
        todo: list[AgentCommand] = []
        for id_, kept in list(self._workers.items()):
            order = self._orders.get(id_)
            if kept.gone is not None:
                if order is None:  # the scheduler has heard of its end
                    del self._workers[id_]
                continue
            wish = WorkerWish.DIE if order is None else order.wish
            todo += (BarOne(id_),) if kept.unclear else self._press(id_, kept, wish, now)
        for id_, order in self._orders.items():
            if id_ in self._workers:
                continue
            if order.wish is not WorkerWish.RUN:  # it was never started, and is never to be
                self._workers[id_] = _Kept(order.devices, told=order.wish, told_at=now, unclear=True)
                todo.append(BarOne(id_))
            elif self._are_free(order.devices):
                self._workers[id_] = _Kept(order.devices)
                todo.append(StartOne(order))
        return todo

    def _press(self, id_: str, kept: _Kept, wish: WorkerWish, now: float) -> Sequence[EndOne]:
        again = wish is WorkerWish.DIE and now - kept.told_at >= KILL_EVERY_S
        if (
            wish is WorkerWish.RUN
            or (kept.told is wish and not again)
            or (kept.told is WorkerWish.DIE and wish is WorkerWish.LEAVE)
        ):
            return ()
        self._workers[id_] = replace(kept, told=wish, told_at=now)
        return (EndOne(id_, kill=wish is WorkerWish.DIE),)

    def _are_free(self, devices: tuple[int, ...]) -> bool:
        return all(kept.gone is not None or not {*devices} & {*kept.devices} for kept in self._workers.values())
