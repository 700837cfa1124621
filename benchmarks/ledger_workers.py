"""Simulated workers of `benchmarks/ledger.py`: the real conversation with the leader, and a clock instead of training.

Owns: hundreds of workers in one process. Each has its own real `LeaderSession` with a connection of its own, its own
`TrainerView` over a page, and takes its samples through `SharedLeases` and `Pass` as a trainer does. Not real:
the ring, the pipe between trainer and daemon, and ZooKeeper sessions, of which the workers of one process share one.

They train in step, each at a moment of its own within it, so that none is more than a step ahead of another.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import msgspec

from benchmarks.harness import lines, tell
from benchmarks.ledger_leader import ADDRESS, SetUp
from edl.coordination import zookeeper
from edl.core.job.lead_times import LONGEST_HOLD_S
from edl.daemon.leader_session import Candidacy, LeaderSession
from edl.daemon.trainer_view import TrainerView
from edl.protocol import node_paths
from edl.protocol.assignment import Orders
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import Observation, Phase, Register
from edl.protocol.record import Identity
from edl.protocol.trainer_messages import TrainerStatus
from edl.trainer.data.audit_files import Audit
from edl.trainer.data.epoch_cursor import Pass
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.data.sample_ids import SampleIds
from edl.trainer.data.shared_leases import SharedLeases
from edl.transport.shared_page import SharedPage

HOSTS = 125  # of 8 workers each, where there are a thousand
RETRY_S = 0.01
TICK_S = 0.005
TOGETHER = 50  # register at a time
LINGER_S = LONGEST_HOLD_S + 1.0  # after the last step: a grant may be on its way


class SeenObserver(TrainerView):
    """Notes when each step was first told of."""

    def __init__(self, page: SharedPage) -> None:
        super().__init__(page)
        self.told: dict[int, float] = {}

    def observe(self, now: float) -> Observation:
        observation = super().observe(now)
        self.told.setdefault(observation.step, time.monotonic())
        return observation


class Worker:
    """One worker: its daemon's tongue, and a script that asks for a batch each step."""

    def __init__(self, number: int, about: SetUp, store: zookeeper.ZookeeperStore) -> None:
        self.id = f"w{number:08x}"
        self.spec = DataSpec(about.total, 3, about.batch, shuffle=True, seed=7)
        self.page = SharedPage.unshared()
        self.observer = SeenObserver(self.page)
        self.leases = SharedLeases()
        self.grants: list[tuple[int, float]] = []  # version of the orders that brought leases, and when they were here
        self.waits = 0  # times that a batch was asked for and its lease was not here
        self.waited_s = 0.0
        self.least_ahead: int | None = None  # steps between the one asked for and the last that is leased
        self.late_s = 0.0
        self.rehearsals = Rehearsals()
        self._number = 0  # of the newest lease
        self._generation = 0
        self._waiting_since: float | None = None
        self._pass = Pass(self.spec, self, SampleIds(), Audit(), one_epoch=False)
        identity = Identity(self.id, f"host-{number % HOSTS:03d}", ADDRESS, 10_000 + number, 20_000 + number)
        register = Register(identity, about.workers, 1, 0)
        candidacy = Candidacy(about.job, about.secret.encode(), register, about.session_timeout_s)
        self.membership = LeaderSession(candidacy, store, self.observer, self._hear)

    @property
    def holds(self) -> bool:
        """Its first lease is here."""
        return self._number > 0

    # ------------------------------------------------------------------------------------------ the daemon's ear

    def _hear(self, orders: Orders) -> None:
        assignment = orders.assignment
        if assignment is not None and assignment.place.generation > self.observer.status.generation:
            self._generation = assignment.place.generation
            self.open(self.spec)
        for share in orders.shares:
            if share.generation == self.observer.status.generation:
                self.leases.adopt(share, (orders.term, orders.version))
                newest = max((lease.number for lease in share.leases), default=0)
                if newest > self._number:
                    self._number = newest
                    self.covered_step = share.covered_step
                    self.grants.append((orders.version, time.monotonic()))

    # ------------------------------------------------------------------- what a pass asks of its job (`DataPort`)

    def open(self, spec: DataSpec) -> None:
        self.leases.want(spec.epochs)
        generation = self._generation
        phase = Phase.TRAINING if generation else Phase.REHEARSING
        self.observer.hear(TrainerStatus(phase=phase, generation=generation, began=0, leases_of=generation, data=spec))
        self.membership.stir()

    def begin_batch(self) -> None:
        """There is one state only."""

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        assert not wait
        self.leases.forget_before(self.page.step)
        return self.leases.offers(step or self.step())

    def check_ended(self, step: int) -> None:
        """Each mini-batch is ended."""

    def loaded(self, nanoseconds: int) -> None:
        """Nothing is read here."""

    def step(self) -> int:
        return self.page.step + 1

    # ------------------------------------------------------------------------------------------------ the script

    def train(self, due: float) -> float | None:
        """One step that was due at `due`: ask for its batch, and commit it. Not None: ask again then."""
        now = time.monotonic()
        ahead = self.covered_step - self.step()
        self.least_ahead = ahead if self.least_ahead is None else min(ahead, self.least_ahead)
        if self._pass.next(wait=False) is None:
            self.waits += self._waiting_since is None
            self._waiting_since = self._waiting_since or now
            return now + RETRY_S
        if self._waiting_since is not None:
            self.waited_s += now - self._waiting_since
            self._waiting_since = None
        self._pass.rest()
        self.late_s = max(self.late_s, now - due)
        self.page.count().step += 1
        return None


class Crowd:
    """All workers of this process."""

    def __init__(self, about: SetUp, store: zookeeper.ZookeeperStore) -> None:
        self._about, self._store = about, store
        self.workers = [Worker(number, about, store) for number in range(about.first, about.last)]
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        """Register, sit in the ring, have leases."""
        for at in range(0, len(self.workers), TOGETHER):
            group = self.workers[at : at + TOGETHER]
            paths = [node_paths.worker(self._about.job, worker.id) for worker in group]
            await asyncio.gather(*(self._store.create(path, b"", ephemeral=True) for path in paths))
            self._tasks += [asyncio.create_task(worker.membership.run(), name=worker.id) for worker in group]
            await asyncio.sleep(0.02)
        while not all(worker.holds for worker in self.workers):
            self.check()
            await asyncio.sleep(0.05)

    def check(self) -> None:
        """No call was turned away."""
        for task in self._tasks:
            if task.done():
                task.result()
                raise RuntimeError(f"{task.get_name()} ended")

    async def train(self, start: float, until: float) -> None:
        """Steps of `1 / steps_per_s`, every worker at its own moment of each, from `start` on."""
        step_s = 1 / self._about.steps_per_s
        workers = self._about.workers
        moments = [step_s * (self._about.first + i) / workers for i in range(len(self.workers))]
        due = [start + moment for moment in moments]
        again = list(due)
        while (now := time.monotonic()) < until:
            for i, worker in enumerate(self.workers):
                if again[i] <= now:
                    later = worker.train(due[i])
                    due[i] = due[i] if later is not None else due[i] + step_s
                    again[i] = due[i] if later is None else later
                    await asyncio.sleep(0)  # a worker's own training would not keep the daemons of others from hearing
            self.check()
            await asyncio.sleep(TICK_S)

    def report(self) -> None:
        tell(
            "workers",
            steps=sum(worker.page.step for worker in self.workers),
            least_step=min(worker.page.step for worker in self.workers),
            waits=sum(worker.waits for worker in self.workers),
            waited_s=sum(worker.waited_s for worker in self.workers),
            least_ahead=min(worker.least_ahead for worker in self.workers if worker.least_ahead is not None),
            late_s=max(worker.late_s for worker in self.workers),
            grants={worker.id: worker.grants for worker in self.workers},
            told={worker.id: worker.observer.told for worker in self.workers},
        )


async def main() -> int:
    commands = lines(sys.stdin)
    about = msgspec.json.decode(await anext(commands), type=SetUp)
    store = await zookeeper.connect(about.coordinator(), 30.0, connect_timeout_s=30.0)
    crowd = Crowd(about, store)
    os.nice(5)  # a leader does not share its cores with the training of all others
    await crowd.join()
    tell("holding")
    start, until = map(float, (await anext(commands)).split())
    cpu_s, began = time.process_time(), time.monotonic()
    await crowd.train(start, until)
    tell("spent", cores=(time.process_time() - cpu_s) / (time.monotonic() - began))
    await asyncio.sleep(LINGER_S)
    crowd.report()
    await anext(commands)  # until all have reported
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
