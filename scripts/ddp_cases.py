"""What DistributedDataParallel promises, one line for each case, by DDP itself or by edl in its place.

    torchrun --standalone --nproc-per-node 2 scripts/ddp_cases.py
    edl run -np 2 [--ring torch] python scripts/ddp_cases.py

Cases after torch's own tests (torch/testing/_internal/distributed/distributed_test.py, test_c10d_gloo.py), on CPUs,
with two workers. Each ends in `pass`, `refused` with edl's line, or `FAIL` with what differs. The last line counts
them; the exit code is 1 where one has failed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

ON_EDL = "EDL_JOB" in os.environ
if ON_EDL:
    import edl.torch as edl
    from edl.errors import UsageError as Refused
else:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    class Refused(Exception):  # type: ignore[no-redef]
        """Nothing is."""


SAMPLES, WIDTH = 8, 6
X = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(3))
Y = torch.randn(SAMPLES, 1, generator=torch.Generator().manual_seed(4))
CASES: dict[str, Callable[[], None]] = {}


def case(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def entered(test: Callable[[], None]) -> Callable[[], None]:
        CASES[name] = test
        return test

    return entered


# ----------------------------------------------------------------------------------------------- DDP, or edl instead


def rank() -> int:
    return edl.rank() if ON_EDL else dist.get_rank()


def size() -> int:
    return edl.size() if ON_EDL else dist.get_world_size()


def of_all(value: Any) -> list[Any]:
    """Of each rank."""
    if ON_EDL:
        found: list[Any] = edl.allgather_object(value)
        return found
    gathered = [None] * size()
    dist.all_gather_object(gathered, value)
    return gathered


class Trained:
    """A model, its optimizer, and what averages its gradients."""

    def __init__(self, model: nn.Module, optimizer: Any = None, static: bool = False, **of_ddp: Any) -> None:
        self.plain = model
        self.optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        if ON_EDL:
            self.model: Any = model
            self.optimizer = edl.Optimizer(self.optimizer, model=model)
            if any(True for _ in model.buffers()):
                from edl.torch.buffers import SharedBuffers
                from edl.torch.torch_process import framework, trainer

                SharedBuffers(trainer, framework.ring).attach(model)  # as edl.prepare does
        else:
            self.model = DistributedDataParallel(model, static_graph=static, **of_ddp)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        found: contextlib.AbstractContextManager[None] = (self.optimizer if ON_EDL else self.model).no_sync()
        return found

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.end()

    def end(self) -> None:
        self.optimizer.step()
        ended()


def ended() -> None:
    if ON_EDL:
        edl.notify_batch_end()


def mine() -> slice:
    """This rank's samples."""
    return slice(rank() * SAMPLES // size(), (rank() + 1) * SAMPLES // size())


def loss_of(model: Any, where: slice | None = None) -> torch.Tensor:
    where = mine() if where is None else where
    return (model(X[where]).sum(1, keepdim=True) - Y[where]).pow(2).mean()


ALL = slice(0, SAMPLES)


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 1))


def same(one: Any, other: Any, what: str, near: float = 1e-6) -> None:
    if one is None or other is None:
        assert one is other, (
            f"{what}: {'none' if one is None else 'one'}, expected {'none' if other is None else 'one'}"
        )
        return
    one, other = ((value.to_dense() if value.is_sparse else value).detach() for value in (one, other))
    apart = float((one - other).abs().max()) if one.numel() else 0.0
    assert apart <= near * max(1.0, float(other.abs().max())), f"{what}: {apart} apart"


def same_gradients(model: nn.Module, alone: nn.Module) -> None:
    for (name, one), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        same(one.grad, other.grad, f"gradient of {name}")


def same_weights(model: nn.Module, alone: nn.Module) -> None:
    for (name, one), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        same(one.detach(), other.detach(), name)


def same_everywhere(values: list[torch.Tensor], what: str) -> None:
    by_rank = of_all([value.detach().clone() for value in values])
    for of_rank in by_rank[1:]:
        for number, (one, other) in enumerate(zip(of_rank, by_rank[0], strict=True)):
            assert torch.equal(one, other), f"{what} {number} differs between ranks"


@contextlib.contextmanager
def raised_everywhere(kinds: tuple[type[BaseException], ...]) -> Iterator[None]:
    word = ""
    try:
        yield
    except kinds as error:
        word = str(error)
    words = of_all(word)
    assert all(words), f"raised on ranks {[number for number, one in enumerate(words) if one]} alone"


class Power(nn.Module):
    """One number, squared."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.number.pow(2)


class Branches(nn.Module):
    """A body, a branch that only some use, and one that none does."""

    def __init__(self, use: bool) -> None:
        super().__init__()
        self.body, self.branch, self.spare = nn.Linear(WIDTH, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.body(x)
        return self.branch(rows) if self.use else rows


# ----------------------------------------------------------------------------------------------------------- cases


@case("initial weights are equal when wrapped")
def _() -> None:
    trained = Trained(seeded(mlp, seed=rank()))
    same_everywhere(list(trained.plain.parameters()), "parameter")
    same_weights(trained.plain, seeded(mlp))


@case("weights are equal after the first step, and those of one process")
def _() -> None:
    trained, alone = Trained(seeded(mlp)), seeded(mlp)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(3):
        trained.step(loss_of(trained.model))
        optimizer.zero_grad()
        loss_of(alone, ALL).backward()
        optimizer.step()
    same_everywhere(list(trained.plain.parameters()), "parameter")
    same_weights(trained.plain, alone)


@case("gradients are those of one process")
def _() -> None:
    trained, alone = Trained(seeded(mlp)), seeded(mlp)
    loss_of(trained.model).backward()
    loss_of(alone, ALL).backward()
    same_gradients(trained.plain, alone)
    trained.end()


@case("an update by hand, from gradients that backward has averaged")
def _() -> None:
    trained, alone = Trained(seeded(mlp), gradient_as_bucket_view=True), seeded(mlp)
    for _ in range(2):
        for model, loss in ((trained.plain, loss_of(trained.model)), (alone, loss_of(alone, ALL))):
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * parameter.grad)
        ended()
    same_weights(trained.plain, alone)


@case("create_graph")
def _() -> None:
    trained, alone = Trained(Power()), Power()
    loss_of(trained.model).backward(create_graph=True)
    loss_of(alone, ALL).backward(create_graph=True)
    same_gradients(trained.plain, alone)
    for parameter in trained.plain.parameters():
        parameter.grad = None if parameter.grad is None else parameter.grad.detach()
    trained.end()


@case("gradients add up inside of no_sync")
def _() -> None:
    trained, alone = Trained(seeded(mlp)), seeded(mlp)
    with trained.no_sync():
        loss_of(trained.model).backward()
    loss_of(trained.model).backward()
    (2 * loss_of(alone, ALL)).backward()
    same_gradients(trained.plain, alone)
    trained.end()


@case("other parameters unused inside of no_sync")
def _() -> None:
    trained = Trained(seeded(lambda: Branches(use=False)), find_unused_parameters=True)
    with trained.no_sync():
        loss_of(trained.model).backward()
    trained.plain.use = True
    loss_of(trained.model).backward()
    alone = seeded(lambda: Branches(use=False))
    loss_of(alone, ALL).backward()
    alone.use = True
    loss_of(alone, ALL).backward()
    same_gradients(trained.plain, alone)
    trained.end()


@case("control flow that differs by rank")
def _() -> None:
    trained, alone = (
        Trained(seeded(lambda: Branches(use=rank() == 0)), find_unused_parameters=True),
        seeded(lambda: Branches(use=True)),
    )
    for _ in range(2):
        trained.optimizer.zero_grad()
        alone.zero_grad()
        loss_of(trained.model).backward()
        for number in range(size()):
            alone.use = number == 0
            part = slice(number * SAMPLES // size(), (number + 1) * SAMPLES // size())
            (loss_of(alone, part) / size()).backward()
        same_gradients(trained.plain, alone)
    trained.end()


@case("graphs that differ by rank and by step")
def _() -> None:
    trained = Trained(seeded(lambda: Branches(use=False)), find_unused_parameters=True)
    for number in range(4):
        trained.plain.use = (number + rank()) % 2 == 0
        trained.step(loss_of(trained.model))
    same_everywhere(list(trained.plain.parameters()), "parameter")


@case("a shared bias that is unused")
def _() -> None:
    def build() -> nn.Module:
        model = Branches(use=False)
        model.spare.bias = model.branch.bias
        return model

    trained, alone = Trained(seeded(build), find_unused_parameters=True), seeded(build)
    loss_of(trained.model).backward()
    loss_of(alone, ALL).backward()
    same_gradients(trained.plain, alone)
    trained.end()


@case("two forward passes, one backward")
def _() -> None:
    trained, alone = Trained(seeded(mlp)), seeded(mlp)
    (loss_of(trained.model) + loss_of(trained.model)).backward()
    (2 * loss_of(alone, ALL)).backward()
    same_gradients(trained.plain, alone)
    trained.end()


@case("outputs without gradient")
def _() -> None:
    trained = Trained(seeded(mlp))
    with torch.no_grad():
        assert not trained.model(X[mine()]).requires_grad
    trained.step(loss_of(trained.model))
    same_everywhere(list(trained.plain.parameters()), "parameter")


@case("functional_call")
def _() -> None:
    trained, alone = Trained(seeded(mlp)), seeded(mlp)
    name = "" if ON_EDL else "module."
    named = {f"{name}{key}": parameter for key, parameter in trained.plain.named_parameters()}
    (torch.func.functional_call(trained.model, named, (X[mine()],)) - Y[mine()]).pow(2).mean().backward()
    loss_of(alone, ALL).backward()
    same_gradients(trained.plain, alone)
    trained.end()


@case("forward and backward hooks")
def _() -> None:
    def hooked(model: nn.Module) -> nn.Module:
        model.register_forward_hook(lambda _m, _i, out: 2 * out)
        model[0].register_full_backward_hook(lambda _m, given, _out: given)  # type: ignore[index, operator]
        return model

    trained, alone = Trained(hooked(seeded(mlp))), hooked(seeded(mlp))
    loss_of(trained.model).backward()
    loss_of(alone, ALL).backward()
    same_gradients(trained.plain, alone)
    trained.end()


@case("autocast, GradScaler and clipping, with inf on one rank")
def _() -> None:
    trained, scaler = Trained(seeded(mlp)), torch.amp.GradScaler("cpu", init_scale=4.0)
    before = [parameter.detach().clone() for parameter in trained.plain.parameters()]
    for number in range(3):
        trained.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(trained.model)
        scaler.scale(loss * (float("inf") if number == 0 and rank() == 1 else 1.0)).backward()
        scaler.unscale_(trained.optimizer)
        torch.nn.utils.clip_grad_norm_(trained.plain.parameters(), 1.0)
        scaler.step(trained.optimizer)
        scaler.update()
        ended()
        if number == 0:
            assert all(torch.equal(*pair) for pair in zip(before, trained.plain.parameters(), strict=True)), (
                "inf was applied"
            )
    same_everywhere(list(trained.plain.parameters()), "parameter")


@case("a sparse embedding")
def _() -> None:
    words = torch.arange(SAMPLES) % 5

    def build() -> nn.Module:
        return nn.EmbeddingBag(7, 3, sparse=True)

    def loss(model: Any, where: slice) -> torch.Tensor:
        found: torch.Tensor = model(words[where].unsqueeze(1)).pow(2).sum(1).mean()
        return found

    trained, alone = Trained(seeded(build)), seeded(build)
    loss(trained.model, mine()).backward()
    loss(alone, ALL).backward()
    same_gradients(trained.plain, alone)
    trained.end()


class Checkpointed(nn.Module):
    """One layer, twice, each time checkpointed."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.head, self.reentrant = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=self.reentrant)
        return self.head(x)


def checkpointed(reentrant: bool) -> None:
    trained = Trained(seeded(lambda: Checkpointed(reentrant)), static=reentrant)
    alone = seeded(lambda: Checkpointed(reentrant=False))
    for _ in range(3):
        trained.optimizer.zero_grad()
        alone.zero_grad()
        loss_of(trained.model).backward()
        loss_of(alone, ALL).backward()
        same_gradients(trained.plain, alone)
    trained.end()


case("a checkpointed layer that is shared")(lambda: checkpointed(reentrant=False))
case("a checkpointed layer that is shared, reentrant")(lambda: checkpointed(reentrant=True))


@case("unused on all ranks: no gradient")
def _() -> None:
    trained = Trained(seeded(lambda: Branches(use=False)), find_unused_parameters=True)
    for _ in range(2):
        trained.step(loss_of(trained.model))
        for name in ("branch.weight", "spare.bias"):
            assert trained.plain.get_parameter(name).grad is None, f"{name} has a gradient"
    assert trained.plain.get_parameter("body.weight").grad is not None


@case("unused on all ranks: weight decay leaves it alone")
def _() -> None:
    model = seeded(lambda: Branches(use=False))
    trained = Trained(
        model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5), find_unused_parameters=True
    )
    before = model.get_parameter("spare.weight").detach().clone()
    for _ in range(3):
        trained.step(loss_of(trained.model))
    same(model.get_parameter("spare.weight").detach(), before, "spare.weight", near=0.0)


@case("unused on all ranks from a step on: momentum leaves it alone")
def _() -> None:
    model = seeded(lambda: Branches(use=True))
    trained = Trained(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), find_unused_parameters=True)
    for _ in range(2):
        trained.step(loss_of(trained.model))
    model.use = False
    before = model.get_parameter("branch.weight").detach().clone()
    for _ in range(2):
        trained.step(loss_of(trained.model))
    same(model.get_parameter("branch.weight").detach(), before, "branch.weight", near=0.0)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


@case("batch norm's statistics are rank 0's")
def _() -> None:
    trained, first = Trained(seeded(normed)), seeded(normed)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    for _ in range(3):
        loss_of(first, slice(0, SAMPLES // size()))  # the statistics of rank 0's samples
        loss = loss_of(trained.model)
        trained.step(loss)
        first.load_state_dict(
            {**first.state_dict(), **{name: one.detach() for name, one in trained.plain.named_parameters()}}
        )
    del optimizer
    loss_of(trained.model).backward()  # whose forward pass has begun from rank 0's
    loss_of(first, mine())
    for name, buffer in trained.plain.named_buffers():
        same(buffer.float(), dict(first.named_buffers())[name].float(), name, near=1e-5)
    trained.optimizer.zero_grad()
    ended()


@case("buffers are rank 0's before a forward pass")
def _() -> None:
    class Buffered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, 1)
            self.register_buffer("mark", torch.full((3,), float(rank())))
            self.seen: list[float] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(float(self.mark[0]))  # type: ignore[index, arg-type]
            self.mark += 1 + rank()  # type: ignore[operator]
            return self.layer(x)

    trained = Trained(seeded(Buffered))
    for _ in range(4):
        trained.step(loss_of(trained.model))
    assert trained.plain.seen == [0.0, 1.0, 2.0, 3.0], f"rank {rank()} saw {trained.plain.seen}"


@case("nothing to train is an error")
def _() -> None:
    model = mlp().requires_grad_(False)
    with raised_everywhere((RuntimeError, Refused)):
        Trained(model)


@case("another number of parameters, or another shape, on one rank is an error on all")
def _() -> None:
    with raised_everywhere((RuntimeError, Refused)):
        Trained(mlp() if rank() else nn.Linear(WIDTH, 1))
    if ON_EDL:  # of another shape DDP tells one rank, and the others wait for it
        with raised_everywhere((RuntimeError, Refused)):
            Trained(nn.Linear(WIDTH, 1 + rank()))


@case("uneven inputs, by edl.prepare or by Join")
def _() -> None:
    model, alone = seeded(mlp), seeded(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    if ON_EDL:
        model, optimizer, loader = edl.prepare(model, optimizer, DataLoader(TensorDataset(X[:7], Y[:7]), batch_size=2))
        total = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for x, y in loader:
            optimizer.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            share = edl.own_samples() or 0
            everybody = sum(of_all(share))
            for place, parameter in enumerate(model.parameters()):
                total[place] += parameter.grad * everybody / 7
            optimizer.step()
        (alone(X[:7]) - Y[:7]).pow(2).mean().backward()
        for one, parameter in zip(total, alone.parameters(), strict=True):
            same(one, parameter.grad, "the epoch's gradient")
        return
    from torch.distributed.algorithms.join import Join

    wrapped = DistributedDataParallel(model)
    with Join([wrapped]):
        for _ in range(2 + rank()):
            loss_of(wrapped).backward()


@case("join(): other numbers of steps")
def _() -> None:
    if ON_EDL:
        edl.join()
    trained = Trained(seeded(mlp))
    with trained.model.join():
        for _ in range(2 + 2 * rank()):
            trained.step(loss_of(trained.model))


@case("a hook of the script's for communication, fp16")
def _() -> None:
    model = seeded(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if ON_EDL:
        edl.DistributedOptimizer(optimizer, compression=edl.Compression.fp16)
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    trained = Trained(model, optimizer)
    trained.model.register_comm_hook(None, fp16_compress_hook)
    trained.step(loss_of(trained.model))
    same_everywhere(list(model.parameters()), "parameter")


def outcome(test: Callable[[], None]) -> str:
    try:
        test()
    except Refused as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this case's outcome, and the others follow
        return f"FAIL: {type(error).__name__}: {error}"
    return "pass"


def main() -> int:
    torch.set_num_threads(1)
    if ON_EDL:
        edl.init()
    else:
        dist.init_process_group("gloo")
    wanted = sys.argv[1:] or list(CASES)
    counts = {"pass": 0, "refused": 0, "FAIL": 0}
    for name in wanted:
        words = of_all(outcome(CASES[name]))
        word = max(words, key=lambda one: list(counts).index(one.partition(":")[0]))
        counts[word.partition(":")[0]] += 1
        if rank() == 0:
            print(f"{name}: {word}", flush=True)
    if rank() == 0:
        print(", ".join(f"{number} {word}" for word, number in counts.items()), f"of {len(wanted)}", flush=True)
    return int(counts["FAIL"] > 0)


if __name__ == "__main__":
    sys.exit(main())
