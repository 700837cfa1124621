"""What a mini-batch leaves behind that is computed on stand-ins: of one worker, or of all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from edl.config import Settings
from edl.core.worker.next_move import NEVER
from edl.core.worker.worker_inputs import SetWeight, StillWaiting
from edl.core.worker.worker_states import TrainerState
from edl.errors import RingBroken, UsageError
from edl.protocol.assignment import Share
from edl.protocol.data_nouns import DataSpec, Lease, Range, Totals
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.learning_rates import FollowingRate, RateTuner
from edl.trainer.registered_state import RegisteredState
from edl.trainer.trainer import Trainer
from edl.trainer.updates_due import UpdatesDue
from edl.trainer.value_tree import Arrays
from edl.trainer.worker_shell import WorkerShell
from edl.transport.shared_page import SharedPage

MINE = Lease(1, 0, 4, 4, (Range(0, 0, 8),))  # two steps of four samples, then two without
TOTALS = (
    Totals(2, 8),
    Totals(3, 4),
    Totals(4, 0),
)  # the other has samples in step 3 too, and neither has any in step 4


class Scheduler:
    """The script's own, registered."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


class Framework:
    """A model with statistics, an optimizer with a learning rate."""

    def __init__(self) -> None:
        self.ring, self.apart = SimpleNamespace(place=None), None
        self.sort, self.updates_due = Arrays(), UpdatesDue()
        self.weights: list[tuple[float, bool]] = []
        self.statistics, self.rate = 0, 0.1
        self.kept: dict[str, Any] = {}

    def set_weight(self, weight: float, *, weightless: bool = False) -> None:
        self.weights.append((weight, weightless))

    def applied(self) -> None:
        return None

    def keep(self, *, only_statistics: bool) -> None:
        self.kept["statistics"] = self.statistics

    def keep_hyper_parameters(self) -> None:
        self.kept["rate"] = self.rate

    def drop_kept(self) -> None:
        self.kept = {}

    def put_back(self) -> None:
        vars(self).update(self.kept)
        self.kept = {}

    def copied(self, contents: Sequence[Any]) -> list[Any]:
        return [one.copy() for one in contents]

    def fill(self, contents: Sequence[Any], copies: Sequence[Any]) -> None:
        for one, copy in zip(contents, copies, strict=True):
            one[...] = copy

    def scale_rates(self) -> None: ...

    def set_rate(self, factor: float) -> None: ...


class Script:
    """One that does in each mini-batch what scripts do."""

    def __init__(self) -> None:
        self.framework = Framework()
        framework: Any = self.framework
        seat = self.seat = WorkerShell(framework, SharedLeases(), RegisteredState(framework.sort))
        self.trainer = Trainer(framework, shell=seat)
        page = SharedPage.unshared()
        page.attention_step = NEVER
        link: Any = SimpleNamespace(orders=None, page=page, tell=lambda: None, folder=Path("/nowhere"))
        self.trainer.take_seat(Settings(step_timeout_s=1.0), link)
        machine = self.machine = seat.machine
        machine.state, machine.generation, machine.size = TrainerState.TRAINING, 1, 2
        self.open(DataSpec(16, 1, 4))
        seat.leases.adopt(Share(1, 0, (MINE,), TOTALS, 4, 1, last=True), (1, 1))
        machine.unusual.even_until = 0
        self.scheduler = Scheduler()
        self.average = np.zeros(2)
        self.extra = self.trainer.register(scheduler=self.scheduler, batches=0, average=self.average)

    def open(self, spec: DataSpec | None) -> None:
        self.machine.status = msgspec.structs.replace(self.machine.status, data=spec)

    def train(self) -> bool:
        self.trainer.before_reduce()
        self.framework.statistics += 1
        self.go_on()
        return self.trainer.notify_batch_end()

    def go_on(self) -> None:
        """With what follows on gradients."""
        self.scheduler.steps += 1
        self.extra.batches += 1
        self.average += 1
        self.framework.rate /= 2

    def state(self) -> list[float]:
        framework = self.framework
        return [self.scheduler.steps, self.extra.batches, self.average[0], framework.rate, framework.statistics]


def test_the_script_can_tell_what_is_its_own() -> None:
    script = Script()
    assert [(script.trainer.data.own_samples(), script.train())[0] for _ in range(4)] == [4, 4, 0, 0]
    with pytest.raises(UsageError, match="step 5 has no mini-batch yet"):
        script.trainer.data.own_samples()


def test_a_rehearsal_has_no_samples_of_its_own() -> None:
    script = Script()
    script.seat.rehearsals.add(1)
    assert script.trainer.data.own_samples() == 0


def test_statistics_of_stand_ins_are_not_kept() -> None:
    script = Script()
    assert [(script.train(), script.framework.statistics) for _ in range(3)] == [(True, 1), (True, 2), (True, 2)]
    assert (script.scheduler.steps, script.extra.batches) == (3, 3)  # an update was made: the others have samples


def test_what_was_kept_for_a_step_that_the_others_went_past_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline's thread weighs the coming step, and then the ring changes: all go on after a later one."""
    script = Script()
    for _ in range(2):
        script.train()
    script.seat.weigh(lambda: None)  # step 3 is of stand-ins here
    with monkeypatch.context() as gone_on:  # to the ring of the others
        gone_on.setattr(script.machine, "handle", lambda _: [SetWeight(99, 0.5)])
        script.seat.hear(StillWaiting(None))
    script.framework.statistics = 7  # copied from them
    script.train()
    assert script.framework.statistics == 8


def test_a_step_in_which_no_worker_has_samples_leaves_everything_as_it_was() -> None:
    script = Script()
    for _ in range(3):
        script.train()
    script.scheduler.steps += 10  # between two mini-batches, as at the end of an epoch
    before = script.state()
    assert script.trainer.weightless
    assert script.train() is False
    assert script.trainer.step() == 5  # it is over all the same
    assert script.state() == before == [13, 3, 3.0, 0.0125, 2]
    assert script.framework.weights == [(0.5, False), (0.0, False), (0.0, True)]


def test_what_a_script_does_after_gradients_that_were_not_averaged_is_undone() -> None:
    script = Script()
    script.train()
    before = script.state()
    script.trainer.before_reduce()
    script.trainer.void(RingBroken("a peer is gone"))
    script.go_on()
    script.trainer.void(RingBroken("once more"))
    script.seat.kept.put_back()
    assert script.state() == before


def test_what_a_script_puts_back_by_itself_stays_so() -> None:
    """As Horovod's elastic states are: restored, before the end of the void mini-batch is told."""
    script = Script()
    script.train()
    script.trainer.before_reduce()
    script.trainer.void(RingBroken("a peer is gone"))
    script.go_on()
    script.trainer.begin_anew()
    script.scheduler.steps = 7  # of the script's own commit
    script.seat.kept.put_back()
    assert script.scheduler.steps == 7


def test_what_it_does_between_a_ring_that_was_found_broken_and_its_next_mini_batch_is_not() -> None:
    script = Script()
    script.train()
    script.seat.void(RingBroken("as states were compared"), keep=False)
    script.scheduler.steps += 10
    before = script.state()
    script.trainer.before_reduce()
    script.go_on()
    script.seat.kept.put_back()
    assert script.state() == before


def test_what_goes_by_steps_does_not_count_one_without_samples() -> None:
    script = Script()
    tuner = RateTuner(lambda multipliers: [1.0] * len(multipliers), every=100)
    script.open(None)
    script.trainer.rates.scale_rate("linear", 8, steps=4)
    script.trainer.rates.schedule_rate(tuner)
    next(script.trainer.data.elastic_shard_generator(16, epochs=1).batches(4))
    following: FollowingRate = script.seat.extras.values["edl.rate"]
    for _ in range(3):
        script.train()
    ramp, tried = following.state_dict()["ramp"], tuner.state_dict()["tried_step"]
    assert script.train() is False
    assert following.state_dict() == {"made": 4, "ramp": {**ramp, "began": ramp["began"] + 1}}
    assert tuner.state_dict()["tried_step"] == tried + 1
