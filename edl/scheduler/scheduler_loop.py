"""Reign of a scheduler: from what it finds in the coordinator until it is deposed, or anything is unclear.

It hears submissions, wishes, agents and jobs, lets its machine decide, makes that durable under its fence, and only
then acts (I9). Whatever goes wrong with the coordinator, it begins again from what lies there: a decision whose write
was not answered is found there, or never was.

Owns: this loop, and the times of its decisions for its log, each from the news until the decision is durable. Does not
own: the decisions (`edl.cluster.queue.scheduler_machine`), nor the election.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from edl.clock import SystemClock
from edl.cluster.queue.job_view import left_out_by
from edl.cluster.queue.queue_entries import ACTIVE, JobEntry, JobPhase
from edl.cluster.queue.queue_ownership import QueueOwner
from edl.cluster.queue.scheduler_inputs import (
    Act,
    BeginLife,
    CancelAsked,
    ChangeBatch,
    DrainAsked,
    DrainOver,
    JobLook,
    JobLooked,
    LifeRefused,
    LookOnce,
    NodeLeftOut,
    NodeReported,
    NodeWent,
    QueueInput,
    QueueTick,
    SendAway,
    SizeWanted,
    Submitted,
)
from edl.cluster.queue.scheduler_machine import SchedulerMachine
from edl.coordination.election import Reign
from edl.coordination.store import StoreRefused, Watch
from edl.errors import EdlError, StoreUnavailable
from edl.scheduler.job_poller import JobsObserver
from edl.scheduler.queue_store import AGENTS, DRAIN, JOBS, REPORTS, SIZES, WISHES, QueueStore

KEPT: Final = 10_000
TOLD_EVERY_S: Final = 60.0
LINE: Final = re.compile(
    r"term (\d+): (\d+) decisions, the newest (\d+) within ([\d.]+) ms \(median\), ([\d.]+) ms \(p95\)$", re.MULTILINE
)


class ToldTimes(NamedTuple):
    """Decision times of one reign, as a line of a log tells them."""

    term: int
    made: int  # decisions of that reign
    newest: int  # whose times these are
    median_ms: float
    p95_ms: float


class DecisionTimes:
    """Decision times of one reign. To note a time costs an append; the times are sorted once a minute."""

    def __init__(self, now: float) -> None:
        self._newest: deque[float] = deque(maxlen=KEPT)
        self._made = self._told = 0
        self._told_at = now

    def note(self, seconds: float) -> None:
        self._newest.append(seconds)
        self._made += 1

    def due(self, now: float) -> str:
        """Return a line for the log; empty where it is not time, or nothing was decided since."""
        if now - self._told_at < TOLD_EVERY_S:
            return ""
        self._told_at = now
        return self.last()

    def last(self) -> str:
        """Return a line of all decisions; empty where the line before has told all."""
        if self._made == self._told:
            return ""
        self._told = self._made
        ordered = sorted(self._newest)
        median, p95 = (1000 * ordered[int(share * len(ordered))] for share in (0.5, 0.95))
        return f"{self._made} decisions, the newest {len(ordered)} within {median:.1f} ms (median), {p95:.1f} ms (p95)"


def told_in(log: str) -> list[ToldTimes]:
    """Return the last line of each term in the log."""
    found = {
        int(term): ToldTimes(int(term), int(made), int(newest), float(median), float(p95))
        for term, made, newest, median, p95 in LINE.findall(log)
    }
    return list(found.values())


logger = logging.getLogger("edl")

JOBS_EVERY_S = 1.0  # looks at a job that runs
ALL_EVERY_S = 5.0  # looks at everything, whether a watch has woken it or not
SWEEP_S = 600.0  # far longer than a submission takes
AGAIN_S = 0.5

Build = Callable[[list[JobEntry]], SchedulerMachine]


class SchedulerLoop:
    """Use it once for each reign, as a task."""

    def __init__(
        self, queue: QueueStore, reign: Reign, observer: JobsObserver, build: Build, owner: QueueOwner | None = None
    ) -> None:
        """`owner`: make this cluster the owner of the queue first; None: leave the owner as it is, unchecked."""
        self._owner = owner
        self._queue, self._reign, self._observer, self._build = queue, reign, observer, build
        self._clock = SystemClock()
        self._machine: SchedulerMachine | None = None
        self._inbox: list[QueueInput] = []
        self._wake = asyncio.Event()
        self._dirty: set[str] = set()  # what to read again
        self._watches: list[Watch] = []
        self._reports: set[str] = set()  # nodes whose reports are watched
        self._there: set[str] = set()
        self._wishes: tuple[str, ...] = ()
        self._sizes: dict[str, tuple[int, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: set[str] = set()
        self._looked_at = 0.0
        self._all_looked_at = self._clock.now()
        self._due: float | None = None
        self._swept_at = 0.0
        self._times = DecisionTimes(self._clock.now())

    async def run(self) -> None:
        """Reign until cancelled. Raises Fenced, StoreUnavailable, StoreRefused, QueueRefused."""
        try:
            await self._load()
            while True:
                await self._hear()
                await self._decide()
                self._tell_times(self._times.due(self._clock.now()))
                await self._rest()
        finally:
            self._tell_times(self._times.last())
            for watch in self._watches:
                watch.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------------- hearing

    async def _load(self) -> None:
        if self._owner is not None:
            await self._queue.own(self._owner)
        await self._queue.prepare()
        jobs = await self._queue.adopt_environs(await self._queue.jobs(), self._reign.fence)
        self._machine = self._build(jobs)
        await self._sweep_environs()
        await self._forget_old()
        for path in (JOBS, WISHES, SIZES, AGENTS, DRAIN):
            self._watch(path)
            self._dirty.add(path)
        for report in await self._queue.reports():
            await self._queue.orders(report.node)
            self._inbox.append(NodeReported(report))
            self._follow(report.node)
        left_out = left_out_by(await self._queue.story())
        wall = self._clock.wall()
        self._inbox += [NodeLeftOut(node, *how) for node, how in left_out.items() if how[0] > wall]
        logger.info("term %d begins with %d jobs", self._reign.term, len(jobs))

    async def _forget_old(self) -> None:
        """Forget jobs that are over, except the newest."""
        machine = self._machine
        assert machine is not None
        over = [job for job in machine.jobs.values() if job.over and not job.workers]
        for job in self._queue.beyond(over):
            await self._observer.forget(job.name)
            await self._queue.forget(job.name, self._reign.fence)
            machine.forget(job.name)

    async def _sweep_environs(self) -> None:
        assert self._machine is not None
        self._swept_at = self._clock.now()
        await self._queue.sweep_environs(self._machine.jobs.values(), self._reign.fence)

    def _watch(self, path: str) -> None:
        def woken() -> None:
            self._dirty.add(path)
            self._wake.set()

        self._watches.append(self._queue.watch(path, woken))

    def _follow(self, node: str) -> None:
        if node not in self._reports:
            self._reports.add(node)
            self._watch(f"{REPORTS}/{node}")

    async def _hear(self) -> None:
        dirty, self._dirty = self._dirty, set()
        machine = self._machine
        assert machine is not None
        if AGENTS in dirty:
            await self._hear_agents()
        for path in dirty:
            node = path.rpartition("/")[2]
            if path.startswith(f"{REPORTS}/") and node in self._there and (report := await self._queue.report(node)):
                self._inbox.append(NodeReported(report))
        if WISHES in dirty:  # before the jobs: whose job is not found then, there is none
            self._wishes = await self._queue.wishes()
        if SIZES in dirty:
            self._sizes = await self._queue.sizes()
        if JOBS in dirty or any(name not in machine.jobs for name in (*self._wishes, *self._sizes)):
            new = [name for name in await self._queue.names() if name not in machine.jobs]
            self._inbox += [Submitted(job.asked, job.environ) for job in await self._queue.some(new)]
        self._inbox += [CancelAsked(name) for name in self._wishes]
        self._inbox += [SizeWanted(name, np) for name, (np, _) in self._sizes.items()]
        if DRAIN in dirty:
            kill = await self._queue.draining()
            self._inbox.append(DrainOver() if kill is None else DrainAsked(kill))

    async def _hear_agents(self) -> None:
        there = set(await self._queue.agents())
        gone = {report.node for report in await self._queue.reports()} - there
        self._inbox += [NodeWent(node) for node in sorted(gone)]
        for node in sorted(there - self._there):
            await self._queue.orders(node)
            self._follow(node)
            if (report := await self._queue.report(node)) is not None:
                self._inbox.append(NodeReported(report))
        self._there = there

    def _look_at_jobs(self) -> None:
        now = self._clock.now()
        if now - self._looked_at < JOBS_EVERY_S:
            return
        self._looked_at = now
        for job in self._jobs_that_run():
            if job.name not in self._looking:
                self._looking.add(job.name)
                self._begin(self._look(job.name, job.life))

    def _jobs_that_run(self) -> list[JobEntry]:
        assert self._machine is not None
        jobs = self._machine.jobs.values()
        return [job for job in jobs if job.ready and (job.phase in ACTIVE or job.phase is JobPhase.PREEMPTING)]

    async def _look(self, name: str, life: int) -> None:
        try:
            self._say(JobLooked(name, life, await self._observer.look(name)))
        except EdlError as error:
            logger.debug("job %s does not answer: %s", name, error)
        finally:
            self._looking.discard(name)

    def _say(self, word: QueueInput) -> None:
        self._inbox.append(word)
        self._wake.set()

    # ------------------------------------------------------------------------------------------------------ deciding

    async def _decide(self) -> None:
        machine = self._machine
        assert machine is not None
        now = self._clock.now()
        if not self._inbox and (self._due is None or now < self._due):
            return
        inputs, self._inbox = self._inbox or [QueueTick()], []
        wall = self._clock.wall()
        resolved = machine.handle(inputs, wall, now)
        self._check(machine)
        self._due = None if resolved.look_again is None else now + resolved.look_again - wall
        jobs: Mapping[str, JobEntry] = machine.jobs
        await self._queue.keep(resolved, jobs, tuple(machine.nodes), self._reign.fence)
        self._times.note(self._clock.now() - now)
        if ended := [job.environ for job in resolved.changed.values() if job.over and not job.workers]:
            self._queue.forget_environs(ended)
            await self._forget_old()
        if self._clock.now() - self._swept_at >= SWEEP_S:
            await self._sweep_environs()
        for event in resolved.told:
            logger.info("%s %s: %s", event.kind, event.job, event.words)
        if cluster := [event for event in resolved.told if not event.job]:
            await self._queue.tell_story(cluster, self._reign.fence)
        heeded = [name for name in self._wishes if name not in jobs or jobs[name].over]
        if heeded:
            await self._queue.heed(heeded, self._reign.fence)
            self._wishes = ()
        if self._sizes:
            await self._queue.heed_sizes(self._sizes, self._reign.fence)
            self._sizes = {}
            self._dirty.add(SIZES)  # one that is newer than those
        for act in resolved.acts:
            self._begin(self._act(act))

    def _tell_times(self, line: str) -> None:
        if line:
            logger.info("term %d: %s", self._reign.term, line)

    @staticmethod
    def _check(machine: SchedulerMachine) -> None:
        """Log what is wrong with one job and go on: else it would stop all jobs."""
        try:
            machine.validate()
        except AssertionError as error:
            logger.error("a fault of edl's: %s", error)

    async def _rest(self) -> None:
        """Wait until something is to be heard, or due."""
        self._look_at_jobs()
        waits = ALL_EVERY_S if self._due is None else min(ALL_EVERY_S, max(0.01, self._due - self._clock.now()))
        if self._jobs_that_run():
            waits = min(waits, JOBS_EVERY_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(waits):
                await self._wake.wait()
        self._wake.clear()
        if self._clock.now() - self._all_looked_at >= ALL_EVERY_S:
            self._all_looked_at = self._clock.now()
            self._dirty |= {JOBS, WISHES, SIZES, AGENTS, DRAIN, *(f"{REPORTS}/{node}" for node in self._there)}

    # -------------------------------------------------------------------------------------------------------- acting

    def _begin(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _act(self, act: Act) -> None:
        """Carry out an act; repeat it while the coordinator is away. The task ends with the reign."""
        while True:
            try:
                await self._do(act)
                return
            except (StoreUnavailable, StoreRefused) as error:
                logger.info("%r is tried again: %s", act, error)
            except EdlError as error:
                logger.warning("%r comes to nothing: %s", act, error)
                self._answer_for(act, error)
                return
            except Exception as error:
                logger.exception("a fault of edl's: %r comes to nothing", act)
                self._answer_for(act, error)
                return
            await asyncio.sleep(AGAIN_S)

    def _answer_for(self, act: Act, error: Exception) -> None:
        """Answer for an act that was dropped: its job would keep its devices and wait for ever."""
        match act:
            case BeginLife(name, life):
                self._say(LifeRefused(name, life, f"{type(error).__name__}: {error}", again=True))
            case LookOnce(name, life):
                self._say(JobLooked(name, life, JobLook(), final=True))
            case SendAway() | ChangeBatch():
                pass  # whom it does not reach is killed in time; a batch is asked for again

    async def _do(self, act: Act) -> None:
        assert self._machine is not None
        match act:
            case BeginLife(name):
                self._say(await self._observer.begin_life(self._machine.jobs[name]))
            case SendAway(name, saved_life, deadline_s, reason):
                await self._observer.send_away(name, saved_life, reason, deadline_s)
            case ChangeBatch(name, samples):
                await self._observer.change_batch(name, samples)
            case LookOnce(name, life):
                self._say(JobLooked(name, life, await self._observer.look(name), final=True))
