"""The view that a policy has of a cluster: nodes, jobs with their limits, each job's speed; and a policy's decision.

The simulator makes the same views from a trace as a scheduler makes from live jobs. A worker of several processes takes
as many devices of one node; so that no policy need know of that, a view counts a job's workers by the devices that they
take, and whole workers are multiples of `JobView.each`. Owns: the forms, and speeds that need no fit. Does not own:
speeds that are fitted (`edl.cluster.speed_analyzer`), nor the policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.errors import ConfigError

Placement = dict[str, int]  # node -> workers there; in a view, and where nodes are chosen: their devices


class Provenance(StrEnum):
    """The origin of a figure. No policy sees an oracle unless its name says so."""

    MEASURED = "measured"
    FITTED = "fitted"
    GUESSED = "guessed"
    ORACLE = "oracle"


class Aim(StrEnum):
    """The batch at which a speed is asked for."""

    PROGRESS = "progress"  # the batch with the most progress, where the waste of larger batches is taken off
    THROUGHPUT = "throughput"  # the batch with the most samples in a second
    GIVEN = "given"  # the batch that the job's owner asked for


class Rates(msgspec.Struct, frozen=True):
    """A job's speed with 1, 2, … workers, packed on as few nodes as hold them: `progress[n - 1]` is with n.

    Work is counted in what the job's `left` is counted in: iterations at its own batch, or samples.
    """

    progress: NDArray[np.float64]  # work done in a second at that batch, what larger batches waste taken off
    throughput: NDArray[np.float64]  # samples in a second at that batch
    batch: NDArray[np.int64]  # of all workers together: the best one in the job's range, by an `Aim`; 0: the job's own
    sigma: NDArray[np.float64]  # standard deviation of the logarithm of `progress`
    provenance: tuple[Provenance, ...]


class Speed(Protocol):
    """The speed of a job at each size."""

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:
        """Return the speed with 1 to `most` workers on nodes of `devices` devices."""
        ...


class JobView(msgspec.Struct, frozen=True):
    """A job that is not over. Times are seconds of the cluster's clock."""

    name: str
    submitted: float
    request: int  # workers that its owner asked for
    smallest: int  # all of them at once, or none: it cannot run with fewer
    largest: int
    speed: Speed
    each: int = 1  # devices of a worker; all counts of workers here are counts of devices, and multiples of it
    batch: int = 0  # the batch that its owner asked for; 0: its own
    user: str = ""
    priority: int = 0  # higher ones first
    deadline: float | None = None
    left: float | None = None  # work left, if the job reports it
    change_s: float = 0.0  # how long a change of its size keeps it from training
    boot_s: float = 0.0  # the time from the start of its newest workers until they trained
    left_s: float | None = None  # the time to its end at its present size, where its script has told its steps
    # at present
    workers: int = 0
    running_batch: int = 0
    placement: Placement = {}
    # until now
    service: float = 0.0  # device-seconds that it has had
    ran: float = 0.0  # seconds with any workers
    waited: float = 0.0  # seconds without workers, up to the present wait
    waits_since: float | None = None  # since when it has had no workers; None: it has some
    began: float | None = None  # when it was given its first workers
    changed: float | None = None  # when its workers changed the last time
    changes: int = 0
    most_tried: int = 0  # the most workers that it has ever had
    notes: dict[str, float] = {}  # the policy's notes about it from the last decision

    @property
    def running(self) -> bool:
        return self.workers > 0

    def whole(self, devices: int) -> int:
        """Return the devices of as many whole workers as `devices` are enough for."""
        return devices - devices % self.each

    def waited_by(self, now: float) -> float:
        """Return the seconds without workers, in all. Nothing else in the view of a waiting job changes while it
        waits.
        """
        return self.waited if self.waits_since is None else self.waited + now - self.waits_since


class Node(msgspec.Struct, frozen=True):
    """A machine of the cluster."""

    name: str
    devices: int
    closed: bool = False  # workers there may stay, and none is added


class ClusterView(msgspec.Struct, frozen=True):
    """The input of a decision. Jobs stand in the order of their submission."""

    nodes: tuple[Node, ...]
    jobs: tuple[JobView, ...]

    @property
    def devices(self) -> int:
        return sum(node.devices for node in self.nodes)

    @property
    def devices_per_node(self) -> int:
        return max((node.devices for node in self.nodes), default=1)


class Allotment(msgspec.Struct, frozen=True):
    """The workers and the batch of one job from now on. Workers are counted as in its view."""

    workers: int
    batch: int = 0  # of all workers together; 0: the job's own
    reason: str = ""  # of the change, in words for the job's owner


class ClusterDecision(msgspec.Struct, frozen=True):
    """The workers and the batch of each job, with a reason for each change.

    Jobs that are not in `allotments` get no worker. `notes` come back with the next view of the jobs.
    """

    allotments: dict[str, Allotment]
    notes: dict[str, dict[str, float]] = {}
    look_again: float | None = None  # decide anew at that time, even if nothing has happened by then


class ClusterPolicy(Protocol):
    """Decide anew from each view. A policy has parameters, and no memory but the notes."""

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision: ...


Floats = NDArray[np.float64]


class Table:
    """A table of steps a second at the job's own batch, by workers: linear between two sizes, constant beyond the last.

    A size at which the table has no rate (0) is not used.
    """

    def __init__(
        self, steps_s: Mapping[int, float], batch: int = 0, provenance: Provenance = Provenance.MEASURED
    ) -> None:
        known = {size: rate for size, rate in sorted(steps_s.items()) if rate > 0}
        if not known or min(known) < 1:
            raise ConfigError(f"a table of speeds needs rates above 0 for 1 worker or more, not {dict(steps_s)}")
        self._sizes = np.array(list(known), dtype=float)
        self._steps = np.array(list(known.values()), dtype=float)
        self._batch, self._provenance = batch, provenance
        self._last: Rates | None = None

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:  # noqa: ARG002 - one batch, any node
        if self._last is None or len(self._last.progress) != most:
            sizes = np.arange(1, most + 1, dtype=float)
            steps = np.interp(sizes, self._sizes, self._steps) * np.minimum(sizes / self._sizes[0], 1)
            self._last = Rates(
                progress=steps,
                throughput=steps * max(self._batch, 1),
                batch=np.full(most, self._batch, dtype=np.int64),
                sigma=np.zeros(most),
                provenance=(self._provenance,) * most,
            )
        return self._last


class PerDevice:
    """The speed of a job whose workers take `each` devices, by devices: what whole workers leave over adds nothing."""

    def __init__(self, speed: Speed, each: int) -> None:
        self._speed, self._each = speed, each

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:
        each = self._each
        found = self._speed.rates(max(1, most // each), max(1, devices // each), aim)
        workers = np.arange(1, most + 1) // each
        at = np.maximum(workers, 1) - 1
        none = workers == 0
        return Rates(
            progress=np.where(none, 0.0, found.progress[at]),
            throughput=np.where(none, 0.0, found.throughput[at]),
            batch=found.batch[at],
            sigma=found.sigma[at],
            provenance=tuple(found.provenance[one] for one in at.tolist()),
        )


class Guess:
    """A guess where no speed is known: each worker adds as much as the first, one unit of work a second."""

    def __init__(self, batch: int = 0) -> None:
        self._batch = batch

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:  # noqa: ARG002 - it is a guess
        sizes = np.arange(1, most + 1, dtype=float)
        return Rates(
            progress=sizes,
            throughput=sizes,
            batch=np.full(most, self._batch, dtype=np.int64),
            sigma=np.log(sizes) + 1,
            provenance=(Provenance.GUESSED,) * most,
        )
