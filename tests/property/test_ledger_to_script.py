"""From the ledger to what scripts really compute on: whole jobs in lockstep, with joins, leaves, deaths and voids.

Here a sample counts as trained when a script had it in its hands in a mini-batch that was committed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from hypothesis import given, settings
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


class Worker:
    """A script, and the port of its process."""

    def __init__(self, job: Job, name: str, newcomer: bool) -> None:
        self.job, self.name, self.rehearsals = job, name, Rehearsals()
        self.leases, self.told = LeaseBuffer(), 0
        self.committed = 0
        self.shards = ShardGenerator(job.total, self, epochs=job.epochs, default_batch=job.batch, step_timeout_s=0)
        self.loop = self.script()
        for _ in range(job.chance.randint(1, 2) if newcomer else 0):
            self.rehearsals.add(1)
            assert len(next(self.loop)) == job.batch

    def script(self) -> Iterator[list[int]]:
        """One item per mini-batch, in as many passes as the job wants."""
        while True:
            passed = False
            for ids in self.batches():
                passed = True
                yield [int(i) for i in ids]
            if self.job.epochs is not None and not passed:
                return
            if self.job.epochs is None and self.shards.epochs_done >= self.job.passes:
                return

    def batches(self) -> Iterator[list[int]]:
        if not self.job.by_sample:
            yield from self.shards.batches(self.job.batch)
            return
        samples = iter(self.shards)
        while batch := list(islice(samples, self.job.batch)):
            yield batch

    def open(self, spec: DataSpec) -> None:
        self.leases.want(spec.epochs)
        self.job.open(spec)

    def begin_batch(self) -> None:
        """There is one state only."""

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        ledger = self.job.ledger
        assert ledger is not None
        ledger.grant(ledger.step + LEAD_TIMES)
        self.told += 1
        self.leases.adopt(share_of(ledger, self.name), (1, self.told))
        if self.leases.offers(max(step or 0, self.step())):
            return True
        assert self.leases.ends_before(self.step()), "it would have to wait here"
        assert ledger.exhausted
        assert self.committed == ledger.wanted_step
        return False

    def check_ended(self, step: int) -> None: ...
    def loaded(self, nanoseconds: int) -> None: ...

    def step(self) -> int:
        return self.committed + 1


class Job:
    """All workers, and what they trained."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.total, self.batch = chance.randint(1, 40), chance.randint(1, 4)
        self.by_sample = chance.random() < 0.5
        self.epochs = chance.choice([None, 1, 2, 3])
        self.passes = self.epochs or chance.randint(1, 3)
        self.ledger: Ledger | None = None
        self.trained: Counter[int] = Counter()
        self.names = iter(range(10**6))
        self.workers = [self.worker(newcomer=False) for _ in range(chance.randint(1, 4))]

    def worker(self, newcomer: bool) -> Worker:
        return Worker(self, f"w{next(self.names)}", newcomer)

    def open(self, spec: DataSpec) -> None:
        if self.ledger is None:
            self.ledger = new_ledger(spec, [worker.name for worker in self.workers])
        assert not spec.differences(self.ledger.spec)
        self.ledger.extend(spec.epochs)

    def run(self, faults: int) -> None:
        while batches := self.pull():
            in_final_step = self.by_sample and self.ledger.leases(self.workers[0].name)[0].final
            fault = self.chance.choice(["none", "void", "switch", "death"]) if faults else "none"
            faults -= fault != "none"
            if fault in {"void", "death"} and not in_final_step:  # by sample, that one cannot come again: see below
                self.void(death=fault == "death")
            else:
                self.commit(batches)
                if fault == "switch":
                    self.change(leave=self.chance.randint(0, 2), come=self.chance.randint(0, 2))

    def pull(self) -> list[list[int]]:
        """One mini-batch of each, or of none: all scripts end at the same step."""
        batches = [next(worker.loop, None) for worker in self.workers]
        assert len({batch is None for batch in batches}) == 1
        return [batch for batch in batches if batch is not None]

    def commit(self, batches: list[list[int]]) -> None:
        step = self.ledger.step + 1
        total = 0
        for worker, ids in zip(self.workers, batches, strict=True):
            share = worker.shards.share(step)
            assert share in {0, len(ids)}, "a batch counts as a whole or not at all"
            self.trained.update(ids[:share])
            total += share
            worker.committed = step
        assert self.ledger.totals()[0].samples == total
        self.ledger.commit(step)

    def void(self, death: bool) -> None:
        for worker in self.workers:
            assert worker.shards.redeliver()
        self.change(leave=int(death), come=0)

    def change(self, leave: int, come: int) -> None:
        # As long as something is left to train: afterwards no worker switches any more.
        if self.ledger.exhausted:
            return
        leave = min(leave, len(self.workers) - 1)
        self.workers = self.workers[leave:] + [self.worker(newcomer=True) for _ in range(come)]
        self.ledger.enter([worker.name for worker in self.workers], self.ledger.step)
        self.ledger.grant(self.ledger.step + LEAD_TIMES)
        for worker in self.workers:
            worker.rehearsals.end_all()
            worker.committed = self.ledger.step


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12))
def test_what_scripts_train_is_every_sample_once_per_epoch(seed, faults):
    job = Job(random.Random(seed))
    job.run(faults)
    assert job.trained == Counter(dict.fromkeys(range(job.total), job.passes))
    assert job.ledger.exhausted
