"""A worker's daemon: it holds the worker's session, acts for its trainer in the job, and may be elected leader.

Owns: the process, its tasks and their end. Does not own: decisions (`edl.core`), its part in leading the job
(`edl.daemon.leadership`), the conversation with the present leader (`edl.daemon.leader_session`).

The daemon is a process of its own, because a trainer holds the GIL for seconds, and because one process must be left to
report the trainer's progress when the trainer dies.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from edl.clock import SystemClock
from edl.config import Settings
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.election import Reign
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Store, connect
from edl.core.job.lead_times import LeadTimes
from edl.core.worker.observed_trainer import DIED
from edl.daemon.address_book import AddressBook, Here, JobKeys, located, through_with
from edl.daemon.driver_link import DriverLink
from edl.daemon.host_watch import HostProcesses, HostWatch, Process
from edl.daemon.leader_session import Candidacy, LeaderSession, PresenceNode
from edl.daemon.leader_shell import Leader, LeaderConfig
from edl.daemon.leadership import Leadership
from edl.daemon.limb_seats import LimbSeat, LimbSeats
from edl.daemon.part_store import PartStore, resumed_from
from edl.daemon.policy_loader import Code, job_policy, own_code
from edl.daemon.roll_caller import RollCaller
from edl.daemon.trainer_view import TrainerView
from edl.errors import ConfigError, EdlError, JobFailed, StoreUnavailable
from edl.host.credentials import coordinator_of, shared_secret
from edl.host.host_processes import host_id, raise_open_files, yield_to_trainers
from edl.host.network import LOOPBACK, address_of, address_towards, interface_of
from edl.protocol import leader_messages, node_paths
from edl.protocol import trainer_messages as say
from edl.protocol.assignment import Orders, RingKind, Verdict
from edl.protocol.checkpoint_record import PartInfo
from edl.protocol.job_policy import JobPolicy
from edl.protocol.leader_messages import Word
from edl.protocol.record import Identity
from edl.transport.call_errors import Reason, Refusals, Refused
from edl.transport.pipe import Connection, PipeServer
from edl.transport.rpc import Client, Server
from edl.transport.service import Call

if TYPE_CHECKING:
    from edl.daemon.metrics.metrics_server import MetricsOffer


# Pace the garbage collector of a daemon: Python's own pace suits neither a leader of a thousand workers nor of three.
#
# Each call that gRPC serves leaves a cycle behind, and so does each connection to a rendezvous and each answer of
# kazoo. By numbers alone a small job's leader would keep the cycles of ten minutes, some 10 MiB, and seem to leak.


YOUNG: Final = 50_000  # new objects before Python collects these by itself
EVERY_S: Final = 10.0
SHARE: Final = 0.001  # upper bound of the share of time spent on collecting


def collect_seldom() -> None:
    """Collect rarely, and never the objects of the start."""
    # Python's default collects after each 700 new objects: a grant to a thousand workers would be interrupted 30 times.
    gc.freeze()
    gc.set_threshold(YOUNG)


async def collect_regularly(every_s: float = EVERY_S, collect: Callable[[], object] = gc.collect) -> None:
    """Collect all garbage periodically, until cancelled; less often if a collection takes long."""
    pause_s = every_s
    while True:
        await asyncio.sleep(pause_s)
        began = time.monotonic()
        collect()
        pause_s = max(every_s, (time.monotonic() - began) / SHARE)


logger = logging.getLogger("edl")


AFTER_END = 2  # session time-outs for which a leader is searched, to report the trainer's end to
RETRY_S = 0.5
DEAF_S = 0.6  # time for a trainer to learn that its job is preempted


class Daemon:
    """The daemon of one worker, from its trainer's init() until the worker's end was reported."""

    def __init__(self, settings: Settings, folder: Path, trainer: int, *, anew: bool = False) -> None:
        """Open the shared folder. `anew`: in place of a daemon that died."""
        self._settings = settings
        self._anew = anew
        self._job = settings.job or "solo"
        self._worker = settings.worker_id or f"w{secrets.token_hex(4)}"
        self._folder = folder
        self._trainer = trainer
        self._limbs = limbs = LimbSeats(settings.processes, trainer, folder, self._on_trainer_exit, settings.meeting)
        self._refusals = Refusals()
        self._observer = TrainerView(limbs, self._refusals.snapshot, limbs.used, limbs.halted, limbs.seen)
        self._parts = PartStore(folder, self._on_stored, self._on_not_stored)
        self._pipe = PipeServer(folder / "pipe", say.FromTrainer, self._on_message, limbs.hung_up)
        self._member = False  # its trainer has had orders from a daemon before this one
        self._copies = 0  # the saving for which what is left of the worker copies, or has copied
        self._has_heard = False  # the trainer knows that its job is preempted; or its script has ended
        self._greeted = asyncio.Event()
        self._trainer_gone = asyncio.Event()
        self._code: Code | None = None
        self._job_policy = JobPolicy()
        self._office: Leadership | None = None
        self._membership: LeaderSession | None = None
        self._introductions: AddressBook | None = None
        self._roll_caller: RollCaller | None = None
        self._siblings: HostWatch | None = None
        self._stand_in: DriverLink | None = None
        self._interface, self._address_here = "lo", LOOPBACK
        self._keys: JobKeys | None = None
        self._clock = SystemClock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until the worker's end is known to the job, and its trainer is gone. Raises ConfigError."""
        self._limbs.watch_first()
        collecting = asyncio.ensure_future(collect_regularly())
        await self._pipe.start()
        if self._settings.stand_in is not None:
            self._stand_in = DriverLink(self._settings.stand_in, self._on_driver_word)
        try:
            await self._live()
        except StoreUnavailable:
            raise  # at the beginning; the trainer starts another daemon, which waits
        except EdlError as error:
            await self._give_up(str(error))
            raise
        finally:
            self._limbs.free_held()
            self._limbs.close()
            collecting.cancel()
            await self._pipe.stop()
            self._parts.close()
            if self._stand_in is not None:
                self._stand_in.close()
            if self._trainer_gone.is_set():  # else another daemon may be started for the trainer
                self._limbs.remove_folders()

    async def _live(self) -> None:
        self._code = own_code(self._settings)
        self._job_policy = job_policy(self._settings, self._code)
        coordinator = coordinator_of(self._settings)
        store = await self._connect(coordinator)
        try:
            secret = await shared_secret(store, self._job, self._settings.secret())
            await self._serve(store, secret, self._address(coordinator))
        finally:
            await store.close()

    async def _connect(self, coordinator: Coordinator | None) -> Store:
        if coordinator is None:
            return MemoryServer().connect()
        if self._anew:
            return await self._connect_in_time(coordinator)
        return await connect(coordinator, self._settings.session_timeout_s)

    async def _connect_in_time(self, coordinator: Coordinator) -> Store:
        """Connect again and again to a coordinator that the daemon before had a session at."""
        # Training does not stop while the coordinator is away. So the daemon waits like daemons that have a session
        # (I11): while the trainer lives, and for a bounded time after its end.
        session_s, gone_at = self._settings.session_timeout_s, None
        while True:
            try:
                return await connect(coordinator, session_s)
            except ConfigError as error:
                if self._trainer_gone.is_set():
                    gone_at = self._clock.now() if gone_at is None else gone_at
                    if self._clock.now() - gone_at >= AFTER_END * session_s:
                        raise
                logger.warning("%s: trying again", error)
            await asyncio.sleep(RETRY_S)

    def _address(self, coordinator: Coordinator | None) -> str:
        if self._settings.network_interface:
            return address_of(self._settings.network_interface)
        if coordinator is None or coordinator.socket:
            return LOOPBACK
        return address_towards(*coordinator.endpoints[0])

    async def _serve(self, store: Store, secret: bytes, address: str) -> None:
        server = Server(
            secret,
            self._job,
            self._answer,
            request_types=leader_messages.Request,
            refusals=self._refusals,
            # a ring goes on forming while the job changes its leader
            termless=(leader_messages.AskAddresses, leader_messages.AskPresence),
        )
        port = await server.start(address)
        marks = {node_paths.worker(self._job, self._worker): socket.gethostname().encode()}
        entry = PresenceNode(store, self._clock, marks)
        office = self._office = self._opened(store, server, address, port, entry)
        self._siblings = siblings = self._looking_after(store, address, office.ident, marks)
        self._keys = JobKeys(secret, self._job)
        self._introductions = introductions = self._introducing(secret)
        self._roll_caller = roll_caller = RollCaller(
            introductions, introductions.hold_s, introductions.answer_s, self._on_met
        )
        metrics: MetricsOffer | None = None
        try:
            await entry.begin()
            if siblings is not None:
                siblings.start()
            await self._either(self._greeted, self._trainer_gone)
            metrics = await self._offer_metrics(office)
            office.stand()
            about = Candidacy(self._job, secret, self._register(address, port), self._settings.session_timeout_s)
            self._membership = LeaderSession(about, store, self._observer, self._command)
            await self._until_the_end_is_known(self._membership, office)
            self._limbs.free_held()
            self._send(say.Noted())
            await self._trainer_gone.wait()
            # If this daemon leads: workers that go on without its trainer form a ring, and wait for leases. Otherwise
            # another
            # leader would have to be elected first. A ring may need a step's time to form.
            await office.wait_at_rest(2 * self._settings.session_timeout_s)
        finally:
            entry.close()
            if metrics is not None:
                await metrics.stop()
            await office.leave()
            if siblings is not None:
                await siblings.stop()
            await roll_caller.stop()
            await introductions.stop()
            await server.stop()

    async def _offer_metrics(self, office: Leadership) -> MetricsOffer | None:
        """Serve metrics, if asked for; the trainer prints their address.

        Raises ConfigError, but not in the place of a daemon that died: its trainer is not to end for that.
        """
        settings = self._settings
        if settings.metrics_port is None:
            return None
        from edl.daemon.metrics.metrics_server import MetricsOffer

        offer = MetricsOffer(self._job, self._worker, self._clock, None if settings.job is None else settings.job_home)
        try:
            link = await offer.start(
                settings.metrics_address,
                settings.metrics_port,
                lambda: (self._observer.observe(self._clock.now()), self._refusals.snapshot()),
                office.status,
            )
        except ConfigError as error:
            if not self._anew:
                raise
            logger.warning("this worker has no metrics any more: %s", error)
            return None
        self._send(say.Said(f"metrics of worker {self._worker}: {link}"))
        return offer

    def _introducing(self, secret: bytes) -> AddressBook:
        hold_s, answer_s = LeadTimes.of(self._settings.session_timeout_s).hold_s, self._settings.session_timeout_s / 2
        return AddressBook(
            lambda address: Client(secret, self._job, self._worker, address), self._refusals, hold_s, answer_s
        )

    def _looking_after(self, store: Store, address: str, candidate: str, marks: dict[str, bytes]) -> HostWatch | None:
        """Watch the other daemons of this host, which find this one by an entry in `marks`; None if the system does not
        identify processes.
        """
        host, daemon, trainer = host_id(address), Process.of(os.getpid()), Process.of(self._trainer)
        if host is None or daemon is None or trainer is None:
            return None
        folder = node_paths.host(self._job, host)
        marks[f"{folder}/{self._worker}"] = msgspec.json.encode(HostProcesses(candidate, daemon, trainer))
        return HostWatch(store, node_paths.root(self._job), folder, self._worker, self._on_siblings)

    async def _until_the_end_is_known(self, membership: LeaderSession, office: Leadership) -> None:
        """Wait until the job knows the worker's end, or no leader can be told, long after the trainer is gone (I12)."""
        reporting = asyncio.ensure_future(membership.run())
        gone = asyncio.ensure_future(self._trainer_gone.wait())
        try:
            ends: set[asyncio.Future[Any]] = {reporting, gone, office.hopeless}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if office.hopeless.done() and not reporting.done():
                raise JobFailed(office.hopeless.result())
            await asyncio.wait({reporting}, timeout=AFTER_END * self._settings.session_timeout_s)
            while self._parts.busy and not reporting.done():  # what is left of the worker saves the job
                await asyncio.wait({reporting}, timeout=AFTER_END * self._settings.session_timeout_s)
            if not reporting.done():
                logger.warning("no leader takes the news that the trainer is gone: giving up")
        finally:
            gone.cancel()
            reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting

    def _opened(self, store: Store, server: Server, address: str, port: int, entry: PresenceNode) -> Leadership:
        settings = self._settings
        session_s, step_s = settings.session_timeout_s, settings.step_timeout_s
        about = LeaderConfig(self._job, self._worker, address, session_s, step_s, self._code)

        def lead(reign: Reign) -> Leader:
            answered_since = lambda: max(entry.restored_at, office.doubted_at)  # noqa: E731
            return Leader(about, store, reign, self._clock, self._refusals, answered_since)

        office = Leadership(about, port, store, server, self._clock, lead)
        return office

    def _register(self, address: str, port: int) -> leader_messages.Register:
        self._interface, self._address_here = interface_of(address), address
        settings = self._settings
        slot = settings.driver_slot or ""
        identity = Identity(self._worker, socket.gethostname(), address, self._trainer, os.getpid(), slot, port)
        answering = settings.slot is not None and settings.slot >= settings.np  # `edl run` starts with np workers
        # a job without a coordinator has its record in its daemon
        again = self._member and settings.coordinator is not None
        limits = settings.np, settings.min_workers, settings.max_workers or 0
        policy, keep_s, ring = self._job_policy, settings.keep_nodes_s, RingKind(settings.ring)
        resumed = resumed_from(settings.resume_from)
        return leader_messages.Register(
            identity, *limits, answering, policy, keep_s, again, ring, *resumed, processes=settings.processes
        )

    # ------------------------------------------------------------------------------------------------- the trainer

    def _on_message(self, connection: Connection, message: say.FromTrainer) -> None:
        match message:
            case say.Hello():
                self._member = self._member or message.member
                self._limbs.greet(connection, message)
                connection.send(say.Introduced())
                if self._limbs.complete:
                    self._greeted.set()
            case say.TrainerStatus():
                self._limbs.take(connection, message)
        if self._greeted.is_set():
            self._on_status(self._limbs.status)

    def _on_status(self, status: say.TrainerStatus) -> None:
        if self._introductions is not None:
            status = self._introductions.explained(status)
            self._introductions.end(through_with(status))
        self._has_heard = status.heard_going or status.over
        self._parts.take(status.copied)
        if self._limbs.held:
            self._stop_what_has_copied(status)
        elif status.over and self._parts.busy:
            self._hold(status)
        else:
            self._hear(status)

    def _hold(self, end: say.TrainerStatus) -> None:
        """Report the script's end once the part of a checkpoint is durable: no later report is accepted."""
        self._tasks.add(task := asyncio.ensure_future(self._hear_late(end)))
        task.add_done_callback(self._tasks.discard)

    async def _hear_late(self, end: say.TrainerStatus) -> None:
        await self._parts.wait_idle(self._settings.session_timeout_s / 2)
        self._hear(end)

    def _hear(self, status: say.TrainerStatus) -> None:
        calm = self._observer.hear(status)
        if self._membership is not None:
            # It may be in another ring, or have copied its part.
            self._limbs.attend(self._observer.attention_step(self._membership.orders))
            self._membership.stir(calm=calm)

    def _stop_what_has_copied(self, status: say.TrainerStatus) -> None:
        """Stop the held processes again, once they have copied their part or cannot."""
        if status.copied.number == self._copies and (status.copied.files or status.copied.failure):
            self._limbs.stop_held()
            if status.copied.failure:
                self._on_not_stored(status.copied.number, status.copied.failure)

    def _command_held(self, orders: Orders) -> None:
        """Let the held processes copy their part for the job, or end them where they are needed no more."""
        save = orders.save
        if save is not None and save.limbs and save.number > self._copies:
            self._copies = save.number
            here = Here(self._interface, self._address_here, "", self._keys)
            if not self._limbs.copy_held(say.Commanded(located(orders, here)), save.limbs):
                self._on_not_stored(save.number, "a process that was left has ended, too")
        elif orders.verdict is not Verdict.STAY:
            self._limbs.free_held()
            if self._membership is not None:
                self._membership.stir()

    def _on_trainer_exit(self, dead: LimbSeat) -> None:
        held = dead.held
        orders = None if self._membership is None else self._membership.orders
        holds = bool(self._job_policy.checkpointing.folder) and orders is not None and not orders.going
        ends = self._limbs.end_with(dead, holds=holds)
        if held and self._copies and self._limbs.status.copied.number != self._copies:
            self._on_not_stored(self._copies, "a process that was left has ended, too")
        if not ends or self._trainer_gone.is_set():
            return
        self._observer.died(DIED)
        self._trainer_gone.set()
        if self._introductions is not None:
            self._introductions.give_up()
        if self._roll_caller is not None:
            self._roll_caller.give_up()
        if self._membership is not None:
            self._membership.stir()

    def _on_siblings(self) -> None:
        if self._siblings is not None:
            self._observer.dead = self._siblings.dead
        if self._membership is not None:
            self._membership.stir()

    def _on_met(self) -> None:
        """Report that the daemons asked for their presence have answered for the next ring."""
        if self._roll_caller is not None and self._membership is not None:
            self._observer.met = self._roll_caller.met
            self._membership.stir()

    def _on_stored(self, number: int, info: PartInfo) -> None:
        self._observer.stored(number, info)
        if self._membership is not None:
            self._membership.stir()

    def _on_not_stored(self, number: int, reason: str) -> None:
        self._observer.not_stored(number, reason)
        if self._membership is not None:
            self._membership.stir()

    def _on_driver_word(self, word: Word) -> None:
        self._observer.driver = word
        if word.leave:
            self._observer.is_to_leave()
        if self._membership is not None:
            self._membership.stir()

    def _command(self, orders: Orders) -> None:
        """Pass orders to the trainer: first the message, then the count that promises it, then the step of
        attention.
        """
        if self._limbs.held:
            self._command_held(orders)
            return
        if self._stand_in is not None:
            self._stand_in.ask(orders.recount)
        rendezvous = "" if self._introductions is None else self._introductions.follow(orders)
        if self._roll_caller is not None:
            self._roll_caller.follow(orders)
            self._observer.met = self._roll_caller.met
        here = Here(self._interface, self._address_here, rendezvous, self._keys)
        self._send(say.Commanded(located(orders, here)))
        self._limbs.promise()
        self._limbs.attend(self._observer.attention_step(orders))
        if orders.resumable:
            asyncio.get_running_loop().call_later(DEAF_S, self._end_deaf_trainer)

    def _end_deaf_trainer(self) -> None:
        """Kill a trainer that native code keeps from ending, as its machine may be taken away at any moment."""
        if not (self._has_heard or self._trainer_gone.is_set()):
            logger.warning("native code holds the trainer's interpreter: it is killed, as its job is over")
            self._limbs.kill()

    def _send(self, message: msgspec.Struct) -> None:
        self._limbs.send(message)

    async def _give_up(self, reason: str) -> None:
        """Tell the trainer to end: it must not wait for orders that will never come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):  # the trainer connects at once, or it is gone
                await self._either(self._greeted, self._trainer_gone)
        self._send(say.GaveUp(reason))

    @staticmethod
    async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
        tasks = [asyncio.ensure_future(event.wait()) for event in (one, other)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(self, call: Call) -> leader_messages.Reply:
        if isinstance(call.body, leader_messages.AskAddresses) and self._introductions is not None:
            return await self._introductions.answer(call.body, call.sender)
        if isinstance(call.body, leader_messages.AskPresence) and self._roll_caller is not None:
            return await self._roll_caller.answer(call.body)
        if self._office is None:
            raise Refused(Reason.TERM)
        return await self._office.answer(call)


def main() -> int:
    """Entry point of `python -m edl.daemon.daemon`."""
    parser = argparse.ArgumentParser(prog="edl.daemon.daemon", description="A worker's daemon; edl.init() starts it.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--trainer", type=int, required=True)
    parser.add_argument("--anew", action="store_true", help="the one before has died")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    collect_seldom()
    yield_to_trainers()
    raise_open_files()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the trainer, whose end ends the daemon
    try:
        settings = Settings.from_environment(os.environ)
        logging.getLogger().setLevel(settings.log_level.upper())
        asyncio.run(Daemon(settings, arguments.folder, arguments.trainer, anew=arguments.anew).run())
    except ConfigError as error:
        sys.stderr.write(f"edl: {error}\n")  # the trainer shows the log's last line
        return 2
    except JobFailed as error:
        logger.error("gave up: %s", error)  # the trainer was told
        return 1
    except StoreUnavailable as error:
        logger.error("the coordinator went away: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
