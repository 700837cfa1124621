"""A whole cluster in simulated time: the scheduler's machine and the agents' machines of production, and all that dies.

One number makes one cluster: its jobs, its policy, and which scheduler, agent, worker or host dies, freezes or comes
back when. Whatever a real one keeps (the entries, the reports, a claim in a folder, a process) is kept here, and
whatever is in memory dies with who has it. Faults come for a while; then all has to come to its end.

Each scheduler and each agent has a wall clock of its own, up to an hour apart, and all are set now and then. An agent
may be paused between any two of its acts while another one of its node goes on, and a scheduler whose reign is over may
still carry out what it has decided. A second cluster, of another home, has its agents at the same coordinator. What a
worker has started may outlive it.

What must hold is checked after each second: no device has two processes, no job two lives at a time, no worker begins
twice, no device is told to be free that a process holds, no terminal state changes, no job is made smaller than its
fewest or has more workers than it may, none is killed before it had its time to leave or to be saved, one job migrates
at a time, no worker comes to a node that is left out; and at the end no job is lost or stuck, and no device is held.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from edl.cluster.policies.registry import build
from edl.cluster.queue.agent_machine import (
    AgentCommand,
    AgentInput,
    AgentLooked,
    AgentMachine,
    BarOne,
    EndOne,
    OrdersCame,
    StartOne,
    WorkerBegan,
    WorkerClaimed,
    WorkerFound,
    WorkerGone,
)
from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.job_view import left_out_by
from edl.cluster.queue.measured_speeds import UnknownSpeeds
from edl.cluster.queue.queue_entries import (
    ACTIVE,
    TERMINAL,
    JobEntry,
    JobPhase,
    NodeReport,
    QueueEvent,
    Submission,
    WorkerOrder,
    WorkerWish,
    orders_of,
)
from edl.cluster.queue.queue_ownership import QueueOwner, SeenTime, is_owner
from edl.cluster.queue.scheduler_inputs import (
    Act,
    BeginLife,
    CancelAsked,
    ChangeBatch,
    ClusterRules,
    DrainAsked,
    JobLook,
    JobLooked,
    LifeReady,
    LookOnce,
    NodeLeftOut,
    NodeReported,
    NodeWent,
    QueueInput,
    QueueTick,
    Resolved,
    SendAway,
    Submitted,
)
from edl.cluster.queue.scheduler_machine import SchedulerMachine
from edl.protocol.checkpoint_record import PREEMPTED_CODE

POLICIES = ("fifo", "backfill", "tiresias", "elastic-tiresias")
EPOCH = 10**6  # seconds since 1970, when it begins
FAULTS_S, ALL_S = 240, 4000
BOOT_S = 3
NEVER_SAVED = 10**9
LINGER_S = 15
OURS, THEIRS = QueueOwner("1", "/home/ann", "h1"), QueueOwner("2", "/home/bob", "h2")
PATIENCE_S = 60  # beyond the last fault, for who is to die
FOLLOWS = "Traceback (most recent call last):\n  File train.py\nedl.errors.JobFailed: no worker has the model\n"
BUG = "Traceback (most recent call last):\n  File train.py\nValueError: a fault of its own\n"


@dataclass
class SimProcess:
    """Process of a worker. It lives whatever becomes of its agent."""

    order: WorkerOrder
    node: str
    boots: int = BOOT_S
    asked_to_leave: bool = False
    stubborn: bool = False  # it does not leave when it is asked to


@dataclass
class SimLife:
    job: Submission
    life: int
    base: int
    total: int
    step: int = 0
    state: str = ""
    leaves_in: int = -1  # seconds until it is saved
    begun: bool = False
    dead: bool = False  # all its workers are gone


@dataclass
class PausedAgent:
    """An agent stopped in the middle of its acts. It resumes them later, regardless of its node's fate."""

    todo: list[AgentCommand]
    until: int


@dataclass
class SimHost:
    """A machine with its agent. `claims`: files of the agent, by worker: its devices, and how it ended."""

    name: str
    devices: tuple[int, ...]
    owner: QueueOwner
    machine: AgentMachine | None = None
    frozen_until: int = 0
    claims: dict[str, tuple[tuple[int, ...], EndEvidence | None]] = field(default_factory=dict)
    half_made: set[str] = field(default_factory=set)  # claims
    left: dict[str, int] = field(default_factory=dict)  # by worker: until when what it has started outlives it
    paused: list[PausedAgent] = field(default_factory=list)
    ahead: float = 0.0  # its clock
    time: SeenTime = field(default_factory=SeenTime)
    seen_orders: tuple[WorkerOrder, ...] = ()


class ClusterPlay:
    def __init__(
        self,
        seed: int,
        rules: ClusterRules | None = None,
        *,
        drain_at: int = -1,
        roomy: bool = False,
        limbs: bool = False,
    ) -> None:
        """`limbs`: workers of some jobs have several processes."""
        self.limbs = limbs
        self.chance = random.Random(seed)
        self.rules = rules or ClusterRules(leave_s=20, save_s=8, save_slack_s=5, look_s=5, settled_s=5, move_s=40)
        self.policy = self.chance.choice(POLICIES)
        self.drain_at, self.roomy = drain_at, roomy
        self.hosts = {
            f"n{number}": SimHost(f"n{number}", tuple(range(self.chance.randint(1, 4))), OURS)
            for number in range(3 if roomy else self.chance.randint(1, 3))
        }
        self.rivals = [SimHost(host.name, host.devices, THEIRS, AgentMachine()) for host in self.hosts.values()]
        self.ahead = 0.0  # the clock of the scheduler that leads
        self.late_acts: list[tuple[int, Act]] = []
        self.told_to_die: dict[str, int] = {}
        self.asked_at: dict[str, int] = {}  # by worker that is to leave, or by job and life that is saved
        self.now = 0
        self.entries: dict[str, JobEntry] = {}  # durable from here
        self.reports: dict[str, NodeReport] = {}
        self.wishes: set[str] = set()
        self.term = 0
        self.events: list[QueueEvent] = []
        self.processes: dict[str, SimProcess] = {}
        self.trainings: dict[str, SimLife] = {}
        self.saved: dict[str, int] = {}  # job -> step of its newest checkpoint
        self.begun: dict[str, int] = {}  # worker -> times that it was started
        self.ends: dict[str, EndEvidence] = {}  # of workers that are outlived by what they have started
        self.ended: dict[str, JobPhase] = {}
        self.scheduler: SchedulerMachine | None = None
        self.inbox: list[QueueInput] = []
        self.due: float | None = None
        self.elects_at = 1
        self.submissions = self._jobs()
        self.faulty = {one.name for one in self.submissions if self.chance.random() < 0.15}

    def run(self) -> ClusterPlay:
        for self.now in range(1, ALL_S):
            self._play()
            self._check()
            if self.now > FAULTS_S + 5 and self._at_rest():
                break
        self._check_end()
        return self

    # ------------------------------------------------------------------------------------------------------ a second

    def _play(self) -> None:
        for asked in [one for one in self.submissions if one.submitted <= self.now]:
            self.submissions.remove(asked)
            self.entries[asked.name] = JobEntry(
                asked, since=EPOCH + self.now, since_phase=EPOCH + self.now, tries_left=3
            )
            self.inbox.append(Submitted(asked))
        if self.now < FAULTS_S:
            self._faults()
        for host in self.hosts.values():
            self._go_on(host)
        for rival in self.rivals:
            self._agent(rival)
        if self.now == self.drain_at:
            self.inbox.append(DrainAsked())
        for host in self.chance.sample(list(self.hosts.values()), len(self.hosts)):
            self._agent(host)
        for training in list(self.trainings.values()):
            self._train(training)
        for late in [one for one in self.late_acts if one[0] <= self.now]:
            self.late_acts.remove(late)
            self._act(late[1], in_time=False)
        self._schedule()

    def _jobs(self) -> list[Submission]:
        devices = [len(host.devices) for host in self.hosts.values()]
        found = []
        for number in range(self.chance.randint(2, 5) if self.roomy else self.chance.randint(3, 9)):
            each = self.chance.randint(1, min(3, max(devices))) if self.limbs else 1
            each = max(devices) if self.limbs and self.chance.random() < 0.1 else each
            most = sum(count // each for count in devices)
            largest = self.chance.randint(1, max(2 if each == 1 else 1, most // 2) if self.roomy else most)
            least = self.chance.randint(1, largest)
            found.append(
                Submission(
                    name=f"job{number}",
                    command=("train",),
                    folder="/",
                    user=self.chance.choice(("ann", "bob") if not self.roomy else ("ann",)),
                    submitted=self.chance.randint(1, 120),
                    np=self.chance.randint(least, largest),
                    min_np=least,
                    max_np=largest,
                    priority=self.chance.choice((0, 0, 0, 5)),
                    spread=self.chance.random() < 0.3,
                    processes=each,
                )
            )
        return sorted(found, key=lambda one: one.submitted)

    def _faults(self) -> None:
        chance = self.chance
        host = chance.choice(list(self.hosts.values()))
        if chance.random() < 0.03:
            host.machine = None  # the agent is killed
        if chance.random() < 0.02:
            host.frozen_until = self.now + chance.randint(2, 25)
        if chance.random() < 0.01:  # the host is switched off and on
            host.machine = None
            for id_ in [id_ for id_, process in self.processes.items() if process.node == host.name]:
                self.end(id_, EndEvidence())
        if self.processes and chance.random() < 0.02:
            id_ = chance.choice(sorted(self.processes))
            self.end(id_, EndEvidence(code=chance.choice((-9, -9, -11, 1)), tail="its last words"))
        if chance.random() < 0.03:
            self._dethrone()
        if chance.random() < 0.02:
            host.ahead = self._set_clock()
        if chance.random() < 0.02:
            self.ahead = self._set_clock()
        if self.entries and chance.random() < 0.005:
            self.wishes.add(chance.choice(sorted(self.entries)))

    def _set_clock(self) -> float:
        return self.chance.choice((0.0, 60.0, 3600.0, -3600.0))

    # ---------------------------------------------------------------------------------------------------- schedulers

    def _dethrone(self) -> None:
        """Kill, freeze or cut off the scheduler: whatever it was about to do is not done, and another comes."""
        self.scheduler = None
        self.elects_at = self.now + self.chance.randint(1, 10)

    def _schedule(self) -> None:
        if self.scheduler is None:
            if self.now < self.elects_at:
                return
            self.term += 1
            self.ahead = self._set_clock() if self.now < FAULTS_S else self.ahead
            policy = build(self.policy)
            self.scheduler = SchedulerMachine(policy, UnknownSpeeds(), self.rules, list(self.entries.values()))
            self.inbox = [NodeReported(report) for report in self.reports.values()]
            self.inbox += [NodeWent(host.name) for host in self.hosts.values() if not self._hears(host)]
            self.inbox += [NodeLeftOut(node, *how) for node, how in left_out_by(self.events).items()]
            if -1 < self.drain_at <= self.now:
                self.inbox.append(DrainAsked())
        self.inbox += [CancelAsked(name) for name in sorted(self.wishes)]
        if self.now % 2 == 0:
            self.inbox += [
                JobLooked(one.job.name, one.life, self._look(one)) for one in self.trainings.values() if one.state
            ]
        if not self.inbox and (self.due is None or self.now < self.due):
            return
        inputs, self.inbox = self.inbox or [QueueTick()], []
        resolved = self.scheduler.handle(inputs, EPOCH + self.now + self.ahead, float(self.now))
        again = resolved.look_again
        self.due = None if again is None else again - self.ahead - EPOCH
        self.scheduler.validate()
        if self.now < FAULTS_S and self.chance.random() < 0.02:  # it dies before it has written
            self._dethrone()
            return
        self._keep(resolved)
        if self.now < FAULTS_S and self.chance.random() < 0.03:  # or after that: then it acts late, or never
            self._dethrone()
            late = self.now + self.chance.randint(1, 40)
            self.late_acts += [(late, act) for act in resolved.acts if self.chance.random() < 0.5]
            return
        for act in resolved.acts:
            self._act(act, in_time=True)

    def _keep(self, resolved: Resolved) -> None:
        for name, entry in resolved.changed.items():
            before = self.entries[name].phase
            assert before not in TERMINAL or entry.phase is before, f"{name} was {before}, and is {entry.phase}"
            self._check_workers(self.entries[name], entry)
            self._check_patience(self.entries[name], entry)
            self._note_asked(entry)
        self.entries.update(resolved.changed)
        moving = [name for name, entry in self.entries.items() if entry.moving]
        assert len(moving) <= 1, f"several jobs migrate at a time: {moving}"
        self.events += resolved.told
        self.wishes -= {name for name in self.wishes if self.entries[name].over}

    def _check_workers(self, before: JobEntry, entry: JobEntry) -> None:
        """Check which workers come, and which are asked to leave."""
        assert self.scheduler is not None
        known = {worker.id: worker.wish for worker in before.workers}
        out = self.scheduler.left_out(self.scheduler.now)
        lost = [worker.id for worker in entry.workers if worker.id not in known and worker.node in out]
        assert not lost, f"{lost} come to a node that is left out: {out}"
        leave = [worker.id for worker in entry.workers if worker.wish is WorkerWish.LEAVE]
        told = any(known.get(id_) is WorkerWish.RUN for id_ in leave)
        small = len(entry.staying) < entry.asked.min_np
        assert not (told and small and entry.phase in ACTIVE), f"it is made too small: {entry}"

    def _check_patience(self, before: JobEntry, entry: JobEntry) -> None:
        """Check that a worker has its full time to be saved or to leave."""
        if entry.phase is not before.phase:
            return
        rules, killed = self.rules, {one.id for one in entry.workers if one.wish is WorkerWish.DIE}
        leave_s = rules.cancel_s if entry.over else rules.leave_s
        for worker in before.workers:
            if worker.id in killed and worker.wish is not WorkerWish.DIE:
                bounds = {worker.id: leave_s, f"{entry.name}.{entry.life}": rules.save_s + rules.save_slack_s}
                waited = {asked: self.now - self.asked_at[asked] for asked in bounds if asked in self.asked_at}
                late = any(seconds >= 0.9 * bounds[asked] - 1 for asked, seconds in waited.items())
                assert late or not waited, f"{worker.id} is killed early: {waited}"

    def _note_asked(self, entry: JobEntry) -> None:
        for worker in entry.workers:
            if worker.wish is WorkerWish.LEAVE:
                self.asked_at.setdefault(worker.id, self.now)
        if entry.phase is JobPhase.PREEMPTING:
            self.asked_at.setdefault(f"{entry.name}.{entry.life}", self.now)

    def _act(self, act: Act, *, in_time: bool) -> None:
        """Carry an act out. Unless it is `in_time`, an act reserved to the leading scheduler is refused (fenced)."""
        match act:
            case BeginLife(name, life) if in_time:
                alive = [one for one in self.processes.values() if one.order.job == name]
                assert not alive, f"a life of {name} begins while another has {alive}"
                base = self.saved.get(name, 0)
                self.trainings[name] = SimLife(self.entries[name].asked, life, base, self._total(name))
                self.inbox.append(LifeReady(name, life, life, f"ck/{base}" if base else "", base))
            case SendAway(name, life):
                training = self.trainings.get(name)
                if training and life in {0, training.life} and training.state == "running" and training.leaves_in < 0:
                    training.leaves_in = self.chance.choice((1, 2, 30, NEVER_SAVED))
            case LookOnce(name, life) if in_time:
                one = self.trainings[name]
                self.inbox.append(JobLooked(name, life, self._look(one), final=True))
            case BeginLife() | LookOnce() | ChangeBatch():
                pass

    def _look(self, one: SimLife) -> JobLook:
        return JobLook(one.state, size=self._size(one), step=one.step, batch=64)

    # -------------------------------------------------------------------------------------------------------- agents

    def _hears(self, host: SimHost) -> bool:
        return host.machine is not None and self.now >= host.frozen_until

    def _agent(self, host: SimHost) -> None:
        ours = host.owner == OURS
        if ours and not self._hears(host):
            if host.name in self.reports and self.chance.random() < 0.3:
                self.inbox.append(NodeWent(host.name))
            if host.machine is None and (self.now > FAULTS_S or self.chance.random() < 0.2):
                self._come_back(host)
            return
        if not is_owner(OURS, host.owner, takes=True, in_use=True):
            return
        assert host.machine is not None
        self._outlived(host)
        orders = orders_of(host.name, self.entries)
        happened = OrdersCame(orders) if orders != host.seen_orders else AgentLooked()
        host.seen_orders = orders
        machine = host.machine
        self._carry_out(host, machine, happened)
        for id_, (_, gone) in list(host.claims.items()):
            if gone is not None and id_ in machine.living:
                self._carry_out(host, machine, WorkerGone(id_, gone))
        if host.machine is not machine:  # it was paused
            return
        machine.validate()
        self._check_told(host)
        report = NodeReport(host.name, host.devices, host.machine.report)
        self.reports[host.name] = report
        self.inbox.append(NodeReported(report))

    def _time(self, host: SimHost) -> float:
        return host.time.advance(EPOCH + self.now + host.ahead, float(self.now))

    def _outlived(self, host: SimHost) -> None:
        """End processes that outlive their worker, by themselves or killed as they linger; then the worker is gone."""
        for id_ in [id_ for id_, until in host.left.items() if until <= self.now]:
            del host.left[id_]
            devices, _ = host.claims[id_]
            host.claims[id_] = (devices, self.ends.pop(id_))

    def _come_back(self, host: SimHost) -> None:
        """A claim that was found half made is withdrawn: the agent that made it does not go on with it."""
        host.machine, host.time, host.seen_orders = AgentMachine(), SeenTime(), ()
        for id_ in sorted(host.half_made):
            self._withdraw(host, id_)
        for id_, (devices, gone) in host.claims.items():
            assert not host.machine.handle(WorkerFound(id_, devices, 1, gone), self._time(host))

    def _withdraw(self, host: SimHost, id_: str) -> None:
        host.half_made.discard(id_)
        host.claims[id_] = (host.claims[id_][0], EndEvidence())

    def _carry_out(self, host: SimHost, machine: AgentMachine, happened: AgentInput) -> None:
        if host.machine is machine:
            self._do(host, machine.handle(happened, self._time(host)))

    def _do(self, host: SimHost, todo: list[AgentCommand]) -> None:
        """An agent that is paused meanwhile is followed by another."""
        while todo:
            if host.owner == OURS and self.now < FAULTS_S and self.chance.random() < 0.04:
                if isinstance(todo[0], StartOne) and self.chance.random() < 0.5:
                    self._half_make(host, todo[0].order)
                host.paused.append(PausedAgent(todo, self.now + self.chance.randint(1, 60)))
                host.machine = None
                return
            todo += self._do_one(host, todo.pop(0))

    def _half_make(self, host: SimHost, order: WorkerOrder) -> None:
        if order.id not in host.claims:
            host.claims[order.id] = (order.devices, None)
            host.half_made.add(order.id)

    def _go_on(self, host: SimHost) -> None:
        """Resume the acts of paused agents: such an agent knows of nothing since, and is not heard."""
        for paused in [one for one in host.paused if one.until <= self.now]:
            host.paused.remove(paused)
            for command in paused.todo:
                match command:
                    case StartOne(order) if order.id in host.half_made:
                        host.half_made.discard(order.id)
                        self._begin(host, order)
                    case StartOne(order) if order.id not in host.claims:
                        self._begin(host, order)
                    case EndOne(id_, kill):
                        self._press(id_, kill=kill)
                    case StartOne() | BarOne():
                        pass

    def _do_one(self, host: SimHost, command: AgentCommand) -> list[AgentCommand]:
        assert host.machine is not None
        now = self._time(host)
        match command:
            case StartOne(order) if order.id in host.claims:
                return host.machine.handle(WorkerClaimed(order.id), now)
            case StartOne(order):
                self._begin(host, order)
                return host.machine.handle(WorkerBegan(order.id, 1), now)
            case EndOne(id_, kill):
                self._press(id_, kill=kill)
                return []
            case BarOne(id_):
                return host.machine.handle(self._bar(host, id_), now)

    def _bar(self, host: SimHost, id_: str) -> WorkerFound | WorkerGone:
        if id_ in host.half_made:
            self._withdraw(host, id_)
        devices, gone = host.claims.setdefault(id_, ((0,), EndEvidence()))
        return WorkerFound(id_, devices, 1, None) if gone is None else WorkerGone(id_, gone)

    def _begin(self, host: SimHost, order: WorkerOrder) -> None:
        host.claims[order.id] = (order.devices, None)
        self.begun[order.id] = self.begun.get(order.id, 0) + 1
        self.processes[order.id] = SimProcess(order, host.name, stubborn=self.chance.random() < 0.1)

    def _press(self, id_: str, *, kill: bool) -> None:
        if id_ in self.processes and kill:
            self.end(id_, EndEvidence(code=-9, told=True))
        elif id_ in self.processes:
            self.processes[id_].asked_to_leave = True

    def _check_told(self, host: SimHost) -> None:
        assert host.machine is not None
        for seen in host.machine.report:
            holds = seen.id in self.processes or seen.id in host.left
            assert not (seen.gone and holds), f"{seen.id} is told to be gone, and a process of it holds its device"

    # ---------------------------------------------------------------------------------------------------------- jobs

    def _total(self, name: str) -> int:
        return (20 + 13 * int(name[3:])) * (5 if self.roomy else 1)

    def _of(self, one: SimLife) -> list[str]:
        return [
            id_
            for id_, process in self.processes.items()
            if (process.order.job, process.order.life) == (one.job.name, one.life)
        ]

    def _size(self, one: SimLife) -> int:
        return sum(not self.processes[id_].boots for id_ in self._of(one)) if one.state else 0

    def _train(self, one: SimLife) -> None:
        mine = self._of(one)
        one.dead, one.begun = one.dead or (one.begun and not mine), one.begun or bool(mine)
        if mine and one.dead and one.state == "running":  # no worker is left that has the model's state
            one.state = "failed"
        for id_ in mine:
            process = self.processes[id_]
            self._boot(one, process)
            if one.state in {"finished", "preempted", "failed"}:
                codes = {"finished": 0, "preempted": PREEMPTED_CODE, "failed": 1}
                self.end(id_, EndEvidence(code=codes[one.state], tail=FOLLOWS if one.state == "failed" else ""))
            elif process.asked_to_leave and not process.stubborn and self.chance.random() < 0.5:
                self.end(id_, EndEvidence(code=0, told=True))
            elif not process.boots and one.job.name in self.faulty and self.now % 7 == 0:
                self.end(id_, EndEvidence(code=1, tail=BUG))
        size = self._size(one) if one.state else sum(not self.processes[id_].boots for id_ in self._of(one))
        if not one.state and size >= one.job.min_np:
            one.state = "running"
        if one.state == "running" and size >= one.job.min_np and one.leaves_in < 0:  # who is to go stands
            one.step += size
            if one.step % 10 < size:
                self.saved[one.job.name] = max(self.saved.get(one.job.name, 0), one.base + one.step)
            if one.base + one.step >= one.total:
                one.state = "finished"
        if one.state == "running" and one.leaves_in >= 0:
            one.leaves_in -= 1
            if one.leaves_in < 0:
                one.state = "preempted"
                self.saved[one.job.name] = one.base + one.step

    def _boot(self, one: SimLife, process: SimProcess) -> None:
        """Boot a process: the job's leader refuses a newcomer beyond the most workers that the job may have."""
        if process.boots == 1:
            there = [self.processes[id_] for id_ in self._of(one)]
            trains = sum(not other.boots and not other.asked_to_leave for other in there)
            assert trains < one.job.max_np, f"{process.order.id} is refused: {one.job.name} has {trains} workers"
        process.boots = max(0, process.boots - 1)

    def end(self, id_: str, evidence: EndEvidence) -> None:
        process = self.processes.pop(id_)
        host = self.hosts[process.node]
        if self.chance.random() < 0.1:
            host.left[id_], self.ends[id_] = self.now + self.chance.randint(1, LINGER_S), evidence
        else:
            host.claims[id_] = (host.claims[id_][0], evidence)

    # -------------------------------------------------------------------------------------------------------- checks

    def _check(self) -> None:
        held: dict[tuple[str, int], str] = {}
        lives: dict[str, int] = {}
        for host in self.hosts.values():
            for id_ in host.left:
                self._hold(held, id_, host.name, host.claims[id_][0])
        for id_, process in self.processes.items():
            devices, asked = process.order.devices, self.entries[process.order.job].asked
            assert len(set(devices)) == asked.processes, f"{id_} has devices {devices}"
            assert {*devices} <= {*self.hosts[process.node].devices}, f"{id_} has devices {devices} of {process.node}"
            self._hold(held, id_, process.node, devices)
            assert lives.setdefault(process.order.job, process.order.life) == process.order.life, "two lives at once"
        assert all(times == 1 for times in self.begun.values()), f"a worker was started twice: {self.begun}"
        for name, entry in self.entries.items():
            dying = [one.id for one in entry.workers if one.wish is WorkerWish.DIE]
            late = [id_ for id_ in dying if self.now - self.told_to_die.setdefault(id_, self.now) > PATIENCE_S]
            assert not late or self.now < FAULTS_S + 2 * PATIENCE_S, f"they were to die, and live: {late}"
            if entry.over:
                assert self.ended.setdefault(name, entry.phase) is entry.phase, f"{name} has changed after its end"

    def _hold(self, held: dict[tuple[str, int], str], id_: str, node: str, devices: tuple[int, ...]) -> None:
        for device in devices:
            place = (node, device)
            assert held.setdefault(place, id_) == id_, f"{held[place]} and {id_} on device {place} (I17)"

    def _at_rest(self) -> bool:
        if self.drain_at > -1:
            return not self.processes and all(not entry.workers for entry in self.entries.values())
        over = all(entry.over and not entry.workers for entry in self.entries.values())
        return over and not self.submissions and not self.processes

    def _check_end(self) -> None:
        stuck = [(name, entry.phase, entry.reason, entry.workers) for name, entry in self.entries.items()]
        assert self._at_rest(), f"not at rest after {self.now} s under {self.policy}: {stuck}"
        assert not self.submissions or self.drain_at > -1
        for name, entry in self.entries.items():
            if entry.phase is JobPhase.FAILED:
                assert entry.cause is not None, f"{name} has failed for no cause: {entry.reason}"
                own = name in self.faulty or len(entry.strikes) >= 2 or not entry.cause.retry
                assert own, f"{name} has failed, and nothing was wrong with it: {entry}"
            if entry.phase is JobPhase.FINISHED:
                assert entry.step >= 0
                done = self.trainings[name]
                assert done.base + done.step >= done.total, f"{name} is finished, and has not trained all"
