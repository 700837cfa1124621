"""Each library evaluates after each epoch, shared out among workers that come, die and go; and, at the end, alone.

With --often after each step, on fewer batches than there may be workers.
"""

import json
import os
import time
from typing import Any

import path
import task
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

path.parser.add_argument("--library", choices=("lightning", "transformers", "accelerate"), required=True)
path.parser.add_argument("--each", type=float, default=0.0, help="seconds that each batch of the evaluation takes")
path.parser.add_argument("--often", action="store_true", help="after each step, or each epoch has one")
options = path.parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(os.getpid())  # each begins with another model, and is given the job's
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
VALIDATED, BATCH = (3, 2) if options.often else (101, 7)
train_set = TensorDataset(inputs, targets)
numbers = torch.arange(VALIDATED)
val_set = TensorDataset(numbers, inputs[:VALIDATED], targets[:VALIDATED])
layers = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
told = (options.out / f"evaluated-{os.getpid()}.jsonl").open("a")
alone = False  # the library, without edl
epoch = 0


def tell(**line: Any) -> None:
    told.write(json.dumps(line) + "\n")
    told.flush()


def computes(ids: torch.Tensor) -> None:
    """One batch of the evaluation."""
    if not alone and not seat.rehearsing():
        tell(batch=int(ids[0]), epoch=epoch)
        (options.out / f"evaluating-{os.getpid()}").touch()
        time.sleep(options.each)


def loss_of(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Batch norm computes no statistics of one."""
    return functional.mse_loss(found, wanted)


def evaluated(figures: dict[str, float]) -> None:
    """After an epoch, or alone at the end."""
    if alone:
        tell(alone=figures)
    elif not seat.rehearsing():
        tell(epoch=epoch, size=seat.size(), found=figures)


def wanted_epochs() -> int:
    return path.epochs_wanted(options)


def trains() -> None:
    layers.train()


if options.library == "lightning":
    import lightning.pytorch as pl
    import torchmetrics
    from lightning.pytorch.callbacks import Callback

    import edl.lightning  # noqa: F401 - the strategy, by its name

    class Net(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers
            self.seen = torchmetrics.SumMetric()
            self.several = torchmetrics.MetricCollection([torchmetrics.MeanAbsoluteError(), torchmetrics.R2Score()])
            self.correlation = torchmetrics.PearsonCorrCoef()
            self.ranks = torchmetrics.SpearmanCorrCoef()
            self.trained = torchmetrics.SumMetric()

        def training_step(self, batch: Any) -> torch.Tensor:
            rows, wanted = batch
            layers.train(len(rows) > 1)
            self.trained.update(len(rows))
            return loss_of(layers(rows), wanted)

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            ids, rows, wanted = batch
            if dataloader_idx == 0 and not self.trainer.sanity_checking:
                computes(ids)
            found = layers(rows)
            self.log("loss", loss_of(found, wanted), sync_dist=True)
            self.log("highest", found.max(), reduce_fx="max")
            self.log("sum", found.sum(), reduce_fx="sum", sync_dist=True)
            if dataloader_idx:
                return
            self.seen.update(len(ids))
            self.several.update(found, wanted)
            self.correlation.update(found.flatten(), wanted.flatten())
            self.ranks.update(found.flatten(), wanted.flatten())
            self.log("seen", self.seen, add_dataloader_idx=False)
            self.log_dict(self.several, add_dataloader_idx=False)
            self.log("correlation", self.correlation, add_dataloader_idx=False)

        def on_validation_epoch_end(self) -> None:
            if not self.trainer.sanity_checking:
                assert self.trained.compute() > 0, "a metric of training is left alone"
                self.log("ranks", self.ranks.compute())
            self.ranks.reset()

        test_step = validation_step
        on_test_epoch_end = on_validation_epoch_end

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    class Telling(Callback):  # type: ignore[misc]
        def on_train_batch_end(self, *_: Any) -> None:
            path.pause(options)

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            global epoch  # noqa: PLW0603 - of the script
            epoch = trainer.global_step if options.often else trainer.current_epoch + 1

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            if not trainer.sanity_checking:
                evaluated({name: float(value) for name, value in trainer.callback_metrics.items()})

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            if trainer.current_epoch + 1 >= wanted_epochs():
                trainer.should_stop = True

    import edl.torch as seat

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    validated = [DataLoader(val_set, BATCH), DataLoader(val_set, 40, shuffle=True)]
    net = Net()
    given = {"strategy": "edl", "enable_checkpointing": False, "limit_val_batches": 20, **quiet}
    given |= {"val_check_interval": 1} if options.often else {}
    trainer = pl.Trainer(max_epochs=100_000, callbacks=[Telling()], **given)
    trainer.fit(net, DataLoader(train_set, batch_size=16, shuffle=True), validated)
    epoch = -1
    tell(tested={name: value for one in trainer.test(net, validated, verbose=False) for name, value in one.items()})
    alone = True
    pl.Trainer(callbacks=[Telling()], **quiet).validate(net, validated, verbose=False)

elif options.library == "transformers":
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
    from transformers.modeling_outputs import SequenceClassifierOutput

    import edl.torch as seat
    from edl.transformers import EdlTrainer

    class Model(PreTrainedModel):  # type: ignore[misc]
        config_class = PretrainedConfig
        main_input_name = "rows"

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.layers = layers
            self.post_init()

        def forward(self, rows: torch.Tensor, labels: Any = None, ids: Any = None) -> Any:
            layers.train(self.training and len(rows) > 1)
            if not self.training:
                computes(ids)
            found = layers(rows)
            return SequenceClassifierOutput(loss=loss_of(found, labels), logits=found)

    class Dict(torch.utils.data.Dataset[Any]):
        def __init__(self, size: int) -> None:
            self.size = size

        def __len__(self) -> int:
            return self.size

        def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
            return {"ids": torch.tensor(number), "rows": inputs[number], "labels": targets[number]}

    def metrics(found: Any) -> dict[str, float]:
        assert found.inputs.shape[1:] == (8,) and found.losses is not None
        return {"error": float(abs(found.predictions[0] - found.label_ids).sum()), "seen": len(found.label_ids)}

    class Telling(TrainerCallback):  # type: ignore[no-redef,misc]
        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            path.pause(options)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            global epoch  # noqa: PLW0603 - of the script
            epoch = epoch if options.often else round(state.epoch)
            control.should_training_stop = round(state.epoch) >= wanted_epochs()

        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            global epoch  # noqa: PLW0603 - of the script
            epoch = state.global_step if options.often else epoch

        def on_evaluate(self, *_: Any, metrics: Any, **__: Any) -> None:
            evaluated({name: metrics[name] for name in ("eval_loss", "eval_error", "eval_seen")})

    more: dict[str, Any] = {"num_train_epochs": 1000, "per_device_train_batch_size": 16, "eval_strategy": "epoch"}
    quietly: dict[str, Any] = {"use_cpu": True, "disable_tqdm": True, "report_to": [], "optim": "sgd"}
    quietly |= {"per_device_eval_batch_size": BATCH, "include_for_metrics": ["inputs", "loss"], "save_strategy": "no"}
    if options.often:
        more |= {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
        more |= {"save_total_limit": 2, "load_best_model_at_end": True, "metric_for_best_model": "loss"}
    arguments = TrainingArguments(str(options.out / "saved"), **(quietly | more))
    same = TrainingArguments(str(options.out / "alone"), **quietly)
    made: dict[str, Any] = {
        "model": Model(PretrainedConfig()),
        "train_dataset": Dict(task.SAMPLES),
        "eval_dataset": Dict(VALIDATED),
        "compute_metrics": metrics,
        "preprocess_logits_for_metrics": lambda logits, labels: (logits, labels),
        "callbacks": [Telling()],
    }
    hugging = EdlTrainer(args=arguments, **made)
    hugging.train()
    epoch = -1
    predicted = hugging.predict(Dict(VALIDATED), metric_key_prefix="eval")
    tell(tested={"eval_loss": predicted.metrics["eval_loss"], "rows": len(predicted.predictions[0])})
    alone = True
    Trainer(
        args=TrainingArguments(
            str(options.out / "alone"),
            per_device_eval_batch_size=BATCH,
            include_for_metrics=["inputs", "loss"],
            use_cpu=True,
            disable_tqdm=True,
            report_to=[],
        ),
        **made,
    ).evaluate()

else:
    from accelerate import Accelerator as Alone

    import edl.torch as seat
    from edl.accelerate import Accelerator

    def evaluate(accelerator: Any, model: Any, loader: Any) -> dict[str, float]:
        """As the documentation has it."""
        model.eval()
        gathered: list[Any] = []
        for ids, rows, wanted in loader:
            computes(ids)
            with torch.no_grad():
                found = model(rows)
            gathered.append(accelerator.gather_for_metrics((ids, {"found": found, "wanted": wanted})))
        ids = torch.cat([one[0] for one in gathered])
        found, wanted = (torch.cat([one[1][name] for one in gathered]) for name in ("found", "wanted"))
        assert sorted(ids.tolist()) == [*range(VALIDATED)]
        assert torch.equal(wanted, targets[ids]), "rows stay together"
        one_each = accelerator.reduce(torch.tensor(1.0))
        assert alone or seat.rehearsing() or one_each == seat.size() == len(accelerator.gather(torch.tensor(1)))
        return {"loss": float(loss_of(found, wanted)), "seen": len(ids)}

    def longest(accelerator: Any, loader: Any) -> dict[str, float]:
        """Rows of other lengths, which are made as long as the longest of their round."""
        rows = []
        for ids, *_ in loader:
            mine = ids[:, None].expand(-1, 1 + int(ids[0]) % 5)
            rows += [*accelerator.gather_for_metrics(accelerator.pad_across_processes(mine, dim=1, pad_index=-1))]
        assert sorted(int(row[0]) for row in rows) == [*range(VALIDATED)]
        return {"rows": sum(int((row >= 0).sum()) for row in rows)}

    accelerator = Accelerator(cpu=True)
    optimizer: Any = torch.optim.SGD(layers.parameters(), lr=0.05)
    loaders = DataLoader(train_set, batch_size=128 if options.often else 16, shuffle=True), DataLoader(val_set, BATCH)
    model, optimizer, training, validating = accelerator.prepare(layers, optimizer, *loaders)
    shards = training.parts.loader.shards
    while shards.epochs_done < wanted_epochs():
        for rows, wanted in training:
            layers.train(len(rows) > 1)
            optimizer.zero_grad()
            accelerator.backward(loss_of(model(rows), wanted))
            optimizer.step()
            path.pause(options)
        epoch = shards.epochs_done
        evaluated(evaluate(accelerator, model, validating))
    epoch = -1
    tell(tested=longest(accelerator, validating))
    alone = True
    single = Alone(cpu=True)
    evaluated({**evaluate(single, *single.prepare(layers, loaders[1])), **longest(single, loaders[1])})

state = [*(value.detach().numpy() for value in layers.state_dict().values())]
result = {"state": path.digest(state), "rank": seat.rank(), "batches": 0, "pid": os.getpid()}
path.finish(options.out, result)
