"""The group of all workers, in the place of torch's default process group.

Owns: the rank and the size that a script is told, and what a collective answers. Does not own: how values travel
(`edl.torch.loop_collectives`), nor the names that scripts call (`edl.torchrun.group_names`).

A newcomer runs its script from the top, beside the training of the others. Until it is in their ring it is alone, and
so it is again while it passes over epochs that they have trained without it: then a collective answers with the
worker's own values, as in a group of one. Its rank is never 0 meanwhile, so that it writes no file of rank 0's. All
workers of a job that goes on from a checkpoint pass over epochs so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch.distributed import ReduceOp

from edl.client import Job
from edl.errors import EdlError, UsageError
from edl.protocol.assignment import Place
from edl.torch.loop_collectives import LoopCollectives

Ask = Callable[[], Any]


class RankedSeat(Protocol):
    """The part of edl's trainer that `WorkerGroup` uses."""

    def rank(self) -> int: ...

    def size(self) -> int: ...

    def local_rank(self) -> int: ...

    def generation(self) -> int: ...


class JobOutside(NamedTuple):
    """The job as a newcomer sees it from outside."""

    size: int
    epoch: int


def seen_from_outside() -> JobOutside:
    """Ask the job's leader; a job that does not answer counts as one of a single worker at its beginning."""
    try:
        with Job() as job:
            status = job.status()
    except EdlError:
        return JobOutside(1, 0)
    return JobOutside(max(status.size, 1), status.epoch)


class WorkerGroup:
    def __init__(
        self,
        seat: RankedSeat,
        words: LoopCollectives,
        look: Callable[[], JobOutside] = seen_from_outside,
        begun: int = 0,
        place: Callable[[], Place | None] = lambda: None,
    ) -> None:
        """`begun`: the number of workers with which the job began; 0: not known. `place`: in the ring, if any."""
        self._seat, self._words, self._look, self._begun, self._place = seat, words, look, begun, place
        self._beside: JobOutside | None = None
        self.passes_over = False  # the script passes over an epoch that the others have trained

    @property
    def joined(self) -> bool:
        """Tell whether this worker is in the ring of the job, or was."""
        return self._seat.generation() > 0

    @property
    def alone(self) -> bool:
        return not self.joined or self.passes_over

    def rank(self) -> int:
        """Return the rank; of a worker that is alone, one that no other worker has."""
        if self.joined:
            return self._seat.size() if self.passes_over else self._seat.rank()
        return max(self._seen.size, self._seat.local_rank())

    def size(self) -> int:
        """Return the number of workers; to a newcomer, the one with which the job began: what its script makes of that
        is the same on all workers then.
        """
        return self._seat.size() if self.joined else self._begun or self._seen.size

    def epoch_beside(self) -> int:
        """Return, to a newcomer, the epoch of the job as it is now."""
        self._beside = self._look()
        return self._beside.epoch

    @property
    def _seen(self) -> JobOutside:
        if self._beside is None:
            self._beside = self._look()
        return self._beside

    def environment(self, environ: dict[str, str]) -> dict[str, str]:
        """Return the variables that torchrun sets. MASTER_ADDR and MASTER_PORT name no server.

        Without GPUs a newcomer shares the last LOCAL_RANK of the job's beginning: a script or a library may have as
        many devices as there were workers then.
        """
        rank, size, local = str(self.rank()), str(self.size()), self._seat.local_rank()
        if self._begun > 1 and not torch.cuda.device_count():
            local = min(local, self._begun - 1)
        place = self._place()
        local_size, node, nodes = (
            (min(self.size(), local + 1), 0, 1)
            if place is None
            else (place.local_size, place.cross_rank, place.cross_size)
        )
        return {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(local_size),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(nodes),
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": size,
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": environ.get("EDL_MAX_RESTARTS", "0"),
            "TORCHELASTIC_RUN_ID": environ.get("EDL_JOB", "none"),
        }

    # ------------------------------------------------------------------------------------------------- collectives

    def meet(self) -> None:
        if not self.alone:
            self._words.meet()

    def by_rank(self, name: str, says: Ask) -> list[Any]:
        """Return each worker's value; to one that is alone, its own."""
        return [says()] if self.alone else self._words.by_rank(name, says)

    def of_root(self, name: str, says: Ask, root: int) -> Any:
        """Return the value of rank `root`; to a worker that is alone, its own."""
        if self.alone:
            return says()
        found = self.by_rank(name, lambda: says() if self.rank() == root else None)
        if not root < len(found):
            return says()  # of a mini-batch that is void
        return found[root]

    def reduced(self, name: str, tensor: torch.Tensor, op: Any) -> torch.Tensor:
        """Return all workers' tensors, reduced; to one that is alone, its own."""
        kind = _reduction(name, op)
        if self.alone:
            return tensor
        if kind in {"sum", "mean"} and tensor.is_floating_point() and tensor.numel() > EXACT:
            self._words.by_rank(name, lambda: list(tensor.shape))  # so that all are here, and mean the same
            found: torch.Tensor = self._words.reduced(tensor.detach(), kind)
            return found
        parts = torch.stack(self.by_rank(name, tensor.detach))
        return REDUCTIONS[kind](parts).to(tensor.dtype).to(tensor.device)


EXACT: Final = 1024  # elements up to which sums are exact: of more, a mean is multiplied by the number of workers
REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda parts: parts.sum(0),
    "mean": lambda parts: parts.double().mean(0),
    "min": lambda parts: parts.amin(0),
    "max": lambda parts: parts.amax(0),
    "product": lambda parts: parts.prod(0),
}
_KINDS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.PRODUCT: "product",
}


def _reduction(name: str, op: Any) -> str:
    for known, kind in _KINDS.items():
        if op == known:
            return kind
    raise UsageError(f"torch.distributed.{name}(op={op}): edl has SUM, AVG, MIN, MAX and PRODUCT")


def set_environment(group: WorkerGroup) -> None:
    """Set the variables of torchrun in this process, before its script begins."""
    os.environ.update(group.environment(dict(os.environ)))
