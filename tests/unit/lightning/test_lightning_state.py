"""What of Lightning travels to a newcomer."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from edl.lightning.lightning_state import Counters, LightningState
from edl.torch.loop_steps import StepEnd


def traveller(callback: pl.Callback) -> Any:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[callback])
    trainer.strategy.connect(pl.LightningModule())
    return LightningState(trainer, Counters(trainer.fit_loop), lambda: StepEnd.COUNTED)


def test_a_newcomer_saves_after_its_first_step_where_the_others_do_and_only_there() -> None:
    """Else it would wait alone at the barrier of a file that the others have written already, or will not write."""
    others, newcomers = (ModelCheckpoint(every_n_train_steps=5, monitor="loss") for _ in range(2))
    others._last_global_step_saved, others._defer_save_until_validation = 5, True
    traveller(newcomers).take(dict(traveller(others)))
    assert (newcomers._last_global_step_saved, newcomers._defer_save_until_validation) == (5, True)


def test_the_best_checkpoints_are_the_others_ones() -> None:
    """So one that becomes the first worker later deletes the worst of them all, and loads the best of them all."""
    others, newcomers = (ModelCheckpoint(monitor="loss", save_top_k=2) for _ in range(2))
    others.dirpath, newcomers.dirpath = "/shared/first", "/shared/another"  # which a newcomer has found to be free
    others.best_k_models = {"/shared/first/a.ckpt": torch.tensor(0.5), "/shared/first/b.ckpt": torch.tensor(0.25)}
    others.best_model_path, others.best_model_score = "/shared/first/b.ckpt", torch.tensor(0.25)
    others.kth_best_model_path, others.kth_value = "/shared/first/a.ckpt", torch.tensor(0.5)
    others.last_model_path = "/shared/first/last.ckpt"
    traveller(newcomers).take(dict(traveller(others)))
    assert newcomers.dirpath == "/shared/first"
    assert newcomers.state_dict() == others.state_dict()
    assert newcomers.best_model_path == "/shared/first/b.ckpt"


class SaveConfig(pl.Callback):  # type: ignore[misc] # a package without types
    """As that of LightningCLI."""

    already_saved = False


def test_a_virtual_workers_batches_count_from_the_beginning_of_the_step_whoever_computes_others_before() -> None:
    """`training_step(batch, batch_idx)` may go by the number."""
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    counters, progress = Counters(trainer.fit_loop), trainer.fit_loop.epoch_loop.batch_progress
    progress.current.ready = progress.total.ready = 6
    counters.begin()
    for _ in range(3):
        counters.begin_part()
        progress.increment_ready()
    assert (progress.current.ready, progress.total.ready) == (7, 7)


def test_the_configuration_that_the_first_worker_has_written_is_written() -> None:
    """Else a newcomer would ask the others about it as `test` begins, and they are at their evaluation there."""
    others, newcomers = SaveConfig(), SaveConfig()
    others.already_saved = True
    traveller(newcomers).take(dict(traveller(others)))
    assert newcomers.already_saved
