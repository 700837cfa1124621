"""Files as a dataset of PyTorch: records by number, read where the loader's worker processes are.

Owns: one opening per process. Does not own: files (`edl.sources`), nor who trains which record
(`edl.trainer.data.shards`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset

from edl.sources.source_port import Source


class Records(Dataset[Any]):
    """Anew opened in each process: worker processes would else share the place in a file with their parent."""

    def __init__(self, opened: Callable[[], Source]) -> None:
        self._open = opened
        self._source: Source | None = None
        self._process = 0
        self._total, self.fingerprint = len(self._here()), self._here().fingerprint

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, number: int) -> Any:
        return self._here().read([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Read all records of a batch at once, as the DataLoader asks for them."""
        return self._here().read(numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def _here(self) -> Source:
        if self._source is None or self._process != os.getpid():
            self._source, self._process = self._open(), os.getpid()
        return self._source
