"""The batches that the Trainer's loop is given in an evaluation end as Accelerate's own do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from breaking_rings import Fault, Member, Net, play
from torch.utils.data import DataLoader

from edl.torch.loop_collectives import Saying
from edl.torch.shared_batches import packed_values, shared_batches
from edl.transformers import hf_evaluation as subject


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", [8, 10])
def test_of_the_last_batch_as_many_samples_count_as_with_the_trainer(samples: int, drop_last: bool) -> None:
    accelerator = Accelerator(cpu=True)
    alone: Any = accelerator.prepare(DataLoader(list(range(samples)), 4, drop_last=drop_last))  # type: ignore[arg-type]
    wanted = [accelerator.gather_for_metrics(torch.zeros(4)).shape[0] for _ in alone]
    batches = shared_batches(alone)
    assert batches is not None, "Accelerate's loaders are shared out"
    found = [packed_values([number, 4, [None, None, None], None]) for number in range(batches.count)]
    predicted = subject.PredictedBatches(
        batches, lambda _: (None, None, None), "rows", accelerator, keeps=False, ask=lambda _: (packed_values(found),)
    )
    assert [accelerator.gather_for_metrics(torch.zeros(4)).shape[0] for _ in predicted] == wanted


class Worker(Member):
    """The loop of `Trainer.evaluate`, in a ring."""

    def __init__(self, net: Net, number: int, samples: int) -> None:
        super().__init__(net, number)
        batches = shared_batches(DataLoader(torch.arange(samples), 4))  # type: ignore[arg-type]
        assert batches is not None
        state = SimpleNamespace(_add_dataloader=lambda _: None, _remove_dataloader=lambda _: None)
        accelerator = SimpleNamespace(gradient_state=state, device="cpu")
        self.computed: list[int] = []
        self.predicted = subject.PredictedBatches(
            batches, self._predict, "rows", accelerator, keeps=False, ask=self.evaluate_shared
        )
        self.found: list[int] = []

    def _predict(self, inputs: torch.Tensor) -> tuple[Any, Any, Any]:
        self.computed.append(int(inputs[0]))
        return inputs.sum(), (inputs, {"twice": 2 * inputs}), inputs

    def script(self) -> None:
        for inputs in self.predicted:
            loss, (rows, more), labels = self.predicted.answer()
            assert len(inputs["rows"]) == len(rows) and float(loss) == float(rows.sum())
            assert torch.equal(more["twice"], 2 * labels)
            self.found += rows.tolist()
        self.evaluate_shared(Saying("end", lambda: None))  # all have come to it


def predicted(net: Net, samples: int) -> list[Worker]:
    first = [Worker(net, number, samples) for number in sorted(net.living)]
    return [one for one in play(net, first, lambda number: Worker(net, number, samples)) if one.came]


@pytest.mark.parametrize(("workers", "samples"), [(1, 18), (2, 18), (3, 8), (4, 3)])
def test_all_workers_get_all_samples_in_order(workers: int, samples: int) -> None:
    """Also where batches are fewer than workers, and the last one is smaller. No worker computes one for nothing."""
    found = predicted(Net(workers, {}), samples)
    assert len(found) == workers and all(one.found == list(range(samples)) for one in found)
    assert sorted(batch for one in found for batch in one.computed) == list(range(0, samples, 4))


@pytest.mark.parametrize("moment", range(11))
def test_a_death_at_any_moment_loses_no_sample(moment: int) -> None:
    net = Net(3, {(1, moment): Fault({1}, {0}, newcomers=1)})
    found = predicted(net, 18)
    assert net.faulted and len(found) == 3
    assert all(one.found == list(range(18)) for one in found)
