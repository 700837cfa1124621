"""The audit of random jobs: whatever is killed wherever, it says what the job knows; and it finds what is planted.

The jobs are made of a real ledger and of workers that only write lines. They know the truth, as they make it: which
steps were kept. The lines leave it to be found out, as victims cannot write their last one, or write one too many.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edl.core.audit.kept_steps import WorkerAudit
from edl.core.audit.sample_account import account
from edl.core.data.ledgers import new_ledger
from edl.core.data.permutation import samples_at
from edl.protocol.audit_lines import BatchGiven, Committed, DataEnded, DataOpened, Line, Sat, decoded, encoded
from edl.protocol.data_nouns import DataSpec, Range
from examples import examples

LEAD_TIMES = 5


class Job:
    """Workers in lockstep, and what they wrote."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.spec = DataSpec(
            total=chance.randint(1, 40),
            epochs=chance.randint(1, 3),
            batch=chance.randint(1, 4),
            shuffle=chance.random() < 0.7,
            seed=chance.randint(0, 9),
            whole_epochs=chance.random() < 0.7,
        )
        self.lines: dict[str, list[Line]] = {}
        self.trained: Counter[tuple[int, int]] = Counter()  # epoch, sample
        self.kept: set[tuple[str, int]] = set()  # who took part in which step that counts
        self.void: set[tuple[str, int]] = set()  # who tried which in vain, and was lost with it
        self.generation = 0
        self.step = 0
        roster = [self.newcomer() for _ in range(chance.randint(1, 4))]
        self.ledger = new_ledger(self.spec, roster)
        self.begin(roster, 0)

    def newcomer(self) -> str:
        name = f"w{len(self.lines)}"
        self.lines[name] = [DataOpened(self.spec)]
        return name

    def begin(self, roster: list[str], step: int) -> None:
        self.step = step
        self.roster = roster
        self.ledger.enter(roster, step)
        self.sit(roster, roster, step)

    def sit(self, members: list[str], present: list[str], step: int) -> None:
        """`present`: those who come to write that their ring stands."""
        self.generation += 1
        for worker in present:
            self.lines[worker].append(Sat(self.generation, step, members.index(worker), len(members)))

    def run(self, faults: int, steps: int) -> None:
        while steps and not self.ledger.exhausted:
            self.ledger.grant(self.step + LEAD_TIMES)
            self.hand_out()
            fault = self.chance.choice(["none", "none", "switch", "death"]) if faults else "none"
            faults -= fault != "none"
            if fault == "death" and len(self.roster) > 1:
                self.die()
            else:
                self.commit()
                if fault == "switch":
                    self.switch()
            steps -= 1
        if self.ledger.exhausted:
            for worker in self.roster:
                self.lines[worker].append(DataEnded(self.spec.epochs, self.step))

    def hand_out(self) -> None:
        """The step that comes, and for some workers those after it."""
        for worker in self.roster:
            for step in range(self.step + 1, self.step + 2 + self.chance.choice([0, 0, 1, 2])):
                lease = next((x for x in self.ledger.leases(worker) if x.after_step < step <= x.until_step), None)
                if lease is not None:
                    pieces = lease.between(step - 1, step)
                    self.lines[worker].append(BatchGiven(step, lease.epoch, pieces, check_of(self.spec, pieces)))

    def keep(self) -> None:
        """The coming step is part of the job: the samples of all are trained."""
        for worker in self.roster:
            self.kept.add((worker, self.step + 1))
            for lease in self.ledger.leases(worker):
                for piece in lease.between(self.step, self.step + 1):
                    self.trained.update((piece.epoch, int(i)) for i in samples_at(self.spec, piece))

    def commit(self) -> None:
        self.keep()
        self.step += 1
        self.ledger.commit(self.step)
        for worker in self.roster:
            self.lines[worker].append(Committed(self.generation, self.step))

    def switch(self) -> None:
        staying = self.chance.sample(self.roster, self.chance.randint(1, len(self.roster)))
        self.begin(staying + [self.newcomer() for _ in range(self.chance.randint(0, 2))], self.step)

    def die(self) -> None:
        """In the middle of a step, which some have applied and others not; then perhaps again, as the ring forms."""
        survivors = self.chance.sample(self.roster, self.chance.randint(1, len(self.roster) - 1))
        applied = set(self.chance.sample(self.roster, self.chance.randint(0, len(self.roster))))
        tried, step = self.roster, self.step + 1
        for worker in applied:
            if worker in survivors or self.chance.random() < 0.5:
                self.lines[worker].append(Committed(self.generation, step))
        while len(survivors) > 1 and self.chance.random() < 0.4:
            applied, survivors = self.die_again(applied, survivors, step)
        if kept := bool(applied & set(survivors)):
            self.keep()
        else:
            self.void.update((worker, step) for worker in tried if worker not in survivors)
        self.begin(survivors + [self.newcomer() for _ in range(self.chance.randint(0, 1))], step - (not kept))

    def die_again(self, applied: set[str], members: list[str], step: int) -> tuple[set[str], list[str]]:
        """A ring forms, some get the newest state and sit down, then one or more of its members are lost."""
        newest = bool(applied & set(members))
        present = self.chance.sample(members, self.chance.randint(0, len(members)))
        self.sit(members, present, step if newest else step - 1)
        applied = applied | set(present) if newest else applied
        return applied, self.chance.sample(members, self.chance.randint(1, len(members) - 1))

    def audits(self) -> list[WorkerAudit]:
        files = {name: b"".join(encoded(line) for line in lines) for name, lines in self.lines.items()}
        return [WorkerAudit(name, "j", decoded(data + b'["given",')) for name, data in files.items()]


def check_of(spec: DataSpec, pieces: tuple[Range, ...]) -> int:
    return zlib.crc32(b"".join(samples_at(spec, piece).astype("<i8").tobytes() for piece in pieces))


def a_job(seed: int, faults: int, steps: int) -> Job:
    job = Job(random.Random(seed))
    job.run(faults, steps)
    return job


jobs = st.builds(a_job, st.integers(0, 10**9), st.integers(0, 6), st.just(10**6))
hard_hit = st.builds(a_job, st.integers(0, 10**9), st.integers(5, 9), st.just(10**6))
broken_off = st.builds(a_job, st.integers(0, 10**9), st.integers(0, 6), st.integers(0, 30))


@settings(max_examples=examples(150), deadline=None)
@given(jobs)
def test_a_job_that_went_well_is_clean_however_many_were_killed(job: Job) -> None:
    found = account(job.audits())
    assert found.clean
    assert [(epoch.over, epoch.trained) for epoch in found.epochs] == [(True, job.spec.total)] * job.spec.epochs
    assert found.steps == job.step


@settings(max_examples=examples(150), deadline=None)
@given(broken_off)
def test_a_job_that_goes_on_has_trained_what_it_kept_so_far(job: Job) -> None:
    found = account(job.audits())
    assert not found.wrong
    assert max(job.trained.values(), default=0) <= 1
    for epoch in found.epochs:
        assert epoch.trained == sum(epoch.epoch == number for number, _ in job.trained)
        assert epoch.repeated == 0


def naive(audits: list[WorkerAudit], spec: DataSpec) -> Counter[tuple[int, int]]:
    """How often each sample was trained, one step of one worker at a time."""
    said = [(audit.worker, line) for audit in audits for line in audit.lines]
    began = {line.generation: line.step for _, line in said if isinstance(line, Sat)}
    members = {(line.generation, worker) for worker, line in said if isinstance(line, Sat)}
    applied = {(line.generation, line.step) for _, line in said if isinstance(line, Committed)}
    held: dict[tuple[str, int], BatchGiven] = {}
    for worker, line in said:
        if isinstance(line, BatchGiven):
            held[worker, line.step] = line
    trained: Counter[tuple[int, int]] = Counter()
    for (worker, step), line in held.items():
        for generation, first in began.items():
            kept = (generation, worker) in members and first < step
            kept = kept and all(began[later] >= step for later in began if later > generation)
            if kept and (generation < max(began) or (generation, step) in applied):
                trained.update((p.epoch, int(i)) for p in line.ranges for i in samples_at(spec, p))
    return trained


@settings(max_examples=examples(150), deadline=None)
@given(jobs, st.data())
def test_any_change_of_what_was_handed_out_is_seen_as_the_naive_twin_sees_it(job: Job, data: st.DataObject) -> None:
    audits = job.audits()
    for _ in range(data.draw(st.integers(1, 4))):
        audits = changed(job.spec, audits, data)
    found, truth = account(audits), naive(audits, job.spec)
    for epoch in found.epochs:
        times = [truth[epoch.epoch, sample] for sample in range(job.spec.total)]
        assert (epoch.trained, epoch.repeated) == (sum(map(bool, times)), sum(time > 1 for time in times))
        assert epoch.lost == (times.count(0) if epoch.over else 0)
        assert len(epoch.first_lost) == min(epoch.lost, 5)
        assert all(times[one.sample] == 0 for one in epoch.first_lost)
        assert all(times[one.sample] == len(one.steps) > 1 for one in epoch.first_repeated)


def changed(spec: DataSpec, audits: list[WorkerAudit], data: st.DataObject) -> list[WorkerAudit]:
    """One line about samples goes, or says something else."""
    places = [
        (a, n) for a, one in enumerate(audits) for n, line in enumerate(one.lines) if isinstance(line, BatchGiven)
    ]
    assume(places)  # a small job's few lines may all have gone by now
    place, number = data.draw(st.sampled_from(places))
    audit, line = audits[place], audits[place].lines[number]
    start = data.draw(st.integers(0, spec.total - 1))
    pieces = (Range(data.draw(st.integers(0, spec.epochs - 1)), start, data.draw(st.integers(start + 1, spec.total))),)
    other = data.draw(st.sampled_from([(), (msgspec.structs.replace(line, ranges=pieces),)]))
    lines = (*audit.lines[:number], *other, *audit.lines[number + 1 :])
    return [*audits[:place], WorkerAudit(audit.worker, audit.job, lines), *audits[place + 1 :]]


@settings(max_examples=examples(150), deadline=None)
@given(jobs, st.data())
def test_a_batch_that_is_taken_for_void_is_found_lost(job: Job, data: st.DataObject) -> None:
    """All that one worker was given for a step goes from its audit."""
    audits = job.audits()
    trained = [(a, step) for a in audits for step in sorted(steps_with_samples(a)) if (a.worker, step) in job.kept]
    assume(trained)
    audit, step = data.draw(st.sampled_from(trained))
    found = account(without(audits, audit, step))
    assert not found.clean
    assert sum(epoch.lost for epoch in found.epochs) > 0


@settings(max_examples=examples(80), deadline=None)
@given(hard_hit, st.data())
def test_a_void_batch_that_is_counted_is_found_repeated(job: Job, data: st.DataObject) -> None:
    """What a worker lost with a void step is written down as if it had been trained in a later one."""
    audits = job.audits()
    void = [(a, step) for a in audits for step in sorted(steps_with_samples(a)) if (a.worker, step) in job.void]
    assume(void)
    victim, step = data.draw(st.sampled_from(void))
    line = [one for one in victim.lines if isinstance(one, BatchGiven) and one.step == step][-1]
    survivor = next(audit for audit in audits if audit.worker == job.roster[0])
    last = [one for one in survivor.lines if isinstance(one, BatchGiven) and one.step == job.step]
    both = BatchGiven(job.step, line.epoch, (*(last[-1].ranges if last else ()), *line.ranges), 0)
    lines = (*survivor.lines, both)
    others = [audit for audit in audits if audit is not survivor]
    found = account([*others, WorkerAudit(survivor.worker, "j", lines)])
    assert sum(epoch.repeated for epoch in found.epochs) == sum(map(len, line.ranges))


def steps_with_samples(audit: WorkerAudit) -> set[int]:
    return {line.step for line in audit.lines if isinstance(line, BatchGiven) and line.ranges}


def without(audits: list[WorkerAudit], audit: WorkerAudit, step: int) -> list[WorkerAudit]:
    lines = tuple(line for line in audit.lines if not (isinstance(line, BatchGiven) and line.step == step))
    return [WorkerAudit(one.worker, one.job, lines if one is audit else one.lines) for one in audits]
