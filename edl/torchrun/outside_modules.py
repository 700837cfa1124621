"""Modules of a script besides its wrapped models: a teacher, an average of the weights, a loss with a buffer.

Owns: finding them, and giving a newcomer the tensors that training changes in them. Does not own: how these travel
(`edl.trainer.registered_state`), nor averages that torch has a class for (`edl.torchrun.training_objects`).

No optimizer and no wrapped model tells of them, so edl compares nothing in them: a script may have one on rank 0 alone.
A newcomer takes the contents of those that it has made, too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from edl.torch.loop_state import Travels, as_plain, from_plain
from edl.torch.torch_fingerprints import fingerprints

OUTSIDE: Final = "torchrun_modules"


class OutsideModules(Travels):
    """The tensors in them that have changed; a value that `edl.register` takes."""

    replaced = True

    def __init__(self, modules: Sequence[torch.nn.Module], known: Collection[int]) -> None:
        """`known`: tensors that edl knows of otherwise, by `id`."""
        self._known = frozenset(known)
        self._named: dict[str, torch.nn.Module] = {}
        counts = Counter[str]()
        for module in _roots(modules):
            mine = [(name, tuple(tensor.shape)) for name, tensor in self._tensors(module)]
            if mine:
                kind = f"{type(module).__qualname__} {len(mine)} {mine[0][0]}"
                counts[kind] += 1
                self._named[f"{kind} {counts[kind]}"] = module
        self._before = {name: _digest(tensor) for name, tensor in self._all()}

    def __bool__(self) -> bool:
        return bool(self._named)

    def now(self) -> dict[str, Any]:
        return {name: as_plain(tensor) for name, tensor in self._all() if self._before.get(name) != _digest(tensor)}

    def take(self, found: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self._all():
                if name in found and (theirs := from_plain(found[name])).shape == tensor.shape:
                    tensor.copy_(theirs)

    def _all(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, module in self._named.items():
            for part, tensor in self._tensors(module):
                yield f"{name}.{part}", tensor

    def _tensors(self, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
            if id(tensor) not in self._known and not torch.nn.parameter.is_lazy(tensor) and _is_plain(tensor):
                yield name, tensor.detach()


def _roots(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return those that are in no other."""
    modules = list(modules)
    inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    return [module for module in modules if id(module) not in inner and "_modules" in module.__dict__]


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta" and tensor.numel() > 0


def _digest(tensor: torch.Tensor) -> int:
    (found,) = fingerprints([("", tensor)])
    return found.digest
