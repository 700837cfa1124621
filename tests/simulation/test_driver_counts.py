"""Counts by horovodrun, with a driver that goes by Horovod's rules, and all else coming late, twice, or not at all.

The driver below is Horovod's `ElasticDriver` and `WorkerStateRegistry` without threads: a barrier of as many parties as
it has workers, at which a worker that asks twice is counted twice, and an end that depends on who has ended how.
`tests/integration/test_horovodrun_driver.py` holds the real one to the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest

from edl.core.driver import horovod_counts
from edl.core.job.leader_machine import new_record
from edl.core.job.observations import Observations
from edl.horovodrun.proxy_machine import Freed, JobAtEnd, ProxyMachine, StartTrainer, TrainerEnded
from edl.protocol.leader_messages import Observation, Phase, Word
from edl.protocol.record import DriverCount, Identity, Member, WorkerState, changed

SEEDS = 400
ANSWERS_TURNS, ENDING_TURNS, EMPTY_TURNS = 8, 16, 24
HOSTS = ("a", "b", "c")


class Driver:
    """Horovod's."""

    def __init__(self, discovered: dict[str, int]) -> None:
        self.discovered = discovered
        self.given_up: set[str] = set()
        self.slots: set[str] = set()
        self.states: dict[str, str] = {}
        self.waiting: list[tuple[str, StandIn | None]] = []
        self.ended: bool | None = None  # well or not
        self.started: list[str] = []
        self.doubled = False
        self._assign()

    def _room(self) -> dict[str, int]:
        return {host: slots for host, slots in self.discovered.items() if host not in self.given_up}

    def _assign(self) -> None:
        before, room = self.slots, self._room()
        self.slots = {f"{host}:{number}" for host, slots in room.items() for number in range(slots)}
        self.started += sorted(self.slots - before)
        self.states.clear()

    @property
    def wants(self) -> bool:
        """Its hosts are not those of its last count."""
        return self.slots != {f"{host}:{n}" for host, slots in self._room().items() for n in range(slots)}

    def ask(self, one: StandIn) -> None:
        if horovod_counts.host_of(one.slot) in self.given_up:
            one.answer(freed=True, size=-1, slots=-1)
            return
        self._record(one.slot, "ready", one)

    def end(self, slot: str, state: str) -> None:
        if self.ended is None and slot in self.slots and horovod_counts.host_of(slot) not in self.given_up:
            if state == "failure" and slot in self.states:
                self.waiting = [waits for waits in self.waiting if waits[0] != slot]
            self._record(slot, state, None)

    def _record(self, slot: str, state: str, one: StandIn | None) -> None:
        if slot not in self.states or state == "failure":
            self.states[slot] = state
        else:
            self.doubled = True
        self.waiting.append((slot, one))
        if len(self.waiting) == len(self.slots):
            self._count()

    def _count(self) -> None:
        waiting, self.waiting = self.waiting, []
        states = dict(self.states)
        self.given_up |= {horovod_counts.host_of(slot) for slot, state in states.items() if state == "failure"}
        if "success" in states.values():
            self.ended = all(state != "failure" for state in states.values())
        elif all(horovod_counts.host_of(slot) in self.given_up for slot in states):
            self.ended = False
        else:
            self._assign()
        for slot, one in waiting:
            if one is not None and one.alive:
                one.answer(freed=slot not in self.slots, size=len(self.slots), slots=self._slots_beside(slot))

    def _slots_beside(self, slot: str) -> int:
        return sum(horovod_counts.host_of(other) == horovod_counts.host_of(slot) for other in self.slots)


@dataclass
class StandIn:
    """One slot's process; `worker` once its trainer has registered."""

    slot: str
    post: ProxyMachine
    alive: bool = True
    asked: int = 0
    asking: bool = False
    word: Word = field(default_factory=Word)
    worker: str = ""
    boots: bool = True

    def answer(self, *, freed: bool, size: int, slots: int) -> None:
        self.asking = False
        self.word = msgspec.structs.replace(self.word, answered=self.asked, freed=freed, size=size, slots=slots)
        if freed:
            self.post.handle(Freed(), 0.0)

    def ask(self, number: int, driver: Driver) -> None:
        if number <= self.asked or self.word.freed:
            return
        assert number == self.asked + 1, "the driver has counted without it, and none was cut off"
        self.asked = number
        if not self.asking:
            self.asking = True
            driver.ask(self)


class World:
    """A job without rings and data: workers come, train, crash, and leave as soon as they are told to."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.driver = Driver({"a": 2, "b": self.dice.randint(1, 2)})
        self.record = changed(new_record("j", 0.0), driver=DriverCount(), target=len(self.driver.slots))
        self.seen = Observations()
        self.stand_ins: list[StandIn] = []
        self.number, self.clock = 0, 0.0
        self.answered, self.calm, self.empty = 0, 0, 0
        self.over = False
        self.told = False  # the driver's notice, to a worker that lives
        self.start_all()

    @property
    def count(self) -> DriverCount:
        assert self.record.sizing.driver is not None
        return self.record.sizing.driver

    # ------------------------------------------------------------------------------------------------- what happens

    def start_all(self) -> None:
        for slot in self.driver.started:
            there = max((one.asked for one in self.here()), default=0)  # in the driver's store
            beside = sum(horovod_counts.host_of(other) == horovod_counts.host_of(slot) for other in self.driver.slots)
            word = Word(size=len(self.driver.slots), slots=beside)
            self.stand_ins.append(StandIn(slot, ProxyMachine(restarts=100), asked=there, word=word))
        self.driver.started.clear()

    def register(self, one: StandIn) -> None:
        self.number += 1
        one.worker, one.boots = f"w{self.number}", False
        identity = Identity(one.worker, "h", "10.0.0.1", 1, 2, one.slot)
        member = Member(identity, WorkerState.TRAINING, self.number)
        driver = horovod_counts.joined(self.record, self.seen, identity)
        self.change(members=(*self.record.members, member), driver=driver)

    def report(self, one: StandIn) -> None:
        if any(member.identity.id == one.worker for member in self.record.members):
            self.seen.take(one.worker, observation(one.word), 0.0)

    def forget(self, worker: str, *, missed: bool = False) -> None:
        gone = next((member for member in self.record.members if member.identity.id == worker), None)
        if gone is None:
            return
        driver = horovod_counts.lost(self.record.sizing.driver, gone.identity) if missed else self.record.sizing.driver
        self.calm = 0
        self.change(members=tuple(m for m in self.record.members if m is not gone), driver=driver)
        self.seen.forget(worker)

    def crash(self, one: StandIn) -> None:
        self.forget(one.worker)
        one.worker, one.boots = "", False
        one.post.handle(TrainerEnded(-9), 0.0)

    def kill_host(self, host: str) -> None:
        """All that ran there is gone at once; the driver hears of it now, the leader by and by."""
        for one in [one for one in self.here() if horovod_counts.host_of(one.slot) == host]:
            one.alive = False
            self.driver.end(one.slot, "failure")

    def fail_to_start(self, slot: str) -> None:
        """Its process ends before it is a worker: only the driver hears of that."""
        one = next(one for one in self.here() if one.slot == slot)
        one.alive = False
        self.driver.end(slot, "failure")

    def lead(self) -> None:
        """A turn of the leader's."""
        for member in self.record.members:
            if not any(one.worker == member.identity.id for one in self.here()):
                self.forget(member.identity.id, missed=True)
        self.calm += 1
        self.answered = self.answered + 1 if horovod_counts.has_answers(self.record, self.seen) else 0
        self.empty = self.empty + 1 if horovod_counts.has_empty_slots(self.record, self.seen) else 0
        match horovod_counts.follows(
            self.record,
            self.seen,
            overdue=self.answered > ANSWERS_TURNS,
            settled=self.calm > ENDING_TURNS,
            deserted=self.empty > EMPTY_TURNS,
        ):
            case horovod_counts.Begin(driver):
                self.empty = 0
                self.change(driver=driver)
            case horovod_counts.Counted(driver, size, freed, target):
                self.change(driver=driver, target=target)
                assert size or not self.record.members
                self.dismiss(freed)
            case horovod_counts.Dismiss(workers):
                self.dismiss(workers)
            case None:
                pass

    def dismiss(self, workers: tuple[str, ...]) -> None:
        for one in self.here():
            if one.worker in workers:  # it leaves
                self.forget(one.worker)
                one.worker = ""
                one.post.handle(TrainerEnded(0), 0.0)

    def change(self, **changes: object) -> None:
        self.record = changed(self.record, **changes)

    def order(self, one: StandIn) -> None:
        here = any(member.identity.id == one.worker for member in self.record.members)
        if here and (number := horovod_counts.asked_of(self.record.sizing.driver, one.worker)):
            one.ask(number, self.driver)

    def look(self, one: StandIn) -> None:
        """Of a stand-in whose trainer has ended."""
        if not one.post.looks:
            return
        if not one.word.freed:
            one.ask(self.count.begun, self.driver)
        for command in one.post.handle(JobAtEnd(self.over, self.over), 0.0):
            if isinstance(command, StartTrainer):
                one.boots = True

    def reap(self, one: StandIn) -> None:
        if one.post.status is not None and not one.asking:
            one.alive = False
            self.driver.end(one.slot, "success" if one.post.status == 0 else "failure")

    def here(self) -> list[StandIn]:
        return [one for one in self.stand_ins if one.alive]

    # -------------------------------------------------------------------------------------------------------- a day

    def turn(self, *, faults: bool) -> None:
        for one in self.dice.sample(self.here(), len(self.here())):
            if faults and self.dice.random() < 0.4:
                continue  # it comes late
            if one.boots and (not faults or self.dice.random() < 0.3):
                self.register(one)
            if one.worker:
                self.order(one)
                self.report(one)
            self.look(one)
            self.reap(one)
        if not faults or self.dice.random() < 0.6:
            self.lead()
        self.notice()
        self.start_all()
        assert not self.driver.doubled, "a worker was counted twice"

    def notice(self) -> None:
        """To one worker, once for each change."""
        if (
            self.driver.wants
            and not self.told
            and (one := next((o for o in self.here() if o.worker and not o.word.freed), None))
        ):
            self.clock += 1
            one.word = msgspec.structs.replace(one.word, noticed=self.clock)
            self.told = True
        self.told = self.told and self.driver.wants

    def fault(self) -> None:
        chance = self.dice.random()
        living = [one for one in self.here() if one.worker]
        if chance < 0.35:
            self.driver.discovered = {"a": self.dice.randint(1, 3)} | {
                host: self.dice.randint(1, 2) for host in HOSTS[1:] if self.dice.random() < 0.6
            }
            self.told = False
        elif chance < 0.6 and living:
            self.crash(self.dice.choice(living))
        elif chance < 0.75:
            self.seen, self.calm = Observations(), 0  # another leader: all is told again
        elif chance < 0.85:
            hosts = {horovod_counts.host_of(one.slot) for one in self.here() if one.worker} - {"a"}
            if hosts and any(horovod_counts.host_of(one.slot) == "a" and one.worker for one in self.here()):
                self.kill_host(self.dice.choice(sorted(hosts)))
        else:
            begun = {horovod_counts.host_of(one.slot) for one in self.here() if not one.boots}
            fresh = [one.slot for one in self.here() if one.boots and not one.worker and one.asked == self.count.begun]
            if slots := [slot for slot in fresh if horovod_counts.host_of(slot) not in {"a", *begun}]:
                self.fail_to_start(self.dice.choice(slots))

    def settle(self) -> None:
        for _ in range(100):
            self.turn(faults=False)

    def finish(self) -> None:
        """All scripts end, one after the other, and then the job is over."""
        for one in self.here():
            if one.worker:
                self.change(members=tuple(
                    msgspec.structs.replace(m, state=WorkerState.DONE) if m.identity.id == one.worker else m
                    for m in self.record.members
                ))  # fmt: skip
                one.worker = ""
                one.post.handle(TrainerEnded(0), 0.0)
            if self.dice.random() < 0.3:
                for other in self.here():
                    self.look(other)
        self.over = True
        for _ in range(10):
            for one in self.here():
                self.look(one)
                self.reap(one)


def observation(word: Word) -> Observation:
    return Observation(phase=Phase.TRAINING, generation=1, step=0, leases_of=1, driver=word)


@pytest.mark.parametrize("batch", range(4))
def test_the_job_has_what_the_driver_counts_and_ends_well(batch: int) -> None:
    for seed in range(batch * SEEDS // 4, (batch + 1) * SEEDS // 4):
        world = World(seed)
        world.settle()
        for _ in range(world.dice.randint(1, 8)):
            if world.dice.random() < 0.5:
                world.fault()
            for _ in range(world.dice.randint(1, 6)):
                world.turn(faults=True)
            assert world.driver.ended is None, f"seed {seed}: the driver has ended the job"
        world.settle()
        check(world, seed)
        world.finish()
        assert world.driver.ended is True, f"seed {seed}: {world.driver.ended}, {world.driver.states}, {world.record}"


def check(world: World, seed: int) -> None:
    slots = sorted(one.slot for one in world.here() if one.worker)
    assert world.driver.ended is None, f"seed {seed}"
    assert slots == sorted(world.driver.slots), f"seed {seed}: {slots}, {world.driver.__dict__}, {world.record}"
    assert not world.driver.wants, f"seed {seed}: {world.driver.__dict__}, {world.record}"
    assert world.record.target == len(slots), f"seed {seed}: {slots}, {world.record}"
    assert not set(world.count.given_up) & {horovod_counts.host_of(slot) for slot in slots}, f"seed {seed}"
