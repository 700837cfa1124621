"""What scripts of PyTorch call by Horovod's names, and what must come of it in any ring: the same on both sorts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import edl.torch as hvd


def rows(rank: int, count: int, start: float = 0.0) -> torch.Tensor:
    return torch.arange(count * 2, dtype=torch.float32).view(count, 2) + 10 * rank + start


def reductions(rank: int, size: int) -> list[Any]:
    own = torch.tensor([rank + 1.0, -rank])
    kept = own.clone()
    handle = hvd.allreduce_async(own, name="a", op=hvd.Sum)
    while not hvd.poll(handle):
        time.sleep(0.001)
    return [
        hvd.allreduce(own, name="b"),
        hvd.synchronize(handle),
        hvd.allreduce_(kept, op=hvd.Max),
        kept,
        hvd.allreduce(own, op=hvd.Min),
        hvd.allreduce(own, op=hvd.Product),
        hvd.allreduce(own, average=False, prescale_factor=0.5, postscale_factor=4.0),
        hvd.allreduce(own, compression=hvd.Compression.fp16),
        hvd.allreduce(torch.tensor([rank, 5 - rank]), op=hvd.Sum),
        hvd.allreduce(torch.tensor(float(rank))),
        *hvd.grouped_allreduce([own, own * 2]),
        *hvd.synchronize(hvd.grouped_allreduce_async_([own.clone(), own * 3], op=hvd.Sum)),
        hvd.sparse_allreduce_async(
            torch.sparse_coo_tensor(torch.tensor([[rank, 3]]), torch.tensor([1.0, rank]), (4,)), "s", hvd.Sum
        )().to_dense(),
    ]


def gathered(rank: int, size: int) -> list[Any]:
    splits = torch.tensor([one + rank for one in range(size)], dtype=torch.int32)
    found, received = hvd.alltoall(rows(rank, int(splits.sum())), splits)
    return [
        hvd.allgather(rows(rank, rank + 1)),
        hvd.allgather(torch.tensor([[rank]], dtype=torch.uint8)),
        *hvd.grouped_allgather([rows(rank, 1), rows(rank, 2)]),
        found,
        received,
        hvd.alltoall(rows(rank, 2 * size)),
        hvd.reducescatter(rows(rank, 2 * size + 1), op=hvd.Sum),
        hvd.reducescatter(rows(rank, size)),
        hvd.broadcast(rows(rank, 2), size - 1),
        hvd.broadcast_(rows(rank, 2), 0),
        hvd.synchronize(hvd.broadcast_async(torch.tensor([rank, 7], dtype=torch.int64), size - 1)),
    ]


def gradients(rank: int, size: int) -> list[Any]:
    """What comes back through them."""
    ways: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda own: hvd.allreduce(own) * (rank + 1),
        lambda own: hvd.allreduce(own, op=hvd.Sum) * (rank + 1),
        lambda own: hvd.allgather(own) * (rank + 1),
        lambda own: hvd.broadcast(own, size - 1) * (rank + 1),
        lambda own: hvd.alltoall(own) * (rank + 1),
        lambda own: hvd.reducescatter(own, op=hvd.Sum) * (rank + 1),
    ]
    found = []
    for way in ways:
        own = rows(rank, size).requires_grad_()
        way(own).sum().backward()
        found.append(own.grad)
    return found


def objects(rank: int, size: int) -> list[Any]:
    """Plain values, tensors among them, and a model with its optimizer."""
    told = {"rank": rank, "of": [(rank, "text"), {1.5}], "rows": rows(rank, 2)}
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, rank + 1.0)
    torch.nn.init.constant_(model.bias, rank - 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), size - 1)
    hvd.broadcast_optimizer_state(optimizer, size - 1)
    hvd.barrier()
    found = hvd.broadcast_object(told, size - 1)
    return [
        str(found),
        str(hvd.allgather_object({"rank": rank, "of": "x" * rank})),
        *model.state_dict().values(),
        str(optimizer.state_dict()),
    ]


def resumed(rank: int, size: int) -> list[Any]:
    """One worker alone has loaded a checkpoint, as Horovod's examples do it: the others get its optimizer's state."""
    model, saved = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    before = torch.optim.SGD(saved.parameters(), lr=0.1, momentum=0.9)
    torch.nn.init.constant_(saved.weight, 1.0)
    saved(torch.ones(1, 2)).sum().backward()
    before.step()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))
    if rank == 0:
        optimizer.load_state_dict(before.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return [str(optimizer.state_dict())]


def misuse(rank: int, size: int) -> list[Any]:
    """What workers must not differ in, and names in another order on each, which they may."""
    own = torch.ones(3, 4)
    more = range(size) if rank else reversed(range(size))
    handles = {name: hvd.allreduce_async(own * name, name=f"order {name}", op=hvd.Sum) for name in more}
    calls: list[Callable[[], Any]] = [
        lambda: hvd.allreduce(own.int() if rank else own, name="type"),
        lambda: hvd.allreduce(own.T.contiguous() if rank else own, name="shape"),
        lambda: hvd.allreduce(torch.ones(3 + rank), name="size"),
        lambda: hvd.allreduce(own, name="operation", op=hvd.Sum if rank else hvd.Max),
        lambda: hvd.allgather(own.int() if rank else own, name="rows of a type"),
        lambda: hvd.allgather(torch.ones(2, 3 + rank), name="rows of a shape"),
        lambda: hvd.broadcast(own, rank, name="root"),
        lambda: hvd.alltoall(torch.ones(size, 1 + rank), name="rows for each"),
        lambda: hvd.reducescatter(torch.ones(size, 1 + rank), name="shares", op=hvd.Sum),
        lambda: hvd.alltoall(torch.ones(size + 1), torch.ones(size + 2, dtype=torch.int32)),
        lambda: hvd.reducescatter(torch.tensor(1.0)),
    ]
    ends = []
    for call in calls:
        try:
            call()
            ends.append("right")
        except hvd.HorovodInternalError:
            ends.append("refused")
        except (ValueError, RuntimeError):
            ends.append("wrong")
    return [*ends, *(hvd.synchronize(handles[name]) for name in range(size))]


def all_of_them(rank: int, size: int) -> list[list[Any]]:
    """As what travels to a test: each with its form."""
    alone = (reductions, gathered, gradients, objects, misuse)
    parts = alone if size == 1 else (*alone, resumed)  # it wraps an optimizer: all wrap as many, in the same order
    found = [part(rank, size) for part in parts]
    return [[shown(one) for one in part] for part in found]


def shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{value.dtype} {tuple(value.shape)} {value.detach().tolist()}"
