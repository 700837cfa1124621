"""`--ring` where it does not go together with what is there: one clear line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from horovodrun_told import TOLD

from edl.errors import ConfigError
from edl.trainer import fork_stand_in
from edl.trainer.arrays import Arrays
from edl.trainer.trainer import Trainer
from edl.trainer.updates_due import UpdatesDue


def test_a_framework_whose_gradients_horovod_alone_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_RING", "torch")
    framework: Any = SimpleNamespace(ring=None, sort=Arrays(), updates_due=UpdatesDue())
    trainer = Trainer(framework)
    with pytest.raises(ConfigError, match="EDL_RING=torch: here gradients are averaged by Horovod alone") as caught:
        trainer.init()
    assert "\n" not in str(caught.value)
    assert trainer._settings is None


def test_under_horovodrun_the_ring_is_horovods(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TOLD, "EDL_RING": "torch"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="EDL_RING=torch: under horovodrun the ring is Horovod's; unset it") as caught:
        fork_stand_in.split()
    assert "\n" not in str(caught.value)
