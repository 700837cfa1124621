"""The processes of a cluster: `python -m edl.scheduler keeper|scheduler|agent|http`. Each may be killed at any moment.

- the *keeper* runs the embedded ZooKeeper or etcd, and starts schedulers and agents that are not there;
- *schedulers* stand for election, and the one that leads decides;
- an *agent* for each node has workers started and ended;
- the *HTTP server*, where it was asked for, takes the same wishes from other machines.

A scheduler or an agent that finds no keeper starts one. Which of a name lives is told by a lock that the kernel frees.

Owns: who starts whom. Does not own: what each does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from edl.cluster.policies import registry
from edl.cluster.queue.measured_speeds import FittedSpeeds, LiveSpeeds, UnknownSpeeds
from edl.cluster.queue.queue_entries import JobEntry
from edl.cluster.queue.scheduler_inputs import ClusterRules
from edl.cluster.queue.scheduler_machine import SchedulerMachine
from edl.control_characters import visible
from edl.coordination.child_server import ChildServer
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.election import Candidate, Reign
from edl.coordination.local_coordinator import start_local
from edl.coordination.store import Store, StoreRefused, connect
from edl.errors import ConfigError, EdlError, Fenced, StoreUnavailable
from edl.host.credentials import digest_of
from edl.host.host_processes import spawn_daemon
from edl.scheduler import engine_registry
from edl.scheduler.agent_process import AgentProcess
from edl.scheduler.cluster_home import OWN, ClusterConfig, ClusterHome
from edl.scheduler.environ_files import EnvironFiles
from edl.scheduler.job_poller import JobsObserver
from edl.scheduler.queue_store import SCHEDULER, TURNS, QueueRefused, QueueStore, owner_of
from edl.scheduler.scheduler_loop import SchedulerLoop

logger = logging.getLogger("edl")

LOOK_S = 0.5
BOOT_S = 10.0  # for a process to take its name
AGAIN_S = 0.5
LOG_BYTES = 10_000_000  # of a process; beyond it begins anew, and what was printed before is kept aside once
KEEPER = "keeper"
HTTP = "http"


def spawn(home: ClusterHome, name: str) -> int:
    """Start a process of the cluster that outlives this one."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EDL_")}
    kept |= {OWN: home.own} if home.own else {}
    words = name.partition("-")
    command = [sys.executable, "-m", "edl.scheduler", words[0], *([words[2]] if words[2] else [])]
    return spawn_daemon(command, {**kept, "EDL_HOME": str(home.home)}, home.logs / f"{name}.log")


async def until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Run until the work ends, or SIGTERM, SIGINT or SIGHUP cancels it."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


# ------------------------------------------------------------------------------------------------------------ keeper


async def keep(home: ClusterHome) -> None:
    """Keep the cluster's processes running, until cancelled. The server dies with this thread, the main one."""
    config = home.config()
    server = await _server(home, config) if config.own_coordinator else None
    names = [f"scheduler-{number}" for number in range(1, config.schedulers + 1)]
    names += [f"agent-{node.name}" for node in config.nodes]
    names += [HTTP] if config.http is not None else []
    spawned: dict[str, float] = {}
    clock = asyncio.get_running_loop().time
    serving = None if server is None else asyncio.create_task(_serve(server))
    try:
        while True:
            for name in names:
                late = clock() - spawned.get(name, -BOOT_S) >= BOOT_S
                waits = home.ending.exists() or home.opening.exists()
                if not waits and late and home.pid(name) is None:
                    spawned[name] = clock()
                    logger.info("%s is started", name)
                    await asyncio.to_thread(spawn, home, name)
                elif home.pid(name) is not None:
                    spawned.pop(name, None)  # if it dies, another comes at once
            await asyncio.sleep(LOOK_S)
    finally:
        if serving is not None and server is not None:
            serving.cancel()
            await asyncio.wait({serving})
            await server.stop()


async def _server(home: ClusterHome, config: ClusterConfig) -> ChildServer:
    """Start the coordinator at its place, as soon as the server of an earlier keeper has let go of it."""
    place = Coordinator(config.coordinator)
    port = None if place.socket else place.endpoints[0][1]
    digest = digest_of(home.secret.read_bytes().strip())
    while True:
        try:
            return await start_local(place.kind, home.folder, port=port, digest=digest)
        except ConfigError as error:
            logger.warning("%s; trying again", error)
            await asyncio.sleep(AGAIN_S)


async def _serve(server: ChildServer) -> None:
    while True:
        await server.wait_exit()
        logger.warning("the coordinator has ended, and is started again")
        try:
            await server.restart()
        except ConfigError as error:
            logger.warning("%s", error)
            await asyncio.sleep(AGAIN_S)


async def mind_keeper(home: ClusterHome) -> None:
    """Start a keeper where there is none; of several, only one gets the name."""
    clock = asyncio.get_running_loop().time
    spawned = -BOOT_S
    while True:
        await asyncio.sleep(LOOK_S)
        if home.pid(KEEPER) is None and not home.ending.exists() and clock() - spawned >= BOOT_S:
            spawned = clock()
            logger.warning("the keeper is gone: another is started")
            await asyncio.to_thread(spawn, home, KEEPER)
        elif home.pid(KEEPER) is not None:
            spawned = -BOOT_S


async def connected(coordinator: Coordinator, session_timeout_s: float) -> Store:
    """Connect as soon as the coordinator can be reached."""
    while True:
        try:
            return await connect(coordinator, session_timeout_s)
        except ConfigError as error:
            logger.warning("%s; trying again", error)
            await asyncio.sleep(AGAIN_S)


# -------------------------------------------------------------------------------------------------------- schedulers


def machine(config: ClusterConfig, jobs: list[JobEntry]) -> SchedulerMachine:
    """Raises ConfigError."""
    policy = registry.build(config.policy, config.parameters)
    return SchedulerMachine(policy, speeds_of(config.policy), _rules(config), jobs)


def _rules(config: ClusterConfig) -> ClusterRules:
    return ClusterRules(quotas=config.quotas, sees_left=registry.known(config.policy).sees_left)


def speeds_of(policy: str) -> LiveSpeeds:
    """The analyzer needs SciPy. Raises ConfigError."""
    if not registry.known(policy).sees_speed:
        return UnknownSpeeds()
    try:
        from edl.cluster.speed_analyzer import Analyzer
    except ModuleNotFoundError:
        raise ConfigError(f"policy {policy} needs SciPy: pip install 'horovod-edl[cluster]'") from None
    return FittedSpeeds(Analyzer())


async def schedule(home: ClusterHome, name: str) -> None:
    """Run until it is cancelled. Raises QueueRefused."""
    config, coordinator = home.config(), home.coordinator()
    store = await connected(coordinator, config.session_timeout_s)
    secret = home.secret.read_bytes().strip()
    minding = asyncio.create_task(mind_keeper(home))

    def rule(reign: Reign) -> Coroutine[Any, Any, None]:
        observer = JobsObserver(home, coordinator, secret, store, reign.fence, alone=config.own_coordinator)
        queue = QueueStore(store, EnvironFiles(home.environs))
        return SchedulerLoop(queue, reign, observer, lambda jobs: machine(config, jobs), owner_of(home)).run()

    try:
        await _whenever_elected(store, SCHEDULER, f"{name} {os.getpid()}", rule)
    finally:
        minding.cancel()
        await asyncio.gather(minding, return_exceptions=True)
        await store.close()


Rule = Callable[[Reign], Coroutine[Any, Any, None]]


async def _whenever_elected(store: Store, root: str, ident: str, rule: Rule) -> None:
    reigns: asyncio.Queue[Reign | None] = asyncio.Queue()
    candidate = Candidate(store, root, ident, reigns.put_nowait)
    ruling: asyncio.Task[None] | None = None
    candidate.stand()
    try:
        while True:
            reign = await _next(reigns, ruling)
            if ruling is not None:
                ruling.cancel()
                await asyncio.gather(ruling, return_exceptions=True)
                ruling = None
            if reign is not None:
                ruling = asyncio.create_task(_rule(candidate, reign, rule))
    finally:
        if ruling is not None:
            ruling.cancel()
            await asyncio.gather(ruling, return_exceptions=True)
        await candidate.resign()


async def _next(reigns: asyncio.Queue[Reign | None], ruling: asyncio.Task[None] | None) -> Reign | None:
    """Raises QueueRefused where `ruling` has found that this cluster is not to rule the queue."""
    getting = asyncio.ensure_future(reigns.get())
    try:
        await asyncio.wait({getting, ruling} if ruling else {getting}, return_when=asyncio.FIRST_COMPLETED)
        if ruling is not None and ruling.done():
            ruling.result()
        return await getting
    finally:
        getting.cancel()


async def _rule(candidate: Candidate, reign: Reign, rule: Rule) -> None:
    """Rule from what lies in the coordinator, again after each failure, as long as the reign lasts."""
    while candidate.reign is reign:
        try:
            await rule(reign)
        except Fenced:
            return
        except QueueRefused:
            raise
        except (StoreUnavailable, StoreRefused) as error:
            logger.warning("begins again from what lies in the coordinator: %s", error)
        except Exception:
            logger.exception("a fault of edl's: begins again from what lies in the coordinator")
        await asyncio.sleep(AGAIN_S)


# ------------------------------------------------------------------------------------------------------------ agents


async def serve_node(home: ClusterHome, name: str) -> None:
    config = home.config()
    found = [node for node in config.nodes if node.name == name]
    if not found:
        raise ConfigError(f"the cluster has no node {name}")
    store = await connected(home.coordinator(), config.session_timeout_s)
    minding = asyncio.create_task(mind_keeper(home))
    make = engine_registry.maker(config.engine, found[0], home, config.kubernetes)

    def serve(fence: str | None) -> Coroutine[Any, Any, None]:
        return AgentProcess(home, found[0], store, make, fence).run()

    try:
        if config.engine in engine_registry.SHARED:
            ident = f"{socket.gethostname()} {os.getpid()}"
            await _whenever_elected(store, f"{TURNS}/{name}", ident, lambda reign: serve(reign.fence))
        else:
            await serve(None)
    finally:
        minding.cancel()
        await asyncio.gather(minding, return_exceptions=True)
        await store.close()


async def _serve_http(home: ClusterHome) -> None:
    from edl.scheduler.web.web_server import serve_http  # only here: starlette and uvicorn

    await serve_http(home)


class ProcessLog(logging.handlers.RotatingFileHandler):
    """Log file of a process whose standard error is appended to the same file."""

    def __init__(self, path: Path, most_bytes: int = LOG_BYTES) -> None:
        super().__init__(path, maxBytes=most_bytes, backupCount=1, encoding="utf-8", errors="replace")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))

    def doRollover(self) -> None:  # noqa: N802 - logging's name
        super().doRollover()
        with self._open() as newest:
            os.dup2(newest.fileno(), sys.stderr.fileno())

    def _open(self) -> TextIOWrapper:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, "a", encoding="utf-8", errors="replace", opener=private)


def main(kind: str, name: str, home: ClusterHome) -> int:
    """Run one process under its name, unless another one has it."""
    full = kind if kind in {KEEPER, HTTP} else f"{kind}-{name}"
    with home.lived(full) as ours:
        if not ours or home.ending.exists():  # spawned just before the cluster was told to end
            return 0
        logger.addHandler(ProcessLog(home.logs / f"{full}.log"))
        logger.setLevel(config.log_level.upper() if (config := home.read()) is not None else logging.INFO)
        works: dict[str, Callable[[ClusterHome], Coroutine[Any, Any, None]]] = {
            KEEPER: keep,
            HTTP: _serve_http,
            "scheduler": lambda home: schedule(home, full),
        }
        try:
            work = works[kind](home) if kind in works else serve_node(home, name)
            asyncio.run(until_signalled(work))
        except EdlError as error:
            logger.error("%s", error)
            return 1
    return 0
