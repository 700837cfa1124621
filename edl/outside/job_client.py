"""A client of one job, which the command line, a launcher and `edl.client` use to watch and steer it.

Owns: asking the leader until it has answered, and reading the leader's record in the coordinator when there is no
leader. Does not own: how a job is shown.

The answer to a request for another size may get lost together with the leader that took it. So each request has an id,
under which the record remembers it: a caller that repeats a request gets the same answer, and the job changes once.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Final

import msgspec

from edl import events
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.election import Elected, read_leader
from edl.coordination.store import Store, Watch, connect
from edl.errors import ConfigError, JobFailed, NoSuchJob, PeerError, ScaleRejected, StoreUnavailable, TimedOut
from edl.events import Event
from edl.host.credentials import known_secret, with_secret
from edl.protocol import leader_messages as say
from edl.protocol import node_paths
from edl.protocol.leader_messages import Ack, AskMigrate
from edl.protocol.record import OVER, JobState, Record, Room, Status, decode_record
from edl.transport.call_errors import Caller, Unauthentic
from edl.transport.rpc import Client

__all__ = ["Ack", "JobClient", "Retry", "when_back"]

SESSION_S = 10.0
ANSWER_S = 2.0
CALL_S = 5.0  # then another leader may be in charge
RETRY_S = 0.1
LOOK_S = 0.25
AT_ONCE = 64  # nodes of events that are read concurrently
NAME = "client"

Connect = Callable[[Coordinator, float], Awaitable[Store]]
Speak = Callable[[bytes, str, str, str], Caller]
Wish = say.AskScaleOut | say.AskScaleIn


class Retry(msgspec.Struct, frozen=True):
    """A relative request was not taken, or no daemon could say that it was: make the same request again.

    >>> answer = Retry("a switch is under way")
    >>> answer.reason if isinstance(answer, Retry) else answer.target
    'a switch is under way'
    """

    reason: str


class NoAnswer(PeerError):
    """The leader did not answer in time, or there was none. A leader may or may not have taken the request."""


class JobClient:
    """The client of one job. Use it as an async context."""

    def __init__(
        self,
        coordinator: Coordinator,
        job: str,
        secret: bytes = b"",
        *,
        connect: Connect = connect,
        speak: Speak = Client,
    ) -> None:
        self._coordinator = with_secret(coordinator, secret)
        self._job = job
        self._secret = secret
        self._connect = connect
        self._speak = speak
        self._store: Store | None = None
        self._caller: tuple[str, Caller] | None = None
        self._unanswered: dict[Wish, str] = {}  # ids of requests without an answer

    async def __aenter__(self) -> JobClient:
        """Connect. Raises ConfigError when the coordinator cannot be reached."""
        self._store = await self._connect(self._coordinator, SESSION_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._caller is not None:
            await self._caller[1].close()
        await self._opened().close()

    async def status(self) -> Status:
        """Ask the leader for the job's status; without an answer, derive it from the record of the last leader. Raises
        JobFailed, PeerError.
        """
        record = await self._record()
        if record.state not in OVER:
            try:
                reply = await self._ask(say.AskStatus(), ANSWER_S)
            except PeerError:
                pass  # there is no leader now: the record has the last known status
            else:
                if isinstance(reply, say.Told):
                    return reply.status
        leader = await read_leader(self._opened(), node_paths.root(self._job))
        term, ident = (leader.term, leader.ident.partition(" ")[0]) if leader else (0, "")
        return _status_without_leader(record, term, ident)

    async def events(self, after: int = 0) -> tuple[int, list[Event]]:
        """Return the events beyond the first `after`, oldest first, and the number to ask with next time."""
        store, folder = self._opened(), node_paths.events(self._job)
        wanted: list[tuple[str, int]] = []  # nodes with something new, and how many of their events are known
        before = 0
        for name in node_paths.in_order(await store.children(folder)):
            held, known = node_paths.events_in(name), max(0, after - before)
            before += held
            if known < held:
                wanted.append((name, known))
        found: list[Event] = []
        for at in range(0, len(wanted), AT_ONCE):
            some = wanted[at : at + AT_ONCE]
            nodes = await asyncio.gather(*(store.read(f"{folder}/{name}") for name, _ in some))
            for (_, known), node in zip(some, nodes, strict=True):
                if node is not None:
                    found += events.decode(node.value)[known:]
        return before, found

    def watch_events(self, told: Callable[[], None]) -> Watch:
        """Call `told` whenever there may be more events."""
        return self._opened().watch(node_paths.events(self._job), told)

    async def follow(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield events as they happen, until the job is over."""
        changed = asyncio.Event()
        watch = self.watch_events(changed.set)
        try:
            while True:
                changed.clear()
                # Events are read first; whether the job is over is read after them, so that none is missed.
                after, found = await self.events(after)
                for event in found:
                    yield event
                if (await self._record()).state in OVER:
                    for event in (await self.events(after))[1]:  # its last event comes with its end
                        yield event
                    return
                await changed.wait()
        finally:
            watch.close()

    async def stop(self, reason: str, timeout_s: float = 30.0) -> None:
        """End the job. Raises PeerError when no leader takes the request in time."""
        await self._insist(say.AskStop(reason), timeout_s)

    async def preempt(self, reason: str, deadline_s: float, timeout_s: float = 30.0, *, life: int = 0) -> None:
        """Ask the leader to save the job and end it, if `life` is 0 or the job's present life. Raises JobFailed with
        the remedy if the job has no checkpoints, PeerError as `stop`.
        """
        reply = await self._insist(say.AskPreempt(reason, deadline_s, life), timeout_s)
        if isinstance(reply, say.Rejected):
            raise JobFailed(f"job {self._job} cannot be preempted: {reply.reason}")

    async def checkpoint(self, request: str, timeout_s: float = 30.0) -> say.SaveTold:
        """Ask the leader to save the job; with the same id again, ask whether the checkpoint is durable. Raises
        JobFailed, PeerError as `stop`.
        """
        reply = await self._ask_until_taken(say.AskCheckpoint(request), timeout_s)
        if isinstance(reply, say.SaveTold):
            return reply
        raise JobFailed(f"job {self._job}: {_reason(reply)}")

    async def migrate(self, asked: say.AskMigrate, timeout_s: float = 30.0) -> bool:
        """Ask the leader to move all workers off a host; return True once they have left. Repeat the call with the same
        id to ask again. Raises ScaleRejected, JobFailed, and PeerError as `stop`.
        """
        reply = await self._ask_until_taken(asked, timeout_s)
        if isinstance(reply, say.MoveTold):
            return reply.done
        raise ScaleRejected(_reason(reply))

    async def batch(self, samples: int, timeout_s: float = 30.0) -> None:
        """Set the number of samples that all workers together take in a step. Raises ScaleRejected, and PeerError as
        `stop`.
        """
        reply = await self._insist(say.AskBatch(samples), timeout_s)
        if isinstance(reply, say.Rejected):
            raise ScaleRejected(reply.reason)

    async def scale(
        self, size: int, timeout_s: float = 30.0, unanswered: Callable[[Exception], object] = lambda _: None
    ) -> Ack:
        """Ask for `size` workers. The newest request counts. `unanswered` is called with the error of each try that
        has no answer. Raises ScaleRejected, JobFailed, and PeerError as `stop`.
        """
        reply = await self._ask_until_taken(say.AskScale(size, _new_id()), timeout_s, unanswered)
        if isinstance(reply, Ack):
            return reply
        raise ScaleRejected(_reason(reply))

    async def scale_out(self, workers: int, request: str = "", timeout_s: float = ANSWER_S) -> Ack | Retry:
        """Ask for `workers` more workers. Raises ScaleRejected, JobFailed, Unauthentic. See `_wish`."""
        return await self._wish(say.AskScaleOut(workers, ""), request, timeout_s)

    async def scale_in(
        self, workers: int | tuple[str, ...], request: str = "", timeout_s: float = ANSWER_S
    ) -> Ack | Retry:
        """Ask for a number of workers fewer, or for the named workers to leave. Raises ScaleRejected, JobFailed,
        Unauthentic.
        """
        return await self._wish(say.AskScaleIn(workers, ""), request, timeout_s)

    async def wait(
        self, size: int | None, timeout_s: float | None, seen: Callable[[Status], object] = lambda _: None
    ) -> Status:
        """Wait until `size` workers train; None means as many as are asked for. Each status goes to `seen`, which may
        raise.

        Raises TimedOut; JobFailed when the job is over first; StoreUnavailable when the coordinator stays away.
        """
        clock = asyncio.get_running_loop().time
        deadline = math.inf if timeout_s is None else clock() + timeout_s
        while True:
            status = await self._look()
            seen(status)
            wanted = status.target if size is None else size
            if status.state in OVER:
                raise JobFailed(f"job {self._job} is over ({status.state.value}): it never had {wanted} workers")
            if status.state is JobState.RUNNING and status.size == wanted:
                return status
            if clock() > deadline:
                raise TimedOut(f"job {self._job} has {status.size} workers, and not {wanted} within {timeout_s:g} s")
            await asyncio.sleep(LOOK_S)

    # ----------------------------------------------------------------------------------------------------- the inside

    async def _look(self) -> Status:
        """Return the status; while the coordinator is unavailable, retry for the length of a session."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + SESSION_S
        while True:
            try:
                return await self.status()
            except StoreUnavailable:
                if clock() > deadline:
                    raise
                await asyncio.sleep(LOOK_S)

    async def _record(self) -> Record:
        node = await self._opened().read(node_paths.record(self._job))
        if node is None:
            raise NoSuchJob(
                f"there is no job {self._job} at {self._coordinator.hosts}: `edl status` lists those known here"
            )
        return decode_record(node.value)

    async def _wish(self, wish: Wish, request: str, timeout_s: float) -> Ack | Retry:
        """Make a relative request. If the same request got no answer before, repeat it under the same id."""
        request = request or self._unanswered.get(wish) or _new_id()
        self._unanswered[wish] = request
        try:
            reply = await self._insist(msgspec.structs.replace(wish, request=request), timeout_s)
        except NoAnswer as error:
            return Retry(f"{error}; ask the same again: it is taken once")
        del self._unanswered[wish]
        if isinstance(reply, Ack):
            return reply
        if isinstance(reply, say.Rejected) and reply.retry:
            return Retry(reply.reason)
        raise ScaleRejected(_reason(reply))

    async def _ask_until_taken(
        self, body: say.Request, timeout_s: float, unanswered: Callable[[Exception], object] = lambda _: None
    ) -> say.Reply:
        """Repeat a request while its answer is that a later one may be taken, as of a job without workers yet; return
        the last answer. Raises what `_insist` does.
        """
        clock = asyncio.get_running_loop().time
        deadline, left_s = clock() + timeout_s, timeout_s
        while True:
            reply = await self._insist(body, left_s, unanswered)
            if not (isinstance(reply, say.Rejected) and reply.retry) or clock() > deadline:
                return reply
            await asyncio.sleep(LOOK_S)
            left_s = max(deadline - clock(), LOOK_S)

    async def _insist(
        self, body: say.Request, timeout_s: float, unanswered: Callable[[Exception], object] = lambda _: None
    ) -> say.Reply:
        """Repeat a request until some leader answers. Raises NoAnswer, Unauthentic; NoSuchJob or JobFailed when none
        ever will.
        """
        last: Exception | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._ask(body, min(timeout_s, CALL_S))
                    except (PeerError, StoreUnavailable) as error:
                        last = await self._why_never() or error
                        unanswered(last)
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            if isinstance(last, Unauthentic | NoSuchJob):
                raise last from None
            raise NoAnswer(f"no leader of job {self._job} answered within {timeout_s:g} s ({last})") from last

    async def _why_never(self) -> NoSuchJob | None:
        """Return NoSuchJob if the job has no workers yet: it may still begin. Raises JobFailed when the job is over,
        because then no leader will come.
        """
        try:
            record = await self._record()
        except NoSuchJob as error:
            return error
        except StoreUnavailable:
            return None
        if record.state in OVER:
            raise JobFailed(f"job {self._job} is over: {record.reason or record.state.value}")
        return None

    async def _ask(self, body: say.Request, deadline_s: float) -> say.Reply:
        leader = await read_leader(self._opened(), node_paths.root(self._job))
        if leader is None:
            raise PeerError(f"job {self._job} has no leader yet")
        caller = await self._connected(leader)
        reply: say.Reply = await caller.call(body, say.Reply, term=leader.term, deadline_s=deadline_s)
        return reply

    async def _connected(self, leader: Elected) -> Caller:
        address = leader.ident.rpartition(" ")[2]
        if self._caller is None or self._caller[0] != address:
            if self._caller is not None:
                await self._caller[1].close()
            self._secret = await known_secret(self._opened(), self._job, self._secret)
            self._caller = (address, self._speak(self._secret, self._job, NAME, address))
        return self._caller[1]

    def _opened(self) -> Store:
        if self._store is None:
            raise RuntimeError("JobClient is an async context: use `async with`")
        return self._store


@asynccontextmanager
async def when_back(client: JobClient, patience_s: float, away: Callable[[str], object]) -> AsyncIterator[JobClient]:
    """Enter `client` once its coordinator, which was reachable before, can be reached again; `away` gets the reason
    meanwhile.

    Raises ConfigError when the coordinator stays away for `patience_s`.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience_s
    async with AsyncExitStack() as stack:
        while True:
            try:
                await stack.enter_async_context(client)
                break
            except ConfigError as error:
                if clock() >= deadline:
                    raise
                away(str(error))
                await asyncio.sleep(RETRY_S)
        yield client


def _status_without_leader(record: Record, term: int, leader: str) -> Status:
    # The leader's machine is most of what a short command would import; most of them have a leader to ask.
    from edl.core.job.job_report import status_of
    from edl.core.job.lead_times import LeadTimes
    from edl.core.job.leader_machine import JobMachine

    return status_of(JobMachine(record, LeadTimes.of(SESSION_S)), term, leader, {})


def _new_id() -> str:
    return secrets.token_hex(8)


def _reason(reply: say.Reply) -> str:
    return reply.reason if isinstance(reply, say.Rejected) else f"odd answer: {reply!r}"


# Some requests take a while: to save a job now, to save and end it, or to leave a host.


async def moved(
    job: JobClient, host: str, to: tuple[Room, ...], within_s: float, seen: Callable[[Status], object] = lambda _: None
) -> None:
    """Wait until no worker is left on `host`. Each status goes to `seen`. Newcomers have `within_s` seconds to be
    ready; 0 means the time that a boot may take. Raises ScaleRejected with the reason when the migration fails,
    JobFailed, PeerError.
    """
    asked = AskMigrate(secrets.token_hex(8), host, to, within_s)
    while not await job.migrate(asked):
        seen(await job.status())
        await asyncio.sleep(LOOK_S)


PREEMPT_S: Final = 25.0  # a machine that is reclaimed usually gets half a minute of notice
SLACK_S: Final = 60.0  # beyond the deadline, for a new leader to be elected and to record the end
PREEMPTED: Final = "it was preempted"


async def saved(job: JobClient) -> str:
    """Save the job now; return the checkpoint's path once it is durable. Raises JobFailed, PeerError."""
    request = secrets.token_hex(8)
    while True:
        told = await job.checkpoint(request)
        if told.path:
            return told.path
        await asyncio.sleep(LOOK_S)


async def preempted(
    job: JobClient, reason: str, deadline_s: float, kept: Callable[[], Status | None] = lambda: None
) -> Status:
    """Save the job and end it; return its last status. `kept` returns the status that a launcher on this machine has
    recorded, because the coordinator may be gone as soon as the job is. Raises JobFailed, PeerError, TimedOut.
    """
    await job.preempt(reason, deadline_s)
    clock = asyncio.get_running_loop().time
    until = clock() + deadline_s + SLACK_S
    while True:
        try:
            status = await job.status()
        except StoreUnavailable:
            if (found := kept()) is None:
                raise
            status = found
        if status.state in OVER:
            break
        if clock() > until:
            raise TimedOut(f"job {status.job} is not over {deadline_s + SLACK_S:g} s after it was asked to go")
        await asyncio.sleep(LOOK_S)
    if status.state.value != "preempted":
        raise JobFailed(f"job {status.job} was over before it could be preempted: it {status.state.value}")
    return status
