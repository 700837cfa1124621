"""The scheduler of a cluster, as a machine: its inputs, and the changes and acts that follow from them.

`handle` takes all inputs that have come since the last call. It advances each job that holds devices, has the policy
decide if something has changed, and gives devices out. A scheduler that dies is followed by another, which begins with
the durable entries and receives the rest again (I9).

Owns: the order of these. Does not own: the rules (`lives`, `seating`), nor carrying anything out (`edl.scheduler`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from edl.cluster.queue import device_assignment, job_lifecycle
from edl.cluster.queue.measured_speeds import LiveSpeeds
from edl.cluster.queue.queue_entries import ACTIVE, JobEntry, JobPhase, NodeReport, Submission, WorkerWish
from edl.cluster.queue.queue_ownership import SeenTime
from edl.cluster.queue.queue_state import QueueState, SeenNode
from edl.cluster.queue.scheduler_inputs import (
    CancelAsked,
    ClusterRules,
    DrainAsked,
    DrainOver,
    JobLooked,
    LifeReady,
    LifeRefused,
    NodeLeftOut,
    NodeReported,
    NodeWent,
    QueueInput,
    QueueTick,
    Resolved,
    SizeWanted,
    Submitted,
)
from edl.cluster.views import ClusterPolicy


class SchedulerMachine:
    """The machine of one reign, from the election of a scheduler to its end."""

    def __init__(
        self, policy: ClusterPolicy, speeds: LiveSpeeds, rules: ClusterRules, jobs: Iterable[JobEntry]
    ) -> None:
        self._policy, self._speeds = policy, speeds
        self._state = QueueState(rules, {job.name: job for job in jobs})
        self._time = SeenTime()
        self._decided = -math.inf
        self._look_again: float | None = None

    @property
    def jobs(self) -> dict[str, JobEntry]:
        return self._state.jobs

    @property
    def nodes(self) -> dict[str, SeenNode]:
        return self._state.nodes

    @property
    def now(self) -> float:
        """The time of the last decision."""
        return self._time.now

    def left_out(self, now: float) -> tuple[str, ...]:
        """Return the nodes on which no worker is started now, because workers have failed there."""
        return self._state.left_out(now)

    @property
    def empty(self) -> bool:
        """Tell whether no job holds a device."""
        return not any(self._state.jobs[name].workers for name in self._state.live)

    def handle(self, inputs: Sequence[QueueInput], wall: float, counted: float | None = None) -> Resolved:
        """`wall` is the wall clock, `counted` a monotonic clock. `look_again` is by the wall clock."""
        state = self._state
        now = self._time.advance(wall, counted, math.inf if self.empty else state.rules.unseen_s)
        if state.began == -math.inf:
            state.begin(now)
        state.changed, state.told, state.acts = {}, [], []
        for one in inputs:
            self._take(one, now)
        self._look_after(now)
        job_lifecycle.let_in(state, now)
        if self._is_due(now):
            self._decided, state.news = now, False
            self._look_again = device_assignment.decide(state, self._policy, self._speeds, now)
        device_assignment.seat(state, now)
        self._look_after(now)
        for name in [name for name, job in state.changed.items() if job.over and not job.workers]:
            state.seen.pop(name, None)
            self._speeds.forget(name)
        due = self._next(now)
        again = None if due is None else wall + due - now
        return Resolved(dict(state.changed), tuple(state.told), tuple(state.acts), again)

    def _look_after(self, now: float) -> None:
        # Jobs that only wait are skipped: there may be very many.
        state = self._state
        for name in sorted(name for name in state.live if _holds(state.jobs[name])):
            job_lifecycle.look_after(state, state.jobs[name], now)

    def forget(self, name: str) -> None:
        assert name not in self._state.live
        del self._state.jobs[name]
        self._state.desired.pop(name, None)

    def validate(self) -> None:
        """Check I17, and that terminal states stay: cheap, for tests and simulations."""
        held: dict[tuple[str, int], str] = {}
        for job in self._state.jobs.values():
            ids = [worker.id for worker in job.workers]
            assert len(set(ids)) == len(ids), f"one worker twice: {job}"
            for worker in job.workers:
                for device in worker.devices:
                    other = held.setdefault((worker.node, device), worker.id)
                    assert other == worker.id, f"{other} and {worker.id} on one device"
                assert len(set(worker.devices)) == job.asked.processes, f"not a device for each process: {worker}"
                assert worker.life == job.life, f"a worker of another life: {job}"
            assert not (job.waits and job.workers), f"it waits, and holds devices: {job}"
            assert len(job.workers) <= job.asked.max_np or job.phase not in ACTIVE or _growing(job), f"too many: {job}"

    # ------------------------------------------------------------------------------------------------------- inputs

    def _take(self, one: QueueInput, now: float) -> None:
        state = self._state
        match one:
            case Submitted(asked, environ):
                self._submitted(asked, environ, now)
            case CancelAsked(name) if name in state.jobs:
                job_lifecycle.cancel(state, state.jobs[name], now)
            case SizeWanted(name, np) if name in state.jobs:
                self._sized(state.jobs[name], np, now)
            case NodeReported() | NodeWent() | NodeLeftOut():
                self._hear_of_node(one, now)
            case LifeReady():
                job_lifecycle.ready(state, one, now)
            case LifeRefused():
                job_lifecycle.refused(state, one, now)
            case JobLooked(name, _, look):
                job_lifecycle.looked(state, one, now)
                if name in state.jobs and state.jobs[name].phase in ACTIVE:
                    self._speeds.hear(state.jobs[name], look)
            case DrainAsked() | DrainOver():
                self._drain(one, now)
            case CancelAsked() | SizeWanted() | QueueTick():
                pass

    def _submitted(self, asked: Submission, environ: str, now: float) -> None:
        state = self._state
        if asked.name in state.jobs:
            return
        tries = state.rules.retries.tries
        state.put(JobEntry(asked, since=now, since_phase=now, tries_left=tries, environ=environ), now)
        state.tell(now, "job_queued", asked.name, asked.workers_in_words)
        state.news = True

    def _sized(self, job: JobEntry, np: int, now: float) -> None:
        state, asked = self._state, job.asked
        np = max(asked.min_np, min(np, asked.max_np)) if np else 0
        if job.over or np == job.wanted:
            return
        state.put(job, now, wanted=np)
        words = f"{np} workers are asked for" if np else f"{asked.np} workers are asked for, as at first"
        state.tell(now, "size_asked", job.name, words, workers=np)
        state.news = True

    def _reported(self, report: NodeReport, now: float) -> None:
        state, node = self._state, self._state.nodes.get(report.node)
        if node is None or not node.there or node.devices != report.devices:
            node = node or SeenNode(())
            closed = math.inf if report.devices else now
            state.nodes[report.node] = replace(node, devices=report.devices, there=True, closed_since=closed)
            state.tell(now, "node_there", "", f"{report.node} with {len(report.devices)} devices")
            state.news = True
        gone = {seen.id: seen for seen in report.workers if seen.gone}
        for name in sorted(state.live):
            for worker in state.jobs[name].workers:
                if worker.node == report.node and worker.id in gone:
                    job_lifecycle.worker_seen(state, state.jobs[name], worker, gone[worker.id], now)

    def _went(self, name: str, now: float) -> None:
        node = self._state.nodes.get(name)
        if node is not None and node.there:
            node.there, self._state.news = False, True
            self._state.tell(now, "node_away", "", f"the agent of {name} is away; what runs there runs on")

    def _hear_of_node(self, one: NodeReported | NodeWent | NodeLeftOut, now: float) -> None:
        match one:
            case NodeReported(report):
                self._reported(report, now)
            case NodeWent(name):
                self._went(name, now)
            case NodeLeftOut(name, until, user) if name in self._state.nodes:
                node = self._state.nodes[name]
                node.left_out_for = user
                until = min(until, now + self._state.rules.sick_s)
                node.left_out_until, self._state.news = max(node.left_out_until, until), True
            case NodeLeftOut():
                pass

    def _drain(self, asked: DrainAsked | DrainOver, now: float) -> None:
        state = self._state
        if isinstance(asked, DrainOver):
            state.news, state.draining, state.killing = state.news or state.draining, False, False
            return
        kill = asked.kill
        if not state.draining:
            state.tell(now, "draining", "", "the cluster is to stop: jobs are saved, and none begins")
        state.draining = True
        for name in sorted(state.live):
            job = state.jobs[name]
            if job.phase in ACTIVE:
                job_lifecycle.send_away(state, job, "the cluster is to stop", now)
            if kill and not state.killing:
                state.wish(state.jobs[name], WorkerWish.DIE, now)
        state.killing = state.killing or kill

    # --------------------------------------------------------------------------------------------------------- times

    def _is_due(self, now: float) -> bool:
        rules = self._state.rules
        if now - self._decided < rules.decide_s:
            return False
        due = self._look_again is not None and now >= self._look_again
        return self._state.news or due or now - self._decided >= rules.look_s

    def _next(self, now: float) -> float | None:
        """Return when something is due, even if nothing happens by then."""
        state, rules = self._state, self._state.rules
        times = [self._decided + rules.look_s] if state.live else []
        if state.news:
            times.append(self._decided + rules.decide_s)
        if self._look_again is not None and state.live:
            times.append(max(self._look_again, self._decided + rules.decide_s))
        for name in state.live:
            job = state.jobs[name]
            if job.rests_until > now:
                times.append(job.rests_until)
            if not _holds(job):
                continue
            times += [
                state.seen_since(worker.since) + rules.leave_s
                for worker in job.workers
                if worker.wish is WorkerWish.LEAVE
            ]
            if job.over and job.workers:
                times.append(state.seen_since(job.since_phase) + rules.cancel_s)
            if job.phase is JobPhase.PREEMPTING:
                times.append(state.seen_since(job.since_phase) + state.save_s(job) + rules.save_slack_s)
            if (until := state.ends_until(job)) is not None:
                times.append(until)
        later = [time for time in times if time > now]
        return min(later) if later else None


def _holds(job: JobEntry) -> bool:
    """Tell whether the job has devices, or a life that has not ended."""
    return bool(job.workers) or not job.waits


def _growing(job: JobEntry) -> bool:
    """Tell whether some workers leave and others have already come in their place."""
    return len(job.staying) <= job.asked.max_np
