"""Which engines there are, which nodes each can have, and one made for a node.

Owns: the choice. What only one engine needs is imported when that one is chosen.
"""

from __future__ import annotations

import re
import socket

from edl.errors import ConfigError
from edl.scheduler.engine import Ended, Make, WorkerEngine
from edl.scheduler.local_engine import LocalEngine
from edl.scheduler.places import ClusterHome, NodeGiven
from edl.scheduler.worker_folders import WorkerFolders

LOCAL, SLURM = "local", "slurm"
ENGINES = (LOCAL, SLURM)
NODE = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,62}):([1-9][0-9]{0,3})")


def checked(engine: str | None) -> str:
    """Raises ConfigError."""
    if engine is None or engine in ENGINES:
        return engine or LOCAL
    raise ConfigError(f"--engine {engine}: must be one of {', '.join(ENGINES)}")


def maker(engine: str, node: NodeGiven, home: ClusterHome) -> Make:
    """For the agent of that node."""
    folder, logs = home.node(node.name), home.folder / "jobs"

    def make(ended: Ended) -> WorkerEngine:
        if engine == SLURM:
            from edl.scheduler.slurm_engine import SlurmEngine

            return SlurmEngine(node.name, len(node.devices), WorkerFolders(folder, logs), ended)
        return LocalEngine(folder, logs, ended)

    return make


def slurm_nodes(text: str | None, *, own_coordinator: bool) -> tuple[NodeGiven, ...]:
    """NODE:SLOTS as Slurm names them, or all that take jobs, with as many slots as GPUs, else cores.

    Raises ConfigError.
    """
    from edl.scheduler.slurm import Slurm, SlurmError

    try:
        known = {node.name: node for node in Slurm().nodes()}
    except SlurmError as error:
        raise ConfigError(f"--engine slurm: {error}") from None
    if text is None:
        given = {name: node.devices for name, node in known.items() if node.gives}
        if not given:
            raise ConfigError("--engine slurm: no node of Slurm's takes jobs: `sinfo` shows them")
    else:
        given = wanted(text, "NODE:SLOTS of Slurm")
    for name, slots in given.items():
        if name not in known:
            raise ConfigError(f"--nodes {name}:{slots}: Slurm has no node {name}: `sinfo` shows those that it has")
        if slots > known[name].devices:
            raise ConfigError(f"--nodes {name}:{slots}: node {name} has {known[name].devices} devices, says Slurm")
    here = socket.gethostname().partition(".")[0]
    far = [name for name in given if known[name].host.partition(".")[0] != here]
    if far and own_coordinator:
        raise ConfigError(
            f"--nodes: {far[0]} is not this machine, and cannot reach the ZooKeeper that a cluster brings: "
            "name one that all nodes reach by --coordinator HOST:PORT"
        )
    return tuple(NodeGiven(name, tuple(range(slots))) for name, slots in given.items())


def wanted(text: str, what: str) -> dict[str, int]:
    """Raises ConfigError."""
    found: dict[str, int] = {}
    for part in text.split(","):
        matched = NODE.fullmatch(part.strip())
        if matched is None or matched[1] in found:
            raise ConfigError(f"--nodes {part}: must be {what}, each once, more of them after commas")
        found[matched[1]] = int(matched[2])
    return found
