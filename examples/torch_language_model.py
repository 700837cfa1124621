"""A small transformer learns to write sonnets, character by character, from a packed stream of them.

edl run -np 2 python examples/torch_language_model.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import edl.torch as edl

SONNETS = Path(__file__).resolve().parents[1] / "data" / "sonnets" / "sonnets.txt"
CONTEXT = 64
SHARDS = 8  # each is read by one worker at a time; a corpus has as many as it has files


class Poet(nn.Module):
    """The next character after each, by what stands before it."""

    def __init__(self, characters: int, width: int = 64) -> None:
        super().__init__()
        self.letters = nn.Embedding(characters, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, characters)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.letters(text) + self.places(torch.arange(length))
        found: Tensor = self.out(self.layers(hidden, mask=mask, is_causal=True))
        return found


def write(model: Poet, text: Tensor, length: int) -> Tensor:
    """Go on with `text`, so many characters."""
    for _ in range(length):
        odds = model(text[:, -CONTEXT:])[:, -1].softmax(1)
        text = torch.cat([text, torch.multinomial(odds, 1)], 1)
    return text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, default=SONNETS)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = options.text.read_text()
    alphabet = sorted(set(text))
    sonnets = text.split("\n\n")

    edl.init()
    stream = edl.ElasticStream(lambda shard: sonnets[shard::SHARDS], shards=SHARDS)
    stream = stream.map(lambda sonnet: [alphabet.index(character) for character in sonnet])
    stream = stream.shuffle(64).pack(CONTEXT + 1, eos=alphabet.index("\n"))  # the inputs, and one character more
    model = Poet(len(alphabet))
    optimizer = edl.Optimizer(torch.optim.AdamW(model.parameters(), lr=3e-3), model=model)
    for codes in edl.ElasticDataLoader(stream, options.batch, epochs=options.epochs):
        inputs, wanted = codes[:, :-1], codes[:, 1:]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        edl.report(loss=loss.item())
        if edl.notify_batch_end() and edl.rank() == 0 and edl.step() % 10 == 0:
            print(f"step {edl.step()} epoch {edl.epoch()} size {edl.size()} loss {loss.item():.3f}", flush=True)

    if edl.rank() == 0:
        with torch.no_grad():
            begin = torch.tensor([[alphabet.index(character) for character in text[:CONTEXT]]])
            verse = write(model.eval(), begin, 100)
        print("".join(alphabet[code] for code in verse[0]), flush=True)


if __name__ == "__main__":
    main()
