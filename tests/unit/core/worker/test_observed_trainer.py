"""A trainer as its daemon knows it: what the trainer says, and what becomes of it beside that."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from edl.core.worker.observed_trainer import DIED, ObservedTrainer, has_entered, is_calm
from edl.protocol.checkpoint_record import PartInfo
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import Pause, Phase
from edl.protocol.trainer_messages import CopiedPart, TrainerStatus

TRAINING = TrainerStatus(phase=Phase.TRAINING, generation=1, began=0, booted=True)
NEXT = replace(TRAINING, generation=2, began=5, leases_of=1, pause=Pause(1.0, 1.0, 1.0, 3.0))
BROKEN = replace(TRAINING, phase=Phase.BROKEN, reason="reset by peer")
INFO = PartInfo(())


def test_only_that_a_planned_switch_was_made_is_calm() -> None:
    assert is_calm(TRAINING, NEXT)
    assert not is_calm(TrainerStatus(), TRAINING)  # its first ring
    assert not is_calm(BROKEN, NEXT)
    assert not is_calm(TRAINING, TRAINING)
    for more in ({"data": DataSpec(10, 1, 1)}, {"marked": (1, 9)}, {"leaving": True}, {"prepared": (3, "")}):
        assert not is_calm(TRAINING, replace(NEXT, **more)), "what comes along may press"
        assert not is_calm(TRAINING, replace(TRAINING, **more))


def test_a_ring_is_entered_once_and_by_a_newcomer_again_with_its_state() -> None:
    waits = TrainerStatus(phase=Phase.READY, booted=True)
    sits = replace(waits, began=5)
    story = [
        waits,
        sits,
        replace(sits, marked=(1, 9)),
        NEXT,
        replace(NEXT, leaving=True),
        replace(NEXT, phase=Phase.DONE),
    ]
    assert [has_entered(*pair) for pair in pairwise(story)] == [True, False, True, False, False]
    assert not has_entered(NEXT, replace(BROKEN, generation=3, began=5))


def test_a_process_that_is_gone_has_failed_whatever_comes_of_it_later_but_its_end() -> None:
    trainer = ObservedTrainer()
    trainer.hear(TRAINING)
    trainer.died(DIED)
    assert (trainer.status.phase, trainer.status.reason, trainer.status.generation) == (Phase.FAILED, DIED, 1)
    trainer.hear(BROKEN)  # it was under way
    assert (trainer.status.phase, trainer.status.reason) == (Phase.FAILED, DIED)
    trainer.hear(replace(TRAINING, phase=Phase.DONE))
    assert (trainer.status.phase, trainer.status.reason) == (Phase.DONE, "")


def test_a_process_that_goes_after_its_end_was_told_has_not_failed() -> None:
    trainer = ObservedTrainer()
    trainer.hear(replace(TRAINING, phase=Phase.DONE))
    trainer.died(DIED)
    assert (trainer.status.phase, trainer.status.reason) == (Phase.DONE, "")


def test_a_worker_that_is_to_leave_is_whatever_its_trainer_says() -> None:
    trainer = ObservedTrainer()
    trainer.is_to_leave()
    assert trainer.status.leaving
    trainer.hear(TRAINING)
    assert trainer.status == replace(TRAINING, leaving=True)


def test_the_end_of_each_part_is_kept_and_a_late_one_changes_nothing() -> None:
    trainer = ObservedTrainer()
    trainer.stored(2, INFO)
    trainer.not_stored(3, "disk full")
    trainer.stored(1, INFO)
    trainer.not_stored(1, "late")
    assert (trainer.saved_part, trainer.save_failed) == ((2, INFO), (3, "disk full"))
    trainer.hear(replace(TRAINING, copied=CopiedPart(4, failure="late")))
    assert trainer.save_failed == (4, "late")
    trainer.hear(replace(TRAINING, copied=CopiedPart(5, ("about", "bytes"))))
    observation = trainer.observation(step=7)
    assert (observation.saved_part, observation.save_failed, observation.step) == ((2, INFO), (4, "late"), 7)


@pytest.mark.parametrize("died", [False, True])
def test_what_a_trainer_has_no_part_of_is_clipped(died: bool) -> None:
    trainer = ObservedTrainer()
    if died:
        trainer.died(DIED)
    trainer.not_stored(1, "x" * 2_000_000)
    assert trainer.save_failed == (1, "x" * 1997 + "...")
