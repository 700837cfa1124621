"""The world of one worker's processes: PyTorch's default process group, in which a model is sharded.

A worker of several processes (`--processes`) is to itself what a job of torchrun is: `torch.distributed` is set up for
its processes, so meshes and `fully_shard` are written as their documentation has them. edl uses a group of its own
beside that, whose operations never come between the script's.

Owns: that world, and the rows that processes exchange. Does not own: what rows say (`edl.core.worker.limb_votes`), nor
the rings between workers (`edl.torch.torch_ring`).
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from edl.core.worker.limb_votes import LANES, Row
from edl.errors import ConfigError, UsageError
from edl.trainer.limb_agreement import LimbLost

COME_S = 120.0  # for all processes of a worker to come
NEVER_COME_S = 30 * 86_400.0  # a process that dies ends the wait: its worker's daemon ends the others


class GroupWorld:
    """`edl.trainer.limb_agreement.LimbRows` by a process group of gloo's."""

    def __init__(self, limb: int, processes: int, folder: Path, step_timeout_s: float) -> None:
        """Make the default group in a `folder` that the processes share. Raises ConfigError where one never comes."""
        if dist.is_initialized():
            raise UsageError(
                "edl.init() makes the process group of a worker's processes: leave torch.distributed."
                "init_process_group() away, or call edl.init() first"
            )
        number, count = str(limb), str(processes)
        os.environ.update(RANK=number, LOCAL_RANK=number, WORLD_SIZE=count, LOCAL_WORLD_SIZE=count)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the processes of a worker are on one host
        store = dist.FileStore(str(folder / "world"), processes)  # type: ignore[attr-defined] # torch's own stub
        try:
            store.set(f"edl/{limb}", "here")
            store.wait([f"edl/{one}" for one in range(processes)], timedelta(seconds=COME_S))
            # A collective of the script's may wait while another process saves or evaluates, as a step may.
            timeout = timedelta(seconds=max(COME_S, 2 * step_timeout_s))
            dist.init_process_group("gloo", store=store, rank=limb, world_size=processes, timeout=timeout)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"not all {processes} processes of this worker came within {COME_S:g} s "
                f"({str(error).splitlines()[0]}): let each call edl.init(), and see what the others have printed"
            ) from error
        self._limb = limb
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=NEVER_COME_S))
        self._rows = [torch.zeros(LANES, dtype=torch.int64) for _ in range(processes)]

    def exchange(self, row: Row) -> list[Row]:
        self._all_gather(self._rows, torch.tensor(row, dtype=torch.int64))
        return [tuple(one.tolist()) for one in self._rows]

    def gather(self, payload: bytes) -> list[bytes]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in self._rows]
        self._all_gather(sizes, torch.tensor([len(payload)]))
        lengths = [int(size) for size in sizes]
        sent = torch.frombuffer(bytearray(payload.ljust(max(1, *lengths), b"\0")), dtype=torch.uint8)
        found = [torch.empty_like(sent) for _ in self._rows]
        self._all_gather(found, sent)
        return [one[:length].numpy().tobytes() for one, length in zip(found, lengths, strict=True)]

    def _all_gather(self, found: list[torch.Tensor], mine: torch.Tensor) -> None:
        try:
            dist.all_gather(found, mine, group=self._group)
        except RuntimeError as error:
            raise LimbLost("another process of this worker has ended") from error
