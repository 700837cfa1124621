"""The shell around the job's machine, for one term.

Owns: the queue of inputs, answering daemons and the command line, and when they learn of decisions. Does not own: the
decisions (`edl.core.job.leader_machine`), that they are durable before they are told (`edl.core.job.commit`), nor which
daemon leads (`edl.coordination.election`).

One task owns the machine. RPC handlers and watches only put inputs into its queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence

import msgspec

from edl.clock import Clock
from edl.coordination.election import Reign
from edl.coordination.store import AccessDenied, Store
from edl.core.job.commit import BatchDecided, DeclareRest, GiveAnswer, Publish, Telling, WriteManifest, decide
from edl.core.job.deadlines import END_OF_TIME, Deadlines
from edl.core.job.job_report import status_of, with_paces
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import (
    Input,
    NotListening,
    Reported,
    Tell,
    TimePassed,
    TookOver,
    Vanished,
)
from edl.core.job.leader_machine import JobMachine
from edl.core.job.orders import OrderBook
from edl.daemon import leftovers
from edl.daemon.part_store import Publisher
from edl.daemon.policy_loader import Code
from edl.daemon.policy_runner import PolicyRunner
from edl.daemon.record_store import RecordStore, forget, patiently
from edl.daemon.roll_caller import PortProbe
from edl.errors import Fenced, StoreUnavailable
from edl.facts import LeaderElected
from edl.protocol import leader_messages as say
from edl.protocol import node_paths
from edl.protocol.record import OVER, Identity, Record, Status
from edl.transport.call_errors import Reason, Refusals, Refused
from edl.transport.service import Call

logger = logging.getLogger("edl")

QUEUE_LENGTH = 10_000
BATCH = 256
QUIET = 2 / 3  # of a session time-out: a session is renewed more often than that, and a daemon calls more often still
SWEEP_S = 3600.0  # from one sweep of other jobs' nodes to the next
TICK_S = 1.0  # how late an overdue worker may be noticed when nothing else happens


class LeaderConfig(msgspec.Struct, frozen=True):
    job: str
    worker: str
    address: str  # address at which its daemon listens
    session_timeout_s: float
    step_timeout_s: float = 60.0
    code: Code | None = None  # its own copy of a user's policy


Asked = asyncio.Future[say.Reply]
Pending = tuple[Input, Asked | None]


class Leader:
    """The leader of one term. Run it as a task; cancel it when the term is over."""

    def __init__(
        self,
        about: LeaderConfig,
        store: Store,
        reign: Reign,
        clock: Clock,
        refusals: Refusals,
        restored_at: Callable[[], float] = lambda: float("-inf"),
    ) -> None:
        """`restored_at`: when this daemon's own connection to the coordinator came, or came back, on this clock."""
        self._about = about
        self._store = store
        self._reign = reign
        self._clock = clock
        self._refusals = refusals
        self._restored_at = restored_at
        self.chronicle: RecordStore[Asked] = RecordStore(about.job, store, reign, clock, self.tell)
        self.lead_times = LeadTimes.of(about.session_timeout_s)
        self.tick_s = TICK_S
        self._queue: asyncio.Queue[Pending] = asyncio.Queue(QUEUE_LENGTH)
        self._asked: set[Asked] = set()
        self.machine: JobMachine | None = None
        self._governor: PolicyRunner | None = None
        self._book: OrderBook | None = None
        self._published = asyncio.Event()
        self._pressing = 0  # the newest version that was published as urgent
        self._at_rest = asyncio.Event()
        self._publisher = Publisher(clock, lambda happened: self._queue.put_nowait((happened, None)))
        self._knocking = PortProbe(lambda gone: self._queue.put_nowait((NotListening(gone), None)))
        self._heard: dict[str, float] = {}  # when a worker's daemon has called last
        self.in_doubt = False
        """The coordinator did not answer: this term ended before it was known what is on record."""

    async def run(self) -> None:
        """Lead until cancelled. Returns when another daemon leads already, or in doubt; any exception means that this
        daemon cannot lead.
        """
        roll_call = asyncio.Event()
        watch = self._store.watch(node_paths.workers(self._about.job), roll_call.set)
        try:
            machine = await self._take_over()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._work(machine))
                tasks.create_task(self._call_roll(machine, roll_call))
                tasks.create_task(self._watch_time())
                tasks.create_task(self._sweep())
                tasks.create_task(self._settle_in())
                self._governor = PolicyRunner(machine, self._clock, self.put, self._about.code)
                tasks.create_task(self._governor.run())
        except* Fenced:
            logger.info("term %d is over", self._reign.term)
        except* StoreUnavailable as errors:
            logger.warning("term %d ends in doubt: %s", self._reign.term, errors.exceptions[0])
            self.in_doubt = True
        finally:
            watch.close()
            self._publisher.close()
            self._knocking.close()
            self._turn_away()

    # ---------------------------------------------------------------------------------------------------- the owner

    async def _take_over(self) -> JobMachine:
        record = await self.chronicle.open()
        alive = frozenset(await patiently(lambda: self._store.children(node_paths.workers(self._about.job))))
        if self._doubt_s() > 0:
            alive = alive.union(_with_daemons(record))  # lost workers are looked for later
        machine = self.machine = self.machine_of(record)
        took_over = TookOver(alive, self._clock.wall())
        decided: BatchDecided[Asked] = decide(machine, [(took_over, None)], self._clock.now())
        if record.state not in OVER:  # else there is nothing to lead: callers learn how the job ended
            elected = Tell(LeaderElected(worker=self._about.worker), record.generation, machine.newest_step)
            decided = dataclasses.replace(decided, told=(elected, *decided.told))
        await self.chronicle.keep(decided)
        return machine

    def machine_of(self, record: Record) -> JobMachine:
        return JobMachine(record, self.lead_times, Deadlines.of(self._about.step_timeout_s))

    async def _work(self, machine: JobMachine) -> None:
        """Take inputs, as many as there are at a time, and make their results durable in one write."""
        while True:
            batch = [await self._next_input(machine.wake_at)]
            while len(batch) < BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self.chronicle.keep(decide(machine, batch, self._clock.now()))
            self.look_for(machine.silent)

    async def _next_input(self, wake_at: float) -> Pending:
        try:
            async with asyncio.timeout(max(0.0, wake_at - self._clock.now()) if wake_at < END_OF_TIME else None):
                return await self._queue.get()
        except TimeoutError:
            return TimePassed(), None

    def look_for(self, silent: Sequence[Identity]) -> None:
        """Test whether the daemons of these workers still listen."""
        self._knocking.look_for(silent)

    def tell(self, said: Telling[Asked]) -> None:
        """Carry out what may be told, as its cause is durable."""
        match said:
            case Publish(book, pressing):
                self._publish(book, pressing=pressing)
            case GiveAnswer(asked, reply, stale):
                if stale:
                    self._refusals.count(Reason.GENERATION)
                if not asked.done():
                    asked.set_result(reply)
            case WriteManifest(record):
                self.write_manifest(record)
            case DeclareRest(at_rest=True):
                self._at_rest.set()
            case DeclareRest():
                self._at_rest.clear()

    def _publish(self, book: OrderBook, *, pressing: bool) -> None:
        """Publish orders. Daemons that wait are woken only by urgent ones: a thousand answers at once delay all
        others.
        """
        self._book = book
        if self._heard:
            present = set(_with_daemons(book.record))
            self._heard = {worker: at for worker, at in self._heard.items() if worker in present}
        if pressing:
            self._pressing = book.record.version
            self._published.set()
            self._published = asyncio.Event()

    def write_manifest(self, record: Record) -> None:
        """Publish the checkpoint whose parts are durable, beside all else."""
        if record.checkpoints.saving is not None:
            self._publisher.publish(record)

    async def wait_at_rest(self) -> None:
        """Wait until no worker depends on the leader's next orders, which a change of leader would delay."""
        await self._at_rest.wait()

    # ---------------------------------------------------------------------------------------------------- the others

    async def _call_roll(self, machine: JobMachine, due: asyncio.Event) -> None:
        """Give up workers without a session, but none while the coordinator is away (I11), nor just after."""
        due.set()
        while True:
            await due.wait()
            due.clear()
            alive = await patiently(lambda: self._store.children(node_paths.workers(self._about.job)))
            absent = [worker for worker in _with_daemons(machine.record) if worker not in alive]
            for worker in absent:
                if (doubt_s := max(self._doubt_s(), self._doubt_of_s(worker))) > 0:
                    asyncio.get_running_loop().call_later(doubt_s, due.set)
                else:
                    await self._queue.put((Vanished(worker, "its daemon's session ended"), None))

    def _doubt_of_s(self, worker: str) -> float:
        """Return for how long a worker without a session still counts as living, as its daemon has called.

        A coordinator that stood still for less than a session time-out may have ended some sessions and not this one,
        and the connection to it need not have noticed. A daemon that is gone was silent for most of a session time-out.
        """
        quiet_s = QUIET * self._about.session_timeout_s
        return self._heard.get(worker, float("-inf")) + quiet_s - self._clock.now()

    def _doubt_s(self) -> float:
        """Return for how long a missing session still means nothing.

        A coordinator that stood still, or was started anew, ends all sessions at once; the daemons that live come back
        with others. That it stood still is known by this daemon's own connection; or not at all, if that is its first.
        """
        return self._restored_at() + self._about.session_timeout_s - self._clock.now()

    async def _watch_time(self) -> None:
        while True:
            await asyncio.sleep(self.tick_s)
            await self._queue.put((TimePassed(), None))

    async def _sweep(self) -> None:
        """Remove other jobs' nodes whose time is up: no process of those jobs is left to do it."""
        while True:
            with contextlib.suppress(StoreUnavailable, AccessDenied):
                gone = await leftovers.sweep(self._store, self._clock.wall(), besides=self._about.job)
                if gone:
                    logger.info("removed what was left of jobs that are over: %s", ", ".join(gone))
            await asyncio.sleep(SWEEP_S)

    async def _settle_in(self) -> None:
        """Forget the resignations of earlier leaders, once this one has led for some time."""
        while True:
            await asyncio.sleep(self._about.step_timeout_s)
            record = self.chronicle.record
            version = 0 if record is None else record.version
            if await patiently(lambda: forget(self._about.job, self._store, self._reign, version)):  # noqa: B023
                return

    def _turn_away(self) -> None:
        """Refuse all requests in progress, so that no caller waits for an answer that never comes."""
        for asked in self._asked:
            if not asked.done():
                asked.set_exception(Refused(Reason.TERM))

    async def answer(self, call: Call) -> say.Reply:
        """Answer one request of a daemon or the command line."""
        match call.body:
            case say.Report(observation):
                self._heard[call.sender] = self._clock.now()
                return await self._ask(Reported(call.sender, observation))
            case say.Await(term, version, hold_s):
                self._heard[call.sender] = self._clock.now()
                return await self._orders(call.sender, (term, version), hold_s)
            case say.AskStatus():
                status = self.status()
                if status is None:
                    raise Refused(Reason.TERM, detail="this leader has not taken over yet")
                return say.Told(status)
            case (
                say.Register()
                | say.AskStop()
                | say.AskBatch()
                | say.AskCheckpoint()
                | say.AskPreempt()
                | say.AskMigrate()
                | say.AskScale()
                | say.AskScaleOut()
                | say.AskScaleIn() as body
            ):
                return await self._ask(body)
            case _:  # the transport decodes requests only
                raise Refused(Reason.UNKNOWN_MESSAGE)

    async def put(self, happened: Input) -> None:
        """Let the machine take what no caller has asked for."""
        await self._queue.put((happened, None))

    async def _ask(self, happened: Input) -> say.Reply:
        asked: Asked = asyncio.get_running_loop().create_future()
        self._asked.add(asked)
        try:
            await self._queue.put((happened, asked))
            return await asked
        finally:
            self._asked.discard(asked)

    async def _orders(self, worker: str, known: tuple[int, int], hold_s: float) -> say.Reply:
        # A daemon that knows all urgent orders waits: while a ring breaks or forms, the record changes many times a
        # second, and a thousand daemons would ask anew each time.
        book = self._book
        if book is None or (known[0] == self._reign.term and known[1] >= self._pressing):
            published = self._published
            try:
                async with asyncio.timeout(min(hold_s, self.lead_times.hold_s)):
                    await published.wait()
            except TimeoutError:
                pass  # the same orders again: these also show the daemon that this leader lives
            book = self._book
        if book is None:
            raise Refused(Reason.TERM, detail="this leader has not taken over yet")
        return say.Ordered(book.orders(worker))

    def status(self) -> Status | None:
        """Return the status by what is durable: while the coordinator is away, unwritten decisions are not shown (I9).
        None: this leader has not taken over yet.
        """
        machine, durable = self.machine, self.chronicle.record
        if machine is None or durable is None:
            return None
        wall = machine.wall_at(self._clock.now())
        status = status_of(machine, self._reign.term, self._about.worker, self._refusals.snapshot(), durable, wall)
        if self._governor is not None:  # its measurements are newer than the record's
            meter = self._governor.meter
            workers = with_paces(status.workers, self._governor.paces)
            status = msgspec.structs.replace(status, rates=meter.rates, rate=meter.present, workers=workers)
        return status


def _with_daemons(record: Record) -> list[str]:
    """Return the workers whose daemons have sessions: all members, and workers of which something is left."""
    return [*(member.identity.id for member in record.members), *(remnant.worker for remnant in record.held)]
