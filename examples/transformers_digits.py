"""Handwritten digits with Hugging Face's Trainer.

edl run -np 2 python examples/transformers_digits.py
"""

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from edl.transformers import EdlTrainer as Trainer


class Digits(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.post_init()

    def forward(self, images, labels=None):
        logits = self.layers(images)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def compute_metrics(found):
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


table = np.loadtxt("data/digits/digits.csv.gz", delimiter=",", dtype=np.float32)
rows = [{"images": torch.from_numpy(row[:64] / 16), "labels": int(row[64])} for row in table]
trainer = Trainer(
    model=Digits(PretrainedConfig()),
    args=TrainingArguments(
        "out/transformers_digits",
        num_train_epochs=5,
        per_device_train_batch_size=32,
        learning_rate=1e-2,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        disable_tqdm=True,
        report_to=[],
    ),
    train_dataset=rows[:1400],
    eval_dataset=rows[1400:],
    compute_metrics=compute_metrics,
)
trainer.train()
metrics = trainer.evaluate()
if trainer.is_world_process_zero():
    print(f"accuracy {metrics['eval_accuracy']:.3f}")
