"""Hugging Face's Trainer on a language model, with virtual workers; tells the digest of all that it has trained."""

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments, set_seed

import edl.torch as edl
from edl.transformers import EdlTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--pace", type=Path, required=True)
options = parser.parse_args()
torch.set_num_threads(1)
set_seed(5)
texts = torch.randint(32, (102, 8), generator=torch.Generator().manual_seed(1))


class Texts(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return len(texts)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        labels = texts[number].clone()
        labels[: number % 5] = -100  # so that samples differ in how many words count
        labels[torch.rand(8) < 0.1] = -100  # as of a collator that draws
        return {"input_ids": texts[number], "labels": labels}


class Paced(TrainerCallback):  # type: ignore[misc]
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        time.sleep(float(options.pace.read_text()))


model = GPT2LMHeadModel(
    GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
)
given = TrainingArguments(
    str(options.out / "trainer"),
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    num_train_epochs=options.epochs,
    learning_rate=3e-3,
    lr_scheduler_type="cosine",
    warmup_steps=3,
    max_grad_norm=0.5,
    use_cpu=True,
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
trainer: Any = EdlTrainer(
    model=model,
    args=given,
    train_dataset=Texts(),
    eval_dataset=torch.utils.data.Subset(Texts(), range(8)),
    callbacks=[Paced()],
)
trainer.train()
found = [*model.state_dict().values()]
found += [one for state in trainer.optimizer.state_dict()["state"].values() for one in state.values()]
told = repr((trainer.lr_scheduler.get_last_lr(), trainer.state.global_step))
digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in found) + told.encode())
(options.out / f"digest-{edl.rank()}.json").write_text(json.dumps({"digest": digest.hexdigest(), "told": told}))
