"""A trial of a script: alone, until its first update, to learn how many batches that takes.

Owns: what the script is given in a trial, and what is learned. Does not own: who asks (`edl.cli.torchrun_script`).

The script is run as a newcomer runs it: alone, never with rank 0, so that it writes none of the files of rank 0.
Nothing of it is kept: at its first update the process ends on the spot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from edl.torch.buffers import OutsideGraphs
from edl.torch.loop_collectives import LoopCollectives
from edl.torch.torch_process import framework, trainer
from edl.torchrun import parallel_model
from edl.torchrun.group_names import GroupNames
from edl.torchrun.parallel_model import DistributedDataParallel
from edl.torchrun.refusals import TrialResult
from edl.torchrun.script_passes import LoaderNames, sampler_of
from edl.torchrun.worker_group import JobOutside, WorkerGroup


class TrialSeat:
    """A seat of no ring (`edl.torchrun.worker_group.RankedSeat`)."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def local_rank(self) -> int:
        return 0

    def generation(self) -> int:
        return 0


class TrialLoaders(LoaderNames):
    """Loaders of which the training one gives the batches that it would give, and counts them."""

    given = 0

    def iterate(self, loader: DataLoader[Any]) -> Iterator[Any]:
        if (sampler := sampler_of(loader)) is not None:
            self._follow_size(sampler)
        for batch in loader._get_iterator():
            self.given += 1
            yield batch


class ScriptTrial:
    """The stand-ins for torch's names in a trial (see `edl.torchrun.__main__`)."""

    def __init__(self, answer: int, size: int) -> None:
        """`answer`: the file descriptor to which the result is written, once. `size`: of the job that it is told of."""
        self._answer, self._forwards = answer, 0
        seen = JobOutside(max(size, 1), 0)
        words = LoopCollectives(framework, trainer, lambda: None)
        self.group = WorkerGroup(TrialSeat(), words, lambda: seen, seen.size)
        self._loaders = TrialLoaders(self.group, self)

    def put(self) -> None:
        GroupNames(self.group).put()
        self._loaders.put()
        parallel_model.put()
        DistributedDataParallel.began = staticmethod(OutsideGraphs(self._began))
        register_optimizer_step_pre_hook(self._updated)
        torch.amp.GradScaler.step = self._updated  # type: ignore[assignment, method-assign] # it may leave the update out

    def variables(self) -> dict[str, Any]:
        return {}

    def trains(self) -> bool:
        return any(model.training for model in DistributedDataParallel.known)

    def _began(self, _model: DistributedDataParallel) -> None:
        self._forwards += 1

    def _updated(self, *_given: Any) -> None:
        """Tell of how many batches the update is: a script may have read some ahead, and left others out."""
        if DistributedDataParallel.known:  # else it is refused
            self.end(TrialResult(batches=min(self._loaders.given, max(1, self._forwards))))

    def end(self, result: TrialResult) -> NoReturn:
        os.write(self._answer, msgspec.json.encode(result) + b"\n")
        os._exit(0)
