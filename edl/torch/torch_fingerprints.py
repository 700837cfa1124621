"""Fingerprints of what must be equal on all workers, of torch's tensors and plain values.

Owns: the sums of `edl.core.worker.digest` over tensors, where they lie. Does not own: which they are
(`edl.torch.torch_framework`), nor comparing them (`edl.trainer.divergence_check`).

A tensor on a device is summed up there, a stretch at a time; 8 bytes come back for each row, of all tensors together.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from edl import background
from edl.core.worker import digest
from edl.core.worker.digest import HALF, OF_HALVES, OF_WORDS, ROW
from edl.protocol.divergence_report import Fingerprint
from edl.torch.sharded import local_of
from edl.trainer.framework_port import LONG_BYTES

STRETCH = 512 * ROW  # words: what a device holds beside a tensor meanwhile is twice that


def fingerprints(leaves: Iterable[tuple[str, Any]]) -> list[Fingerprint]:
    """Take fingerprints of named tensors and plain values, in their order. Anything else among them cannot be compared,
    and is left out.
    """
    found: list[Fingerprint | None] = []
    away: list[tuple[int, str, torch.Tensor]] = []  # on devices: their sums are fetched together
    with torch.no_grad():
        for name, given in leaves:
            leaf = local_of(given) if isinstance(given, torch.Tensor) else given
            if isinstance(leaf, np.ndarray):
                found.append(digest.fingerprint_of_array(name, leaf))
            elif not isinstance(leaf, torch.Tensor):
                found.append(digest.fingerprint_of_value(name, leaf))
            elif leaf.layout is torch.strided and not leaf.is_quantized:
                contents = leaf.detach().reshape(-1).view(torch.uint8)  # in the order of its elements, however it lies
                if contents.device.type == "cpu":
                    found.append(digest.fingerprint(name, _form(leaf), digest.rows(contents.numpy())))
                else:
                    away.append((len(found), name, leaf))
                    found.append(None)
        _fetch(away, found)
    return [one for one in found if one is not None]


def fingerprints_begun(
    still: Iterable[tuple[str, Any]], rest: Iterable[tuple[str, Any]]
) -> Callable[[], list[Fingerprint]] | None:
    """Begin fingerprints: a thread reads what lies in the host's memory and only an update changes; all else is read
    before this returns. None: there is not much for the thread.
    """
    here: list[tuple[str, torch.Tensor]] = []
    away: list[tuple[str, Any]] = []
    for name, leaf in still:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
            here.append((name, leaf))
        else:
            away.append((name, leaf))
    if sum(local_of(tensor).numel() * tensor.element_size() for _, tensor in here) < LONG_BYTES:
        return None
    first = fingerprints(itertools.chain(away, rest))
    read = background.begin(lambda: fingerprints(here))
    return lambda: [*first, *read.result()]


def _form(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{tuple(tensor.shape)}"


def _fetch(away: list[tuple[int, str, torch.Tensor]], found: list[Fingerprint | None]) -> None:
    """Fetch the sums from the devices, all of which are at work before the first is waited for."""
    together: dict[torch.device, list[tuple[int, str, torch.Tensor]]] = {}
    for one in away:
        together.setdefault(one[2].device, []).append(one)
    sums = [torch.cat([device_rows(tensor) for _, _, tensor in those]) for those in together.values()]
    for those, rows in zip(together.values(), sums, strict=True):
        fetched = rows.cpu().numpy().tobytes()
        for place, name, tensor in those:
            contents, fetched = cut(fetched, tensor.numel() * tensor.element_size())
            found[place] = digest.fingerprint(name, _form(tensor), contents)


def cut(rows: bytes, size: int) -> tuple[bytes, bytes]:
    """Return the rows of a tensor of so many bytes, without what its last one was filled up with, and those that
    follow.
    """
    full, left = -(-(size // 8) // ROW) * 8, size % 8
    return rows[: full + left], rows[full + (8 if left else 0) :]


def device_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Compute `edl.core.worker.digest.rows` as numbers, on the device of the tensor; what is less than a word is filled
    up.
    """
    contents = tensor.detach().reshape(-1).view(torch.uint8)
    end = len(contents) // 8 * 8
    if contents.storage_offset() % 8:
        contents = contents.clone()
    words = contents[:end].view(torch.int64)
    whole = len(words) // ROW * ROW
    found = [_summed(words[begin : min(begin + STRETCH, whole)].view(-1, ROW)) for begin in range(0, whole, STRETCH)]
    if whole < len(words):
        found.append(_summed(words[whole:].view(1, -1)))
    if end < len(contents):
        found.append(torch.nn.functional.pad(contents[end:], (0, 8 - len(contents) + end)).view(torch.int64))
    return torch.cat(found) if found else words


@functools.lru_cache(maxsize=16)
def _weights(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    of_words, of_halves = (torch.from_numpy(weights.view(np.int64)).to(device) for weights in (OF_WORDS, OF_HALVES))
    return of_words, of_halves


def _summed(rows: torch.Tensor) -> torch.Tensor:
    """Sum modulo 2**64, as whole numbers do on every device."""
    (of_words, of_halves), width = _weights(rows.device), rows.shape[1]
    upper = (rows >> HALF) & (2**HALF - 1)
    sums: torch.Tensor = (rows * of_words[:width]).sum(1) + (upper * of_halves[:width]).sum(1)
    return sums
