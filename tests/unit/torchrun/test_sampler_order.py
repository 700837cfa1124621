"""Workers whose number stays as it was train the samples that a DistributedSampler would give them, step by step."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data.distributed import DistributedSampler

from edl.core.data.ledgers import new_ledger
from edl.protocol.data_nouns import DataSpec
from edl.torchrun.script_passes import drawn, places


def dealt(total: int, batch: int, size: int) -> list[list[int]]:
    """Return the positions of each worker, in the order of its steps, as the job's own ledger leases them."""
    ledger, workers = new_ledger(DataSpec(total, 1, batch), [str(rank) for rank in range(size)]), range(size)
    step, found = 0, [list[int]() for _ in workers]
    while given := ledger.grant(step := step + 5):  # by little pieces, as a leader does
        for rank in workers:
            for lease in given.get(str(rank), ()):
                found[rank] += [one for piece in lease.ranges for one in range(piece.start, piece.stop)]
    return found


@pytest.mark.parametrize(
    ("total", "batch", "size"), [(1400, 32, 2), (24, 4, 2), (2000, 2, 4), (30_000, 8, 3), (7, 7, 1), (960, 3, 5)]
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_they_are_a_distributed_samplers(total: int, batch: int, size: int, shuffle: bool) -> None:
    order = drawn(total, 3 + 5 if shuffle else None)[places(total, batch, size)]
    for rank, positions in enumerate(dealt(total, batch, size)):
        sampler = DistributedSampler(range(total), size, rank, shuffle=shuffle, seed=3)  # type: ignore[arg-type]
        sampler.set_epoch(5)
        assert order[positions].tolist() == list(sampler)


@pytest.mark.parametrize(("total", "batch", "size"), [(1401, 32, 2), (5, 4, 3), (1, 8, 4), (65 * 7 + 1, 7, 3)])
def test_an_order_has_each_sample_once_whatever_the_numbers(total: int, batch: int, size: int) -> None:
    order = drawn(total, 1)[places(total, batch, size)]
    assert np.array_equal(np.sort(order), np.arange(total))
