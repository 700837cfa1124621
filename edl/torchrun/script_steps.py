"""Mini-batches of a script that makes its batches itself: a step ends where the next forward pass begins.

Owns: where these steps end. Does not own: the samples, which edl does not know.
"""

from __future__ import annotations

from edl.torch.torch_process import framework, trainer


class ScriptSteps:
    """The steps of such a script: from a forward pass in training to the first one after the update."""

    def __init__(self) -> None:
        self._updates: int | None = None  # there were as the step began

    def begin(self) -> None:
        """A forward pass in training begins."""
        self.finish()
        if self._updates is None:
            self._updates = framework.updates()

    def finish(self) -> None:
        """End the step if its update is made, or it is void."""
        if self._updates is not None and (trainer.voided or framework.updates() != self._updates):
            self._updates = None
            trainer.notify_batch_end()
