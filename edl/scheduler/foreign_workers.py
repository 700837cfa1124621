"""Workers and slots of a cluster in Slurm, Ray or Kubernetes, when none of its agents is there to end them.

Owns: which system is asked. Does not own: what is asked of it (`slurm_engine`, `ray_engine`, `kubernetes.engine`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from edl.scheduler import engine_registry
from edl.scheduler.cluster_home import ClusterHome

logger = logging.getLogger("edl")


def workers_left(home: ClusterHome, folders: Iterable[Path]) -> dict[Path, Callable[[], None]]:
    """Return, of the workers that have these folders, those that run in the other system or wait there, each with the
    call that kills it. Raises EdlError.
    """
    config = home.read()
    if config is None:
        return {}
    if config.engine == engine_registry.SLURM:
        from edl.scheduler import slurm_engine

        numbers = slurm_engine.left_of(folders)
        return {folder: functools.partial(slurm_engine.kill, number) for folder, number in numbers.items()}
    if config.engine == engine_registry.RAY:
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
    if config is None or config.engine != engine_registry.RAY:
        return ""
    from edl.scheduler import ray_cluster, ray_engine

    try:
        ray_engine.give_back((home.folder / "nodes").glob("*"), config.ray)
    except ray_cluster.RayError as error:
        return f"{error}: if it comes back, slots that it keeps for this cluster are given back by `edl cluster stop`"
    return ""
