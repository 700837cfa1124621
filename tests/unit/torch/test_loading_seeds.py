"""What a DataLoader's processes draw follows from the step, over all lives of a job, and from nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from edl.torch.loader import Runs
from edl.torch.loading_seeds import LoadingSeeds


@dataclass
class Seat:
    number: int = 0
    steps_before: int = 0

    def rank(self) -> int:
        return self.number


class Draws(Dataset[Any]):
    """Each sample is what was drawn for it."""

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([number, random.random(), np.random.rand(), torch.rand(()).item()])  # noqa: NPY002

    def __len__(self) -> int:
        return 100


def drawn(
    seeds: LoadingSeeds, seat: Seat, steps: range, processes: int = 2, generator: torch.Generator | None = None
) -> list[list[Any]]:
    """Of mini-batches of three samples, one a step."""
    runs, given = Runs(seeds, seat, generator), iter(steps)
    step = steps.start

    def ids() -> Any:
        nonlocal step
        for step in given:
            yield np.arange(3 * (step + seat.steps_before), 3 * (step + seat.steps_before) + 3) % 100

    loader = DataLoader(Draws(), batch_sampler=runs, num_workers=processes, generator=runs.generator)
    runs.begin(ids(), lambda: step)
    return [batch.tolist() for batch in loader]


def test_another_life_goes_on_with_the_same_numbers_whatever_the_number_of_processes() -> None:
    torch.manual_seed(5)
    seeds = LoadingSeeds()
    whole = drawn(seeds, Seat(), range(1, 9))
    then = LoadingSeeds()
    then.give_back(seeds.state())
    torch.manual_seed(6)  # as a script of another life is elsewhere with its own
    assert drawn(then, Seat(steps_before=5), range(1, 4), processes=1) == whole[5:]


def test_steps_ranks_and_scripts_seeds_differ() -> None:
    torch.manual_seed(5)
    seeds = LoadingSeeds()
    numbers = [row[1:] for batch in drawn(seeds, Seat(), range(1, 5)) for row in batch]
    assert len({tuple(row) for row in numbers}) == 12
    assert len({value for row in numbers for value in row}) == 36
    first = drawn(seeds, Seat(), range(1, 2))
    assert drawn(seeds, Seat(1), range(1, 2)) != first
    torch.manual_seed(6)
    assert drawn(LoadingSeeds(), Seat(), range(1, 2)) != first


def test_a_generator_of_the_scripts_own_counts() -> None:
    found = [
        drawn(LoadingSeeds(), Seat(), range(1, 3), generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("processes", [0, 2])
def test_the_scripts_own_numbers_are_not_used_up(processes: int) -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state(), random.getstate()
    drawn(LoadingSeeds(), Seat(), range(1, 3), processes)
    unchanged = torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert unchanged == bool(processes)  # without processes the samples are drawn here
