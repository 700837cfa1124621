"""Rates that follow the batch and a schedule together, and what is refused of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.core.worker.inputs import RatesHold
from edl.core.worker.moves import NEVER
from edl.errors import RingBroken, UsageError
from edl.protocol.data import DataSpec
from edl.trainer.extras import Extras
from edl.trainer.rates.factors import Rates
from edl.trainer.rates.tuner import RateTuner

SPEC = DataSpec(total=64, batch=8, shuffle=False, seed=0, epochs=2)


class Worker:
    """One that trains batches of 16 with another one."""

    def __init__(self) -> None:
        self.set: list[float] = []
        self.made, self.ends_pass = 16, False
        self.machine = SimpleNamespace(step=0, size=2, opened=None)
        self.rates_until = NEVER
        self.ring = SimpleNamespace(place=None)
        framework: Any = SimpleNamespace(ring=self.ring, scale_rates=lambda: None, set_rate=self.set.append)
        leases: Any = SimpleNamespace(batch=16, samples=lambda step: self.made, ends_pass=lambda step: self.ends_pass)
        shell: Any = SimpleNamespace(machine=self.machine, hear=self.hear)
        self.rates = Rates(framework, shell, leases, Extras())

    def hear(self, happened: RatesHold) -> None:
        self.rates_until = happened.until_step

    def open(self, spec: DataSpec = SPEC) -> None:
        self.rates.begin(spec)
        self.machine.opened = spec
        self.rates.follow()

    def train(self) -> None:
        self.rates.count()
        self.machine.step += 1
        self.rates.follow()


def test_both_are_multiplied_and_each_step_is_looked_at() -> None:
    worker = Worker()
    worker.rates.scale("linear", 8, steps=0)
    worker.rates.schedule(lambda progress: progress, None)
    worker.open()
    worker.train()
    assert worker.set == [2 * 8 / 128, 2 * 24 / 128]
    assert worker.rates_until == 2


def test_once_nothing_changes_any_more_no_step_is_looked_at() -> None:
    worker = Worker()
    worker.rates.scale("sqrt", 4, steps=8)
    worker.open()
    assert worker.rates_until == 1
    for _ in range(8):
        worker.train()
    assert (worker.set[-1], worker.rates_until) == (2.0, NEVER)


def test_each_step_is_looked_at_until_it_is_as_large_as_it_should_be() -> None:
    worker = Worker()
    worker.rates.scale("linear", 16, steps=0)
    worker.made = 4  # the others have no samples yet
    worker.open()
    worker.train()
    assert (worker.set, worker.rates_until) == ([1.0, 0.25], 2)
    worker.made = 16
    worker.train()
    assert (worker.set[-1], worker.rates_until) == (1.0, NEVER)


def test_the_last_step_of_an_epoch_changes_nothing() -> None:
    worker = Worker()
    worker.rates.scale("linear", 16, steps=0)
    worker.open()
    worker.train()
    worker.made, worker.ends_pass = 3, True
    worker.train()
    assert worker.set == [1.0] * 3


def test_without_any_nothing_is_set() -> None:
    worker = Worker()
    worker.open()
    worker.train()
    assert worker.set == []


def test_what_is_refused() -> None:
    worker = Worker()
    worker.rates.schedule(lambda progress: 1.0, None)
    with pytest.raises(UsageError, match=r"schedule_rate\(\) must be called once"):
        worker.rates.schedule(lambda progress: 1.0, None)
    with pytest.raises(UsageError, match="needs samples to count"):
        worker.rates.follow()
    with pytest.raises(UsageError, match="epochs=90"):
        worker.rates.begin(DataSpec(total=64, batch=8, shuffle=False, seed=0, epochs=1, open_ended=True))
    worker.open()
    with pytest.raises(UsageError, match=r"scale_rate\(\) must be called once, before"):
        worker.rates.scale("linear", 8, steps=8)


def test_a_trial_is_due_now_and_then_and_compiled_in_the_rehearsal() -> None:
    worker, tried = Worker(), []

    def losses_at(multipliers: tuple[float, ...]) -> list[float]:
        tried.append(worker.machine.step)
        return [(multiplier - 0.95) ** 2 for multiplier in multipliers]

    worker.rates.schedule(RateTuner(losses_at, every=3), None)
    worker.rates.rehearse()
    worker.open()
    for _ in range(4):
        worker.rates.tune()
        worker.train()
    assert tried == [0, 3]
    assert worker.set == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.95])


def test_a_ring_that_breaks_in_a_trial_is_the_trainers_to_handle() -> None:
    worker = Worker()

    def broken(payload: bytes | None, root: int) -> bytes:
        raise RingBroken("a peer is gone")

    worker.ring.place, worker.ring.broadcast = SimpleNamespace(rank=0, size=2), broken
    worker.rates.schedule(RateTuner(lambda multipliers: [0.0] * 5, every=1), None)
    worker.open()
    worker.machine.step = 1
    with pytest.raises(RingBroken):
        worker.rates.tune()
