"""Simulated jobs whose leader is the production shell (`edl.daemon.leader_shell`), on an asyncio loop in virtual time.

Its tasks, its queue, its write of a record in the coordinator's form, its roll call, and the calls by which daemons
wait for orders are those of production. Owns: the loop, the coordinator as a `Store`, and daemons that listen. Does not
own: what a job's faults are (`tests.model.scenario`), nor what must hold (`tests.model.model_checks`).
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from edl import events
from edl.coordination.election import Reign
from edl.coordination.store import ANY, Create, NodeExists, Op, StoredNode, Write
from edl.core.job.commit import (
    Commit,
    DeclareRest,
    ForgetSecret,
    GiveAnswer,
    InStore,
    Outcome,
    Publish,
    Telling,
    Writing,
    Written,
)
from edl.core.job.leader_inputs import Input, NotListening, Reported, TookOver, Vanished
from edl.core.job.leader_machine import JobMachine
from edl.core.job.orders import OrderBook
from edl.daemon.leader_shell import Asked, Leader, LeaderConfig
from edl.daemon.record_store import first_of
from edl.errors import StoreUnavailable
from edl.protocol import leader_messages as say
from edl.protocol import node_paths
from edl.protocol.record import Identity, Record, encode_record
from edl.transport.call_errors import Refusals, Refused
from edl.transport.service import Call
from tests.model.fault_actions import SimFaults
from tests.model.model_daemons import LATE_S, SimDaemons
from tests.model.model_faults import SimFault
from tests.model.model_leader import AGAIN_S, KNOCK_S, LOOK_EACH, TICK_S, Asker
from tests.model.model_worker import SESSION_S, SimWorker
from tests.model.simulation import SimJob

if TYPE_CHECKING:
    from edl.coordination.store import Watch

JOB = "sim"
BACK_S = SESSION_S / 2  # at most, after an outage, until a daemon has a session again
TWICE = 0.03  # of the answers come again, later
AT_ONCE_S, BATCHES_AT_ONCE = 0.001, 100
ANSWERED_S = 0.05  # within so long a request that a leader has taken is answered
TURN_S = 1e-6  # a turn of the loop takes time: what waits for a moment wakes after it


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop whose time is the simulated job's: each callback is one of its events."""

    def __init__(self, job: SimJob) -> None:
        super().__init__()
        self._job = job
        self._due: dict[asyncio.Handle, None] = {}  # callbacks that wait for no time, in order
        self._drains = False
        self.stopped = False  # the process is gone, in the middle of whatever it did

    def time(self) -> float:
        return self._job.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._due[handle] = None
        if not self._drains:
            self._job.after(TURN_S, self._turn, handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._drains:
            self._job.after(max(0.0, when - self._job.now) + TURN_S, self._turn, handle)
        return handle

    def drain(self) -> None:
        """Cancel all tasks, and let them end: the job is over for the simulation."""
        self._drains = True
        for task in asyncio.all_tasks(self):
            task.cancel()
        while self._due:
            self._carry_out(next(iter(self._due)))

    def _turn(self, handle: asyncio.Handle) -> None:
        if not self.stopped:
            self._carry_out(handle)

    def _carry_out(self, handle: asyncio.Handle) -> None:
        self._due.pop(handle, None)
        if handle.cancelled():
            return
        asyncio.events._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio.events._set_running_loop(None)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise what a callback has raised; what a task leaves behind, as its process is gone, is no fault."""
        if "handle" in context and not self._drains:
            self._job.after(0.0, _raise, context["exception"])

    def __del__(self, _: object = None) -> None:
        """It has opened nothing that is to be closed."""


def _raise(error: BaseException) -> None:
    raise first_of(error)


class JobClock:
    """The simulated job's time."""

    def __init__(self, job: SimJob) -> None:
        self._job = job

    def now(self) -> float:
        return self._job.now

    def wall(self) -> float:
        return self._job.now


class RollWatch:
    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake: Callable[[], None] | None = wake

    def close(self) -> None:
        self.wake = None


class LeaderStore:
    """The simulated coordinator (`tests.model.model_coordinator`), as one leader's session with it."""

    def __init__(self, leader: ShellLeader) -> None:
        self._leader, self._job = leader, leader.job
        self.watch_of_roll: RollWatch | None = None
        self.under_way: Commit | None = None

    async def read(self, path: str) -> StoredNode | None:
        self._reach()
        if path != node_paths.record(JOB):
            return None
        return StoredNode(encode_record(self._job.durable), self._job.node.version, 0, 0)

    async def children(self, path: str) -> tuple[str, ...]:
        self._reach()
        return tuple(sorted(self._job.daemons.roll)) if path == node_paths.workers(JOB) else ()

    async def create(self, path: str, value: bytes = b"", **_: bool) -> str:
        raise NodeExists(path)

    async def delete(self, path: str, version: int = ANY) -> None:
        assert path == node_paths.secret(JOB)
        self._receives(ForgetSecret())

    async def commit(self, ops: Sequence[Op], *, fence: str | None = None) -> tuple[str | int | None, ...]:
        """Carry out the write of a record and its events, as they are in the coordinator's form."""
        commit = self._leader.writing.commit
        assert commit is not None
        write, *added = ops
        if write != Write(node_paths.record(JOB), encode_record(commit.record), commit.version):
            self._job.checks.violated("record", f"another record is written than that of version {commit.version}")
        told = [one.kind for node in added if isinstance(node, Create) for one in events.decode(node.value)]
        if told != [tell.fact.kind for tell in commit.told]:
            self._job.checks.violated("events", f"{told} are written for {commit.told}")
        if self._leader.at_rest:
            self._job.checks.violated("rest", "a leader has decided something, and says that no caller waits for it")
        self.under_way = commit
        self._job.decided()
        if commit.version % LOOK_EACH == 0:
            self._job.checks.writing.asked_for_status(self._leader)
        await asyncio.sleep(self._job.random.random() * 0.003)
        self.under_way = None
        outcome = self._receives(commit)
        assert isinstance(outcome, Written)
        return outcome.version, *("" for _ in added)

    def watch(self, path: str, wake: Callable[[], None]) -> Watch:
        assert path == node_paths.workers(JOB)
        self.watch_of_roll = RollWatch(wake)
        return self.watch_of_roll

    def _reach(self) -> None:
        if self._job.node.is_away:
            raise StoreUnavailable("away")

    def _receives(self, command: InStore) -> Outcome:
        return self._job.node.receives(command, self._leader.term)


class ClockedLeader(Leader):
    """The production shell, with the simulation's deadlines, storage and network in the place of real ones."""

    def __init__(self, simulated: ShellLeader, store: LeaderStore) -> None:
        job = simulated.job
        about = LeaderConfig(JOB, "", "", SESSION_S)
        reign = Reign(simulated.term, f"fence of term {simulated.term}")
        super().__init__(about, store, reign, JobClock(job), Refusals(), lambda: _restored_at(job))  # type: ignore[arg-type]
        self.lead_times, self.tick_s = job.lead_times, TICK_S
        self._simulated, self._job = simulated, job
        self._knocks = False
        self._batches, self._counted_from = 0, job.now

    def machine_of(self, record: Record) -> JobMachine:
        """Make a machine of the record that was found, which must be the one that was written."""
        if record != self._job.durable:
            self._job.checks.violated("record", f"version {record.version} is read back as another one")
        return self._job.new_machine(self._job.durable, self._simulated.term)

    def tell(self, said: Telling[Asked]) -> None:
        checks = self._job.checks.writing
        match said:
            case Publish(book, pressing):
                checks.published(self._simulated, book)
                self._simulated.book = book
                if pressing:
                    self._simulated.pressed = book.record.version, self._job.now
            case GiveAnswer():
                checks.answered(self._simulated)
            case DeclareRest(at_rest):
                self._simulated.at_rest = at_rest
            case _:
                pass
        super().tell(said)

    def look_for(self, silent: Sequence[Identity]) -> None:
        """Probe the daemons' addresses, so that it takes a moment; called once all is done that a batch asks for."""
        self._job.checks.writing.done(self._simulated)
        self._counts_batch()
        if silent and not self._knocks:
            self._knocks = True
            self._job.after(KNOCK_S, self._knock)

    def _counts_batch(self) -> None:
        """Check that the shell does not look again and again at what is due and stays so."""
        if self._job.now > self._counted_from + AT_ONCE_S:
            self._batches, self._counted_from = 0, self._job.now
        self._batches += 1
        if self._batches > BATCHES_AT_ONCE:
            self._job.checks.violated("I12", f"{self._batches} batches within {AT_ONCE_S:g} s: the leader spins")

    def _knock(self) -> None:
        self._knocks = False
        machine = self.machine
        if machine is None or not self._simulated.alive or self._simulated.term != self._job.term:
            return
        if gone := tuple(one for one in machine.silent if self._job.daemons.refuses(one)):
            self._simulated.refused(gone)
        if machine.silent:
            self._knocks = True
            self._job.after(KNOCK_S, self._knock)

    def write_manifest(self, record: Record) -> None:
        self._job.savings.publish(self._simulated, record)


def _restored_at(job: SimJob) -> float:
    return job.node.away_until if job.node.away_until and not job.node.is_away else float("-inf")


class ShellLeader:
    """One term of the production shell, as the simulation knows a leader (`tests.model.model_leader.SimLeader`)."""

    def __init__(self, job: ShellJob, term: int) -> None:
        self.job, self.term = job, term
        self.alive = True
        self.since = job.now
        self.book = OrderBook(job.durable, term)
        self.pressed = (0, 0.0)  # the newest version that daemons must hear of at once, and when it was published
        self.at_rest = False
        self._asked: dict[Asker, float] = {}  # when it was asked, of requests without an answer
        self._store = LeaderStore(self)
        self._shell = ClockedLeader(self, self._store)
        self._loop = VirtualLoop(job)
        self._loop.create_task(self._shell.run()).add_done_callback(self._ended)
        job.shell_leaders.append(self)

    @property
    def unanswered(self) -> list[Asker]:
        """Requests that have waited for longer than any write takes."""
        return [asker for asker, at in self._asked.items() if self.job.now > at + ANSWERED_S]

    @property
    def machine(self) -> JobMachine:
        assert self._shell.machine is not None
        return self._shell.machine

    @property
    def writing(self) -> Writing[Asked]:
        assert self._shell.chronicle.writing is not None
        return self._shell.chronicle.writing

    def receive(self, happened: Input, answer: Asker | None = None) -> None:
        """Receive a message. The shell finds out by itself who has a session, when it takes over and later."""
        if not isinstance(happened, TookOver | Vanished):
            self._loop.create_task(self._receive(happened, answer))

    def refused(self, gone: tuple[Identity, ...]) -> None:
        self.receive(NotListening(gone))

    async def _receive(self, happened: Input, answer: Asker | None) -> None:
        match happened:
            case Reported(worker, observation):
                body: Any = say.Report(observation)
            case say.Register(identity):
                worker, body = identity.id, happened
            case _ if answer is not None:
                worker, body = "", happened
            case _:
                await self._shell.put(happened)
                return
        if answer is not None:
            self._asked[answer] = self.job.now
        try:
            reply = await self._shell.answer(Call(worker, self.term, body))
        except Refused:
            return
        if answer is not None:
            del self._asked[answer]
            self.job.after(0.0, answer, not isinstance(reply, say.Rejected))

    def roll_changed(self) -> None:
        watch = self._store.watch_of_roll
        if watch is not None and watch.wake is not None and not self._loop.stopped:
            self._loop.call_soon(watch.wake)

    def crash(self, *, written: bool) -> None:
        """The process dies. Its last write may have been carried out."""
        if self.alive and written and self._store.under_way is not None:
            self.job.node.late(self._store.under_way, self.term)
        self.alive, self._loop.stopped = False, True

    def listen(self, worker: SimWorker) -> None:
        """Let a worker's daemon wait for orders of this leader, again and again."""
        self._loop.create_task(self._listen(worker, worker.daemon))

    async def _listen(self, worker: SimWorker, daemon: int) -> None:
        job, longest_s = self.job, self.job.lead_times.hold_s
        known = (0, 0) if worker.orders is None else (worker.orders.term, worker.orders.version)
        while job.leader is self and worker.daemon == daemon and job.daemons.listens(worker):
            await asyncio.sleep(job.delay())
            hold_s, asked_at = longest_s * (1 + job.random.random()) / 2, job.now
            try:
                reply = await self._shell.answer(Call(worker.id, self.term, say.Await(*known, hold_s)))
            except Refused:
                await asyncio.sleep(AGAIN_S)
                continue
            assert isinstance(reply, say.Ordered)
            book, late = self.book, max(0.0, worker.deaf_until - job.now) + job.delay()
            if reply.orders != book.orders(worker.id):
                job.checks.violated("orders", f"{worker.id} is given version {reply.orders.version}, not the newest")
            version, at = self.pressed
            if known < (self.term, version) and job.now > max(at, asked_at) + AT_ONCE_S:
                job.checks.violated("pace", f"{worker.id} is not woken by version {version}, which presses")
            known = (reply.orders.term, reply.orders.version)
            job.after(late, job.daemons.hear, worker, book)
            if job.random.random() < TWICE:
                job.after(late + LATE_S, job.daemons.hear, worker, book)
            await asyncio.sleep(late)

    def drain(self) -> None:
        self._loop.drain()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.alive = False
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self.job.after(0.0, _raise, error)
        elif self._shell.in_doubt:
            self.job.after(AGAIN_S, self.job.elect, self)


def leader_of(job: SimJob) -> ShellLeader:
    return cast("ShellLeader", job.leader)


class ListeningDaemons(SimDaemons):
    """Daemons that call the leader for orders, in place of being told of them. A long outage ends their sessions."""

    @property
    def roll(self) -> frozenset[str]:
        away_until = self.job.node.away_until
        if self.job.node.was_away_s < SESSION_S or self.job.now > away_until + BACK_S:
            return super().roll
        return frozenset(one for one in super().roll if self._back_at(one) <= self.job.now)

    def _back_at(self, worker: str) -> float:
        """Return when its daemon has another session, after an outage that has ended all."""
        return self.job.node.away_until + BACK_S * random.Random(f"{worker} {self.job.node.away_until}").random()

    def hear_from_leader(self, worker: SimWorker) -> None:
        leader_of(self.job).listen(worker)

    def find_leader(self) -> None:
        super().find_leader()
        for worker in self.job.workers.values():
            if self.listens(worker):
                self.hear_from_leader(worker)

    def begin(self, worker: SimWorker) -> None:
        super().begin(worker)
        leader_of(self.job).roll_changed()

    def _presented(self, worker: SimWorker, daemon: int) -> None:
        before = worker.presented
        super()._presented(worker, daemon)
        if worker.presented and not before:
            self.hear_from_leader(worker)

    def lose_session(self, worker: SimWorker) -> None:
        super().lose_session(worker)
        leader_of(self.job).roll_changed()

    def durable(self, record: Record) -> None:
        super().durable(record)
        leader_of(self.job).roll_changed()


class OutageFaults(SimFaults):
    """After an outage all watches wake."""

    def strike_job(self, fault: SimFault) -> None:
        super().strike_job(fault)
        if fault is SimFault.AWAY:
            for after_s in (0.0, BACK_S):
                self.job.after(self.job.node.was_away_s + after_s + TURN_S, self._wake)

    def _wake(self) -> None:
        leader_of(self.job).roll_changed()


class ShellJob(SimJob):
    """A job whose leaders are production's."""

    leader: ShellLeader  # type: ignore[assignment]
    leader_class = ShellLeader  # type: ignore[assignment]
    daemons_class = ListeningDaemons
    faults_class = OutageFaults

    def __init__(self, *given: Any, **more: Any) -> None:
        self.shell_leaders: list[ShellLeader] = []  # of all terms
        super().__init__(*given, **more)

    def make_durable(self, record: Record) -> None:
        before = {gone.worker for gone in self.durable.gone}
        super().make_durable(record)
        for gone in record.gone:
            worker = self.workers[gone.worker]
            if gone.worker not in before and "session" in gone.reason and worker.daemon and worker.alive:
                self.checks.violated("I11", f"{worker.id} is lost, and its daemon lives: {gone.reason}")

    def _play(self, within_s: float, until_s: float = math.inf) -> None:
        try:
            super()._play(within_s, until_s)
        finally:
            for leader in self.shell_leaders:
                leader.drain()
