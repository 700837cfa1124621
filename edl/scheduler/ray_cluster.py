"""Ray, as the agent of one node asks it: which nodes there are, slots reserved, actors begun, told and killed.

`python -m edl.scheduler.ray_cluster [ADDRESS]` says as JSON which Ray is there, and its nodes: who waits for no longer
than it likes has it done by another process, as Ray tries for minutes.

An actor runs inside of Ray for one worker, and starts the worker's warden. It ends when nothing that the worker has
started is left, and needs no other process that tells it to: its slot is free for the next one also where the agent is
gone.

Owns: these calls, which wait for their answers and are made from one thread, and the actor. Does not own: what an actor
is for (`ray_engine`).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec

from edl.errors import ConfigError, EdlError
from edl.launch.job_processes import MARK
from edl.scheduler import worker_folders

ANSWER_S: Final = 5.0
BEGIN_S: Final = 5.0  # for an actor to begin; one that takes longer begins all the same
LOOK_S: Final = 60.0  # for all that is asked of a Ray for the first time
ADDRESS: Final = "RAY_ADDRESS"
NAMESPACE: Final = "edl"  # of groups; actors have that of their group's name
LABEL: Final = "ray.io/node-id"
MISSING: Final = "--engine ray needs Ray: pip install 'horovod-edl[ray]'"


class RayError(EdlError):
    """Ray did not do what it was asked, or did not answer."""


class RayNode(msgspec.Struct, frozen=True):
    """A node of Ray. Its `id` changes each time that Ray is started on it."""

    name: str
    id: str
    host: str
    cpus: float
    gpus: int

    @property
    def devices(self) -> int:
        return self.gpus or int(self.cpus)

    def share(self, slots: int) -> dict[str, float]:
        """Return the resources of each of so many slots."""
        # Ray counts in ten-thousandths: what is rounded down fits into the node as often as there are slots.
        cpus = self.cpus // slots or math.floor(self.cpus / slots * 10_000) / 10_000
        return {**({"CPU": float(cpus)} if cpus else {}), **({"GPU": 1.0} if self.gpus else {})}


def times(share: Mapping[str, float], slots: int) -> dict[str, float]:
    return {name: round(many * slots, 4) for name, many in share.items()}


class RayFound(msgspec.Struct, frozen=True):
    """`nodes`: those that are alive."""

    address: str
    nodes: tuple[RayNode, ...]


Holder = tuple[Sequence[str], Mapping[str, str], Sequence[str]]
"""What the actor is made of: see `WorkerHolder`."""


def group_name(workers: Path) -> str:
    """Name a node's slots in Ray, and the namespace of its actors: other clusters may have a node of the same name."""
    return f"edl-{hashlib.sha256(str(workers).encode()).hexdigest()[:12]}-{workers.parent.name}"


def nodes_of(told: Sequence[Mapping[str, Any]]) -> list[RayNode]:
    """Parse `ray.nodes()`; leave out nodes that are not alive."""
    return [
        RayNode(
            one["NodeName"],
            one["NodeID"],
            one["NodeManagerHostname"],
            one["Resources"].get("CPU", 0),
            int(one["Resources"].get("GPU", 0)),
        )
        for one in told
        if one["Alive"]
    ]


def checked_address(address: str) -> str:
    """Raises ConfigError."""
    if address in {"", "auto"}:
        return "auto"
    _, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdecimal():
        raise ConfigError(f"{ADDRESS}={address}: must be HOST:PORT, as `ray start --head` says it")
    return address


def look() -> RayFound:
    """Look at the Ray that RAY_ADDRESS names, else at the one of this machine. Raises ConfigError, RayError."""
    if find_spec("ray") is None:
        raise ConfigError(MISSING)
    address = checked_address(os.environ.get(ADDRESS, ""))
    command = [sys.executable, "-m", "edl.scheduler.ray_cluster", address]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LOOK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RayError(f"no Ray answers within {LOOK_S:g} s: `ray start --head` starts one") from None
    if done.returncode:
        raise RayError((done.stderr.strip().splitlines() or [f"Ray's client ended with {done.returncode}"])[-1])
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=RayFound)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn each error of Ray into a RayError of one line."""
    try:
        yield
    except EdlError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        raise RayError(f"{type(error).__name__}: {words}") from error


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(MISSING) from None
    return ray


def _await_answer(address: str) -> None:
    """Check that Ray answers: where nothing does, Ray itself would try for minutes. Raises RayError."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise RayError(f"no Ray answers at {address}: {error.strerror or error}") from None
    if os.environ.get("RAY_USE_TLS", "0") == "1":
        return
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER_S)
        except grpc.FutureTimeoutError:
            raise RayError(f"no Ray answers at {address}: what listens there is something else") from None


class RayCluster:
    """Ray as one node's agent sees it. The agent's process has one connection, to one Ray."""

    def __init__(self, name: str, address: str) -> None:
        """`name`: of its slots, and of the namespace that its actors have."""
        self._name, self._address = name, address
        self._group: Any = None
        self._asked_for: RayNode | None = None  # where the group is, or is to be
        self._actors: dict[str, Any] = {}
        self._begun: dict[str, Any] = {}  # by worker: the answer of its actor, once it has begun

    def connect(self, *, anew: bool = False) -> None:
        """Raises RayError, ConfigError."""
        ray = _ray()
        with _told():
            if anew and ray.is_initialized():
                ray.shutdown()
            self._actors.clear()
            if not ray.is_initialized():
                _await_answer(self._address)
                ray.init(address=self._address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)

    def found(self) -> RayFound:
        return RayFound(_ray().get_runtime_context().gcs_address, tuple(self.nodes()))

    def nodes(self) -> list[RayNode]:
        with _told():
            return nodes_of(_ray().nodes())

    # --------------------------------------------------------------------------------------------------------- slots

    def hold(self, node: RayNode, slots: int) -> bool:
        """Tell whether all slots of the node are reserved; ask Ray for them where they are not."""
        from ray.util import placement_group

        # One bundle for all: the devices of an actor, which may hold several slots, are those of one bundle.
        whole = times(node.share(slots), slots)
        with _told():
            table = self._table()
            if table is not None:
                bundles, where = table["bundles"], set(table["bundles_to_node_id"].values())
                if table["state"] == "CREATED" and where == {node.id} and list(bundles.values()) == [whole]:
                    return True
                if self._asked_for == node and table["state"] == "PENDING":
                    return False
                if not self.give_back():
                    return False  # workers of before are in it, and go first
            self._group = placement_group(
                [whole],
                strategy="STRICT_PACK",
                name=self._name,
                lifetime="detached",
                bundle_label_selector=[{LABEL: node.id}],
            )
            self._asked_for = node
            return False

    def _table(self) -> Any:
        """Return what Ray tells of the slots; None: Ray knows no slots of this name."""
        from ray.util import get_placement_group, placement_group_table

        try:
            self._group = get_placement_group(self._name)
        except ValueError:
            return None
        return placement_group_table(self._group)

    def give_back(self) -> bool:
        """Give the slots back, unless a worker is in one; return whether they are given back."""
        from ray.util import remove_placement_group

        with _told():
            if self.workers():
                return False
            if self._table() is not None:
                remove_placement_group(self._group)
            return True

    # -------------------------------------------------------------------------------------------------------- actors

    def start(self, worker: str, node: RayNode, slots: int, each: int, holder: Holder) -> int:
        """Return the pid of the warden of a worker that holds `each` of the slots; 0: it begins later."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray = _ray()
        share = times(node.share(slots), each)
        with _told():
            actor = ray.remote(WorkerHolder).options(
                name=worker,
                namespace=self._name,
                lifetime="detached",
                num_cpus=share.get("CPU", 0),
                num_gpus=share.get("GPU", 0),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, 0),
            )
            self._actors[worker] = actor.remote(*holder)
            self._begun[worker] = self._actors[worker].pid.remote()
            try:
                return int(ray.get(self._begun[worker], timeout=BEGIN_S))
            except ray.exceptions.GetTimeoutError:
                return 0

    def workers(self) -> set[str]:
        """Return the workers whose actors are not dead; an actor may still have to begin."""
        with _told():
            listed = _ray().util.list_named_actors(all_namespaces=True)
        return {one["name"] for one in listed if one["namespace"] == self._name}

    def why(self, worker: str) -> str:
        """Return why an actor of this process never began; empty where the reason is not known."""
        answer = self._begun.pop(worker, None)
        ray = _ray()
        try:
            if answer is not None:
                ray.get(answer, timeout=0)
        except ray.exceptions.GetTimeoutError:
            pass
        except ray.exceptions.RayError as error:
            return " ".join(str(error).split())[:200]
        return ""

    def drop(self, worker: str) -> None:
        self._actors.pop(worker, None)
        self._begun.pop(worker, None)

    def ask(self, worker: str) -> None:
        with _told(), contextlib.suppress(ValueError):
            self._actor(worker).ask.remote()

    def kill(self, worker: str, *, begun: bool) -> None:
        """Kill a worker with all that it has started. Its actor then ends by itself; kill an actor that never began or
        does not answer.
        """
        ray = _ray()
        with _told(), contextlib.suppress(ValueError, ray.exceptions.RayActorError):
            actor = self._actor(worker)
            try:
                if begun:
                    ray.get(actor.kill.remote(), timeout=ANSWER_S)
            except ray.exceptions.GetTimeoutError:
                begun = False
            if not begun:
                ray.kill(actor)

    def _actor(self, worker: str) -> Any:
        """Raises ValueError where Ray has no such actor."""
        if worker not in self._actors:
            self._actors[worker] = _ray().get_actor(worker, namespace=self._name)
        return self._actors[worker]


def main(address: str) -> int:
    cluster = RayCluster("", address)
    try:
        cluster.connect()
        found = cluster.found()
    except EdlError as error:
        print(error, file=sys.stderr)  # noqa: T201 - to who has started this process
        return 1
    print(msgspec.json.encode(found).decode())  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))


POLL_S = 0.1


class WorkerHolder:
    """An actor of Ray's, called by the agent of its node. Each call answers at once."""

    def __init__(self, warden: Sequence[str], environ: Mapping[str, str], handed_on: Sequence[str]) -> None:
        """`handed_on`: variables that Ray has set here, such as which GPUs are the actor's."""
        here = {name: os.environ[name] for name in handed_on if name in os.environ}
        self._folder = Path(environ[MARK])
        # It dies with this process, and the worker with it: nothing is left where Ray kills an actor.
        command = ["setpriv", "--pdeathsig", "KILL", "--", *warden]
        self._warden = subprocess.Popen(
            command, env={**environ, **here}, stdin=subprocess.DEVNULL, start_new_session=True
        )
        threading.Thread(target=self._end_with_it, name="end", daemon=True).start()

    def pid(self) -> int:
        return self._warden.pid

    def ask(self) -> None:
        """Ask the worker to leave."""
        if self._warden.poll() is None:
            self._warden.send_signal(signal.SIGURG)

    def kill(self) -> None:
        worker_folders.kill(self._folder)

    def _end_with_it(self) -> None:
        """End this actor once the warden has ended and nothing that its worker has started is left: a warden that was
        killed leaves processes, which are killed here.
        """
        self._warden.wait()
        while worker_folders.left(self._folder):
            self.kill()
            time.sleep(POLL_S)
        os._exit(0)
