"""Small models of many kinds, each with a mean loss over some samples, for `tests/integration/test_gradients.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SAMPLES = 8
WIDTH, LENGTH, WORDS = 6, 5, 11
Ids = list[int]
_random = torch.Generator().manual_seed(7)
ROWS = torch.randn(SAMPLES, WIDTH, generator=_random)
PICTURES = torch.randn(SAMPLES, 3, 8, 8, generator=_random)
SENTENCES = torch.randint(WORDS, (SAMPLES, LENGTH), generator=_random)


@dataclass
class Case:
    """One model. Its loss is a mean over samples, so that shares of them add up."""

    build: Callable[[], nn.Module]
    out: Callable[[nn.Module, Ids], Tensor]  # a row for each sample
    optimizers: Callable[[Any], list[list[Tensor]]] = lambda model: [list(model.parameters())]  # what each trains
    begin: Callable[[nn.Module], None] = lambda model: None  # once all are wrapped
    backward: Callable[[Callable[[], Tensor], Any], None] = lambda loss, optimizer: loss().backward()
    near: float = 1e-6  # of the largest component
    rings: Sequence[str] = field(default=("horovod", "torch"))

    def loss(self, model: nn.Module, ids: Ids) -> Tensor:
        out = self.out(model, ids)
        return out.reshape(len(ids), -1).abs().pow(2).mean(1).mean()


def of_rows(model: nn.Module, ids: Ids) -> Tensor:
    return model(ROWS[ids])


def of_pictures(model: nn.Module, ids: Ids) -> Tensor:
    return model(PICTURES[ids])


def of_sentences(model: nn.Module, ids: Ids) -> Tensor:
    return model(SENTENCES[ids])


class Of(nn.Module):
    """Parts by name, and what is made of them."""

    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.made = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *given: Any) -> Tensor:
        return self.made(self, *given)


def mlp(**kind: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 9, **kind), nn.Tanh(), nn.Linear(9, 3, **kind))


def convolutional() -> nn.Module:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    return nn.Sequential(*layers).eval()  # batch norm of its own statistics is no mean over samples


def channels_last(model: Any) -> nn.Module:
    found: nn.Module = model.to(memory_format=torch.channels_last)
    return found


def last_of(model: Any, tokens: Tensor) -> Tensor:
    return model.head(model.recurrent(model.words(tokens))[0])


def tied() -> nn.Module:
    model: Any = Of(
        lambda m, tokens: m.head(m.words(tokens)), words=nn.Embedding(WORDS, 4), head=nn.Linear(4, WORDS, bias=False)
    )
    model.head.weight = model.words.weight
    tied_model: nn.Module = model
    return tied_model


def some_use(wanted: Ids) -> Callable[[nn.Module, Ids], Tensor]:
    """The branch is used by some samples alone: a worker may have none of them."""

    def out(model: Any, ids: Ids) -> Tensor:
        rows = model.body(ROWS[ids])
        there = [place for place, one in enumerate(ids) if one in wanted]
        return rows.index_add(0, torch.tensor(there), model.branch(rows[there])) if there else rows

    return out


def branched(**more: Any) -> nn.Module:
    return Of(lambda m, x: m.body(x), body=nn.Linear(WIDTH, 4), branch=nn.Linear(4, 4), **more)


def rare_words(model: Any, ids: Ids) -> Tensor:
    there = [place for place, one in enumerate(ids) if one == SAMPLES - 1]
    rows = model.body(ROWS[ids])
    return rows.index_add(0, torch.tensor(there), model.words(SENTENCES[[SAMPLES - 1]]).sum(1)) if there else rows


def freeze(model: Any) -> None:
    model[0].requires_grad_(False)


def thaw(model: Any) -> None:
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)


def frozen(model: nn.Module) -> nn.Module:
    freeze(model)
    return model


def experts(model: Any, ids: Ids) -> Tensor:
    return torch.stack([model.experts[one % 4](ROWS[one]) for one in ids])


def twice(loss: Callable[[], Tensor], optimizer: Any, *, paused: bool) -> None:
    with optimizer.no_sync() if paused else contextlib.nullcontext():
        (loss() * 0.25).backward()
    (loss() * 0.75).backward()


def together(loss: Callable[[], Tensor], _optimizer: Any) -> None:
    """Two forward passes, one backward."""
    (loss() * 0.5 + loss() * 0.5).backward()


def bent(loss: Callable[[], Tensor], _optimizer: Any) -> None:
    loss().backward(create_graph=True)


def with_autocast(model: nn.Module, ids: Ids) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(ROWS[ids]).float()


def hooked() -> nn.Module:
    model: Any = mlp()
    model[0].weight.register_hook(lambda gradient: 2 * gradient)
    return model


def turned() -> nn.Module:
    """A parameter whose memory is not in order."""
    return Of(lambda m, x: x @ m.turned, turned=nn.Parameter(torch.randn(4, WIDTH).t()))


def shared_and_checkpointed(reentrant: bool) -> Callable[[nn.Module, Ids], Tensor]:
    def out(model: Any, ids: Ids) -> Tensor:
        rows = ROWS[ids].clone().requires_grad_()
        for _ in range(2):
            rows = checkpoint(model.layer, rows, use_reentrant=reentrant)
        return model.head(rows)

    return out


def shared_layer() -> nn.Module:
    return Of(lambda m, x: m.head(m.layer(m.layer(x))), layer=nn.Linear(WIDTH, WIDTH), head=nn.Linear(WIDTH, 2))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    parts = {"words": nn.Embedding(WORDS, 8), "layers": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)}
    return Of(lambda m, tokens: m.head(m.layers(m.words(tokens))), **parts, head=nn.Linear(8, 3))


def complex_rows(model: Any, ids: Ids) -> Tensor:
    return torch.view_as_real(model(ROWS[ids].to(torch.complex64)))


def half(dtype: torch.dtype, build: Callable[[], nn.Module] = mlp, **more: Any) -> Case:
    return Case(lambda: build().to(dtype), lambda model, ids: model(ROWS[ids].to(dtype)).float(), near=0.05, **more)


CASES: dict[str, Case] = {
    "one layer": Case(lambda: nn.Linear(WIDTH, 1), of_rows),
    "two layers": Case(mlp, of_rows),
    "no bias": Case(lambda: mlp(bias=False), of_rows),
    "large enough to travel alone": Case(lambda: nn.Sequential(nn.Linear(WIDTH, 600), nn.Linear(600, 600)), of_rows),
    "many buckets": Case(
        lambda: nn.Sequential(nn.Linear(WIDTH, 500), *(nn.Linear(500, 500) for _ in range(6))), of_rows
    ),
    "convolutions": Case(convolutional, of_pictures),
    "channels last": Case(lambda: channels_last(convolutional()), of_pictures),
    "transposed convolutions": Case(lambda: nn.ConvTranspose2d(3, 2, 3), of_pictures),
    "group norm": Case(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.PReLU()), of_pictures),
    "LSTM": Case(
        lambda: Of(
            last_of, words=nn.Embedding(WORDS, 4), recurrent=nn.LSTM(4, 5, batch_first=True), head=nn.Linear(5, 2)
        ),
        of_sentences,
    ),
    "GRU of both directions": Case(
        lambda: Of(
            last_of,
            words=nn.Embedding(WORDS, 4),
            recurrent=nn.GRU(4, 5, batch_first=True, bidirectional=True),
            head=nn.Linear(10, 2),
        ),
        of_sentences,
    ),
    "embedding": Case(lambda: nn.Embedding(WORDS, 4, padding_idx=0), of_sentences),
    "sparse embedding": Case(lambda: nn.Embedding(WORDS, 4, sparse=True), of_sentences),
    "sparse bag": Case(lambda: nn.EmbeddingBag(WORDS, 4, sparse=True, mode="sum"), of_sentences),
    "sparse embedding that one sample uses": Case(
        lambda: Of(of_rows, body=nn.Linear(WIDTH, 4), words=nn.Embedding(WORDS, 4, sparse=True)), rare_words
    ),
    "tied weights": Case(tied, of_sentences),
    "a layer that is used twice": Case(shared_layer, of_rows),
    "a branch that none uses": Case(branched, some_use([])),
    "a branch that one sample uses": Case(branched, some_use([SAMPLES - 1])),
    "a branch that the first sample uses": Case(branched, some_use([0])),
    "a parameter without any use": Case(lambda: branched(spare=nn.Parameter(torch.ones(3))), some_use([2])),
    "experts": Case(lambda: Of(of_rows, experts=nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(5))), experts),
    "frozen": Case(lambda: frozen(mlp()), of_rows),
    "thawed": Case(lambda: frozen(mlp()), of_rows, begin=thaw),
    "frozen later": Case(mlp, of_rows, begin=freeze),
    "two optimizers": Case(mlp, of_rows, optimizers=lambda m: [list(m[0].parameters()), list(m[2].parameters())]),
    "two optimizers of the same": Case(
        mlp, of_rows, optimizers=lambda m: [list(m.parameters()), list(m[2].parameters())]
    ),
    "two optimizers of the same, large": Case(
        lambda: nn.Sequential(nn.Linear(WIDTH, 600), nn.Linear(600, 600)),
        of_rows,
        optimizers=lambda m: [list(m.parameters())] * 2,
    ),
    "transformer": Case(transformer, of_sentences),
    "weight norm": Case(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 3)), of_rows),
    "checkpointed": Case(shared_layer, shared_and_checkpointed(reentrant=False)),
    "checkpointed, reentrant": Case(shared_layer, shared_and_checkpointed(reentrant=True)),
    "float64": Case(lambda: mlp().double(), lambda model, ids: model(ROWS[ids].double())),
    "two types": Case(
        lambda: Of(lambda m, x: m.b(m.a(x).double()), a=nn.Linear(WIDTH, 4), b=nn.Linear(4, 2).double()), of_rows
    ),
    "bfloat16": half(torch.bfloat16),
    "float16": half(torch.float16),
    "complex": Case(lambda: nn.Linear(WIDTH, 2, dtype=torch.complex64), complex_rows),
    "complex, without any use": Case(
        lambda: Of(
            lambda m, x: m.body(x),
            body=nn.Linear(WIDTH, 2, dtype=torch.complex64),
            spare=nn.Parameter(torch.ones(3, dtype=torch.complex64)),
        ),
        complex_rows,
    ),
    "half, without any use": half(
        torch.float16, build=lambda: Of(lambda m, x: m.body(x), body=mlp(), spare=nn.Parameter(torch.ones(3))).half()
    ),
    "numbers": Case(
        lambda: Of(
            lambda m, x: m.scale * x + m.shift,
            scale=nn.Parameter(torch.tensor(2.0)),
            shift=nn.Parameter(torch.tensor(1.0)),
        ),
        of_rows,
    ),
    "nothing in it": Case(
        lambda: Of(lambda m, x: m.body(x), body=nn.Linear(WIDTH, 2), empty=nn.Parameter(torch.zeros(0, 3))), of_rows
    ),
    "not in order": Case(turned, of_rows),
    "a hook of the script's": Case(hooked, of_rows),
    "functional": Case(
        mlp, lambda model, ids: torch.func.functional_call(model, dict(model.named_parameters()), (ROWS[ids],))
    ),
    "autocast": Case(mlp, with_autocast, near=0.05),
    "backward twice": Case(mlp, of_rows, backward=lambda loss, optimizer: twice(loss, optimizer, paused=False)),
    "backward twice, paused": Case(mlp, of_rows, backward=lambda loss, optimizer: twice(loss, optimizer, paused=True)),
    "paused, and a branch": Case(
        branched, some_use([SAMPLES - 1]), backward=lambda loss, optimizer: twice(loss, optimizer, paused=True)
    ),
    "two passes forward": Case(mlp, of_rows, backward=together),
    "a graph of gradients": Case(mlp, of_rows, backward=bent),
}
