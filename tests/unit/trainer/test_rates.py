"""Rates that follow the batch and a schedule together, and what is refused of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.core.worker.next_move import NEVER
from edl.core.worker.worker_inputs import RatesHold
from edl.errors import RingBroken, UsageError
from edl.protocol.data_nouns import DataSpec
from edl.trainer.learning_rates import NoiseMeter, RateFactors, RateTuner
from edl.trainer.registered_state import RegisteredState

SPEC = DataSpec(total=64, batch=8, shuffle=False, seed=0, epochs=2)


class Worker:
    """One that trains batches of 16 with another one."""

    def __init__(self) -> None:
        self.set: list[float] = []
        self.made, self.ends_pass = 16, False
        self.machine = SimpleNamespace(step=0, size=2, status=SimpleNamespace(data=None))
        self.rates_until = NEVER
        self.ring = SimpleNamespace(place=None)
        self.noise: tuple[float, float] | None = None  # of the step that is made, if it is measured
        self.measurable = False
        self.due: list[bool] = []  # of the steps that are coming
        framework: Any = SimpleNamespace(
            ring=self.ring,
            scale_rates=lambda: None,
            set_rate=self.set.append,
            measure_noise=self.measure,
            expect_noise=self.expect,
            take_noise=lambda: self.noise,
        )
        leases: Any = SimpleNamespace(batch=16, samples=lambda step: self.made, ends_pass=lambda step: self.ends_pass)
        shell: Any = SimpleNamespace(machine=self.machine, hear=self.hear)
        self.rates = RateFactors(framework, shell, leases, RegisteredState())

    def expect(self, *, due: bool) -> None:
        self.due.append(due)

    def measure(self) -> None:
        self.measurable = True

    def hear(self, happened: RatesHold) -> None:
        self.rates_until = happened.until_step

    def open(self, spec: DataSpec = SPEC) -> None:
        self.rates.begin(spec)
        self.machine.status.data = spec
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


def test_adascale_follows_the_noise_once_it_is_known() -> None:
    worker = Worker()
    worker.rates.scale("adascale", 8, steps=0)
    assert worker.measurable
    worker.open()
    worker.train()
    assert worker.set == [1.0, 1.0] and worker.rates.noise is None
    assert worker.rates_until == 19, "before a step in which it is measured"
    worker.machine.step = 18
    worker.noise = (1.0, 1.0)  # |G|^2, and the variance of a gradient of 16 samples
    worker.train()
    assert worker.rates.noise is None and worker.due == [False, False, True]
    assert worker.rates_until == 20, "and after it"
    worker.train()
    noise = worker.rates.noise
    assert noise is not None and (noise.sqr, noise.var) == pytest.approx((1.0, 16.0))
    assert worker.set[-1] == pytest.approx((16 / 8 + 1) / (16 / 16 + 1))
    worker.noise = None
    worker.train()
    assert worker.rates_until == 39 and worker.due == [False, False, True, False, False]


def test_a_newcomer_goes_on_with_the_noise_of_the_others() -> None:
    one, other = NoiseMeter(20), NoiseMeter(20)
    for sqr in (1.0, 3.0):
        one.take(sqr, 2.0)
    other.load_state_dict(one.state_dict())
    assert other.noise == one.noise is not None
    assert one.noise.sqr == pytest.approx((0.95 * 1.0 + 3.0) / 1.95), "the newest counts most"


def test_noise_is_measured_once_and_every_so_many_steps() -> None:
    worker = Worker()
    with pytest.raises(UsageError, match=r"measure_noise\(every=0\): must be a whole number of steps"):
        worker.rates.measure(0)
    worker.rates.measure(7)
    worker.rates.scale("adascale", 8, steps=0)
    worker.open()
    worker.train()
    assert worker.rates_until == 6
    with pytest.raises(UsageError, match=r"edl.measure_noise\(\) must be called once"):
        worker.rates.measure(7)
