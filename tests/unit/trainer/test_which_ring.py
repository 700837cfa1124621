"""Which ring a worker has by `--ring`, and one clear line where that does not go together with what is there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from horovodrun_told import TOLD

from edl.collectives.horovod_environment import has_horovod
from edl.errors import ConfigError
from edl.protocol.assignment import RingKind, ring_kind
from edl.trainer import fork_stand_in
from edl.trainer.trainer import Trainer
from edl.trainer.updates_due import UpdatesDue
from edl.trainer.value_tree import Arrays


@pytest.mark.parametrize(
    ("said", "alone", "there", "kind"),
    [
        ("auto", False, True, RingKind.HOROVOD),
        ("auto", False, False, RingKind.TORCH),
        ("auto", True, False, RingKind.HOROVOD),
        ("torch", False, True, RingKind.TORCH),
        ("horovod", False, False, RingKind.HOROVOD),
    ],
)
def test_auto_is_horovod_where_it_is_there_or_there_is_no_other(said, alone, there, kind) -> None:
    assert ring_kind(said, horovod_alone=alone, has_horovod=there) is kind


def test_a_horovod_counts_for_the_framework_that_it_was_built_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not has_horovod("torch")
    (tmp_path / "horovod" / "torch").mkdir(parents=True)  # as in a clone of Horovod's
    assert not has_horovod("torch")
    (tmp_path / "horovod" / "torch" / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so").touch()
    assert has_horovod("torch")
    assert not has_horovod("tensorflow")


def test_a_framework_whose_gradients_horovod_alone_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_RING", "torch")
    framework: Any = SimpleNamespace(ring=None, sort=Arrays(), updates_due=UpdatesDue())
    trainer = Trainer(framework)
    with pytest.raises(ConfigError, match="EDL_RING=torch: here gradients are averaged by Horovod alone") as caught:
        trainer.init()
    assert "\n" not in str(caught.value)
    assert not trainer.began


def test_under_horovodrun_the_ring_is_horovods(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TOLD, "EDL_RING": "torch"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="EDL_RING=torch: under horovodrun the ring is Horovod's; unset it") as caught:
        fork_stand_in.split()
    assert "\n" not in str(caught.value)
