"""What `edl simulate`'s code says of the jobs of a real cluster, when it is given what they were measured to cost.

The simulator does not know how long this machine takes to boot a worker, to change a job, to make a step: these are
measured (`cluster_facts`). Which jobs wait, begin, grow, shrink or are sent away, and when each is over, it works out
by itself, with the policy, the analyzer and the rules of who yields that decide on live jobs.

Owns: that trace. Does not own: the simulator.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from benchmarks.cluster_facts import JobFacts
from benchmarks.real_cluster import BATCH
from edl.cluster.analyzer.analyzer import Analyzer
from edl.cluster.analyzer.predicted import Batches
from edl.cluster.decision import Allotment, ClusterDecision, ClusterPolicy
from edl.cluster.policies import registry
from edl.cluster.queue.yielding import yielded
from edl.cluster.speed import Guess
from edl.cluster.views import ClusterView, Node, Speed
from edl.simulator.changes import ChangeCost
from edl.simulator.courses.iterations import Iterations
from edl.simulator.engine import ClusterSimulation, Conditions
from edl.simulator.figures import Summary, figures_of
from edl.simulator.simulated_job import SimulatedJob
from edl.simulator.trace import Trace, TraceJob

OVERHEAD_S = 0.03  # of a step of a size that no job of the kind had
NEWS_S = 5.0  # a live policy is also asked when a worker has come or gone, which the simulator does not play
BOOT_S, PAUSE_S = 9.0, 0.2  # where no job was changed


class LiveRules:
    """A policy that is asked as often as a live cluster asks, and whose decisions are read as it reads them: others
    shrink before any is sent away.
    """

    def __init__(self, policy: ClusterPolicy) -> None:
        self._policy = policy

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        found = self._policy.decide(cluster, now)
        views = {job.name: job for job in cluster.jobs}
        within = {
            name: Allotment(min(one.workers, views[name].largest), 0, one.reason)
            for name, one in found.allotments.items()
            if one.workers >= views[name].smallest
        }
        looks = [now + NEWS_S] if found.look_again is None else [now + NEWS_S, found.look_again]
        return msgspec.structs.replace(found, allotments=yielded(cluster, within), look_again=min(looks))


class ReportedSpeeds:
    """What a live job's leader would report, told to the analyzer as the scheduler tells it."""

    def __init__(self, facts: Iterable[JobFacts], steps_s: Mapping[str, Mapping[int, float]]) -> None:
        self._analyzer, self._steps_s = Analyzer(), steps_s
        self._batch = {one.name: BATCH[one.model] for one in facts}

    def begin(self, one: SimulatedJob) -> None:
        each = self._batch[one.job.name]
        self._analyzer.expect(one.job.name, Batches(own=each, smallest=each, largest=each, each=each))

    def hear(self, one: SimulatedJob) -> None:
        if one.step is not None and one.trained:
            name = one.job.name
            self._analyzer.observe(name, one.workers, 1, self._batch[name], self._steps_s[name][one.workers])

    def end(self, one: SimulatedJob) -> None:
        self._analyzer.forget(one.job.name)

    def speed(self, one: SimulatedJob) -> Speed:
        return self._analyzer.speed(one.job.name)


class NoSpeeds:
    """For policies that do not ask."""

    def begin(self, one: SimulatedJob) -> None:
        """It is not told of."""

    hear = end = begin

    def speed(self, one: SimulatedJob) -> Speed:
        return Guess(one.batch)


def forecast(policy: str, parameters: Mapping[str, str], facts: Sequence[JobFacts], slots: int) -> Summary:
    """Of the same jobs, which come at the same times."""
    entry = registry.known(policy)
    steps_s = _steps(facts)
    pauses = [one for job in facts for one in job.pauses_s]
    pause_s = max(0.0, statistics.median(pauses)) if pauses else PAUSE_S
    boots = [one for job in facts for one in job.boots_s]
    boot_s = statistics.median(boots) if boots else BOOT_S
    resumes = [one for job in facts for one in job.resumes_s] or [job.begin_s for job in facts]
    first = min(job.submitted for job in facts)

    def cost(job: JobFacts) -> ChangeCost:
        """Its devices are its own, and train nothing, before its first step and after its last one."""
        resume_s = statistics.fmean(job.resumes_s) if job.resumes_s else statistics.median(resumes)
        return ChangeCost(max(0.0, job.begin_s) + job.end_s, resume_s, boot_s, pause_s)

    jobs = tuple(
        TraceJob(
            name=job.name,
            submitted=job.submitted - first,
            request=job.asked[0],
            course=Iterations(
                job.samples, {size: job.rate(size, seconds) for size, seconds in steps_s[job.name].items()}, 0
            ),
            smallest=job.asked[1],
            largest=job.asked[2],
            cost=cost(job),
        )
        for job in sorted(facts, key=lambda job: job.submitted)
    )
    general = ChangeCost(BOOT_S, statistics.median(resumes), boot_s, pause_s)
    conditions = Conditions((Node("here", slots),), cost=general, sees_left=entry.sees_left)
    speeds = ReportedSpeeds(facts, steps_s) if entry.sees_speed else NoSpeeds()
    rules = LiveRules(registry.build(policy, parameters))
    return figures_of(ClusterSimulation(Trace("live", jobs), rules, speeds, conditions).run(), slots).summary


def _steps(facts: Sequence[JobFacts]) -> dict[str, dict[int, float]]:
    """Of each job at each size that it may have: what it took, else what others of its kind took beyond their waits."""
    beyond: dict[tuple[str, int], list[float]] = {}
    for job in facts:
        for size, seconds in job.steps_s.items():
            beyond.setdefault((job.model, size), []).append(seconds - job.step_time)

    def of(job: JobFacts, size: int) -> float:
        if size in job.steps_s:
            return job.steps_s[size]
        known = [one for (model, at), seconds in beyond.items() if (model, at) == (job.model, size) for one in seconds]
        near = known or [one for (model, _), seconds in beyond.items() if model == job.model for one in seconds]
        return job.step_time + (statistics.median(near) if near else OVERHEAD_S)

    return {job.name: {size: of(job, size) for size in range(job.asked[1], job.asked[2] + 1)} for job in facts}
