"""A cluster in simulated time: its events, one after the other, and the decisions of a policy.

With rounds, a policy is asked every `interval_s`: devices that become free between two rounds are used at the next one.
Without rounds, it is asked whenever a job comes or ends, a node fails or comes back, and at the time at which it asked
to be asked again.

Owns: events, faults of nodes among them, and carrying out decisions. Does not own: a job's progress (`simulated_job`),
nor the results (`figures`).
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from enum import IntEnum

import msgspec

from edl.cluster.placement import Rule, place
from edl.cluster.views import Allotment, ClusterDecision, ClusterPolicy, ClusterView, JobView, Node
from edl.errors import ConfigError, EdlError
from edl.simulator.simulated_fitting import Speeds
from edl.simulator.simulated_job import SimulatedJob
from edl.simulator.trace import ChangeCost, Trace, uniform


class Faults(msgspec.Struct, frozen=True):
    """A kind of fault: each node has one every `mean_s` seconds on average, which lasts `length_s`. A `mean_s` of 0
    means none.

    Each node has fault times of its own, drawn from the seed and its name: the same seed gives the same faults under
    every policy.
    """

    mean_s: float = 0.0
    length_s: float = 0.0
    much: float = 0.0  # failures: seconds of training that a job loses; stragglers: how many times longer steps take

    def times(self, seed: int, kind: str, node: str) -> Iterator[tuple[float, float]]:
        """Yield begin and end of each fault, without end."""
        source = random.Random(f"{seed} {kind} {node}")  # noqa: S311 - it guards nothing
        now = 0.0
        while self.mean_s:
            now += source.expovariate(1 / self.mean_s)
            yield now, now + self.length_s
            now += self.length_s


NEAR_S = 1e-6  # events that are so near to each other happen at once


class Happening(IntEnum):
    """Simultaneous events happen in this order."""

    END = 0
    FAIL = 1
    MEND = 2
    SLOW = 3
    QUICK = 4
    COME = 5
    LOOK = 6


class Conditions(msgspec.Struct, frozen=True):
    nodes: tuple[Node, ...]
    interval_s: float = 0.0  # from one round to the next; 0: no rounds
    cost: ChangeCost = uniform(0.0)
    placement: Rule = Rule.PACK
    sees_left: bool = False  # the policy sees how much work is left
    failures: Faults = Faults()
    stragglers: Faults = Faults()
    seed: int = 0


class Played(msgspec.Struct, frozen=True):
    """`jobs` are in the order of their submission. A job that has not finished never will under this policy."""

    jobs: tuple[SimulatedJob, ...]
    decisions: int
    ended: float


Progress = Callable[[float, int, int], None]  # simulated time, number of ended jobs, number of all jobs


class ClusterSimulation:
    def __init__(
        self,
        trace: Trace,
        policy: ClusterPolicy,
        speeds: Speeds,
        conditions: Conditions,
        progress: Progress | None = None,
    ) -> None:
        _check(trace, conditions)
        self._policy, self._speeds, self._conditions = policy, speeds, conditions
        self._progress = progress
        self._jobs = [SimulatedJob(job, job.submitted, stretch_begun=job.submitted) for job in trace.jobs]
        self._there: dict[str, SimulatedJob] = {}  # submitted jobs that are not over, in the order of submission
        self._views: dict[str, JobView] = {}  # of the jobs in `_there`; the view of a waiting job stays unchanged
        self._stale: set[str] = set()  # jobs whose views must be renewed
        self._noted: set[str] = set()  # jobs about which the policy has notes
        self._numbers: dict[str, int] = {}  # numbers of all jobs that have come, in order
        self._nodes = {node.name: node for node in conditions.nodes}  # nodes that are up
        self._slow: set[str] = set()
        self._events: list[tuple[float, int, int, object]] = []
        self._count = 0
        self._looks = 0  # number of the newest planned LOOK; older ones are void
        self._rounds = False  # a round is planned
        self._over = 0
        self._coming = len(self._jobs)
        self._decisions = 0
        self._trouble: dict[tuple[Happening, str], Iterator[tuple[float, float]]] = {}

    def run(self) -> Played:
        """Run until all jobs are over, or no more can finish. Raises EdlError if a policy makes an
        impossible decision.
        """
        for one in self._jobs:
            self._expect(one.job.submitted, Happening.COME, one)
        for node in self._conditions.nodes:
            for kind, faults in (
                (Happening.FAIL, self._conditions.failures),
                (Happening.SLOW, self._conditions.stragglers),
            ):
                self._trouble[kind, node.name] = faults.times(self._conditions.seed, kind.name, node.name)
                self._next_trouble(kind, node.name)
        now = 0.0
        while self._events and self._over < len(self._jobs):
            now = self._events[0][0]
            news = False
            while self._events and self._events[0][0] <= now + NEAR_S:
                _, number, _, about = heapq.heappop(self._events)
                news = self._happen(now, Happening(number), about) or news
            if news and not self._decide(now):
                break
        for one in self._there.values():
            one.advance(now)
        return Played(tuple(self._jobs), self._decisions, now)

    # ------------------------------------------------------------------------------------------------------- events

    def _expect(self, when: float, kind: Happening, about: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, kind, self._count, about))

    def _expect_end(self, one: SimulatedJob) -> None:
        end = one.end()
        if end < math.inf:
            self._expect(end, Happening.END, (one, one.version))

    def _next_trouble(self, kind: Happening, node: str) -> None:
        for begin, end in self._trouble[kind, node]:
            self._expect(begin, kind, (node, end))
            return

    def _happen(self, now: float, kind: Happening, about: object) -> bool:
        """Return True if the policy must be asked."""
        if kind is Happening.LOOK:
            return about == self._looks
        if kind is Happening.COME:
            assert isinstance(about, SimulatedJob)
            self._there[about.job.name] = about
            self._numbers[about.job.name] = len(self._numbers)
            self._speeds.begin(about)
            self._see(about)  # adds the job behind the earlier ones
            self._coming -= 1
            return self._soon(now)
        assert isinstance(about, tuple)
        if kind is Happening.END:
            return self._end(now, *about)
        return self._trouble_comes(now, kind, *about)

    def _end(self, now: float, one: SimulatedJob, version: int) -> bool:
        if version != one.version:
            return False
        one.finish(now)
        self._over += 1
        del self._there[one.job.name], self._views[one.job.name]
        self._speeds.end(one)
        return self._soon(now)

    def _trouble_comes(self, now: float, kind: Happening, node: str, end: float) -> bool:
        """Begin or end a node's failure or slowness."""
        if kind is Happening.FAIL:
            self._expect(end, Happening.MEND, (node, end))
            self._fail(now, node)
            return self._soon(now)
        if kind is Happening.MEND:
            up = {*self._nodes, node}
            self._nodes = {one.name: one for one in self._conditions.nodes if one.name in up}
            self._next_trouble(Happening.FAIL, node)
            return self._soon(now)
        if kind is Happening.SLOW:
            self._slow.add(node)
            self._expect(end, Happening.QUICK, (node, end))
        else:
            self._slow.discard(node)
            self._next_trouble(Happening.SLOW, node)
        for one in self._there.values():
            if node in one.placement:
                self._slowed(now, one)
        return False

    def _soon(self, now: float) -> bool:
        """Return True if the policy must be asked now; with rounds, plan the next round instead."""
        interval = self._conditions.interval_s
        if interval and not self._rounds:
            self._rounds = True
            self._looks += 1
            self._expect(max(1, math.ceil((now - NEAR_S) / interval)) * interval, Happening.LOOK, self._looks)
        return not interval

    def _fail(self, now: float, node: str) -> None:
        self._nodes.pop(node, None)
        for one in self._there.values():
            if node not in one.placement:
                continue
            one.advance(now)
            one.lose(self._conditions.failures.much)
            self._stale.add(one.job.name)
            rest = {name: count for name, count in one.placement.items() if name != node}
            self._change(now, one, rest if sum(rest.values()) >= one.job.smallest else {}, one.batch)

    def _slowed(self, now: float, one: SimulatedJob) -> None:
        one.advance(now)
        slow = any(node in self._slow for node in one.placement)
        one.slowdown = self._conditions.stragglers.much if slow else 1.0
        one.version += 1
        self._expect_end(one)

    # ----------------------------------------------------------------------------------------------------- decisions

    def _decide(self, now: float) -> bool:
        """Return False if nothing can happen any more."""
        self._decisions += 1
        running = [one for one in self._there.values() if one.step is not None]
        for one in running:
            one.advance(now)
            self._speeds.hear(one)
            self._stale.add(one.job.name)
        for name in self._stale & self._there.keys():
            self._see(self._there[name])
        self._stale.clear()
        jobs = tuple(self._views.values())
        decision = self._policy.decide(ClusterView(tuple(self._nodes.values()), jobs), now)
        self._check_decision(decision, now)
        self._carry_out(decision, now)
        self._note(decision)
        self._look_again(decision, now)
        if self._progress is not None:
            self._progress(now, self._over, len(self._jobs))
        goes_on = any(one.workers for one in self._there.values()) or self._coming or decision.look_again is not None
        return bool(goes_on or len(self._nodes) < len(self._conditions.nodes))

    def _see(self, one: SimulatedJob) -> None:
        left, change_s = self._conditions.sees_left, (one.job.cost or self._conditions.cost).pause_s
        self._views[one.job.name] = one.view(self._speeds.speed(one), one.left() if left else None, change_s)

    def _note(self, decision: ClusterDecision) -> None:
        """Keep the notes that the policy wants to get back the next time."""
        forgotten = self._noted - decision.notes.keys()
        for name, notes in (*decision.notes.items(), *((name, {}) for name in forgotten)):
            one = self._there.get(name)
            if one is not None and one.notes is not notes and one.notes != notes:
                one.notes = notes
                self._stale.add(name)
        self._noted = set(decision.notes)

    def _carry_out(self, decision: ClusterDecision, now: float) -> None:
        wanted = {
            name: allotment.workers
            for name, allotment in decision.allotments.items()
            if allotment.workers and name in self._there
        }
        present = {name: self._there[name].placement for name in wanted if self._there[name].workers}
        placements = place(self._nodes.values(), present, wanted, self._conditions.placement)
        running = [name for name, one in self._there.items() if one.workers]
        for name in sorted({*running, *wanted}, key=self._numbers.__getitem__):
            one, allotment = self._there[name], decision.allotments.get(name, Allotment(0))
            placement = placements.get(name, {})
            if placement != one.placement or (placement and allotment.batch != one.batch):
                self._change(now, one, placement, allotment.batch)

    def _change(self, now: float, one: SimulatedJob, placement: dict[str, int], batch: int) -> None:
        one.advance(now)
        self._stale.add(one.job.name)
        one.slowdown = self._conditions.stragglers.much if self._slow.intersection(placement) else 1.0
        one.run_on(placement, batch, one.job.cost or self._conditions.cost)
        self._expect_end(one)

    def _look_again(self, decision: ClusterDecision, now: float) -> None:
        self._looks += 1
        self._rounds = bool(self._conditions.interval_s and self._there)
        if self._rounds:
            self._expect(now + self._conditions.interval_s, Happening.LOOK, self._looks)
        elif decision.look_again is not None:
            self._expect(decision.look_again, Happening.LOOK, self._looks)

    def _check_decision(self, decision: ClusterDecision, now: float) -> None:
        """Refuse an impossible decision, whether of edl's own policy or of a user's. Raises EdlError."""
        devices = sum(node.devices for node in self._nodes.values())
        asked = sum(allotment.workers for allotment in decision.allotments.values())
        said = None
        if asked > devices:
            said = f"it gives {asked} workers, and there are {devices} devices"
        for name, allotment in decision.allotments.items():
            one = self._there.get(name)
            if one is None:
                said = f"it gives workers to {name}, which is not there"
            elif allotment.workers and not one.job.smallest <= allotment.workers <= one.job.largest:
                may = f"{one.job.smallest} to {one.job.largest}"
                said = f"it gives {allotment.workers} workers to {name}, which may have {may}"
        if decision.look_again is not None and decision.look_again <= now:
            said = f"it wants to look again at {decision.look_again:g}"
        if said is not None:
            raise EdlError(f"policy {type(self._policy).__name__} at {now:g} s: {said}")


def _check(trace: Trace, conditions: Conditions) -> None:
    devices = sum(node.devices for node in conditions.nodes)
    largest = max(node.devices for node in conditions.nodes)
    if trace.node_size is not None and largest > trace.node_size:
        raise ConfigError(
            f"--nodes: {largest} devices on a node: trace {trace.name} was measured with {trace.node_size} at most"
        )
    for job in trace.jobs:
        if max(job.request, job.smallest) > devices:
            raise ConfigError(
                f"trace {trace.name} row {job.row}: {job.name} asks for {job.request} workers, and the cluster has "
                f"{devices} devices: give it more by --nodes"
            )
