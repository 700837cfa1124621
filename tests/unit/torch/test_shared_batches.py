"""Which validation data can be shared out, and that each batch of it is the script's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SubsetRandomSampler

from edl.torch.shared_batches import packed_values, shared_batches, unpacked_values

ROWS = list(range(101))


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(ROWS)


class Doubled(DataLoader[int]):
    """Makes something else of the batches."""

    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


@pytest.mark.parametrize("settings", [{}, {"drop_last": True}, {"shuffle": True}])
def test_a_share_has_the_batches_of_the_loader(settings: dict[str, Any]) -> None:
    loader: Any = DataLoader(ROWS, 7, **settings)  # type: ignore[arg-type]
    batches = shared_batches(loader)
    assert batches is not None and batches.count == len(loader)
    in_order = [ROWS[begin : begin + 7] for begin in range(0, 101, 7)][: batches.count]
    assert [one.tolist() for one in batches.load(range(batches.count))] == in_order
    assert [one.tolist() for one in batches.load([14, 2][settings.get("drop_last", False) :])][-1] == in_order[2]


def test_a_limit_leaves_out_the_last_ones() -> None:
    batches = shared_batches(DataLoader(ROWS, 7), 4)  # type: ignore[arg-type]
    assert batches is not None and batches.count == 4


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Endless(), 7),
        DataLoader(ROWS, 7, sampler=SubsetRandomSampler(ROWS)),  # type: ignore[arg-type]
        DataLoader(ROWS, 7, sampler=RandomSampler(ROWS, replacement=True)),  # type: ignore[arg-type]
        DataLoader(ROWS, 7, sampler=RandomSampler(ROWS, num_samples=9)),  # type: ignore[arg-type]
        DataLoader(ROWS, batch_sampler=[[1], [2]]),  # type: ignore[arg-type]
        DataLoader(ROWS, batch_size=None),  # type: ignore[arg-type]
        DataLoader(ROWS, batch_sampler=BatchSampler(SubsetRandomSampler(ROWS), 7, False)),  # type: ignore[arg-type]
        Doubled(ROWS, 7),  # type: ignore[arg-type]
        ROWS,
    ],
)
def test_what_workers_may_read_differently_is_not_shared_out(loader: Any, caplog: Any) -> None:
    assert shared_batches(loader) is None
    assert "each worker evaluates all of the data" in caplog.text


def test_values_travel() -> None:
    given: dict[str, Any] = {"rows": torch.arange(6).reshape(2, 3), "more": [torch.tensor(0.5), 3, None]}
    found = unpacked_values(packed_values(given))
    assert torch.equal(found["rows"], given["rows"]) and found["more"] == [torch.tensor(0.5), 3, None]
