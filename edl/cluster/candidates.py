"""The sizes that a job may be given, and its speed at each: what the optimizing policies choose from.

All sizes up to a node, then whole nodes, from sixteen of them on in steps of a fifth: what is left out costs little,
and whole nodes leave no node in pieces. A job's smallest, its largest and its present size are always there.
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

WHOLE: Final = 16  # nodes up to which each number of them is a candidate
KNOWN: Final = 0.02  # a sigma: a speed that is known so well stands in a table
WIDER: Final = 1.2  # and from there on the next one is so many times larger


class Offer(msgspec.Struct, frozen=True):
    """A row for each job, a column for each candidate. A column may be there twice in a row."""

    jobs: Sequence[JobView]
    rates: Sequence[Rates]
    sizes: Ints  # the last column: the job's present size, or the nearest that it may have


def ladder(most: int, devices: int) -> Ints:
    """Candidates of any job on nodes of so many devices, from 1 on."""
    sizes = list(range(1, min(devices, most) + 1))
    nodes = 2
    while nodes * devices <= most:
        sizes.append(nodes * devices)
        nodes = nodes + 1 if nodes < WHOLE else int(nodes * WIDER)
    return np.array(sizes, dtype=np.int64)


def admitted(jobs: Iterable[JobView], devices: int) -> list[JobView]:
    """Of jobs in order of their claim, those whose smallest sizes fit together: what does not fit is passed over."""
    left, within = devices, []
    for job in jobs:
        if job.smallest <= left:
            within.append(job)
            left -= job.smallest
            if not left:
                break
    return within


def offer(cluster: ClusterView, jobs: Sequence[JobView], reach: int, aim: Aim) -> Offer:
    """No more than `reach` times the most workers that a job has ever had, or one, unless its speed is known beyond."""
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
    """The most workers up to which each speed is known."""
    unknown = rates.sigma > KNOWN
    return int(np.argmax(unknown)) if unknown.any() else len(unknown)


def looked_up(sizes: Ints, curves: Sequence[Floats]) -> Floats:
    """What each job's curve says at each of its candidates; the first place of a curve is for one worker."""
    found = np.empty(sizes.shape)
    for row, curve in enumerate(curves):
        found[row] = curve[sizes[row] - 1]
    return found
