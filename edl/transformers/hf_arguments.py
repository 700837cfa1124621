"""Choose the worker that writes, by Hugging Face's `TrainingArguments`: asked anew each time.

Owns: process indices. Does not own: the number of processes, which stays 1: whatever the Trainer derives from it (a
sampler, an exchange of its own over torch's process group) is done by edl, or not at all.
"""

from __future__ import annotations

import copyreg
from typing import Any

from edl.torch.torch_process import trainer as seat


class ElasticArguments:
    """The mixin for the class of the arguments, in front of it."""

    log_on_each_node: bool
    save_on_each_node: bool

    @property
    def process_index(self) -> int:
        """Return the rank; for a newcomer that rehearses, a rank that does not write."""
        return max(1, seat.rank()) if seat.rehearsing() else seat.rank()

    @property
    def local_process_index(self) -> int:
        """Return the rank among the workers of the same host."""
        return seat.local_rank()

    @property
    def should_log(self) -> bool:
        """Tell whether this worker logs: one worker of the job does."""
        return self.process_index == 0

    @property
    def should_save(self) -> bool:
        """Tell whether this worker saves: one worker of the job does, or the first of each host."""
        if not self.save_on_each_node:
            return self.process_index == 0
        return self.local_process_index == 0 and not seat.rehearsing()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Pickle the arguments by their original class."""
        # The Trainer stores them beside a model, to be read where there is no job.
        return copyreg._reconstructor, (type(self).__mro__[2], object, None), dict(vars(self))  # type: ignore[attr-defined]


def make_elastic(arguments: Any) -> None:
    """Mix `ElasticArguments` into the arguments' class; the object stays the same."""
    kind = type(arguments)
    if not issubclass(kind, ElasticArguments):
        arguments.__class__ = type(kind.__name__, (ElasticArguments, kind), {"__module__": kind.__module__})
