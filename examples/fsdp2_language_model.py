"""A transformer that is sharded over the processes of each worker, by PyTorch's FSDP2, learns to write sonnets.

edl run -np 2 --processes 2 python examples/fsdp2_language_model.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import edl.torch as edl

SONNETS = Path(__file__).resolve().parents[1] / "data" / "sonnets" / "sonnets.txt"
CONTEXT = 64


class Poet(nn.Module):
    """The next character after each, by what stands before it."""

    def __init__(self, characters: int, width: int = 64) -> None:
        super().__init__()
        self.letters = nn.Embedding(characters, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.out = nn.Linear(width, characters)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.letters(text) + self.places(torch.arange(length))
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        found: Tensor = self.out(hidden.flatten(0, 1))
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, default=SONNETS)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = options.text.read_text()
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(character) for character in text])
    windows = codes.unfold(0, CONTEXT + 1, CONTEXT)  # the inputs, and one character more

    edl.init()  # torch.distributed is this worker's own from here on
    mesh = init_device_mesh("cpu", (edl.group_size(),), mesh_dim_names=("shard",))
    model = Poet(len(alphabet))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = edl.Optimizer(torch.optim.AdamW(model.parameters(), lr=3e-3), model=model)
    shards = edl.elastic_shard_generator(len(windows), epochs=options.epochs, shuffle=True, among=mesh["shard"])
    for ids in shards.batches(options.batch):
        inputs, wanted = windows[ids][:, :-1], windows[ids][:, 1:]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), wanted.flatten())
        (loss * edl.part_weight()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        edl.report(loss=loss.item())
        first = edl.rank() == edl.group_rank() == 0
        if edl.notify_batch_end() and first and edl.step() % 10 == 0:
            print(f"step {edl.step()} epoch {edl.epoch()} size {edl.size()} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
