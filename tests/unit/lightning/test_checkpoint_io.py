"""Lightning's checkpoints reach the disk whole, or leave the one of before; and which of a script's plugins writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from edl.errors import CheckpointError
from edl.lightning import EdlCheckpointIO
from edl.lightning.strategy import EdlStrategy


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)


def strategy(io: Any = None) -> Any:
    made = EdlStrategy.__new__(EdlStrategy)  # of no job
    made.checkpoint_io = io
    return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed and named, in order."""
    seen: list[str] = []
    fsync, rename = os.fsync, os.rename

    def flushed(place: int) -> None:
        seen.append("flush a folder" if stat.S_ISDIR(os.fstat(place).st_mode) else "flush the file")
        fsync(place)

    def named(*given: Any, **places: Any) -> None:
        seen.append("name it")
        rename(*given, **places)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", named)
    return seen


def test_a_checkpoint_is_flushed_then_named_and_its_folder_is_flushed_at_last(tmp_path: Path, calls: list[str]) -> None:
    path = tmp_path / "last.ckpt"
    EdlCheckpointIO().save_checkpoint({"epoch": 1}, path)
    assert calls == ["flush the file", "name it", "flush a folder"]
    EdlCheckpointIO().save_checkpoint({"epoch": 2}, f"file://{path}")
    assert EdlCheckpointIO().load_checkpoint(path) == {"epoch": 2}
    assert names(tmp_path) == ["last.ckpt"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_folders_on_the_way_are_made_and_flushed(tmp_path: Path, calls: list[str]) -> None:
    EdlCheckpointIO().save_checkpoint({"epoch": 1}, tmp_path / "version_0" / "checkpoints" / "last.ckpt")
    assert calls == ["flush a folder", "flush a folder", "flush the file", "name it", "flush a folder"]


def test_a_save_that_breaks_off_leaves_the_one_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    EdlCheckpointIO().save_checkpoint({"epoch": 1}, path)

    def full(file: int, chunk: memoryview) -> int:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(
            CheckpointError, match=r"cannot write .*last.ckpt: No space left on device; make room"
        ) as told:
            EdlCheckpointIO().save_checkpoint({"epoch": 2}, path)
    assert "\n" not in str(told.value)
    assert EdlCheckpointIO().load_checkpoint(path) == {"epoch": 1}
    assert names(tmp_path) == ["last.ckpt"]


def test_what_cannot_be_pickled_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="pickle"):
        EdlCheckpointIO().save_checkpoint({"epoch": lambda: 1}, tmp_path / "last.ckpt")
    assert not names(tmp_path)


def test_lightning_reads_it(tmp_path: Path) -> None:
    module, path = Module(width=2), tmp_path / "best.ckpt"
    saved = {"state_dict": module.state_dict(), "hyper_parameters": dict(module.hparams), "epoch": 0, "global_step": 0}
    EdlCheckpointIO().save_checkpoint({**saved, "pytorch-lightning_version": pl.__version__}, path)
    found = Module.load_from_checkpoint(path)
    assert torch.equal(found.layer.weight, module.layer.weight)


def test_an_object_store_is_lightnings_matter() -> None:
    EdlCheckpointIO().save_checkpoint({"epoch": 1}, "memory://edl/last.ckpt")
    assert EdlCheckpointIO().load_checkpoint("memory://edl/last.ckpt") == {"epoch": 1}
    EdlCheckpointIO().remove_checkpoint("memory://edl/last.ckpt")
    with pytest.raises(TypeError, match="storage_options"):
        EdlCheckpointIO().save_checkpoint({"epoch": 1}, "memory://edl/last.ckpt", storage_options={"x": 1})


def test_the_strategy_writes_by_it_unless_the_script_says_otherwise() -> None:
    made = strategy()
    assert isinstance(made.checkpoint_io, EdlCheckpointIO)
    assert made.checkpoint_io is made.checkpoint_io
    theirs = TorchCheckpointIO()
    assert strategy(theirs).checkpoint_io is theirs
    made.checkpoint_io = theirs  # as Trainer(plugins=[...]) does
    assert made.checkpoint_io is theirs
    assert isinstance(strategy(AsyncCheckpointIO()).checkpoint_io.checkpoint_io, EdlCheckpointIO)
    assert strategy(AsyncCheckpointIO(theirs)).checkpoint_io.checkpoint_io is theirs


def names(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found
