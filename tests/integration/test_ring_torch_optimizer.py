"""`edl.torch.Optimizer` in a ring of one: it stays the optimizer it was, and says what is wrong with a call."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "adapters"))


from seat import FakeTrainer

from edl.config import Settings
from edl.errors import RingBroken, UsageError
from edl.protocol.assignment import solo
from edl.torch.torch_reducer import Manner
from edl.trainer.trainer import Trainer

pytestmark = pytest.mark.integration
FIRST, SECOND = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))


@pytest.fixture(scope="module")
def framework() -> Iterator[Any]:
    from edl.torch.torch_framework import TorchFramework

    framework = TorchFramework()
    framework.ring.enter(solo("w0"), 60.0)
    yield framework
    framework.ring.leave()


class Job:
    """A model, its optimizer, a trainer."""

    def __init__(self, framework: Any, wrapped: bool = True, **hyper: Any) -> None:
        torch.manual_seed(0)
        self.trainer = FakeTrainer()
        self.model: Any = torch.nn.Linear(3, 1)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), **{"lr": 0.1, "momentum": 0.9, **hyper})
        self.framework = framework
        if wrapped:
            self.wrap()

    def wrap(self) -> None:
        self.framework.wrap(self.trainer, self.optimizer, self.model, None)

    def backward(self) -> None:
        self.model(torch.ones(2, 3)).pow(2).mean().backward()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()

    def weights(self) -> Any:
        return self.model.weight.detach().clone()


def test_a_lazy_module_is_not_built(framework: Any) -> None:
    job = Job(framework)
    lazy = torch.nn.LazyLinear(1)
    framework.wrap(job.trainer, torch.optim.SGD(lazy.parameters(), lr=0.1), lazy, None)
    assert not framework.built
    with pytest.raises(UsageError, match="run a batch through it first"):
        framework.synchronize(0)
    lazy(torch.ones(1, 3))
    assert framework.built


@pytest.mark.slow
def test_the_scripts_own_init_does_no_harm() -> None:
    script = """
import horovod.torch as hvd
from edl.torch.torch_framework import TorchFramework
from edl.protocol.assignment import solo
hvd.init()
framework = TorchFramework()
framework.ring.enter(solo("w0"), 60.0)
hvd.init()
assert (hvd.rank(), hvd.size(), framework.ring.size) == (0, 1, 1)
framework.ring.leave()
assert not hvd.is_initialized()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_it_stays_the_optimizer_it_was(framework: Any) -> None:
    ours, plain = Job(framework), Job(framework, wrapped=False)
    assert isinstance(ours.optimizer, torch.optim.SGD)
    assert type(ours.optimizer).__name__ == "SGD"
    for _ in range(3):
        ours.step()
        plain.step()
    assert torch.equal(ours.weights(), plain.weights())
    assert ours.trainer.before == 3
    assert str(ours.optimizer.state_dict()) == str(plain.optimizer.state_dict())
    ours.optimizer.load_state_dict(copy.deepcopy(plain.optimizer.state_dict()))
    ours.step()
    plain.step()
    assert torch.equal(ours.weights(), plain.weights())


def test_step_hooks_run_once(framework: Any) -> None:
    job, calls = Job(framework), []
    job.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    job.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    job.optimizer.load_state_dict(job.optimizer.state_dict())  # torch looks at the hooks anew
    job.step()
    assert calls == ["before", "after"]


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_a_scheduler_works_in_either_order(framework: Any, scheduler_first: bool) -> None:
    job = Job(framework, wrapped=False)
    if not scheduler_first:
        job.wrap()
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, step_size=1, gamma=0.5)
    if scheduler_first:
        job.wrap()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as: the scheduler was called before the optimizer
        for _ in range(2):
            job.step()
            scheduler.step()
    assert job.trainer.before == 2
    assert scheduler.get_last_lr() == [0.025]


def test_a_void_step_changes_nothing(framework: Any) -> None:
    job = Job(framework)
    job.step()
    before, state = job.weights(), str(job.optimizer.state_dict())
    job.optimizer.zero_grad()
    job.trainer.void(RingBroken("a peer is gone"))
    job.backward()
    assert job.optimizer.step() is None
    assert torch.equal(job.weights(), before)
    assert str(job.optimizer.state_dict()) == state
    job.trainer.take_error()
    job.step()
    assert not torch.equal(job.weights(), before)


def test_gradients_add_up_without_a_sync(framework: Any) -> None:
    job, plain = Job(framework), Job(framework, wrapped=False)
    with job.optimizer.no_sync():
        job.backward()
    assert job.trainer.before == 0
    job.backward()
    job.optimizer.step()
    plain.backward()
    plain.backward()
    plain.optimizer.step()
    assert torch.equal(job.weights(), plain.weights())


def test_a_step_after_synchronize_reduces_once(framework: Any) -> None:
    job = Job(framework)
    for _ in range(2):
        job.optimizer.zero_grad()
        job.backward()
        job.optimizer.synchronize()
        with job.optimizer.skip_synchronize():
            job.optimizer.step()
    assert job.trainer.before == 2


@pytest.mark.parametrize("backwards", [1, 2])
def test_gradients_add_up_over_passes(framework: Any, backwards: int) -> None:
    """As many as DistributedOptimizer(backward_passes_per_step=2) says, or fewer in a short last mini-batch."""
    job, plain = Job(framework, wrapped=False), Job(framework, wrapped=False)
    framework.wrap(job.trainer, job.optimizer, job.model, None, Manner(2))
    for _ in range(2):
        job.optimizer.zero_grad()
        plain.optimizer.zero_grad()
        for _ in range(backwards):
            job.backward()
            plain.backward()
        job.optimizer.step()
        plain.optimizer.step()
    assert torch.equal(job.weights(), plain.weights())
    assert (job.trainer.before, framework.updates() >= 2) == (2, True)


def test_more_passes_than_were_said_are_refused(framework: Any) -> None:
    job = Job(framework, wrapped=False)
    framework.wrap(job.trainer, job.optimizer, job.model, None, Manner(2))
    job.optimizer.zero_grad()
    job.backward()
    job.backward()
    with pytest.raises(UsageError, match=r"3 times before step\(\), and backward_passes_per_step is 2"):
        job.backward()


def test_a_scaled_loss_needs_no_call_before_the_scaler(framework: Any) -> None:
    job, scaler = Job(framework), torch.amp.GradScaler("cpu", init_scale=8.0)
    before = job.weights()
    for loss in (1.0, float("inf"), 1.0):
        job.model.zero_grad()  # not the optimizer's: the scaler may have left out its step
        scaler.scale(job.model(torch.ones(2, 3)).pow(2).mean() * loss).backward()
        scaler.unscale_(job.optimizer)
        torch.nn.utils.clip_grad_norm_(job.model.parameters(), 1.0)
        scaler.step(job.optimizer)
        scaler.update()
    assert not torch.equal(job.weights(), before)
    assert job.trainer.before == 3
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS])
def test_a_step_in_which_no_worker_has_samples_changes_nothing(framework: Any, kind: Any) -> None:
    job = Job(framework, wrapped=False)
    hyper = {} if kind is torch.optim.LBFGS else {"weight_decay": 0.1}
    job.optimizer = kind(job.model.parameters(), lr=0.1, **hyper)
    job.wrap()

    def closure() -> Any:
        job.optimizer.zero_grad()
        loss = job.model(torch.ones(2, 3)).pow(2).mean()
        loss.backward()
        return loss

    def step() -> None:
        if kind is torch.optim.LBFGS:
            job.optimizer.step(closure)
        else:
            closure()
            job.optimizer.step()

    step()
    assert framework.applied() == 1.0
    before, state, updates = job.weights(), str(job.optimizer.state_dict()), framework.updates()
    framework.set_weight(0.0, weightless=True)
    step()
    assert framework.applied() == 0.0
    assert torch.equal(job.weights(), before)
    assert str(job.optimizer.state_dict()) == state
    assert framework.updates() > updates  # a script that commits after an update still does
    framework.set_weight(1.0)
    step()
    assert not torch.equal(job.weights(), before)


def test_what_a_mini_batch_changes_besides_what_is_learned_can_be_put_back(framework: Any) -> None:
    job = Job(framework, wrapped=False)
    job.model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), job.model)
    job.wrap()
    job.backward()
    job.model.register_buffer("counted", torch.zeros(1))  # by the script, on all workers alike
    before = {name: tensor.clone() for name, tensor in job.model[0].named_buffers()}
    framework.keep(only_statistics=True)
    job.backward()
    job.optimizer.param_groups[0]["lr"] = 0.2
    job.model.counted += 1
    assert not torch.equal(job.model[0].running_mean, before["running_mean"])
    framework.put_back()
    assert all(torch.equal(tensor, before[name]) for name, tensor in job.model[0].named_buffers())
    assert job.model.counted == 1
    assert job.optimizer.param_groups[0]["lr"] == 0.2
    framework.keep_hyper_parameters()
    job.optimizer.param_groups[0]["lr"] = 0.3
    framework.put_back()
    framework.put_back()  # nothing is left to be
    assert job.optimizer.param_groups[0]["lr"] == 0.2


def test_parameters_added_later_are_reduced_too(framework: Any) -> None:
    job = Job(framework)
    more = torch.nn.Parameter(torch.ones(1))
    job.optimizer.add_param_group({"params": [more]})
    job.trainer.before = 0
    (more * 2).sum().backward()
    assert job.trainer.before == 1


def test_a_group_that_came_with_the_state_is_there_when_the_script_adds_it(framework: Any) -> None:
    """A newcomer's script does what the others' did before it came. Its gradients are averaged once."""
    job = Job(framework)
    more = [torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(2))]
    job.optimizer.add_param_group({"params": more, "lr": 0.5})
    job.optimizer.expect_again(job.optimizer.param_groups[1])
    job.optimizer.add_param_group({"params": (one for one in more), "lr": 0.1})
    assert [group["lr"] for group in job.optimizer.param_groups] == [0.1, 0.5]
    with pytest.raises(ValueError, match="more than one parameter group"):
        job.optimizer.add_param_group({"params": more})
    with pytest.raises(TypeError):
        job.optimizer.add_param_group([more[0]])
    job.trainer.before = 0
    more[1].sum().backward()
    assert job.trainer.before == 1


@pytest.mark.parametrize("zeros", [False, True])
def test_what_no_worker_has_used_has_no_gradient_unless_it_is_to_have_zeros(framework: Any, zeros: bool) -> None:
    job = Job(framework, wrapped=False, weight_decay=0.5)
    job.model.spare = torch.nn.Parameter(torch.ones(1))
    job.optimizer.add_param_group({"params": [job.model.spare]})
    framework.wrap(job.trainer, job.optimizer, job.model, None, Manner(zeros=zeros))
    job.step()
    assert (job.model.spare.item() < 1.0) is zeros, "weight decay goes on with a gradient of zeros alone"
    assert (job.model.spare.grad is not None) is zeros


def test_a_frozen_parameter_is_heeded_once_it_is_thawed(framework: Any) -> None:
    job = Job(framework, wrapped=False)
    job.model.weight.requires_grad_(False)
    job.wrap()
    assert not job.model.weight.requires_grad
    job.model.weight.requires_grad_(True)
    job.model.bias.requires_grad_(False)
    job.backward()
    assert job.trainer.before == 1, "in backward, not in step()"


def test_the_first_of_two_optimizers_averages_what_both_have(framework: Any) -> None:
    job = Job(framework, momentum=0.0)
    second: Any = torch.optim.SGD(job.model.parameters(), lr=0.1)
    framework.wrap(job.trainer, second, None, None)
    job.step()
    assert job.trainer.before == 1
    second.step()
    assert job.trainer.before == 2, "the second's own, of no gradient: the first has averaged all"
    job.optimizer.zero_grad()
    job.model.weight.grad = torch.ones(1, 3)
    second.step()
    assert job.trainer.before == 4, "by hand, so they are averaged before the step"


def test_an_optimizer_without_anything_to_train_is_refused(framework: Any) -> None:
    job = Job(framework, wrapped=False)
    job.model.requires_grad_(False)
    with pytest.raises(UsageError, match="nothing to train"):
        job.wrap()


def saved_and_loaded(optimizer: Any) -> Any:
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded])
def test_a_copy_is_a_plain_optimizer(framework: Any, copied: Any) -> None:
    job = Job(framework)
    other = copied(job.optimizer)
    assert type(other) is torch.optim.SGD
    job.backward()
    other.step()
    assert job.trainer.before == 1  # by backward, not by the copy


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (lambda job: (job.optimizer, None, None), "wrapped already"),
        (lambda job: (job.model, None, None), "must be a torch.optim.Optimizer, not a Linear"),
        (lambda job: (fresh(), "model", None), "model must be a torch.nn.Module, not a str"),
        (lambda job: (fresh(), None, [torch.ones(1)]), "has a Tensor in it"),
        (lambda job: (fresh(2), None, [("a", FIRST), ("a", SECOND)]), "two parameters called"),
    ],
)
def test_a_wrong_call_says_so(framework: Any, arguments: Any, complaint: str) -> None:
    job = Job(framework)
    with pytest.raises(UsageError, match=complaint):
        framework.wrap(job.trainer, *arguments(job))


def fresh(parameters: int = 1) -> Any:
    return torch.optim.SGD([FIRST, SECOND][:parameters], lr=0.1)


def test_the_gradient_of_microbatches_is_that_of_the_whole_batch(framework: Any) -> None:
    rows = torch.arange(21.0).reshape(7, 3) / 10
    whole, bitten = Job(framework), Job(framework)
    whole.model(rows).pow(2).mean().backward()
    whole.optimizer.step()
    trainer = Trainer(framework)
    trainer.seating.settings = Settings()
    parts = []
    for part, share in trainer.data.microbatches(list(range(7)), most=3):
        parts.append(part)
        (bitten.model(rows[part]).pow(2).mean() * share).backward()
    bitten.optimizer.step()
    assert parts == [[0, 1, 2], [3, 4], [5, 6]]
    torch.testing.assert_close(bitten.weights(), whole.weights())


@pytest.mark.parametrize(("batch", "most", "named"), [([1], 0, "most=0"), (iter([1]), 2, "cannot be cut")])
def test_what_cannot_be_bitten(framework: Any, batch: Any, most: int, named: str) -> None:
    trainer = Trainer(framework)
    trainer.seating.settings = Settings()
    with pytest.raises(UsageError, match=named):
        trainer.data.microbatches(batch, most)
