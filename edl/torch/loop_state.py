"""The state of a library's training loop besides the model, as a value that `edl.register` takes.

Owns: its form: a mapping that is asked when something travels, not before, as most steps change nothing else. What has
come stands in its place afterwards, as a plain dict. Does not own: what it is (`edl.lightning`, `edl.transformers`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import ItemsView, Iterator, Mapping
from typing import Any

import torch

from edl.errors import UsageError

TENSOR = "\0tensor"  # marks one of a callback's state: it travels as bytes, as it need not be the same on all workers


class Travels(Mapping[str, Any]):
    replaced = False  # it is plain all through: what comes stands in its place, and nothing in it is compared

    @abstractmethod
    def now(self) -> dict[str, Any]:
        """Return the whole state, as of one moment."""

    def __getitem__(self, key: str) -> Any:
        return self.now()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.now())

    def __len__(self) -> int:
        return len(self.now())

    def items(self) -> ItemsView[str, Any]:
        """Asked once for all of them."""
        return self.now().items()


def as_plain(value: Any) -> Any:
    """Replace the tensors in `value` by plain values."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {TENSOR: [str(value.dtype).removeprefix("torch."), list(value.shape), raw]}
    if isinstance(value, Mapping):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(as_plain(item) for item in value)
    return value


def from_plain(value: Any) -> Any:
    """Replace plain values by the tensors that they stand for."""
    if isinstance(value, Mapping):
        if TENSOR in value:
            return _tensor(*value[TENSOR])
        return {key: from_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(from_plain(item) for item in value)
    return value


def _tensor(dtype: str, shape: list[int], raw: bytes) -> torch.Tensor:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise UsageError(f"the state of a callback has a tensor of {dtype}, which PyTorch here does not know")
    if not raw:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(kind).reshape(shape)
