"""The batches that the Trainer's loop is given in an evaluation end as Accelerate's own do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from edl.torch.shared_batches import packed_values, shared_batches
from edl.transformers import evaluation as subject


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", [8, 10])
def test_of_the_last_batch_as_many_samples_count_as_with_the_trainer(
    monkeypatch: Any, samples: int, drop_last: bool
) -> None:
    accelerator = Accelerator(cpu=True)
    alone: Any = accelerator.prepare(DataLoader(list(range(samples)), 4, drop_last=drop_last))  # type: ignore[arg-type]
    wanted = [accelerator.gather_for_metrics(torch.zeros(4)).shape[0] for _ in alone]
    batches = shared_batches(alone)
    assert batches is not None, "Accelerate's loaders are shared out"
    found = [packed_values([number, 4, [None, None, None], None]) for number in range(batches.count)]
    monkeypatch.setattr(subject, "evaluated", lambda *_, **__: [packed_values(found)])
    predicted = subject.PredictedBatches(
        batches, lambda _: (None, None, None), "rows", accelerator, keeps=False, steps=None
    )
    assert [accelerator.gather_for_metrics(torch.zeros(4)).shape[0] for _ in predicted] == wanted
