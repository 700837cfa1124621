"""The samples of an epoch in the order of a script's DistributedSampler.

Owns: which sample stands at a position of an epoch, so that workers whose number never changes train the samples that
torchrun's workers would, in the same steps. Does not own: who trains which positions (`edl.core.data.sample_ledger`).

The job deals positions in runs, a run for each worker; a DistributedSampler gives each worker every n-th sample. So
positions are sorted by the step in which they are trained while the number of workers stays as it was at the beginning.
Whatever becomes of the workers, the order of an epoch stays a permutation of its samples.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from edl.core.data.position_ledger import FIRST_DEAL, LONGEST_DEAL
from edl.core.data.rounds import evenly

Numbers = NDArray[np.int64]


@lru_cache(maxsize=2)
def places(total: int, batch: int, size: int) -> Numbers:
    """Return for each position its place in the sequence in which `size` workers train, of `batch` samples a step."""
    steps, within, ranks = [], [], []
    begun, first_step, deal = 0, 0, FIRST_DEAL
    while begun < total:
        dealt, counts = evenly(total - begun, deal, [batch] * size)
        for rank, count in enumerate(counts):
            numbers = np.arange(count)
            steps.append(first_step + numbers // batch)
            within.append(numbers % batch)
            ranks.append(np.full(count, rank))
        begun, first_step, deal = begun + sum(counts), first_step + dealt, min(2 * deal, LONGEST_DEAL)
    sequence = np.lexsort((np.concatenate(ranks), np.concatenate(within), np.concatenate(steps)))
    found = np.empty(total, np.int64)
    found[sequence] = np.arange(total)
    return found


@lru_cache(maxsize=3)
def drawn(total: int, seed: int | None) -> Numbers:
    """Return the samples in the order of a DistributedSampler whose seed, with its epoch, is `seed`; None: unshuffled.

    The sampler repeats some samples where their number does not divide; here none is repeated.
    """
    if seed is None:
        return np.arange(total)
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(total, generator=generator).numpy()
