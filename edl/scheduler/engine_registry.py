"""Choice of the engine: which engines there are, which nodes each can have, and how an engine is made for a node.

Owns: the choice, and asking Slurm, Ray or Kubernetes for a cluster's workers and slots when none of its agents is there
to end them. What only one engine needs is imported when that one is chosen.
"""

from __future__ import annotations

import functools
import logging
import re
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from edl.errors import ConfigError, EdlError
from edl.scheduler.cluster_home import ClusterHome, KubernetesGiven, NodeGiven
from edl.scheduler.local_engine import LocalEngine
from edl.scheduler.worker_engine import Ended, Make, WorkerEngine
from edl.scheduler.worker_folders import WorkerFolders

logger = logging.getLogger("edl")


def workers_left(home: ClusterHome, folders: Iterable[Path]) -> dict[Path, Callable[[], None]]:
    """Return, of the workers that have these folders, those that run in the other system or wait there, each with the
    call that kills it. Raises EdlError.
    """
    config = home.read()
    if config is None:
        return {}
    if config.engine == SLURM:
        from edl.scheduler import slurm_engine

        numbers = slurm_engine.left_of(folders)
        return {folder: functools.partial(slurm_engine.kill, number) for folder, number in numbers.items()}
    if config.engine == RAY:
        from edl.scheduler import ray_cluster, ray_engine

        try:
            return ray_engine.left_of(folders, config.ray)
        except ray_cluster.RayError as error:  # with a Ray its actors are gone; processes here are found by their marks
            logger.warning("%s: workers that it may still have on other machines are not seen", error)
    if config.kubernetes is not None:
        from edl.scheduler.kubernetes import kubernetes_engine

        return kubernetes_engine.left_of(config.kubernetes, home.identity, list(folders))
    return {}


def give_back(home: ClusterHome) -> str:
    """Give back slots that were reserved in Ray and are not in use. Return why that could not be done, or an empty
    text.
    """
    config = home.read()
    if config is None or config.engine != RAY:
        return ""
    from edl.scheduler import ray_cluster, ray_engine

    try:
        ray_engine.give_back((home.folder / "nodes").glob("*"), config.ray)
    except ray_cluster.RayError as error:
        return f"{error}: if it comes back, slots that it keeps for this cluster are given back by `edl cluster stop`"
    return ""


LOCAL, SLURM, RAY, KUBERNETES = "local", "slurm", "ray", "kubernetes"
ENGINES = (LOCAL, SLURM, RAY, KUBERNETES)
SHARED = (KUBERNETES,)  # agents of one node may be on several machines, of which one is to act
NODE = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,62}):([1-9][0-9]{0,3})")


def checked(engine: str | None) -> str:
    """Raises ConfigError."""
    if engine is None or engine in ENGINES:
        return engine or LOCAL
    raise ConfigError(f"--engine {engine}: must be one of {', '.join(ENGINES)}")


def maker(engine: str, node: NodeGiven, home: ClusterHome, kubernetes: KubernetesGiven | None = None) -> Make:
    folder, logs = home.node(node.name), home.folder / "jobs"

    def make(ended: Ended) -> WorkerEngine:
        if engine == SLURM:
            from edl.scheduler.slurm_engine import SlurmEngine

            return SlurmEngine(node.name, len(node.devices), WorkerFolders(folder, logs), ended)
        if engine == KUBERNETES and kubernetes is not None:
            from edl.scheduler.kubernetes.kubernetes_engine import KubernetesEngine

            return KubernetesEngine(node.name, kubernetes, WorkerFolders(folder, logs), ended, home.identity)
        if engine == RAY:
            from edl.scheduler.ray_engine import RayEngine

            return RayEngine(node.name, len(node.devices), WorkerFolders(folder, logs), ended, home.config().ray)
        return LocalEngine(folder, logs, ended)

    return make


class EngineNodes(NamedTuple):
    nodes: tuple[NodeGiven, ...]
    address: str  # of the Ray that was found


class Offered(NamedTuple):
    """A node of the other system."""

    devices: int
    gives: bool  # it takes workers
    host: str


SYSTEMS = {SLURM: ("Slurm", "`sinfo`"), RAY: ("Ray", "`ray status -v`")}  # how it is called, what shows its nodes


def nodes_of(engine: str, text: str | None, *, own_coordinator: bool) -> EngineNodes:
    """Parse NODE:SLOTS by the other system's names; None: all nodes that take workers, with as many slots as GPUs, else
    cores. Raises ConfigError.
    """
    try:
        known, address = _of_slurm() if engine == SLURM else _of_ray()
    except EdlError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(f"--engine {engine}: {error}") from None
    system, shown = SYSTEMS[engine]
    if text is None:
        given = {name: node.devices for name, node in known.items() if node.gives and node.devices}
        if not given:
            raise ConfigError(f"--engine {engine}: no node of {system}'s takes jobs: {shown} shows them")
    else:
        given = wanted(text, f"NODE:SLOTS of {system}")
    for name, slots in given.items():
        if name not in known:
            raise ConfigError(
                f"--nodes {name}:{slots}: {system} has no node {name}: {shown} shows those that it has "
                f"({', '.join(sorted(known)[:8])})"
            )
        if slots > known[name].devices:
            raise ConfigError(f"--nodes {name}:{slots}: node {name} has {known[name].devices} devices, says {system}")
    here = socket.gethostname().partition(".")[0]
    far = [name for name in given if known[name].host.partition(".")[0] != here]
    if far and own_coordinator:
        raise ConfigError(
            f"--nodes: {far[0]} is not this machine, and cannot reach the ZooKeeper that a cluster brings: "
            "name one that all nodes reach by --coordinator HOST:PORT"
        )
    for name in given:
        if NODE.fullmatch(f"{name}:1") is None:  # it names folders
            raise ConfigError(f"--engine {engine}: node {name!r}: a name has letters, digits, dots and dashes only")
    return EngineNodes(tuple(NodeGiven(name, tuple(range(slots))) for name, slots in given.items()), address)


def _of_slurm() -> tuple[dict[str, Offered], str]:
    from edl.scheduler.slurm import Slurm

    return {node.name: Offered(node.devices, node.gives, node.host) for node in Slurm().nodes()}, ""


def _of_ray() -> tuple[dict[str, Offered], str]:
    from edl.scheduler.ray_cluster import look

    found = look()
    names = [node.name for node in found.nodes]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--engine ray: several nodes are called {twice[0]}: give each a --node-name")
    return {node.name: Offered(node.devices, gives=True, host=node.host) for node in found.nodes}, found.address


def wanted(text: str, what: str) -> dict[str, int]:
    """Parse NODE:SLOTS, several after commas. Raises ConfigError."""
    found: dict[str, int] = {}
    for part in text.split(","):
        matched = NODE.fullmatch(part.strip())
        if matched is None or matched[1] in found:
            raise ConfigError(f"--nodes {part}: must be {what}, each once, more of them after commas")
        found[matched[1]] = int(matched[2])
    return found
