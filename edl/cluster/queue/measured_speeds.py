"""The speeds of live jobs: the figures that their leaders measure, fitted to a model by the analyzer.

Owns: passing reports to the analyzer. Does not own: its models. Nothing is stored: a new scheduler hears the jobs
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from edl.cluster.queue.queue_entries import JobEntry
from edl.cluster.queue.queue_state import placed
from edl.cluster.queue.scheduler_inputs import JobLook
from edl.cluster.views import Guess, Speed

if TYPE_CHECKING:
    from edl.cluster.speed_analyzer import Analyzer


class LiveSpeeds(Protocol):
    def hear(self, job: JobEntry, look: JobLook) -> None: ...

    def forget(self, job: str) -> None: ...

    def speed(self, job: JobEntry) -> Speed: ...


class UnknownSpeeds:
    """Speeds for policies that do not use any."""

    def hear(self, job: JobEntry, look: JobLook) -> None:
        """Ignore the report."""

    def forget(self, job: str) -> None:
        """Do nothing: no job is remembered."""

    def speed(self, job: JobEntry) -> Speed:
        return Guess(job.batch)


class FittedSpeeds:
    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._known: dict[str, int] = {}  # the batch that each job was written for

    def hear(self, job: JobEntry, look: JobLook) -> None:
        if not (look.step_s > 0 and look.size and look.batch):
            return
        if job.name not in self._known:
            self._expect(job, look)
        nodes = min(max(1, len(placed(job))), look.size)
        samples = max(1, -(-look.batch // look.size))
        sqr, var = self._noise(job.name, look)
        self._analyzer.observe(job.name, look.size, nodes, samples, look.step_s, grad_sqr=sqr, grad_var=var)

    def _noise(self, job: str, look: JobLook) -> tuple[float | None, float | None]:
        """Return the squared gradient and its variance at the job's own batch."""
        # A job reports the variance of one sample's gradient; the analyzer wants that of the job's own batch. Both are
        # estimates, which may come out below 0 where there is next to none.
        if look.grad_sqr is None or look.grad_var is None:
            return None, None
        return max(look.grad_sqr, 0.0), max(look.grad_var, 0.0) / self._known[job]

    def forget(self, job: str) -> None:
        self._known.pop(job, None)
        self._analyzer.forget(job)

    def speed(self, job: JobEntry) -> Speed:
        return self._analyzer.speed(job.name) if job.name in self._known else Guess(job.batch)

    def _expect(self, job: JobEntry, look: JobLook) -> None:
        from edl.cluster.speed_analyzer import Batches

        if look.grows and job.asked.batch_range is None:
            each = max(1, look.batch // look.size)
            batches = Batches(own=each, smallest=each, largest=each, each=each)
        else:
            batch = look.batch
            least, most = job.asked.batch_range or (batch, batch)
            batches = Batches(own=batch, smallest=min(least, batch), largest=max(most, batch), accumulates=False)
        self._analyzer.expect(job.name, batches)
        self._known[job.name] = batches.own
