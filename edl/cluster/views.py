"""What a policy sees of a cluster: nodes with devices, jobs with their limits, and what is known of each job's speed.

The same views are made by the simulator from a trace, and by a scheduler from live jobs. A worker takes one device.

Owns: the forms. Does not own: where a speed is known from (`edl.cluster.speed`), nor what is decided of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

Placement = dict[str, int]  # node -> workers there


class Provenance(StrEnum):
    """Where a figure comes from. No policy sees an oracle unless its name says so."""

    MEASURED = "measured"
    FITTED = "fitted"
    GUESSED = "guessed"
    ORACLE = "oracle"


class Aim(StrEnum):
    """Which batch a speed is asked for at."""

    PROGRESS = "progress"  # the one with the most progress: what larger batches waste is taken off
    THROUGHPUT = "throughput"  # the one with the most samples in a second
    GIVEN = "given"  # the one that the job's owner asked for


class Rates(msgspec.Struct, frozen=True):
    """A job's speed with 1, 2, … workers, packed on as few nodes as hold them: `progress[n - 1]` is with n.

    Work is counted in what the job's `left` is counted in: iterations at its own batch, or samples.
    """

    progress: NDArray[np.float64]  # work done in a second at that batch, what larger batches waste taken off
    throughput: NDArray[np.float64]  # samples in a second at that batch
    batch: NDArray[np.int64]  # of all workers together: the best one in the job's range, by an `Aim`; 0: the job's own
    sigma: NDArray[np.float64]  # of the logarithm of `progress`: how unsure it is
    provenance: tuple[Provenance, ...]


class Speed(Protocol):
    """What is known of one job's speed."""

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:
        """With 1 to `most` workers on nodes of so many devices."""
        ...


class JobView(msgspec.Struct, frozen=True):
    """One job that is not over. Times are seconds of the cluster's clock."""

    name: str
    submitted: float
    request: int  # workers that its owner asked for
    smallest: int  # it cannot run with fewer: all of them at once, or none
    largest: int
    speed: Speed
    batch: int = 0  # that its owner asked for; 0: its own
    user: str = ""
    priority: int = 0  # higher ones first
    deadline: float | None = None
    left: float | None = None  # work that is left, where the job says so
    change_s: float = 0.0  # how long a change of its size keeps it from training
    # as it is now
    workers: int = 0
    running_batch: int = 0
    placement: Placement = {}
    # as it was until now
    service: float = 0.0  # device-seconds that it has had
    ran: float = 0.0  # seconds with any workers
    waited: float = 0.0  # seconds without, but for the present ones
    waits_since: float | None = None  # where it has none now
    began: float | None = None  # its first workers were given to it
    changed: float | None = None  # its workers were changed the last time
    changes: int = 0
    most_tried: int = 0  # workers that it has ever had
    notes: dict[str, float] = {}  # what the policy wrote down about it when it decided the last time

    @property
    def running(self) -> bool:
        return self.workers > 0

    def waited_by(self, now: float) -> float:
        """Seconds without workers, in all. What else is seen of a job that waits stays as it is for as long as that."""
        return self.waited if self.waits_since is None else self.waited + now - self.waits_since


class Node(msgspec.Struct, frozen=True):
    """A machine that is there."""

    name: str
    devices: int
    closed: bool = False  # workers that are there may stay, and none comes


class ClusterView(msgspec.Struct, frozen=True):
    """All that a decision is made of. Jobs stand in the order of their submission."""

    nodes: tuple[Node, ...]
    jobs: tuple[JobView, ...]

    @property
    def devices(self) -> int:
        return sum(node.devices for node in self.nodes)

    @property
    def devices_per_node(self) -> int:
        return max((node.devices for node in self.nodes), default=1)
