"""Hugging Face's Trainer on a tiny language model, by workers that come and go."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import path
import task
import torch
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import edl.torch as elastic
from edl.transformers import EdlTrainer

path.parser.add_argument("--accumulate", type=int, default=1)
path.parser.add_argument("--evaluating", type=float, default=0.0, help="seconds that each batch of an evaluation takes")
path.parser.add_argument("--replay", type=Path, help="of these mini-batches, by the Trainer alone")
options = path.parser.parse_args()
torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
WORDS, LENGTH = 32, 8
texts = torch.from_numpy(np.random.default_rng(3).integers(0, WORDS, size=(task.SAMPLES, LENGTH)))
replayed = json.loads(options.replay.read_text()) if options.replay else []


class Texts(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return task.SAMPLES

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        labels = texts[number].clone()
        labels[: number % 3] = -100  # so that samples differ in how many words count
        return {"input_ids": texts[number], "labels": labels}


class Seen(TrainerCallback):  # type: ignore[misc]
    """What each worker was told, beyond its rehearsal."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.evaluated: list[int] = []
        self.epochs: list[int] = []

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not options.replay:
            path.pause(options)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.evaluated.append(state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        (options.out / f"evaluating-{os.getpid()}").touch()
        time.sleep(options.evaluating)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epochs.append(round(state.epoch))
        if round(state.epoch) >= path.epochs_wanted(options):
            control.should_training_stop = True


class Replaying(Trainer):  # type: ignore[misc]
    """By batches that are given."""

    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Texts(), batch_sampler=replayed, collate_fn=self.data_collator)


torch.manual_seed(7)
sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": LENGTH, "vocab_size": WORDS}
ends = {"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
model = GPT2LMHeadModel(GPT2Config(**sizes, **ends))
arguments = TrainingArguments(
    output_dir=str(options.out / "saved"),
    num_train_epochs=1 if options.replay else options.epochs or 1000,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=1 if options.replay else options.accumulate,
    learning_rate=0.005,
    lr_scheduler_type="linear" if options.accumulate > 1 else "constant",
    optim="adamw_torch",
    logging_steps=5,
    eval_strategy="epoch",
    save_strategy="no" if options.replay else "epoch",
    save_total_limit=2,
    load_best_model_at_end=False,
    metric_for_best_model="loss",
    use_cpu=True,
    disable_tqdm=True,
    report_to=[],
    seed=7,
)
seen = Seen()
kind = Replaying if options.replay else EdlTrainer
callbacks = [seen, EarlyStoppingCallback(early_stopping_patience=1000)]
trainer = kind(model=model, args=arguments, train_dataset=Texts(), eval_dataset=Texts(), callbacks=callbacks)
if not options.replay:
    tensors = lambda: (one.detach().numpy() for one in model.parameters())  # noqa: E731
    path.tell_of_switches(elastic, options.out, tensors)
trainer.train()
learned = path.digest(one.detach().numpy() for one in model.parameters())
with torch.no_grad():
    model.eval()
    loss = model(input_ids=texts, labels=texts).loss.item()
state, control = trainer.state, trainer.optimizer.param_groups[0]["lr"]
told = [state.global_step, round(state.epoch), control, state.best_metric, learned]
result = {"state": told, "batches": 0, "rank": 0, "loss": loss, "global_step": state.global_step}
result["seen"], result["evaluated"], result["ended"] = seen.steps, seen.evaluated, seen.epochs
result["saved"] = sorted(one.name for one in Path(arguments.output_dir).glob("checkpoint-*"))
if not options.replay:
    origin, result["rank"] = elastic.resumed(), elastic.rank()
    result["steps"] = elastic.step() - 1 + (origin.step if origin else 0)
    result["newcomer"] = len(seen.steps) < state.global_step
path.finish(options.out, result)
