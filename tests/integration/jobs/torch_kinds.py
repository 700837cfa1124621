"""Gradients of each kind of numbers: those of the global batch, which is all samples, where shares are uneven."""

import sys
from typing import Any

import torch

import edl.torch as edl

SAMPLES, BATCH, CLOSE = 7, 4, 2e-2
torch.set_num_threads(1)
edl.init()
torch.manual_seed(0)
dense: dict[Any, torch.nn.Parameter] = {
    kind: torch.nn.Parameter(torch.randn(5, 3, dtype=torch.complex64 if kind.is_complex else torch.float32).to(kind))
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
}
dense |= {("turned", kind): torch.nn.Parameter(one.detach().t().clone().t()) for kind, one in dense.items()}
rows = [torch.nn.Embedding(9, 4, sparse=True, dtype=kind) for kind in (torch.float16, torch.bfloat16, torch.float32)]
parameters = [*dense.values(), *(one.weight for one in rows)]
optimizer = edl.Optimizer(torch.optim.SGD(parameters, lr=0.0))
inputs = torch.randn(SAMPLES, 5)


def loss_of(ids: torch.Tensor) -> torch.Tensor:
    parts = [(inputs[ids].to(one.dtype) @ one).abs().float().square().mean() for one in dense.values()]
    return torch.stack([*parts, *(one(ids).float().square().mean() for one in rows)]).sum()


wanted = torch.autograd.grad(loss_of(torch.arange(SAMPLES)), parameters)
for ids in edl.elastic_shard_generator(SAMPLES, epochs=3).batches(BATCH):
    optimizer.zero_grad()
    loss_of(torch.from_numpy(ids)).backward()
    for parameter, whole in zip(parameters, wanted, strict=True):
        found = parameter.grad
        assert found is not None and found.dtype == parameter.dtype
        assert torch.allclose(found.to_dense(), whole.to_dense(), CLOSE, CLOSE), (parameter.dtype, found, whole)
    optimizer.step()
    assert edl.notify_batch_end()
sys.stdout.write(f"all kinds, on {edl.size()}\n")
