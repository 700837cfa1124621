"""The end of a backward pass: where all gradients that it has reached are waited for.

Owns: finding that end. Does not own: the collectives (`edl.torch.torch_reducer`).

PyTorch runs callbacks at the end of a backward pass, as DistributedDataParallel's. A pass may be one inside of another:
a checkpointed part that is `use_reentrant` calls backward anew. More gradients may come after the end of the inner one,
so the callback is handed on to the outer one.

All optimizers that a pass reaches are waited for together, in the order of their wrapping. Workers whose passes reach
them in another order would otherwise wait for each other: one for the first optimizer's missing parameters, one for the
second's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch.autograd import Variable

from edl.trainer.updates_due import UpdatesDue

queue_callback = Variable._execution_engine.queue_callback
task_id = torch._C._current_graph_task_id  # of the backward pass under way; one inside of another has its own


class Reduction(Protocol):
    """The gradients of one optimizer."""

    begun: bool
    number: int
    whole_in: int

    def begin(self) -> None:
        """Begin the reduction unless it is under way."""

    def reduce_missing(self) -> None:
        """Reduce for the parameters that got no gradient here."""

    def wait(self) -> None:
        """Wait until all gradients are averaged, or one has failed."""


def finish(reductions: Iterable[Reduction]) -> None:
    """Wait until all gradients are averaged; wait for none before those of all are on their way."""
    for one in reductions:
        one.begin()
    for one in reductions:
        one.reduce_missing()
    for one in reductions:
        one.wait()


class Backward:
    """The backward pass of this process: whatever script runs, a single pass is under way, with
    what is inside of it.
    """

    def __init__(self, due: UpdatesDue | None = None) -> None:
        self._due = due or UpdatesDue()
        self.owners: dict[torch.Tensor, Reduction] = {}  # which one averages the gradient of a parameter
        self._reached: dict[Reduction, None] = {}
        self._task = -1

    @property
    def is_cut(self) -> bool:
        """Tell whether an exception has ended the newest pass of those whose end is awaited."""
        return self._due.in_backward and task_id() == -1

    def reach(self, reduction: Reduction, task: int) -> None:
        """Note that the pass under way, which is `task`, has the first gradient of `reduction`."""
        self._reached[reduction] = None
        reduction.begin()
        self.await_end_of(task)

    def await_end_of(self, task: int) -> None:
        if task != self._task:
            self._task = task
            self._due.in_backward = True
            queue_callback(self._ended)

    def discard(self) -> None:
        """Forget a pass that an exception has ended: its mini-batch is void."""
        self._task, self._due.in_backward = -1, False
        self._reached = {}

    def _await_end(self) -> None:
        self.await_end_of(task_id())

    def _ended(self) -> None:
        around: Any = torch._C._current_autograd_node()  # what has called this pass, if it is one inside of another
        self._task = -1
        if around is not None:
            _before_next(around, self._await_end)
            return
        self._due.in_backward = False
        reached, self._reached = sorted(self._reached, key=lambda one: one.number), {}
        finish([one for one in reached if one.begun])  # not what an earlier pass has left, which an exception ended


def _before_next(node: Any, call: Any) -> None:
    """Call `call` when the next node after `node` is about to run: whichever it is, it runs before the pass ends."""
    handles: list[Any] = []

    def about_to_run(_gradients: Any) -> None:
        for handle in handles:
            handle.remove()
        call()

    handles.extend(following.register_prehook(about_to_run) for following, _ in node.next_functions if following)
