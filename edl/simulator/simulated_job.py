"""A job of a simulated cluster: its work done, its placement, and its expected end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from edl.cluster.views import JobView, Placement, Speed
from edl.simulator.course import Step
from edl.simulator.trace import ChangeCost, TraceJob


class Stretch(msgspec.Struct, frozen=True):
    """A time in which a job's workers were the same."""

    begin: float
    end: float
    workers: int
    batch: int
    placement: Placement


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """`done`, `service`, `ran` and `waited` hold for the time `at`."""

    job: TraceJob
    at: float
    done: float = 0.0
    service: float = 0.0
    ran: float = 0.0
    waited: float = 0.0
    resting: float = 0.0  # seconds until the job trains
    rested: float = 0.0  # device-seconds in which the job held devices without training
    placement: Placement = field(default_factory=dict)
    workers: int = 0
    batch: int = 0  # batch that the policy chose; 0: the job's own
    step: Step | None = None
    slowdown: float = 1.0
    trained: bool = False  # the job has trained with its present workers
    began: float | None = None
    changed: float | None = None
    changes: int = 0
    most_tried: int = 0
    notes: dict[str, float] = field(default_factory=dict)
    finished: float | None = None
    stretch_begun: float = 0.0
    stretches: list[Stretch] = field(default_factory=list)
    version: int = 0  # grows with each change; a planned END of an older version is void

    # ---------------------------------------------------------------------------------------------------- time goes by

    def advance(self, now: float) -> None:
        """Let time pass until `now`. For a waiting job only `waited` grows."""
        passed = now - self.at
        if passed <= 0:
            return
        self.at = now
        if self.step is None:
            self.waited += passed
            return
        rest = min(self.resting, passed)
        self.resting -= rest
        self.rested += rest * self.workers
        self.service += passed * self.workers
        self.ran += passed
        if passed > rest:
            self.trained = True
            steps = self.job.course.steps(self.done, self.step.batch) + (passed - rest) / self._step_s()
            self.done = self.job.course.done(steps, self.step.batch)

    def end(self) -> float:
        """Return when the job will end if nothing changes."""
        if self.step is None:
            return math.inf
        course, batch = self.job.course, self.step.batch
        return (
            self.at
            + self.resting
            + (course.steps(course.total, batch) - course.steps(self.done, batch)) * self._step_s()
        )

    def _step_s(self) -> float:
        assert self.step is not None
        return self.step.seconds * self.slowdown

    def pace(self) -> float:
        """Return the work done per second."""
        if self.step is None:
            return 0.0
        course, batch = self.job.course, self.step.batch
        steps, whole = course.steps(self.done, batch), course.steps(course.total, batch)
        few = min(1.0, whole - steps)
        return (course.done(steps + few, batch) - self.done) / (few * self._step_s()) if few > 0 else 0.0

    def lose(self, seconds: float) -> None:
        """Lose the work of the last seconds of training."""
        if self.step is not None:
            course, batch = self.job.course, self.step.batch
            steps = max(0.0, course.steps(self.done, batch) - seconds / self._step_s())
            self.done = course.done(steps, batch)

    # ------------------------------------------------------------------------------------------------ workers change

    def run_on(self, placement: Placement, batch: int, cost: ChangeCost) -> None:
        """Call `advance` before."""
        before = self.pace()
        self._close_stretch()
        moved = placement != self.placement
        self.placement, self.batch, self.workers = placement, batch, sum(placement.values())
        self.version += 1
        if not placement:
            self.step = None
            self.resting = 0.0
            self.changed, self.changes = self.at, self.changes + 1
            return
        self.step = self.job.course.step(tuple(placement.values()), batch or self.job.batch)
        self.most_tried = max(self.most_tried, self.workers)
        if not moved:
            return  # another batch only: no worker comes or goes
        self.trained = False
        rest = cost.of(before, self.pace(), began=self.began is not None)
        self.resting = max(self.resting, rest)  # workers that boot go on booting, whichever others come or go
        self.changed = self.at
        if self.began is None:
            self.began = self.at
        else:
            self.changes += 1

    def finish(self, now: float) -> None:
        self.advance(now)
        self.done, self.finished = self.job.course.total, now
        self._close_stretch()
        self.version += 1

    def _close_stretch(self) -> None:
        if self.workers and self.at > self.stretch_begun and self.step is not None:
            self.stretches.append(Stretch(self.stretch_begun, self.at, self.workers, self.step.batch, self.placement))
        self.stretch_begun = self.at

    # ---------------------------------------------------------------------------------------------------------- views

    def left(self) -> float:
        """Return the work left, such that `left / progress` is the time left with the batch that the job's owner asked
        for.
        """
        course, own = self.job.course, self.job.batch
        steps = course.steps(course.total, own) - course.steps(self.done, own)
        here = course.steps(self.done, own)
        few = min(1.0, steps)
        return steps * (course.done(here + few, own) - self.done) / few if few > 0 else 0.0

    def view(self, speed: Speed, left: float | None, change_s: float) -> JobView:
        job = self.job
        return JobView(
            name=job.name,
            submitted=job.submitted,
            request=job.request,
            smallest=job.smallest,
            largest=job.largest,
            speed=speed,
            batch=job.batch,
            user=job.user,
            priority=job.priority,
            deadline=job.deadline,
            left=left,
            change_s=change_s,
            workers=self.workers,
            running_batch=self.step.batch if self.step is not None else 0,
            placement=self.placement,
            service=self.service,
            ran=self.ran,
            waited=self.waited,
            waits_since=self.at if self.step is None else None,
            began=self.began,
            changed=self.changed,
            changes=self.changes,
            most_tried=self.most_tried,
            notes=self.notes,
        )
