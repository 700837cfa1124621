"""The sizes that a job may be given, and its speed at each: the optimizing policies choose from these.

Candidates are all sizes up to a node, then whole nodes, from sixteen nodes on in steps of a fifth: the sizes left out
cost little, and whole nodes leave no node in pieces. A job's smallest, largest and present size are always candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.cluster.views import Aim, ClusterView, JobView, Rates

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WHOLE: Final = 16  # up to so many nodes, each number of nodes is a candidate
KNOWN: Final = 0.02  # a speed with a sigma up to this one counts as measured
WIDER: Final = 1.2  # beyond `WHOLE` nodes, the next candidate is so many times larger


class Offer(msgspec.Struct, frozen=True):
    """A row for each job, a column for each candidate. A column may be there twice in a row."""

    jobs: Sequence[JobView]
    rates: Sequence[Rates]
    sizes: Ints  # the last column: the job's present size, or the nearest that it may have


def ladder(most: int, devices: int) -> Ints:
    """Return the candidates for any job on nodes of `devices` devices, from 1 on."""
    sizes = list(range(1, min(devices, most) + 1))
    nodes = 2
    while nodes * devices <= most:
        sizes.append(nodes * devices)
        nodes = nodes + 1 if nodes < WHOLE else int(nodes * WIDER)
    return np.array(sizes, dtype=np.int64)


def admitted(jobs: Iterable[JobView], devices: int) -> list[JobView]:
    """Return the jobs whose smallest sizes fit together, taken in the given order; a job that does not fit is passed
    over.
    """
    left, within = devices, []
    for job in jobs:
        if job.smallest <= left:
            within.append(job)
            left -= job.smallest
            if not left:
                break
    return within


def offer(cluster: ClusterView, jobs: Sequence[JobView], reach: int, aim: Aim) -> Offer:
    """Return the candidates of each job: up to `reach` times its most workers so far, or further if its speed is
    known.
    """
    devices, each = cluster.devices, cluster.devices_per_node
    largest = [max(min(job.largest, devices), job.smallest) for job in jobs]
    rates = [job.speed.rates(most, each, aim) for job, most in zip(jobs, largest, strict=True)]
    tried = np.array([job.most_tried for job in jobs], dtype=np.int64)
    known = np.array([known_to(one) for one in rates], dtype=np.int64)
    least = np.array([job.smallest for job in jobs], dtype=np.int64)
    most = np.maximum(
        np.minimum(np.array(largest, dtype=np.int64), np.maximum(np.maximum(reach * tried, known), 1)), least
    )
    steps = ladder(int(most.max(initial=1)), each)
    present = np.array([job.workers for job in jobs], dtype=np.int64)
    wide = np.concatenate(
        [np.broadcast_to(steps, (len(jobs), len(steps))), least[:, None], most[:, None], present[:, None]], 1
    )
    return Offer(jobs, rates, np.clip(wide, least[:, None], most[:, None]))


def known_to(rates: Rates) -> int:
    """Return the most workers up to which each speed is known."""
    unknown = rates.sigma > KNOWN
    return int(np.argmax(unknown)) if unknown.any() else len(unknown)


def looked_up(sizes: Ints, curves: Sequence[Floats]) -> Floats:
    """Read each job's curve at each of its candidates; index 0 of a curve is one worker."""
    found = np.empty(sizes.shape)
    for row, curve in enumerate(curves):
        found[row] = curve[sizes[row] - 1]
    return found
