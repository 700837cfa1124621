"""The Trainer's step with virtual workers: what each of its batches weighs, whoever computes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from edl.config.settings import Settings
from edl.torch.torch_process import trainer as seat
from edl.trainer.virtual_steps import LoadedParts
from edl.transformers.hf_loop import UpdatePlan
from edl.transformers.hf_trainer import EdlTrainerMixin

TOKENS = {0: [5, 1], 1: [3], 2: [2, 2]}  # of the batches of each virtual worker, two samples each


def batches(virtual: int) -> list[tuple[dict[str, torch.Tensor], int]]:
    return [({"labels": torch.ones(count)}, 2) for count in TOKENS[virtual]]


def weighed(monkeypatch: pytest.MonkeyPatch, own: list[int], *, tokens: bool = True, average: bool = True) -> list[Any]:
    """Return the share and the tokens of each batch, of a worker that computes these virtual workers' parts."""
    step = LoadedParts({virtual: batches(virtual) for virtual in own}, 10)
    found = SimpleNamespace(counts=True, parts=[SimpleNamespace(virtual=virtual) for virtual in own])
    monkeypatch.setattr(seat.parts, "parts_of_step", lambda _step: found)
    monkeypatch.setattr(seat.data, "microbatches", lambda step: ((step.of(virtual), 1.0) for virtual in own))
    of_others = [virtual for virtual in TOKENS if virtual not in own]
    others = torch.tensor([[sum(TOKENS[one]), 2 * len(TOKENS[one])] for one in of_others] or [[0, 0]]).double().sum(0)
    trainer: Any = EdlTrainerMixin.__new__(EdlTrainerMixin)
    trainer.args = SimpleNamespace(device=torch.device("cpu"), average_tokens_across_devices=average)
    trainer._words = SimpleNamespace(
        reduced=lambda mine, _: (mine + others) * (1 + 1e-6 * len(own))
    )  # a mean times the size
    trainer._losses = []
    trainer._get_num_items_in_batch = lambda given, _: (
        sum(int(one["labels"].sum()) for one in given) if tokens else None
    )
    return [
        (share, items if items is None else float(items), adds) for _, share, items, adds in trainer._batches_of(step)
    ]


def test_a_batch_weighs_the_same_whoever_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = weighed(monkeypatch, [0, 1, 2])
    assert alone == [(1.0, pytest.approx(5.2), True)] * 2 + [(1.0, pytest.approx(2.6), True)] + alone[:2]
    assert alone == [one for own in ([0], [1, 2]) for one in weighed(monkeypatch, own)]


def test_without_tokens_it_weighs_its_samples_and_else_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [share for share, *_ in weighed(monkeypatch, [0, 1], tokens=False)]
    assert shares == [0.5, 0.5, 1.0]
    assert [items for _, items, _ in weighed(monkeypatch, [0, 1], average=False)] == [6.0, 6.0, 3.0]


def test_the_parts_of_a_step_that_is_void_before_them_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were loaded in the ring before an evaluation, and may be of other virtual workers in this one."""
    monkeypatch.setattr(type(seat), "voided", property(lambda _: True))
    assert weighed(monkeypatch, [0]) == []


def test_an_update_counts_the_virtual_workers_whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat.seating, "settings", Settings(virtual_workers=4))
    monkeypatch.setattr(seat, "size", lambda: 3)
    trainer: Any = EdlTrainerMixin.__new__(EdlTrainerMixin)
    trainer.lr_scheduler, trainer.state = None, SimpleNamespace(global_step=0)
    plan = UpdatePlan(20, 4, 1.0, by_epochs=True)
    trainer._advance(plan)
    assert plan.position == 1.0
