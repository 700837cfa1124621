"""A cluster started and stopped from a command line.

Owns: the order of it, and that no process stays. Does not own: what the processes do
(`edl.scheduler.cluster_processes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

from edl.cluster.policies import registry
from edl.coordination.child_server import check_free, free_port
from edl.coordination.coordinator_settings import ETCD, Coordinator
from edl.coordination.local_coordinator import choose, lasting_socket
from edl.errors import ConfigError, EdlError, StoreUnavailable, UsageError
from edl.host.network import LOOPBACK, family_of
from edl.host.visible_gpus import count_gpus
from edl.scheduler import engine_registry, worker_folders
from edl.scheduler.cluster_client import ClusterClient, opened
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome, HttpGiven, NodeGiven, put, put_once
from edl.scheduler.cluster_processes import KEEPER, spawn, speeds_of
from edl.scheduler.environ_files import handed_on
from edl.scheduler.queue_store import QueueRefused, owner_of
from edl.scheduler.tokens import TokenBook

START_S = 90.0
STOP_S = 10.0
DRAIN_S = 120.0
SAVED_S = 60.0  # beyond what a job is given to be saved
LOOK_S = 0.1
BURY_S = 1.0
MOST_PORT = 65_535
MOST_SLOTS = 640  # of a node: what its agent is told, and tells, is one value in the coordinator
NODE = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,62}):([1-9][0-9]{0,3})")

Say = Callable[[str], object]


def nodes_of(text: str | None) -> tuple[NodeGiven, ...]:
    """Parse HOST:SLOTS, several after commas, all of this machine. Raises ConfigError."""
    parts = [f"localhost:{devices_here()}"] if text is None else text.split(",")
    here = {"localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn()}
    nodes: list[NodeGiven] = []
    names: Counter[str] = Counter()
    first = 0
    for part in parts:
        matched = NODE.fullmatch(part.strip())
        if matched is None:
            raise ConfigError(f"--nodes {part}: must be HOST:SLOTS, more of them after commas, such as localhost:4")
        host, devices = matched[1], int(matched[2])
        if host not in here:
            raise ConfigError(
                f"--nodes {part}: {host} is not this machine, and agents are started on this machine only: "
                "name localhost, several times for several nodes"
            )
        names[host] += 1
        name = host if names[host] == 1 else f"{host}-{names[host]}"
        nodes.append(NodeGiven(name, tuple(range(first, first + devices))))
        first += devices
    return tuple(nodes)


def check_slots(nodes: Iterable[NodeGiven]) -> None:
    """Raises ConfigError."""
    for node in nodes:
        if len(node.devices) > MOST_SLOTS:
            raise ConfigError(
                f"node {node.name} has {len(node.devices)} slots, and {MOST_SLOTS} are allowed: name fewer in --nodes, "
                "or several nodes"
            )


def http_of(text: str | None, certificate: str | None, key: str | None, before: HttpGiven | None) -> HttpGiven | None:
    """Parse [ADDRESS:]PORT; port 0: as before, else any. Raises ConfigError."""
    if text is None:
        if certificate or key:
            raise ConfigError("--http-certificate and --http-key go with --http")
        return None
    host, _, digits = text.rpartition(":")
    address = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not re.fullmatch(r"[0-9]{1,5}", digits) or int(digits) > MOST_PORT:
        raise ConfigError(f"--http {text}: must be PORT or ADDRESS:PORT, such as 8000")
    _check_web()
    if bool(certificate) != bool(key):
        raise ConfigError("--http-certificate and --http-key go together: name both files")
    if not certificate and not _is_loopback(address):
        raise ConfigError(
            f"--http {text}: tokens would cross the network in the clear: give --http-certificate and --http-key, or "
            "listen at 127.0.0.1 behind something that speaks TLS"
        )
    files = [str(Path(name).resolve()) for name in (certificate, key) if name]
    if files:
        _check_tls(*files)
    port = int(digits)
    if not port and before is not None and before.address == address and _is_free(address, before.port):
        port = before.port
    return HttpGiven(address, port or _any_port(address), *files)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address("127.0.0.1" if address == "localhost" else address).is_loopback
    except ValueError:
        raise ConfigError(
            f"--http {address}: name an address of this machine by its numbers, such as 0.0.0.0"
        ) from None


def _check_web() -> None:
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise ConfigError(f"--http needs {name}: pip install 'horovod-edl[dashboard]'")


def _check_tls(certificate: str, key: str) -> None:
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--http-certificate {certificate}, --http-key {key}: {error}") from None


def _is_free(address: str, port: int) -> bool:
    try:
        socket.create_server((address, port), family=family_of(address)).close()
    except OSError:
        return False
    return True


def _any_port(address: str) -> int:
    """Raises ConfigError."""
    try:
        with socket.create_server((address, 0), family=family_of(address)) as ear:
            return int(ear.getsockname()[1])
    except OSError as error:
        raise ConfigError(f"--http {address}: cannot listen there: {error.strerror}") from None


def devices_here() -> int:
    """Count the GPUs of this machine, else its cores."""
    return count_gpus() or len(os.sched_getaffinity(0))


async def start(home: ClusterHome, config: ClusterConfig, say: Say) -> None:
    """Return once the cluster takes jobs and has its agents. Raises UsageError, ConfigError, EdlError."""
    check_slots(config.nodes)
    registry.build(config.policy, config.parameters)
    speeds_of(config.policy)
    home.make()
    if living := home.living():
        pids = ", ".join(f"{name} {pid}" for name, pid in living.items())
        raise UsageError(f"the cluster of EDL_HOME={home.home} runs already ({pids}): `edl cluster stop` ends it")
    put_once(home.secret, secrets.token_hex(32).encode())
    if config.http is not None:
        handed_on(os.environ)  # to its jobs; what cannot be is said here, and not by a process that dies of it
        TokenBook(home).make()
        if not _is_free(config.http.address, config.http.port):
            raise ConfigError(
                f"--http {config.http.port}: {config.http.address}:{config.http.port} is taken; choose another"
            )
    before = home.read()
    home.write(config)
    put(home.opening, b"")
    home.ending.unlink(missing_ok=True)
    try:
        spawn(home, KEEPER)
        async with asyncio.timeout(START_S):
            await _until_there(home, config, say)
    except BaseException as error:
        await end_processes(home)
        await asyncio.to_thread(engine_registry.give_back, home)
        if before is not None:
            home.write(before)
        if isinstance(error, TimeoutError):
            raise EdlError(f"the cluster does not come up within {START_S:g} s: see {home.logs}") from None
        raise


async def _until_there(home: ClusterHome, config: ClusterConfig, say: Say) -> None:
    went_on = False
    while True:
        with _while_coming_up():
            async with opened(home, begins=not went_on) as client:
                if not went_on:
                    await client.queue.own(owner_of(home), take=True)
                    await client.queue.keep_nodes({node.name: node.devices for node in config.nodes})
                    await client.queue.go_on()
                    home.opening.unlink(missing_ok=True)
                    went_on = True
                if await _is_there(client, config, say):
                    return
        await asyncio.sleep(LOOK_S)


@contextlib.contextmanager
def _while_coming_up() -> Iterator[None]:
    """Pass over errors while there may be no server yet, nor a process."""
    try:
        yield
    except QueueRefused:
        raise
    except EdlError:
        pass


async def _is_there(client: ClusterClient, config: ClusterConfig, say: Say) -> bool:
    leader, _ = await client.leader()
    agents = set(await client.queue.agents())
    reported = {report.node for report in await client.queue.reports()}
    wanted = {node.name for node in config.nodes}
    say(f"scheduler {leader or 'not there yet'}, {len(wanted & agents)} of {len(wanted)} agents")
    served = config.http is None or await asyncio.to_thread(_answers, config.http)
    return bool(leader) and wanted <= (agents & reported) and served


def _answers(http: HttpGiven) -> bool:
    address = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(http.address, http.address)  # noqa: S104 - to reach what listens
    try:
        socket.create_connection((address, http.port), timeout=LOOK_S * 10).close()
    except OSError:
        return False
    return True


async def stop(home: ClusterHome, *, kill: bool, say: Say) -> int:
    """Have jobs saved and preempted, or killed, then end all processes. Return how many jobs wait to go on."""
    waiting = 0
    if not home.living() and not kill and (left := await asyncio.to_thread(strays, home)):
        names = ", ".join(one.name for one in left[:8])
        raise EdlError(
            f"the cluster does not run, and {len(left)} of its workers do ({names}): "
            "`edl cluster start` finds them again, `edl cluster stop --now` kills them"
        )
    if home.living():
        try:
            async with opened(home) as client:
                waiting = await _drain(client, kill=kill, say=say)
        except EdlError as error:
            if not kill:
                raise
            say(f"ended without its queue: {error}")
    await end_processes(home)
    if kill:
        await _kill_strays(home)
    if why := await asyncio.to_thread(engine_registry.give_back, home):
        say(why)
    return waiting


def strays(home: ClusterHome) -> list[Path]:
    """Return folders of workers that run, or wait in Slurm or Ray, as far as agents have noted. Raises EdlError."""
    folders = (home.folder / "nodes").glob("*/workers/*")
    kept = [one for one in folders if not (one / "forgotten").exists()]
    left = engine_registry.workers_left(home, kept)
    return sorted(one for one in kept if one in left or worker_folders.left(one))


def _kill(home: ClusterHome, folders: list[Path]) -> None:
    for one in folders:
        worker_folders.kill(one)
    for kill in engine_registry.workers_left(home, folders).values():
        kill()


async def _kill_strays(home: ClusterHome) -> None:
    """Kill the workers that the agents have not killed. Raises EdlError."""
    clock = asyncio.get_running_loop().time
    until = clock() + STOP_S
    while left := await asyncio.to_thread(strays, home):
        if clock() > until:
            raise EdlError(f"workers do not end, though they are killed: {', '.join(one.name for one in left[:8])}")
        await asyncio.to_thread(_kill, home, left)
        await asyncio.sleep(LOOK_S)


async def _drain(client: ClusterClient, *, kill: bool, say: Say) -> int:
    await client.queue.drain(kill=kill)
    clock = asyncio.get_running_loop().time
    began = clock()
    until = began + DRAIN_S
    while True:
        try:
            jobs = await client.queue.jobs()
        except StoreUnavailable:
            jobs = None
        if jobs is not None:
            left = [job for job in jobs if job.workers]
            if not left:
                return sum(not job.over for job in jobs)
            say("saved and sent away: " + ", ".join(f"{job.name} ({job.phase.value})" for job in left[:8]))
            if not kill:
                until = max(until, began + SAVED_S + max(job.save_s for job in left))
        if clock() > until:
            if kill:
                raise EdlError("workers do not end, though they are killed: `edl cluster status` shows them")
            await client.queue.drain(kill=True)
            kill, until = True, clock() + STOP_S
        await asyncio.sleep(LOOK_S)


async def stay(home: ClusterHome) -> None:
    """Wait until SIGTERM, SIGINT or SIGHUP; then end the cluster's processes, while workers go on. As a container's
    first process, this one is the parent of all orphans.
    """
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    while not ending.is_set():
        _bury()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BURY_S):
                await ending.wait()
    await end_processes(home)


def _bury() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


async def end_processes(home: ClusterHome) -> None:
    """End all processes of the cluster itself; workers that run go on, and the next cluster processes find them."""
    if not home.run.is_dir():
        return
    put(home.ending, b"")
    clock = asyncio.get_running_loop().time
    until = clock() + STOP_S
    signalled: set[tuple[str, int]] = set()
    while living := home.living():
        for name, pid in living.items():
            late = clock() > until
            if pid and ((name, pid) not in signalled or late):
                signalled.add((name, pid))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        await asyncio.sleep(LOOK_S)


def own_coordinator(home: ClusterHome, wanted: str | None) -> str:
    """Return the address for the cluster's own coordinator. A queue stays in the system that holds it, ZooKeeper or
    etcd. Raises ConfigError.
    """
    before = home.read()
    held = Coordinator(before.coordinator).kind if before is not None and before.own_coordinator else None
    if held is not None and wanted not in {None, held}:
        raise ConfigError(
            f"--local-coordinator {wanted}: the queue of EDL_HOME={home.home} lies in its {held}: leave the flag out, "
            "or name another EDL_HOME for another cluster"
        )
    kind = choose(held or wanted).kind
    if kind != ETCD:
        return f"{os.geteuid()}@127.0.0.1:{port_of(before)}"
    socket = lasting_socket((home.folder / ETCD).resolve())
    return f"etcd://127.0.0.1:{port_of(before)}" if socket is None else f"etcd://{socket}"


def port_of(before: ClusterConfig | None) -> int:
    """Return the port of before, so that clients find the queue again; a free port where there was none, or it is
    taken.
    """
    place = None if before is None or not before.own_coordinator else Coordinator(before.coordinator)
    if place is not None and not place.socket:
        port = place.endpoints[0][1]
        with contextlib.suppress(ConfigError):
            check_free(LOOPBACK, port)
            return port
    return free_port()
