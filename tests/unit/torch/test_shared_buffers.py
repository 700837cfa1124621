"""Which buffers go to all workers, and with which mini-batches."""

from __future__ import annotations

import copy
import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from edl.errors import RingBroken
from edl.torch import buffers as module
from edl.torch.buffers import PERIOD, SharedBuffers


class Ring:
    """Of two, in which this is rank 0; what the other says has changed."""

    size = 2
    place = SimpleNamespace(rank=0, size=2)

    def __init__(self) -> None:
        self.theirs: list[int] = []
        self.failed: list[BaseException] = []

    def largest(self, values: Any) -> list[int]:
        return [max(pair) for pair in zip(values, self.theirs or values, strict=True)]

    def is_failure(self, error: BaseException) -> bool:
        self.failed.append(error)
        return True


class Trainer:
    def __init__(self) -> None:
        self.at, self.ring, self.voided = 1, 1, False

    def step(self) -> int:
        return self.at

    def generation(self) -> int:
        return self.ring

    def void_beside(self, error: BaseException) -> None:
        self.voided = True


class Model(torch.nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(2))
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("quiet", torch.zeros(1))

    def forward(self) -> None:
        self.count += 1


def untyped(stand_in: Any) -> Any:
    """For what wants the real one."""
    return stand_in


class Job:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ring: Any = Ring()
        self.trainer: Any = Trainer()
        self.model, self.sent = Model(), list[int]()
        monkeypatch.setattr(module, "broadcast_tensors", self.broadcast)
        SharedBuffers(untyped(self.trainer), untyped(self.ring)).attach(self.model)
        self.breaks = False

    def broadcast(self, _ring: Any, tensors: Any, root: int, receive: bool) -> None:
        assert (root, receive) == (0, False)
        if self.breaks:
            raise RingBroken("a peer is gone")
        self.sent.append(len(tensors))

    def train(self, steps: int = 1) -> list[int]:
        for _ in range(steps):
            self.model()
            self.trainer.at += 1
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def test_all_go_first_and_then_those_that_have_changed_on_any_worker(job: Job) -> None:
    assert job.train() == [3]
    job.ring.theirs = [0, 0, 1]
    assert job.train(3) == [2, 2, 2]


def test_all_are_looked_at_again_after_a_period_and_in_another_ring(job: Job) -> None:
    sent = job.train(PERIOD + 2)
    assert sent == [3, *[1] * (PERIOD - 1), 3, 1]
    job.trainer.ring = 2
    assert job.train(2) == [3, 1]


def test_once_in_a_mini_batch_and_in_training_alone(job: Job) -> None:
    job.model()
    assert job.train() == [3]
    job.model.eval()
    assert job.train() == []
    job.model.train()
    with torch.no_grad():
        assert job.train() == []


def test_a_broken_ring_voids_the_mini_batch_and_nothing_is_sent_in_it_any_more(job: Job) -> None:
    job.breaks = True
    job.train(2)
    assert job.trainer.voided and len(job.ring.failed) == 1


def test_of_a_model_without_buffers_nothing_is_asked() -> None:
    model = torch.nn.Linear(1, 1)
    SharedBuffers(untyped(None), untyped(None)).attach(model)
    model(torch.ones(1))


def test_a_model_that_is_saved_whole_is_loaded_without_what_sends_its_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sent, file = torch.nn.BatchNorm1d(2), list[Any](), io.BytesIO()
    monkeypatch.setattr(module, "broadcast_tensors", lambda *given: sent.append(given))
    SharedBuffers(untyped(Trainer()), untyped(Ring())).attach(model)
    torch.save(model, file)
    file.seek(0)
    assert b"edl" not in file.getvalue()
    loaded = torch.load(file, weights_only=False)
    inputs = torch.ones(3, 2)
    assert torch.equal(loaded(inputs), torch.nn.BatchNorm1d(2)(inputs)) and sent == []
    copy.deepcopy(model)(inputs)
    assert len(sent) == 1
