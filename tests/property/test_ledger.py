"""The ledger against a naive twin that keeps every sample of every worker's every step in explicit sets.

`EDL_LEDGER_EVENTS=100000` runs about so many events instead of a few thousand.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from unittest.mock import patch

import msgspec
from data_modes import MODES
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from edl.core.data import ledgers as rules
from edl.core.data.ledgers import new_ledger, restored_ledger
from edl.protocol.data_nouns import DataSpec, Lease, LedgerSnapshot
from examples import examples

EVENTS = int(os.environ.get("EDL_LEDGER_EVENTS", "4000"))
EVENTS_PER_JOB = 60
MOST_WORKERS = 6
MOST_EPOCHS = 6
DEALS = [(1, 1), (2, 5), (3, 12), (64, 16384)]  # the first and the longest one, in steps

Sample = tuple[int, int]  # epoch, position


def samples_of(lease: Lease) -> list[Sample]:
    return [(piece.epoch, at) for piece in lease.ranges for at in range(piece.start, piece.stop)]


class Twin:
    """Every sample by name. Slow, and too simple to be wrong."""

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self.unassigned: set[Sample] = set()
        self.trained: set[Sample] = set()
        self.held: dict[str, dict[int, list[Sample]]] = {}  # worker -> step -> samples
        self.numbers: Counter[str] = Counter()
        self.until: dict[str, int] = {}
        self.leases: dict[str, list[Lease]] = {}
        self.step = 0
        self.epochs = self.known = 0  # wanted; and whose samples are in one of the three sets
        self.want(spec.epochs)

    def want(self, epochs: int) -> None:
        self.epochs = max(self.epochs, epochs)
        self.know(self.epochs)

    def know(self, epochs: int) -> None:
        new = range(self.known, epochs)
        self.unassigned |= {(epoch, at) for epoch in new for at in range(self.spec.total)}
        self.known = max(self.known, epochs)

    def missing(self) -> set[Sample]:
        """Wanted, and in no worker's hands."""
        return {sample for sample in self.unassigned if sample[0] < self.epochs}

    def epoch_of(self, step: int) -> int:
        leases = (lease for leases in self.leases.values() for lease in leases)
        return max((lease.epoch for lease in leases if lease.after_step < step <= lease.until_step), default=-1)

    def withdraw(self) -> None:
        """The epoch of the next step may have begun; no later one can, unless a worker has said so."""
        begun = max(self.epochs, self.epoch_of(self.step + 1) + 1)
        for worker, leases in self.leases.items():
            while leases and leases[-1].epoch >= begun:
                lease = leases.pop()
                for step in range(max(lease.after_step, self.step) + 1, lease.until_step + 1):
                    self.put_back(self.held[worker].pop(step))
                self.numbers[worker], self.until[worker] = lease.number - 1, max(lease.after_step, self.step)

    def enter(self, roster: list[str], step: int) -> None:
        self.commit(step)
        if self.spec.open_ended:
            self.withdraw()
        for worker in set(self.held) - set(roster):
            del self.leases[worker]
            for samples in self.held.pop(worker).values():
                self.put_back(samples)
        for worker in roster:
            if worker not in self.held:
                self.held[worker], self.numbers[worker], self.until[worker] = {}, 0, step
                self.leases[worker] = []

    def rebatch(self, step: int) -> None:
        for worker, steps in self.held.items():
            for beyond in [one for one in steps if one > step]:
                self.put_back(steps.pop(beyond))
            leases = [
                msgspec.structs.replace(lease, steps=min(lease.until_step, step) - lease.after_step)
                for lease in self.leases[worker]
                if lease.after_step < step
            ]
            self.numbers[worker] -= len(self.leases[worker]) - len(leases)
            self.leases[worker], self.until[worker] = leases, step

    def put_back(self, samples: list[Sample]) -> None:
        assert not self.unassigned & set(samples)
        self.unassigned |= set(samples)

    def commit(self, step: int) -> None:
        if self.spec.open_ended:  # what is trained was begun
            self.want(self.epoch_of(step) + 1)
        for steps in self.held.values():
            for done in [one for one in steps if one <= step]:
                samples = steps.pop(done)
                assert not self.trained & set(samples), "I6: trained twice"
                self.trained |= set(samples)
        self.step = step

    def lease(self, worker: str, lease: Lease) -> None:
        samples = samples_of(lease)
        assert lease.epoch < self.epochs or (self.spec.open_ended and not self.missing()), "on speculation too early"
        assert set(samples) <= self.unassigned, "I6: leased what is not unassigned"
        assert len(set(samples)) == len(samples)
        assert lease.number == self.numbers[worker] + 1
        assert lease.after_step == self.until[worker]
        self.unassigned -= set(samples)
        self.numbers[worker], self.until[worker] = lease.number, lease.until_step
        self.leases[worker].append(lease)
        for offset in range(lease.steps):
            step = lease.after_step + 1 + offset
            share = samples[offset * lease.batch : (offset + 1) * lease.batch]
            assert lease.share(step) == len(share)
            self.held[worker][step] = share

    def total(self, step: int) -> int:
        return sum(len(steps[step]) for steps in self.held.values())

    def ended(self) -> int:
        epoch = 0
        while epoch < self.epochs and all((epoch, at) in self.trained for at in range(self.spec.total)):
            epoch += 1
        return epoch

    def counts(self, epoch: int) -> tuple[int, int, int]:
        leased = [one for steps in self.held.values() for samples in steps.values() for one in samples]
        trained, held, free = (
            sum(one[0] == epoch for one in where) for where in (self.trained, leased, self.unassigned)
        )
        return trained, held, free


def _steps_of(leases, trained):
    """Each step that is not trained yet, its epoch, and whether it is the last one of that."""
    for lease in leases:
        for step in range(max(lease.after_step, trained) + 1, lease.until_step + 1):
            yield step, lease.epoch, lease.final and step == lease.until_step


class LedgerAgainstTwin(RuleBasedStateMachine):
    """A job of up to six workers that come, go, die, and change leaders."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = 0
        self.totals: dict[int, int] = {}  # of this generation: step -> samples
        self.epochs_told: list[int] = []

    # ------------------------------------------------------------------------------------------------- what happens

    @initialize(
        total=st.integers(1, 60),
        epochs=st.integers(1, 3),
        batch=st.integers(1, 5),
        mode=st.sampled_from(MODES),
        size=st.integers(0, 4),
        deals=st.sampled_from(DEALS),
    )
    def begin(self, total, epochs, batch, mode, size, deals):
        self.deals = patch.multiple(rules, FIRST_DEAL=deals[0], LONGEST_DEAL=deals[1])
        self.deals.start()
        spec = DataSpec(total, epochs, batch, whole_epochs=mode[0], by_sample=mode[1], open_ended=mode[2])
        roster = [self.newcomer() for _ in range(size)]
        self.batches = dict.fromkeys(roster, batch)
        self.ledger, self.twin = new_ledger(spec, roster), Twin(spec)
        self.twin.enter(roster, 0)

    @rule(lead_times=st.integers(0, 25))
    def grant(self, lead_times):
        self.grant_until(self.ledger.step + lead_times)

    @rule(data=st.data(), lead_times=st.integers(0, 25))
    def rebatch(self, data, lead_times):
        """Batches that hold now are put in force from a step on that no worker was handed samples beyond."""
        if not all(self.ledger.leases(worker) for worker in self.ledger.roster):
            self.grant_until(self.ledger.step)
        step = self.a_step(data)
        self.ledger.rebatch(step)
        self.twin.rebatch(step)
        self.totals = {known: samples for known, samples in self.totals.items() if known <= step}
        assert self.ledger.outdated_until == 0
        assert self.ledger.covered_step == step
        self.grant_until(step + lead_times)
        for worker in self.ledger.roster:
            for lease in self.ledger.leases(worker):
                assert lease.until_step <= step or lease.batch == self.batches[worker]

    @precondition(lambda self: self.ledger.covered_step > self.ledger.step)
    @rule(data=st.data())
    def train(self, data):
        self.commit(self.a_step(data))

    @rule(data=st.data(), come=st.integers(0, 3), lead_times=st.integers(0, 25))
    def change(self, data, come, lead_times):
        """Joins, leaves and deaths, at a switch or in the middle of a step that is void then."""
        stay = [worker for worker in self.ledger.roster if data.draw(st.booleans(), label=f"{worker} stays")]
        new = [self.newcomer() for _ in range(min(come, MOST_WORKERS - len(stay)))]
        step = self.a_step(data)
        before = {worker: self.ledger.leases(worker) for worker in stay}
        roster = data.draw(st.permutations(stay + new), label="roster")
        batches = None
        if roster and not self.ledger.spec.by_sample and data.draw(st.booleans(), label="other batches"):
            batches = data.draw(st.lists(st.integers(0, 5), min_size=len(roster), max_size=len(roster)).filter(any))
        spare = 0 if self.ledger.spec.by_sample else data.draw(st.integers(0, 6), label="steps without newcomers")
        self.enter(roster, step, batches, spare=spare)
        self.grant_until(step + lead_times)
        if spare and new and any(self.batches[worker] for worker in stay):
            assert self.ledger.spares(new) >= min(spare, self.ledger.covered_step - step)
        self.no_worker_joins_steps_of_outdated_batches(set(new), {worker: before[worker] for worker in stay})

    @precondition(lambda self: self.ledger.roster)
    @rule(data=st.data())
    def change_twice(self, data):
        """Two rosters in a row without a grant: the leader that decided on the first did not come so far."""
        step = self.a_step(data)
        self.enter([*self.ledger.roster[: MOST_WORKERS - 1], self.newcomer()], step)
        gone = data.draw(st.integers(0, len(self.ledger.roster) - 1), label="gone")
        self.enter(self.ledger.roster[gone:], step)
        self.grant_until(step)

    @rule()
    def change_leader(self):
        """The next leader has what the last one wrote."""
        wire = msgspec.msgpack.encode(self.ledger.snapshot())
        snapshot = msgspec.msgpack.decode(wire, type=LedgerSnapshot)
        self.ledger = restored_ledger(snapshot)
        assert self.ledger.snapshot() == snapshot

    @precondition(lambda self: self.ledger.spec.epochs < MOST_EPOCHS)
    @rule(more=st.integers(-1, 2))
    def extend(self, more):
        self.want(self.ledger.spec.epochs + more)

    def no_worker_joins_steps_of_outdated_batches(self, new, before):
        """Where a survivor goes on in a batch of before, the newcomers' shares are empty: the sum does not grow."""
        outdated = {
            lease.until_step
            for worker, leases in before.items()
            for lease in self.ledger.leases(worker)
            if lease in leases and lease.batch != self.batches[worker]
        }
        for worker in new:
            for lease in self.ledger.leases(worker):
                assert lease.until_step not in outdated or len(lease) == 0
        assert self.ledger.outdated_until >= max(outdated, default=0)

    # ---------------------------------------------------------------------------------------------- what always holds

    @invariant()
    def nothing_is_lost_or_repeated(self):
        counts = self.ledger.counts()
        assert (counts.trained, counts.leased, counts.unassigned) == self.twin.counts(counts.epoch)
        assert counts.trained + counts.leased + counts.unassigned == counts.total
        assert (counts.lost, counts.repeated) == (0, 0)
        assert self.ledger.fully_leased == (not self.twin.missing())
        left = {one for steps in self.twin.held.values() for samples in steps.values() for one in samples}
        left = {one for one in left if one[0] < self.twin.epochs}
        assert self.ledger.validate() == len(left | self.twin.missing())

    @invariant()
    def epochs_end_in_order_when_all_of_them_is_trained(self):
        assert self.ledger.epoch == self.twin.ended()
        assert self.epochs_told == list(range(self.twin.ended()))
        assert self.ledger.exhausted == (self.twin.ended() == self.ledger.spec.epochs)

    @invariant()
    def all_workers_run_dry_at_the_same_step(self):
        for worker in self.ledger.roster:
            assert sorted(self.twin.held[worker]) == list(range(self.ledger.step + 1, self.ledger.covered_step + 1))

    @invariant()
    def leases_of_a_step_agree(self):
        spec = self.ledger.spec
        rounds = {worker: self.ledger.leases(worker) for worker in self.ledger.roster}
        # Newcomers that were spared have one lease more for the same steps: of none in the first ones.
        assert len({tuple(_steps_of(leases, self.ledger.step)) for leases in rounds.values()}) <= 1
        for leases in rounds.values():
            assert [x.epoch for x in leases] == sorted(x.epoch for x in leases)
            for x in leases:
                assert not spec.whole_epochs or all(piece.epoch <= x.epoch for piece in x.ranges)
                shares = [x.share(step) for step in range(x.after_step + 1, x.until_step + 1)]
                if spec.by_sample:
                    assert set(shares[:-1] if x.final else shares) <= {0, x.batch}

    @invariant()
    def what_is_wanted_lies_before_what_is_leased_on_speculation(self):
        spec, wanted = self.ledger.spec, self.ledger.wanted_step
        assert spec.epochs == self.twin.epochs
        for worker in self.ledger.roster:
            for lease in self.ledger.leases(worker):
                assert (lease.epoch < spec.epochs) == (lease.until_step <= wanted)
        if self.ledger.covered_step > wanted:
            assert self.ledger.fully_leased

    @invariant()
    def totals_are_right_and_never_change_within_a_generation(self):
        told, before = {}, self.ledger.step
        for run in self.ledger.totals():
            told |= dict.fromkeys(range(before + 1, run.until_step + 1), run.samples)
            before = run.until_step
        assert told == {
            step: self.twin.total(step) for step in range(self.ledger.step + 1, self.ledger.covered_step + 1)
        }
        assert all(self.totals.get(step, samples) == samples for step, samples in told.items())
        self.totals |= told

    @invariant()
    def it_finds_no_fault_with_itself(self):
        self.ledger.validate()

    # -------------------------------------------------------------------------------------------------------- the end

    def teardown(self):
        """No deadlock: the workers that are left come to the end of the data, by granting and committing alone."""
        if not hasattr(self, "ledger"):
            return
        try:
            self.come_to_the_end()
        finally:
            self.deals.stop()

    def come_to_the_end(self):
        if not self.ledger.roster:
            self.enter([self.newcomer()], self.ledger.step)
        for _ in range(2000):
            if self.ledger.exhausted:
                break
            if not self.grant_until(self.ledger.step + 5) and self.ledger.covered_step == self.ledger.step:
                # By sample, what came back after its epoch's final step waits for the script's next pass.
                assert self.ledger.spec.by_sample
                assert self.ledger.spec.whole_epochs
                self.want(self.ledger.spec.epochs + 1)
            self.commit(min(self.ledger.wanted_step, self.ledger.step + 3))
        assert self.ledger.exhausted
        assert len(self.twin.trained) == self.ledger.spec.total * self.ledger.spec.epochs

    # ------------------------------------------------------------------------------------------------------- the tools

    def newcomer(self) -> str:
        self.workers += 1
        return f"w{self.workers}"

    def a_step(self, data) -> int:
        return data.draw(st.integers(self.ledger.step, self.ledger.covered_step), label="step")

    def grant_until(self, step: int) -> bool:
        covered, mode = self.ledger.covered_step, self.ledger.spec
        given = self.ledger.grant(step)
        assert all(given.values())
        for lease in (lease for leases in given.values() for lease in leases):
            is_round = lease.after_step >= covered
            assert not (is_round and mode.by_sample and lease.final) or lease.after_step == self.ledger.step
        if mode.open_ended:
            last = max((lease.epoch for leases in given.values() for lease in leases), default=0)
            self.twin.know(last + 2)
        for lease, worker in sorted(
            ((lease, worker) for worker, leases in given.items() for lease in leases), key=lambda one: one[0].after_step
        ):
            self.twin.lease(worker, lease)
        self.come_in_order(given, covered)
        return bool(given)

    def come_in_order(self, given: dict[str, tuple[Lease, ...]], covered: int) -> None:
        """Newcomers beside others are leased the first samples. A round's are in the order of ranks, and its first
        rank with any has the first of those that were there.
        """
        leases = [(self.ledger.roster.index(worker), lease) for worker, ones in given.items() for lease in ones]
        left = set(self.twin.unassigned)
        for after_step in sorted(
            {lease.after_step for _, lease in leases if lease.after_step >= covered}, reverse=True
        ):
            hands = [
                samples_of(lease)
                for _, lease in sorted(leases, key=lambda one: one[0])
                if lease.after_step == after_step
            ]
            runs = [(min(hand), max(hand)) for hand in hands if hand]
            assert all(before[1] < after[0] for before, after in pairwise(runs)), "not in the order of ranks"
            left |= {sample for hand in hands for sample in hand}
            assert not runs or runs[0][0] == min(left), "not the first ones"
        beside = [sample for _, lease in leases if lease.after_step < covered for sample in samples_of(lease)]
        assert not beside or not left or max(beside) < min(left), "not the first ones"

    def commit(self, step: int) -> None:
        self.epochs_told += self.ledger.commit(step)
        self.twin.commit(step)

    def enter(self, roster, step: int, batches: list[int] | None = None, *, spare: int = 0) -> None:
        self.epochs_told += self.ledger.enter(roster, step, batches, spare=spare)
        self.batches = dict(zip(roster, batches or [self.ledger.spec.batch] * len(roster), strict=True))
        self.twin.enter(list(roster), step)
        self.totals = {}

    def want(self, epochs: int) -> None:
        self.ledger.extend(epochs)
        self.twin.want(epochs)
        assert self.ledger.spec.epochs == self.twin.epochs


def test_the_ledger_does_what_its_naive_twin_does():
    run_state_machine_as_test(
        LedgerAgainstTwin,
        settings=settings(
            max_examples=examples(max(1, EVENTS // EVENTS_PER_JOB)),
            stateful_step_count=EVENTS_PER_JOB,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
