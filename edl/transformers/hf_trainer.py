"""Hugging Face's Trainer as an elastic training loop.

Owns: `EdlTrainer`, the one loop over the steps of an epoch that replaces the Trainer's, and which worker writes, by
`TrainingArguments`' process indices: asked anew each time. Does not own: the steps and the length of the training
(`edl.transformers.hf_loop`), nor the number of processes, which stays 1: whatever the Trainer derives from it (a
sampler, an exchange of its own over torch's process group) is done by edl, or not at all.

The rest is the Trainer's: arguments, losses, callbacks, evaluation, saving. Accelerate's state stays that of one
process. A step ends after its update and the schedule, and before callbacks, logs, evaluation and saving.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

import edl.torch as elastic
from edl.errors import UsageError
from edl.torch.loader_conversion import StepParts, converted
from edl.torch.loop_collectives import Ask, LoopCollectives
from edl.torch.loop_steps import StepEnd
from edl.torch.shared_batches import shared_batches
from edl.torch.torch_process import framework
from edl.torch.torch_process import trainer as seat
from edl.trainer.virtual_steps import LoadedParts
from edl.transformers import hf_loop
from edl.transformers.hf_evaluation import PredictedBatches
from edl.transformers.hf_loop import Parts, TrainerSteps, UpdatePlan


class ElasticArguments:
    """The mixin for the class of the arguments, in front of it."""

    log_on_each_node: bool
    save_on_each_node: bool

    @property
    def process_index(self) -> int:
        """Return the rank; for a newcomer that rehearses, a rank that does not write."""
        return max(1, seat.rank()) if seat.rehearsing() else seat.rank()

    @property
    def local_process_index(self) -> int:
        return seat.local_rank()

    @property
    def should_log(self) -> bool:
        """Tell whether this worker logs: one worker of the job does."""
        return self.process_index == 0

    @property
    def should_save(self) -> bool:
        """Tell whether this worker saves: one worker of the job does, or the first of each host."""
        if not self.save_on_each_node:
            return self.process_index == 0
        return self.local_process_index == 0 and not seat.rehearsing()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Pickle the arguments by their original class."""
        # The Trainer stores them beside a model, to be read where there is no job.
        return copyreg._reconstructor, (type(self).__mro__[2], object, None), dict(vars(self))  # type: ignore[attr-defined]


def make_elastic(arguments: Any) -> None:
    """Mix `ElasticArguments` into the arguments' class; the object stays the same."""
    kind = type(arguments)
    if not issubclass(kind, ElasticArguments):
        arguments.__class__ = type(kind.__name__, (ElasticArguments, kind), {"__module__": kind.__module__})


ONE_TRAINING = "Trainer.train(): a job of edl has one training; start another job for the next one"


class EdlTrainerMixin:
    """The elastic part of a `Trainer` of your own: `class MyElasticTrainer(EdlTrainerMixin, MyTrainer)`."""

    _tr_loss: Any
    _losses: list[torch.Tensor]  # of the parts of the step under way
    _share = 1.0  # the share of a part in the samples of its step
    _over = False  # the pass that was trained last has ended
    _trains: EdlTrainerMixin | None = None  # of the class: the trainer that has begun the job's training
    _evaluates = False  # `evaluate()` is running; it may call itself
    _evaluated: Any  # the model, as the Trainer wraps it for evaluation
    _preprocess: Any  # the script's function for logits
    prediction_step: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Join the job, unless the script has called `edl.init()` before. The arguments are the Trainer's."""
        if not seat.began:
            elastic.init()
        seat.seating.check_alone("EdlTrainer")
        given = next((one for one in (*args, *kwargs.values()) if isinstance(one, TrainingArguments)), None)
        if given is None:
            given = kwargs["args"] = TrainingArguments()
        _check(given)
        make_elastic(given)
        self._words = LoopCollectives(framework, seat, self._between)
        self._steps: TrainerSteps | None = None
        self._in_loop = False
        super().__init__(*args, **kwargs)
        seat.on_resize(lambda _old, _new: self._take_rank())

    def _between(self) -> Ask | None:
        """Return how to ask all workers, if the script is between two mini-batches; else None."""
        return self._steps.ask if self._steps is not None and self._steps.between else None

    def _take_rank(self) -> None:
        self.state: Any
        self.state.is_world_process_zero = self.is_world_process_zero()  # type: ignore[attr-defined]

    # ------------------------------------------------------------------------------------------------- setting up

    def get_train_dataloader(self) -> Any:
        """Return the Trainer's loader over this worker's samples: a step has the samples of one update."""
        self.args: Any
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        loader = super().get_train_dataloader()  # type: ignore[misc]
        return converted(loader, self.args.gradient_accumulation_steps, seed, takes_parts=True)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Create the Trainer's or the script's optimizer, and make it average gradients."""
        optimizer: Any = super().create_optimizer(*args, **kwargs)  # type: ignore[misc]
        if self._steps is not None:
            raise UsageError(ONE_TRAINING)
        self.model: Any
        elastic.Optimizer(optimizer, model=self.model)
        return optimizer

    def rebuild_schedule(self, updates: int) -> None:
        """Create the schedule anew for the number of updates that the other workers have planned."""
        self._created_lr_scheduler: bool
        if self._created_lr_scheduler:
            rates = [group["lr"] for group in self.optimizer.param_groups]
            self.lr_scheduler: Any = None
            self.create_scheduler(num_training_steps=updates)  # type: ignore[attr-defined]
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate  # the rate sent by the others; a new schedule begins with its first one
            self.callback_handler: Any
            self.callback_handler.lr_scheduler = self.lr_scheduler

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        if resume_from_checkpoint is not None:
            raise UsageError(
                "Trainer.train(resume_from_checkpoint=...): a job goes on at the exact sample by `edl run --checkpoint`"
            )
        if EdlTrainerMixin._trains not in (None, self):  # a second training would find the data trained, and do nothing
            raise UsageError(ONE_TRAINING)
        EdlTrainerMixin._trains = self
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)  # type: ignore[misc]
        if not isinstance(train_dataloader, StepParts):
            raise UsageError("get_train_dataloader() is overridden: let it return edl.torch.ElasticDataLoader(...)")
        by_epochs = self.args.max_steps <= 0
        planned = UpdatePlan(max_steps, _shares(), float(self.args.num_train_epochs), by_epochs)
        self._steps = TrainerSteps(self, seat, train_dataloader, planned)
        return prepared

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        # The number of epochs that `max_steps` updates take changes with the number of workers: it must not end the
        # loop.
        epochs, *rest = super().set_initial_training_values(args, dataloader)  # type: ignore[misc]
        return (sys.maxsize if args.max_steps > 0 else epochs, *rest)

    def get_total_train_batch_size(self, *args: Any, **kwargs: Any) -> int:
        """Return the samples of an update, of all workers at the moment, or of all virtual ones."""
        found: int = super().get_total_train_batch_size(*args, **kwargs)  # type: ignore[misc]
        return found * _shares()

    # --------------------------------------------------------------------------------------------------- training

    def _run_epoch(self, *, model: Any, epoch: int, trial: Any, ignore_keys_for_eval: Any, **more: Any) -> None:
        """Train one pass over the data, whatever the number of workers, in the place of the Trainer's method."""
        steps = self._steps
        assert steps is not None  # prepared
        if not hasattr(steps, "registered"):
            steps.registered = seat.register(loop=steps.travels)
        if epoch < steps.travels.epochs_done:
            return  # an epoch that the others had trained when this newcomer came
        self.control: Any
        self._in_loop = True
        finish = functools.partial(
            self._maybe_log_save_evaluate,  # type: ignore[attr-defined]
            self._tr_loss,
            model=model,
            trial=trial,
            ignore_keys_for_eval=ignore_keys_for_eval,
            start_time=more["start_time"],
        )
        steps.travels.epoch = epoch
        steps.begin_epoch()
        norm = rate = None
        while (step := steps.next()) is not None:
            norm, rate = self._update(model, step)
            if not self._end_step(steps):
                continue
            self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
            finish(grad_norm=norm, epoch=steps.travels.epoch, learning_rate=rate)
            if self._over or self.control.should_epoch_stop or self.control.should_training_stop:
                break
        steps.travels.epochs_done = steps.travels.epoch + 1
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        finish(grad_norm=norm, epoch=steps.travels.epoch, learning_rate=rate)
        if steps.travels.epochs_done >= self.args.num_train_epochs and steps.travels.plan.by_epochs:
            self.control.should_training_stop = True
        self._in_loop = False

    def _update(self, model: Any, step: Parts | LoadedParts) -> tuple[Any, Any]:
        """Make a step up to its update, and return the gradients' norm and the learning rate."""
        self.current_gradient_accumulation_steps = 1
        self.accelerator: Any
        self.optimizer: Any
        self._losses = []
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
        begun = False
        for inputs, share, items, adds_up in self._batches_of(step):
            self._share = share
            if begun:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
            begun = True
            self.accelerator.gradient_state._set_sync_gradients(not adds_up)
            with framework.adding_up() if adds_up else contextlib.nullcontext():
                self._losses.append(self.training_step(model, inputs, items))  # type: ignore[attr-defined]
            self.current_flos += float(self.floating_point_ops(inputs))  # type: ignore[attr-defined]
            self._track_num_input_tokens(inputs)  # type: ignore[attr-defined]
        self.accelerator.gradient_state._set_sync_gradients(True)
        norm: Any = None
        if self.args.max_grad_norm > 0:
            norm = self._clip_grad_norm(model)  # type: ignore[attr-defined]
        norm = self._get_grad_norm(model, grad_norm=norm)  # type: ignore[attr-defined]
        self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
        self.optimizer.step()
        self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
        rate = self._get_learning_rate()  # type: ignore[attr-defined]
        return norm, rate

    def _batches_of(self, step: Parts | LoadedParts) -> Iterator[tuple[Any, float, Any, bool]]:
        """Yield each batch of a step with its share of the samples, the tokens of its loss, if it is a mean over these,
        and whether another batch is added to its gradients.
        """
        if isinstance(step, LoadedParts):
            yield from self._parts_of(step)
            return
        whole = sum(samples for _, samples in step)
        items = self._items_of_all(self._tokens_in([batch for batch, _ in step]))
        for number, (batch, samples) in enumerate(step, 1):
            yield batch, samples / whole if items is None else 1.0, items, number < len(step)

    def _parts_of(self, step: LoadedParts) -> Iterator[tuple[Any, float, Any, bool]]:
        """Yield the batches of each virtual worker that this worker computes in a step, as `_batches_of` does."""
        if seat.voided:
            return  # the batches were loaded in the ring before, and may be of other virtual workers
        found = seat.parts.parts_of_step(step)
        own: list[Parts] = [step.of(one.virtual) for one in found.parts]
        tokens = self._tokens_in([batch for part in own for batch, _ in part])
        per_sample = 0.0 if tokens is None else self._tokens_per_sample(tokens, own, counts=found.counts)
        parts = 0
        for part, _ in seat.data.microbatches(step):
            parts += 1
            samples = sum(count for _, count in part)
            items = None
            if tokens is not None:
                items = self._tokens_in([batch for batch, _ in part])
                items = torch.tensor(per_sample * samples).to(self.args.device) if per_sample else items
            for batch, count in part:
                yield batch, count / samples if items is None else 1.0, items, True
        self._losses = [loss / parts for loss in self._losses]  # their mean, where parts came again too

    def _tokens_per_sample(self, tokens: Any, own: list[Parts], *, counts: bool) -> float:
        """Return the tokens of a sample in the mean over a step, the same on all workers; 0.0: not asked for."""
        if not self.args.average_tokens_across_devices:
            return 0.0
        samples = sum(count for part in own for _, count in part)
        mine = torch.tensor([float(tokens), samples], dtype=torch.float64) * (1.0 if counts else 0.0)
        of_all = self._words.reduced(mine, "sum").round()  # whole numbers: the same however many add them up
        return float(of_all[0] / of_all[1]) if of_all[1] else 1.0

    def _tokens_in(self, batches: list[Any]) -> Any:
        return self._get_num_items_in_batch(batches, self.args.device)  # type: ignore[attr-defined]

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        """Compute the Trainer's loss; the loss of a part of a step is weighted by its samples."""
        found: Any = super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)  # type: ignore[misc]
        if not self._in_loop or not model.training or self._share == 1.0:
            return found
        return (found[0] * self._share, found[1]) if return_outputs else found * self._share

    def _items_of_all(self, own: Any) -> Any:
        """Return the tokens of all workers in a step, scaled as this worker's gradients are."""
        size = seat.size()
        # In an evaluation the Trainer counts the tokens of this worker's batch: no other worker may be asked there.
        if own is None or size == 1 or not self.args.average_tokens_across_devices:
            return own
        share = framework.share_of_step(size)
        mine = torch.as_tensor(own, dtype=torch.float64, device=self.args.device) * (1.0 if share else 0.0)
        mean = self._words.reduced(mine, "mean")
        return (mean * share).to(torch.float32) if share else own

    def _add_losses(self) -> None:
        """Add the losses of a step that counts, before the step is counted."""
        since: int = 1 + self.state.global_step - self._globalstep_last_logged  # type: ignore[attr-defined]
        for loss in self._losses:
            filtered = self.args.logging_nan_inf_filter and not bool(torch.isfinite(loss))
            self._tr_loss += self._tr_loss / since if filtered else loss

    def _end_step(self, steps: TrainerSteps) -> bool:
        """End a step; tell whether the work that follows an update is to be done."""
        counted = steps.settle()
        if counted:
            self._add_losses()
            self._advance(steps.travels.plan)
        self.model.zero_grad()
        ended = steps.end_step(counted=counted)
        self._take_rank()
        if ended is StepEnd.AGAIN:
            return False
        travels, pass_over = steps.travels, steps.pass_is_over()
        self._over = pass_over
        over = travels.plan.is_over(travels.epoch, self.state.global_step, pass_over=pass_over)
        self.state.max_steps = travels.plan.most_updates(self.state.global_step, over=over)
        self.state.epoch = travels.epoch + 1 if pass_over else self._fraction(travels)
        return ended is StepEnd.COUNTED or pass_over

    def _advance(self, planned: UpdatePlan) -> None:
        planned.advance(_shares())
        schedule: Any = self.lr_scheduler
        moves = hasattr(schedule, "get_last_lr") and not _goes_by_metrics(schedule)
        if moves and not self.accelerator.optimizer_step_was_skipped:
            if planned.position != schedule.last_epoch + 1 and self._created_lr_scheduler:
                hf_loop.move(schedule, planned.position)
            else:
                schedule.step()
        self.state.global_step += 1

    def _fraction(self, travels: Any) -> float:
        """Return the epochs trained, with the fraction of the present one."""
        per_epoch: float = travels.plan.updates / travels.plan.epochs if travels.plan.by_epochs else 0.0
        if not per_epoch:
            return float(travels.epoch)
        return float(min(travels.epoch + 1, travels.plan.position / per_epoch))

    # ---------------------------------------------------------------------------------- evaluating, and what is saved

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate. While the job trains, all workers use the first one's figures, as times differ between workers."""
        if not self._in_loop or self._evaluates:
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]
        self._evaluates = True
        try:
            return self._words.told(super().evaluate(*args, **kwargs), 0)  # type: ignore[misc]
        finally:
            self._evaluates = False

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> Any:
        """Run the Trainer's loop of evaluation or prediction; each batch is computed by one worker."""
        whole = super().evaluation_loop  # type: ignore[misc]
        batches = shared_batches(dataloader)
        if batches is None:
            self._words.share_buffers(self.model)
            return whole(dataloader, description, *args, **kwargs)
        given = dict(zip(("prediction_loss_only", "ignore_keys"), args, strict=False)) | kwargs
        predict = functools.partial(self._predict, given.get("prediction_loss_only"), given.get("ignore_keys"))
        keeps = "inputs" in self.args.include_for_metrics
        main_input = getattr(self.model, "main_input_name", "input_ids")
        predicted = PredictedBatches(
            batches, predict, main_input, self.accelerator, keeps=keeps, ask=self._between() or seat.evaluate_shared
        )
        own = self.preprocess_logits_for_metrics
        # Set on the object, these hide the methods of a subclass, which `_predict` calls.
        vars(self).update(prediction_step=predicted.answer, preprocess_logits_for_metrics=None)
        self._preprocess = own
        try:
            return whole(predicted, description, *args, **kwargs)
        finally:
            del self.prediction_step
            self.callback_handler.eval_dataloader = dataloader  # callbacks that follow may iterate it
            self.preprocess_logits_for_metrics: Any = own

    def _wrap_model(self, model: Any, training: bool = True, **kwargs: Any) -> Any:
        wrapped = super()._wrap_model(model, training=training, **kwargs)  # type: ignore[misc]
        if not training:
            self._evaluated = wrapped
        return wrapped

    def _predict(self, loss_only: bool | None, ignore_keys: Any, inputs: Any) -> tuple[Any, Any, Any]:
        """Return the model's output for a batch of this worker's share."""
        loss_only = self.args.prediction_loss_only if loss_only is None else loss_only
        step: Any = type(self).prediction_step
        loss, logits, labels = step(self, self._evaluated, inputs, loss_only, ignore_keys=ignore_keys)
        if logits is not None and self._preprocess is not None:
            logits = self._preprocess(logits, labels)
        return loss, logits, labels

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save on one worker, and tell the others where the best checkpoint lies."""
        if self.args.should_save:
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
        self.state.best_model_checkpoint = self._words.told(self.state.best_model_checkpoint, 0)


class EdlTrainer(EdlTrainerMixin, Trainer):  # type: ignore[misc]
    """`transformers.Trainer`, for a job whose workers come and go."""


def _shares() -> int:
    """Return in how many shares the samples of an update are trained."""
    return seat.virtual or seat.size()


def _goes_by_metrics(schedule: Any) -> bool:
    """Tell whether the schedule moves at evaluations, as "reduce_lr_on_plateau" and "greedy" do."""
    return "metrics" in inspect.signature(schedule.step).parameters


def _check(given: Any) -> None:
    """Raise UsageError for arguments that an elastic job cannot serve."""
    refused = {
        "deepspeed": (given.deepspeed, "edl is data-parallel only: leave it away"),
        "fsdp": (given.fsdp, "edl is data-parallel only: leave it away"),
        "auto_find_batch_size": (given.auto_find_batch_size, "the workers must have one batch size: say which"),
        "enable_jit_checkpoint": (
            getattr(given, "enable_jit_checkpoint", False),
            "a job that is preempted goes on by `edl run --checkpoint`: leave it away",
        ),
        "group_by_length": (getattr(given, "group_by_length", False), "edl chooses the samples: leave it away"),
    }
    for name, (value, remedy) in refused.items():
        if value:
            raise UsageError(f"TrainingArguments({name}=...) does not go with EdlTrainer: {remedy}")
