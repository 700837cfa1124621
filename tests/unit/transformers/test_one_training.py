"""A job has one training; a second Trainer would find all samples trained, and go through its epochs with none."""

from __future__ import annotations

from typing import Any

import pytest

from edl.errors import UsageError
from edl.transformers.hf_trainer import EdlTrainerMixin


class Theirs:
    """What the Trainer does as it begins."""

    prepared = 0

    def _prepare_for_training(self, *_: Any) -> str:
        self.prepared += 1
        return "prepared"


class Ours(EdlTrainerMixin, Theirs):
    def __init__(self) -> None:  # of no job
        pass


def begin(trainer: Any) -> None:
    trainer._prepare_for_training(10, object(), None)


def test_a_second_trainer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EdlTrainerMixin, "_trains", None)
    first, second = Ours(), Ours()
    for _ in range(2):  # the same one may begin anew, as its loader was wrong, say
        with pytest.raises(UsageError, match="get_train_dataloader"):
            begin(first)
    with pytest.raises(UsageError, match="one training; start another job") as caught:
        begin(second)
    assert "\n" not in str(caught.value)
    assert (first.prepared, second.prepared) == (2, 0)
