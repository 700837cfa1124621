"""What real jobs of a cluster cost, read off what they left: their stories, and the lines of their workers.

Owns: seconds from a decision to the first step, from the last step to the end, of a step at each size, of a change.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.real_cluster import BATCH, SAMPLES, Line
from edl.cluster.queue.entries import JobEntry, QueueEvent

BEGINS = ("job_starting", "job_resuming")
Printed = Sequence[tuple[float, int, int]]  # time, step, size


class JobFacts(msgspec.Struct, frozen=True):
    """One job's, as it went."""

    name: str
    model: str
    step_time: float  # that a step takes at least
    epochs: int
    asked: tuple[int, int, int]  # workers: as its owner asked, the fewest, the most
    submitted: float
    begin_s: float  # from the decision that it begins to its first step
    end_s: float  # from its last step until its devices are free and it is over
    resumes_s: tuple[float, ...]  # likewise of later lives
    boots_s: tuple[float, ...]  # from the decision that it grows to the first step of more workers
    pauses_s: tuple[float, ...]  # how much longer than others the first step of another size took
    steps_s: dict[int, float]  # by workers: the mean of a step, without those after a change

    @property
    def samples(self) -> int:
        return SAMPLES[self.model] * self.epochs

    def rate(self, workers: int, step_s: float) -> float:
        """Samples in a second. An epoch's last step is a whole one, however few are left for it."""
        steps = -(-SAMPLES[self.model] // (BATCH[self.model] * workers))
        return SAMPLES[self.model] / (steps * step_s)


def facts_of(line: Line, job: JobEntry, printed: Printed) -> JobFacts:
    """Of a job that is over."""
    lives = _lives(job.story, printed)
    usual = _steps_s(printed, [life[0] for _, life in lives if life])
    assert job.ended is not None
    waits = [life[0][0] - decided for decided, life in lives if life]
    return JobFacts(
        name=line.name,
        model=line.model,
        step_time=line.step_s,
        epochs=line.epochs,
        asked=(line.np, line.least, line.most),
        submitted=job.asked.submitted,
        begin_s=waits[0],
        end_s=job.ended - printed[-1][0],
        resumes_s=tuple(waits[1:]),
        boots_s=tuple(_boots(job.story, printed)),
        pauses_s=tuple(
            after[0] - before[0] - usual[after[2]]
            for before, after in itertools.pairwise(printed)
            if before[2] != after[2] and after[1] == before[1] + 1 and after[2] in usual
        ),
        steps_s=usual,
    )


def _lives(story: Iterable[QueueEvent], printed: Printed) -> list[tuple[float, Printed]]:
    """When each life was decided on, and what it printed."""
    decided, begins = 0.0, []
    for event in story:
        if event.kind == "decision" and event.details.get("was") == 0:
            decided = decided or event.ts  # it may be given less, or more, before its devices are free
        elif event.kind in BEGINS:
            begins.append(decided or event.ts)
            decided = 0.0
    ends = [*begins[1:], float("inf")]
    return [(begin, [one for one in printed if begin <= one[0] < end]) for begin, end in zip(begins, ends, strict=True)]


def _steps_s(printed: Printed, firsts: Sequence[tuple[float, int, int]]) -> dict[int, float]:
    """The mean: what a machine with other work loses now and then is a cost as any other."""
    found: dict[int, list[float]] = defaultdict(list)
    for before, after in itertools.pairwise(printed):
        if before[2] == after[2] and after[1] == before[1] + 1 and after not in firsts:
            found[after[2]].append(after[0] - before[0])
    return {size: statistics.fmean(seconds) for size, seconds in sorted(found.items()) if len(seconds) > 2}


def _boots(story: Iterable[QueueEvent], printed: Printed) -> Iterable[float]:
    """Only where nothing else was decided meanwhile."""
    decisions = [event for event in story if event.kind == "decision"]
    for event, then in zip(decisions, [*decisions[1:], None], strict=True):
        was, workers = event.details.get("was", 0), event.details.get("workers", 0)
        if not 0 < float(was) < float(workers):
            continue
        grown = [at for at, _, size in printed if at > event.ts and size == int(workers)]
        if grown and (then is None or grown[0] < then.ts):
            yield grown[0] - event.ts
