"""Real jobs on a real cluster of this machine, under one policy after the other, and what the simulator says of them.

    python -m benchmarks.cluster
    python -m benchmarks.cluster --jobs 6 --slots 4 --gap 8 --policies fifo elastic-tiresias --results out/cluster.json

The same jobs come at the same times under each policy: digits and the language model, of different lengths and limits,
and arrivals with exponential gaps. Steps wait for a while in place of computing (`cluster_worker.py`), so that jobs
scale on a machine with few cores. Each worker records what it trains. With `--results` what was measured is kept in a
file, and a policy that is there already is not run again: the whole can be had in pieces.

Verdict: all jobs finish, every sample of every job is trained exactly once, no device is held at the end, and the
simulator's forecast of mean and p95 completion time, makespan and utilization is within
`--within` of what was measured.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.real_cluster import BATCH, LOOK_S, SAMPLES, Line, RealCluster
from edl.cluster.policies import registry
from edl.cluster.queue.device_assignment import yielded
from edl.cluster.queue.queue_entries import JobEntry, QueueEvent
from edl.cluster.speed_analyzer import Analyzer, Batches
from edl.cluster.views import Allotment, ClusterDecision, ClusterPolicy, ClusterView, Guess, Node, Speed
from edl.simulator.course import Iterations
from edl.simulator.simulated_cluster import ClusterSimulation, Conditions
from edl.simulator.simulated_job import SimulatedJob
from edl.simulator.simulation_results import Summary, figures_of
from edl.simulator.trace import ChangeCost, Trace, TraceJob

# ------------------------------------------------------------------------------------------------------- what jobs cost


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


# --------------------------------------------------------------------------------------- what the simulator makes of it


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


# ------------------------------------------------------------------------------------------------------------ the trial


POLICIES = ("fifo", "tiresias", "elastic-tiresias", "goodput")
PARAMETERS = {
    "tiresias": {"limits": "120"},
    "elastic-tiresias": {"limits": "120", "dwell_s": "10", "pending": "2"},
    "goodput": {"settle_s": "30"},
}
EPOCHS = (2, 2, 3, 3, 4, 4, 6, 8, 12)  # most jobs are short, and most of the work is in long ones
STEPS_S = (0.06, 0.1, 0.15)
LONGEST_S = 900.0  # of one policy
FIGURES = ("mean_s", "p95_s", "makespan_s", "held")


class Measured(msgspec.Struct, frozen=True):
    """One policy, or what is forecast of it."""

    mean_s: float
    p95_s: float
    makespan_s: float
    held: float  # share of the devices' time in which they were a job's
    training: float  # share in which they trained


class Trial(msgspec.Struct, frozen=True):
    """One policy's, as it went."""

    policy: str
    workload: str
    measured: Measured
    changes: int
    preemptions: int
    finished: int
    exactly_once: bool
    leaked: int
    facts: list[JobFacts]


def workload(jobs: int, slots: int, gap_s: float, seed: int) -> list[Line]:
    chance = random.Random(seed)
    at, found = 0.0, []
    for number in range(jobs):
        np = min(slots, chance.choice((1, 1, 2, 2, 3)))
        sizes = (np, max(1, np // 2), min(slots, 2 * np))
        model = ("digits", "sonnets")[number % 2]
        found.append(Line(f"job{number}", at, model, *sizes, chance.choice(EPOCHS), chance.choice(STEPS_S)))
        at += chance.expovariate(1 / gap_s)
    return found


def played(policy: str, lines: list[Line], slots: int, name: str) -> Trial:
    """On a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="edl-cluster-") as folder:
        cluster = RealCluster(Path(folder))
        more = [word for key, value in PARAMETERS.get(policy, {}).items() for word in ("--set", f"{key}={value}")]
        cluster.edl("cluster", "start", "--nodes", f"localhost:{slots}", "--policy", policy, *more)
        try:
            _submit_all(cluster, lines)
            return _judged(cluster, policy, lines, slots, name)
        finally:
            cluster.edl("cluster", "stop", "--now")


def _submit_all(cluster: RealCluster, lines: list[Line]) -> None:
    """Each at its time, and wait for all of them."""
    began, coming = time.monotonic(), list(lines)
    while True:
        while coming and time.monotonic() - began >= coming[0].after_s:
            line = coming.pop(0)
            cluster.submit(line)
            sizes = f"{line.np} workers, {line.least} to {line.most}"
            print(f"  {time.monotonic() - began:5.0f} s  {line.name} comes: {line.model}, {sizes}", flush=True)
        if not coming:
            left = [name for name, job in cluster.jobs().items() if not job.over]
            if not left:
                return
            if time.monotonic() - began > LONGEST_S:
                raise SystemExit(f"after {LONGEST_S:g} s these are not over: {', '.join(left)}")
        time.sleep(LOOK_S)


def _judged(cluster: RealCluster, policy: str, lines: list[Line], slots: int, name: str) -> Trial:
    accounts, jobs = cluster.accounts(), cluster.jobs()
    times = [job["ended"] - job["submitted"] for job in accounts]
    makespan = max(job["ended"] for job in accounts) - min(job["submitted"] for job in accounts)
    measured = Measured(
        mean_s=statistics.fmean(times),
        p95_s=float(np.percentile(times, 95)),
        makespan_s=makespan,
        held=sum(job["device_s"] for job in accounts) / (makespan * slots),
        training=sum(job["training_s"] for job in accounts) / (makespan * slots),
    )
    good = [line for line in lines if jobs[line.name].phase.value == "finished"]
    for line in set(lines) - set(good):
        print(f"  {line.name} is {jobs[line.name].phase.value}: {jobs[line.name].reason}", flush=True)
    return Trial(
        policy,
        name,
        measured,
        changes=sum(job["changes"] for job in accounts),
        preemptions=sum(job["preemptions"] for job in accounts),
        finished=len(good),
        exactly_once=len(good) == len(lines) and all(cluster.exactly_once(line) for line in good),
        leaked=sum(len(node.held) for node in cluster.status().nodes) + len(cluster.processes()),
        facts=[facts_of(line, jobs[line.name], cluster.steps(line.name)) for line in good],
    )


def foretold(trial: Trial, slots: int) -> Measured:
    found = forecast(trial.policy, PARAMETERS.get(trial.policy, {}), trial.facts, slots)
    assert found.mean is not None
    assert found.p95 is not None
    return Measured(found.mean, found.p95, found.makespan, found.utilization, found.training)


def errors(measured: Measured, told: Measured) -> dict[str, float]:
    return {name: getattr(told, name) / getattr(measured, name) - 1 for name in FIGURES}


def show(trials: list[Trial], slots: int, jobs: int, within: float) -> bool:
    print(f"\n{jobs} jobs on {slots} slots of {os.cpu_count()} cores\n")
    head = ("policy", "", "mean", "p95", "makespan", "held", "train", "changes", "sent away", "exactly once", "leaked")
    print(f"| {' | '.join(head)} |")
    print("|" + " --- |" * len(head))
    good = True
    for trial in trials:
        told = foretold(trial, slots)
        off = errors(trial.measured, told)
        whole = trial.finished == jobs and trial.exactly_once and not trial.leaked
        once = f"{trial.finished} of {jobs}" if trial.exactly_once else "NO"
        print(f"| {_row((trial.policy, 'measured'), trial.measured)} | {trial.changes} | {trial.preemptions} "
              f"| {once} | {trial.leaked} |")  # fmt: skip
        print(f"| {_row(('', 'forecast'), told)} | | | | |")
        print(f"| | error | {' | '.join(f'{off[name]:+.0%}' for name in FIGURES)} | | | | | |")
        good = good and whole and max(map(abs, off.values())) <= within
    return good


def _row(head: tuple[str, str], one: Measured) -> str:
    times = (f"{seconds:.0f} s" for seconds in (one.mean_s, one.p95_s, one.makespan_s))
    return " | ".join((*head, *times, f"{one.held:.0%}", f"{one.training:.0%}"))


def known(path: Path | None) -> list[Trial]:
    if path is None or not path.exists():
        return []
    return msgspec.json.decode(path.read_bytes(), type=list[Trial])


def keep(path: Path | None, trials: list[Trial]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(trials)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--slots", type=int, default=5)
    parser.add_argument("--gap", type=float, default=6.0, help="mean seconds from one arrival to the next")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--results", type=Path, help="keep what was measured there, and go on with what is there")
    parser.add_argument("--within", type=float, default=0.15, help="how far off the forecast may be")
    options = parser.parse_args()
    lines = workload(options.jobs, options.slots, options.gap, options.seed)
    name = f"{options.jobs} jobs, {options.slots} slots, gap {options.gap:g}, seed {options.seed}"
    there: dict[tuple[str, str], Trial] = {(one.policy, one.workload): one for one in known(options.results)}
    for policy in options.policies:
        if (policy, name) in there:
            continue
        print(f"{policy}:", flush=True)
        there[policy, name] = played(policy, lines, options.slots, name)
        keep(options.results, list(there.values()))
    good = show([there[policy, name] for policy in options.policies], options.slots, options.jobs, options.within)
    print(f"\nverdict: {'good' if good else 'BAD'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
