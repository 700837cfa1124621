"""Scripts that leave their passes by `break`: all workers make the same passes, whatever their pace.

Each worker of a job goes on by itself from one mini-batch to the next, hears of leases when it asks for them or at some
other moment, and may be ahead of the others there by passes that it leaves, begins, and leaves again. Between two
mini-batches workers come, leave and die.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from hypothesis import example, given, settings
from hypothesis import strategies as st

from edl.core.data.ledgers import new_ledger
from edl.core.data.sample_ledger import Ledger
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.protocol.data_nouns import DataSpec
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.data.shards import ShardGenerator
from examples import examples
from tests.model.one_worker_data import share_of

LEAD_TIMES = 5


@dataclass
class Rule:
    """When a script leaves its pass."""

    registered: bool  # it counts in what travels to newcomers; else in a variable of its own
    steps: int


@dataclass
class Wants:
    """What a script trains, and how."""

    total: int
    batch: int
    epochs: int
    by_sample: bool
    rule: Rule


class Worker:
    """A script, and the port of its process."""

    def __init__(self, job: Job, name: str, rehearsals: int = 0) -> None:
        self.job, self.name, self.rehearsals = job, name, Rehearsals()
        self.leases, self.told = LeaseBuffer(), 0
        self.committed = 0
        self.came_after = 0
        self.counts = False  # what its `edl.notify_batch_end()` returns
        self.made = 0  # registered
        self.passes: list[tuple[int, int]] = []  # after which steps it has left them, with how many epochs done
        self.rehearsals.add(rehearsals)
        self.shards = ShardGenerator(job.wants.total, self, default_batch=job.wants.batch, step_timeout_s=0)
        self.loop = self.script()
        self.batch: list[int] | None = None

    def script(self) -> Iterator[list[int]]:
        """One item per mini-batch."""
        while self.shards.epochs_done < self.job.wants.epochs:
            rule, own = self.job.wants.rule, 0
            for ids in self.batches():
                self.made += 1
                yield [int(i) for i in ids]
                own += self.counts
                if (self.made if rule.registered else own) == rule.steps:
                    break
            self.made = 0
            if not self.rehearsals.left:
                self.passes.append((self.committed, self.shards.epochs_done))

    def batches(self) -> Iterator[list[int]]:
        if not self.job.wants.by_sample:
            yield from self.shards.batches(self.job.wants.batch)
            return
        samples = iter(self.shards)
        while batch := list(islice(samples, self.job.wants.batch)):
            yield batch

    def open(self, spec: DataSpec) -> None:
        self.leases.want(spec.epochs, by_sample=spec.by_sample)
        self.job.open(spec)

    def begin_batch(self) -> None:
        """There is one state only."""

    def hear(self) -> None:
        """What a leader would tell it now."""
        self.told += 1
        assert self.job.ledger is not None
        self.leases.adopt(share_of(self.job.ledger, self.name), (1, self.told))

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        assert self.job.ledger is not None
        self.job.ledger.grant(self.job.ledger.step + LEAD_TIMES)
        self.hear()
        while not self.leases.offers(max(step or 0, self.step())):
            if self.leases.ends_before(self.step()):
                return False
            assert self.is_new_here and self.job.waiting, "it would have to wait here"
            self.job.pull_one()
            self.hear()
        return True

    @property
    def is_new_here(self) -> bool:
        """It has trained nothing yet, so whether the others' pass is over it knows by what they do next."""
        return self.leases.at(self.committed) is None

    def check_ended(self, step: int) -> None: ...
    def loaded(self, nanoseconds: int) -> None: ...

    def step(self) -> int:
        return self.committed + 1


@dataclass
class Job:
    """All workers, and what they trained."""

    wants: Wants
    chance: random.Random
    workers: list[Worker] = field(default_factory=list)
    ledger: Ledger | None = None
    waiting: list[Worker] = field(default_factory=list)  # whose next mini-batch is not asked for yet
    trained: Counter[int] = field(default_factory=Counter)
    names: Iterator[int] = field(default_factory=count)

    def begin(self, size: int) -> None:
        self.workers = [Worker(self, f"w{next(self.names)}") for _ in range(size)]

    def open(self, spec: DataSpec) -> None:
        if self.ledger is None:
            self.ledger = new_ledger(spec, [worker.name for worker in self.workers])
        assert not spec.differences(self.ledger.spec)
        self.ledger.extend(spec.epochs)

    def run(self, faults: int) -> None:
        while self.pull():
            assert self.ledger is not None
            lease = self.ledger.leases(self.workers[0].name)[0]
            in_final_step = self.wants.by_sample and lease.final and lease.epoch + 1 == self.wants.epochs
            fault = self.chance.choice(["none", "void", "switch", "death"]) if faults else "none"
            faults -= fault != "none"
            if (
                fault in {"void", "death"} and not in_final_step
            ):  # by sample, what comes back then is not trained any more
                for worker in self.workers:
                    assert worker.shards.redeliver()
                    worker.counts, worker.made = False, worker.made - 1
                self.change(leave=int(fault == "death"), come=self.chance.randint(0, 1), at_end=False)
                continue
            self.commit()
            if fault == "switch":
                self.change(leave=self.chance.randint(0, 1), come=self.chance.randint(0, 2), at_end=True)

    def pull(self) -> bool:
        """To the next mini-batch of each, in any order: how far one is, no other one knows."""
        self.waiting = list(self.workers)
        self.chance.shuffle(self.waiting)
        while self.waiting:
            self.pull_one()
        ended = {worker.batch is None for worker in self.workers}
        assert len(ended) == 1, "all scripts end after the same step"
        return not ended.pop()

    def pull_one(self) -> None:
        worker = self.waiting.pop(0)
        worker.batch = next(worker.loop, None)
        for other in self.workers:
            if self.ledger is not None and self.chance.random() < 0.3:  # news come at any time
                other.hear()

    def commit(self) -> None:
        assert self.ledger is not None
        step = self.ledger.step + 1
        for worker in self.workers:
            assert worker.batch is not None
            share = worker.shards.share(step)
            assert share in {0, len(worker.batch)}
            self.trained.update(worker.batch[:share])
        self.ledger.commit(step)
        for worker in self.workers:
            worker.committed, worker.counts = step, True

    def change(self, leave: int, come: int, *, at_end: bool) -> None:
        ledger = self.ledger
        assert ledger is not None
        if ledger.exhausted:
            return
        stay = self.workers[min(leave, len(self.workers) - 1) :]
        step, so_far = ledger.step, stay[0].shards.so_far(ledger.step)
        assert {worker.shards.so_far(step).steps for worker in stay} == {so_far.steps}
        last = stay[0].leases.at(step)
        epoch = last.epoch if at_end and last is not None and so_far.steps else None
        known = self.wants.rule.registered or so_far.until_steps > 0
        newcomers = [self.newcomer() for _ in range(come if known else 0)]
        ledger.enter([worker.name for worker in (*stay, *newcomers)], step)
        ledger.grant(step + LEAD_TIMES)
        for worker in newcomers:
            worker.shards.join(step, epoch, so_far)
            worker.rehearsals.end_all()
            worker.committed = worker.came_after = step
            worker.made = stay[0].made
        self.workers = [*stay, *newcomers]
        for worker in self.workers:
            worker.hear()

    def newcomer(self) -> Worker:
        worker = Worker(self, f"w{next(self.names)}", self.chance.randint(1, 2))
        while True:
            worker.batch = next(worker.loop)
            if worker.rehearsals.left == 1:
                return worker
            worker.rehearsals.end_one()


rules = st.builds(Rule, st.booleans(), st.integers(1, 5))
wants = st.builds(Wants, st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.booleans(), rules)


@settings(max_examples=examples(200), deadline=None)
@given(wants, st.integers(1, 4), st.integers(0, 8), st.integers(0, 2**32))
@example(Wants(21, 2, 3, True, Rule(True, 2)), 2, 8, 14848795)  # two last steps that are void, each after one step
def test_all_workers_make_the_same_passes(wants: Wants, size: int, faults: int, seed: int) -> None:
    job = Job(wants, random.Random(seed))
    job.begin(size)
    job.run(faults)
    assert job.trained == Counter(dict.fromkeys(range(wants.total), wants.epochs))
    assert job.ledger is not None
    assert job.ledger.exhausted
    for worker in job.workers:
        others = max(job.workers, key=lambda one: len(one.passes)).passes
        assert worker.passes == [one for one in others if one[0] >= worker.came_after][-len(worker.passes) :]
