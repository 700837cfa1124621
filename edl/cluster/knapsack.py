"""Choose one size for each of many jobs, so that the sum of their worths is the largest that the devices allow.

`sizes` and `worth` have a row for each job and a column for each of its candidates; a forbidden candidate is worth
-inf. `exact` is the dynamic program of arXiv 2006.13878, with candidates instead of every size: O(jobs x candidates x
devices). `near` searches for a price of a device at which the sizes that the jobs then want just fit (Lagrange), and
fills the devices that are left: O(jobs x candidates) for each price tried. It is exact where worth is concave in size;
otherwise it misses less than one job's step from one size that some price makes best to the next such one. Ties go to
the earlier job and to the earlier candidate: the result depends on nothing but the order of the rows.

Candidates of a job are all sizes up to a node, then whole nodes, from sixteen nodes on in steps of a fifth: the sizes
left out cost little, and whole nodes leave no node in pieces. A job's smallest, largest and present size are always
candidates.
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

EXACT: Final = 3_000_000  # jobs x candidates x devices up to which the dynamic program takes some milliseconds
PRICES: Final = 60  # halvings of the interval that contains the price
FILLS: Final = 64  # most steps by which the devices that are left are filled


class Best(msgspec.Struct, frozen=True):
    """`gap`: upper bound of how much more another choice could be worth."""

    columns: Ints
    gap: float


def best(sizes: Ints, worth: Floats, devices: int) -> Best:
    """Return the best column of each job. Each needs at least one allowed candidate, and the smallest must fit
    together.
    """
    if sizes.size * devices <= EXACT:
        return exact(sizes, worth, devices)
    return near(sizes, worth, devices)


def exact(sizes: Ints, worth: Floats, devices: int) -> Best:
    jobs = len(sizes)
    most = np.zeros(devices + 1)  # the worth of the jobs so far on at most so many devices
    taken = np.zeros((jobs, devices + 1), dtype=np.int32)
    there = np.arange(devices + 1)
    for row in range(jobs):
        before = there[None, :] - sizes[row][:, None]
        options = np.where(before >= 0, most[np.maximum(before, 0)] + worth[row][:, None], -np.inf)
        taken[row] = np.argmax(options, axis=0)
        most = options[taken[row], there]
    assert np.isfinite(most[devices]), "the smallest sizes do not fit together"
    columns = np.zeros(jobs, dtype=np.int64)
    left = devices
    for row in range(jobs - 1, -1, -1):
        columns[row] = taken[row, left]
        left -= int(sizes[row, columns[row]])
    return Best(columns, 0.0)


def near(sizes: Ints, worth: Floats, devices: int) -> Best:
    rows = np.arange(len(sizes))
    wanted = _wanted(sizes, worth, 0.0)
    if sizes[rows, wanted].sum() <= devices:
        return Best(wanted, 0.0)
    cheap, dear = 0.0, _highest(sizes, worth)
    fits = _wanted(sizes, worth, dear)
    for _ in range(PRICES):
        price = (cheap + dear) / 2
        if not cheap < price < dear:
            break
        columns = _wanted(sizes, worth, price)
        if sizes[rows, columns].sum() <= devices:
            fits, dear = columns, price
        else:
            wanted, cheap = columns, price
    columns = _filled(sizes, worth, _raised(sizes, worth, fits, wanted, devices), devices)
    at_most = (worth[rows, fits] - dear * sizes[rows, fits]).sum() + dear * devices
    return Best(columns, max(float(at_most - worth[rows, columns].sum()), 0.0))


def _wanted(sizes: Ints, worth: Floats, price: float) -> Ints:
    """Return the column that each job chooses at this price of a device."""
    return np.asarray(np.argmax(worth - price * sizes, axis=1), dtype=np.int64)


def _highest(sizes: Ints, worth: Floats) -> float:
    """Return a price at which each job chooses its smallest allowed size."""
    allowed = np.isfinite(worth)
    least = np.where(allowed, sizes, np.iinfo(np.int64).max).min(axis=1)
    known = np.where(allowed, worth, np.nan)
    return float(np.nanmax(np.nanmax(known, axis=1) - np.nanmin(known, axis=1))) * 2 + 1 if len(least) else 1.0


def _raised(sizes: Ints, worth: Floats, fits: Ints, wanted: Ints, devices: int) -> Ints:
    """Give the first jobs their larger size, as far as devices are left: at the final price either is worth the
    same.
    """
    rows = np.arange(len(sizes))
    more = sizes[rows, wanted] - sizes[rows, fits]
    gain = worth[rows, wanted] - worth[rows, fits]
    density = np.where(more > 0, gain / np.maximum(more, 1), -np.inf)
    order = np.argsort(-density, kind="stable")
    left = devices - int(sizes[rows, fits].sum())
    raised = fits.copy()
    taken = order[(np.cumsum(np.maximum(more[order], 0)) <= left) & (more[order] > 0) & (gain[order] > 0)]
    raised[taken] = wanted[taken]
    return raised


def _filled(sizes: Ints, worth: Floats, columns: Ints, devices: int) -> Ints:
    """Spend the devices that are left on the step up with the largest worth for a device, again and again."""
    rows = np.arange(len(sizes))
    columns = columns.copy()
    left = devices - int(sizes[rows, columns].sum())
    if left <= 0:
        return columns
    more = sizes - sizes[rows, columns][:, None]
    gain = worth - worth[rows, columns][:, None]
    for _ in range(FILLS):
        density = np.where((more > 0) & (more <= left) & (gain > 0), gain / np.maximum(more, 1), 0.0)
        if density.max(initial=0.0) <= 0:
            break
        alike = density >= density.max() * (1 - 1e-9)  # of equally dense steps, the longest
        row, column = np.unravel_index(int(np.argmax(np.where(alike, more, 0))), density.shape)
        left -= int(more[row, column])
        columns[row] = column
        more[row] = sizes[row] - sizes[row, column]
        gain[row] = worth[row] - worth[row, column]
    return columns


WHOLE: Final = 16  # up to so many nodes, each number of nodes is a candidate
KNOWN: Final = 0.02  # a speed with a sigma up to this one counts as measured
WIDER: Final = 1.2  # beyond `WHOLE` nodes, the next candidate is so many times larger


class Offer(msgspec.Struct, frozen=True):
    """A row for each job, a column for each candidate. A column may be there twice in a row."""

    jobs: Sequence[JobView]
    rates: Sequence[Rates]
    sizes: Ints  # the last column: the job's present size, or the nearest that it may have


def ladder(most: int, devices: int) -> Ints:
    """Return the candidate sizes of any job on nodes of `devices` devices, from 1 on."""
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
    allowed = np.clip(wide, least[:, None], most[:, None])
    beyond = allowed % np.array([job.each for job in jobs], dtype=np.int64)[:, None]
    return Offer(jobs, rates, allowed - beyond)


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
