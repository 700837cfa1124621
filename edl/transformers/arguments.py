"""Which worker writes, as Hugging Face's `TrainingArguments` say it: asked anew each time.

Owns: process indices. Does not own: the number of processes, which stays 1: what the Trainer does by it (a sampler, an
exchange of its own over torch's process group) is done by edl, or not at all.
"""

from __future__ import annotations

import copyreg
from typing import Any

from edl.torch.process import trainer as seat


class ElasticArguments:
    """Mixed into the class of the arguments, in front of it."""

    log_on_each_node: bool
    save_on_each_node: bool

    @property
    def process_index(self) -> int:
        """The rank; a newcomer's is none that writes while it rehearses."""
        return max(1, seat.rank()) if seat.rehearsing() else seat.rank()

    @property
    def local_process_index(self) -> int:
        """Among the workers of the same host."""
        return seat.local_rank()

    @property
    def should_log(self) -> bool:
        """One worker of the job does."""
        return self.process_index == 0

    @property
    def should_save(self) -> bool:
        """One worker of the job does, or the first of each host."""
        if not self.save_on_each_node:
            return self.process_index == 0
        return self.local_process_index == 0 and not seat.rehearsing()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """As it was made: the Trainer stores it beside a model, to be read where there is no job."""
        return copyreg._reconstructor, (type(self).__mro__[2], object, None), dict(vars(self))  # type: ignore[attr-defined]


def make_elastic(arguments: Any) -> None:
    """They stay the same object."""
    kind = type(arguments)
    if not issubclass(kind, ElasticArguments):
        arguments.__class__ = type(kind.__name__, (ElasticArguments, kind), {"__module__": kind.__module__})
