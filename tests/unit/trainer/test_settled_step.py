"""A collective that fails beside the mini-batches voids no update that is made (I8)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.errors import RingBroken
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.registered_state import RegisteredState
from edl.trainer.trainer import Trainer
from edl.trainer.updates_due import UpdatesDue
from edl.trainer.value_tree import Arrays
from edl.trainer.worker_shell import WorkerShell

DEATH = RingBroken("a peer is gone")


@pytest.fixture
def shell() -> WorkerShell:
    framework: Any = SimpleNamespace(ring=None, sort=Arrays())
    shell = WorkerShell(framework, SharedLeases(), RegisteredState())
    shell.count.step = 7
    return shell


@pytest.fixture
def trainer(shell: WorkerShell) -> Trainer:
    framework: Any = SimpleNamespace(ring=None, sort=Arrays(), updates_due=UpdatesDue())
    return Trainer(framework, shell=shell)


def test_before_the_update_the_mini_batch_is_void(trainer: Trainer) -> None:
    trainer.void_beside(DEATH)
    assert trainer.voided


def test_after_the_update_it_counts(trainer: Trainer) -> None:
    trainer.before_update()
    trainer.void_beside(DEATH)
    assert not trainer.voided


def test_one_without_an_update_counts_once_the_loop_has_said_so(trainer: Trainer) -> None:
    trainer.settle_step()
    trainer.void_beside(DEATH)
    assert not trainer.voided


def test_the_next_one_is_void(trainer: Trainer, shell: WorkerShell) -> None:
    trainer.before_update()
    shell.count.step += 1
    trainer.void_beside(DEATH)
    assert trainer.voided


def test_gradients_that_are_not_averaged_void_it_still(trainer: Trainer, shell: WorkerShell) -> None:
    trainer.settle_step()  # of the first of two optimizers
    shell.void(DEATH, keep=False)
    assert trainer.voided


def test_a_void_mini_batch_is_not_settled_when_it_comes_again(trainer: Trainer, shell: WorkerShell) -> None:
    trainer.void_beside(DEATH)
    trainer.before_update()  # which is left out
    shell.machine.void = None  # the next ring stands, and its samples are here again
    trainer.void_beside(DEATH)
    assert trainer.voided


def test_nor_is_one_whose_first_optimizer_had_made_its_update(
    trainer: Trainer, shell: WorkerShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.before_update()
    shell.void(DEATH, keep=False)  # at the gradients of the second one
    monkeypatch.setattr(shell, "hear", lambda _: None)  # of no daemon
    shell.end_uncommitted_batch()
    monkeypatch.undo()
    shell.machine.void = None
    trainer.void_beside(DEATH)
    assert trainer.voided


def test_a_mini_batch_has_come_to_its_gradients_until_it_ends(
    trainer: Trainer, shell: WorkerShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not shell.has_gradients
    trainer.before_reduce()
    assert shell.has_gradients
    shell.count.step += 1
    assert not shell.has_gradients
    trainer.settle_step()
    assert shell.has_gradients
    trainer.before_reduce()
    monkeypatch.setattr(shell, "hear", lambda _: None)  # of no daemon
    shell.end_uncommitted_batch()
    assert not shell.has_gradients, "it comes again"
