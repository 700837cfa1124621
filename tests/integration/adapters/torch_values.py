"""What a script of PyTorch may register, with other contents on each worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel


class Registered:
    """Values, and the script's own references to them."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout())
        self.ema = AveragedModel(net)
        self.ema.n_averaged += seed
        self.twin = torch.nn.Linear(2, 2).double().requires_grad_(False)
        self.half = torch.full((300_000,), seed, dtype=torch.bfloat16)  # large: it travels alone
        self.turned = torch.full((2, 3), float(seed)).t()
        self.scale = torch.nn.Parameter(torch.tensor(float(seed)))
        self.table = np.full((2, 3), seed, np.float32)[:, ::2]
        self.other = torch.optim.Adam([self.scale])
        self.scale.square().backward()
        for _ in range(seed):
            self.other.step()
        self.history = [torch.zeros(seed), (seed, "text")]

    def values(self) -> dict[str, Any]:
        nested = {"twin": self.twin, "tensors": (self.turned, self.scale), "table": [self.table]}
        return {"ema": self.ema, "half": self.half, "nested": nested, "other": self.other, "history": self.history}

    def shown(self) -> str:
        """All contents as text."""
        tensors = [*self.ema.state_dict().values(), *self.twin.state_dict().values(), self.turned, self.scale]
        tensors += [self.half.sum(), self.history[0], torch.from_numpy(self.table.copy())]
        return str([tensor.tolist() for tensor in tensors] + [self.other.state_dict(), self.history])
