"""Who trains what in which step follows from the data and the ring alone: not from how long leases are, when they are
granted, by which leader, nor in which life.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import chain
from unittest.mock import patch

import msgspec
from data_modes import MODES
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from edl.core.data import ledgers as rules
from edl.core.data.ledgers import new_ledger, restored_ledger
from edl.core.data.resume_position import projected, rebased
from edl.protocol.data_nouns import DataSpec, LedgerSnapshot
from examples import examples

MOST_EPOCHS = 3
DEALS = [(1, 1), (1, 4), (2, 8), (5, 5), (64, 16384)]  # the first one, the longest: of so many steps

Sample = tuple[int, int]  # epoch, position
Hands = list[list[Sample]]  # of one step, by rank


def by_definition(spec: DataSpec, epochs: int, batches: Sequence[int], deals: tuple[int, int]) -> list[Hands]:
    """All steps of a ring that nothing ever happens to."""
    samples = [[(epoch, at) for at in range(spec.total)] for epoch in range(epochs)]
    steps: list[Hands] = []
    for left in samples if spec.whole_epochs else [[*chain(*samples)]]:
        length = deals[0]
        while left:
            dealt = min(length, steps_allowed(spec, left, sum(batches)))
            shares = [list(shares_of_a_step(len(left) - step * sum(batches), batches)) for step in range(dealt)]
            runs = [[left.pop(0) for _ in range(sum(of_rank))] for of_rank in zip(*shares, strict=True)]
            steps += [[[run.pop(0) for _ in range(n)] for run, n in zip(runs, step, strict=True)] for step in shares]
            length = min(2 * length, deals[1])
    return steps


def steps_allowed(spec: DataSpec, left: list[Sample], a_step: int) -> int:
    """A deal ends with its epoch, or in the step that crosses the end; a script's own short batch is one of its own."""
    of_epoch = sum(sample[0] == left[0][0] for sample in left)
    allowed = -(-of_epoch // a_step)
    if spec.by_sample and len(left) > a_step:
        return min(allowed, (len(left) - 1) // a_step)
    return allowed


def shares_of_a_step(available: int, batches: Sequence[int]) -> Iterator[int]:
    """Full batches, or by their sizes what is left: rounded down, and one more to those in front that have room."""
    a_step = sum(batches)
    if available >= a_step:
        yield from batches
        return
    more = available - sum(available * batch // a_step for batch in batches)
    shares = []
    for batch in batches:
        share = available * batch // a_step
        extra = more > 0 and share < batch
        more -= extra
        shares.append(share + extra)
    yield from without_singles(shares, batches)


def without_singles(shares: list[int], batches: Sequence[int]) -> list[int]:
    """One sample is too few for batch norm: of those who have one each second gives it to the one before, and who is
    left over to the first that has more, and room.
    """
    while len(single := [rank for rank, share in enumerate(shares) if share == 1 < batches[rank]]) > 1:
        shares[single[0]], shares[single[1]] = 2, 0
    takes = [rank for rank, share in enumerate(shares) if 1 < share < batches[rank]]
    if single and takes:
        shares[takes[0]], shares[single[0]] = shares[takes[0]] + 1, 0
    return shares


class Job:
    """A ring of constant size, to which all may happen that leaves it as it is."""

    def __init__(self, spec: DataSpec, batches: list[int], epochs: int) -> None:
        self.batches, self.epochs = batches, epochs
        self.life, self.changes = 1, 0
        self.members = self.named()
        self.ledger = new_ledger(spec, self.members, batches=batches)
        self.hands: list[Hands] = []  # step by step, of all lives

    def named(self) -> list[str]:
        return [f"life{self.life}-{rank}" for rank in range(len(self.batches))]

    def grant(self, ahead: int) -> None:
        self.ledger.grant(self.ledger.step + ahead)

    def train(self, steps: int) -> None:
        """So many, as far as they are leased and wanted."""
        for step in range(self.ledger.step + 1, min(self.ledger.step + steps, self.ledger.covered_step) + 1):
            hands = self.hands_of(step)
            epoch = next(lease.epoch for lease in self.ledger.leases(self.members[0]) if lease.until_step >= step)
            if epoch >= self.epochs:
                return
            self.hands.append(hands)
            self.ledger.commit(step)
            self.ledger.validate()

    def hands_of(self, step: int) -> Hands:
        pieces = (
            [piece for lease in self.ledger.leases(worker) for piece in lease.between(step - 1, step)]
            for worker in self.members
        )
        return [[(one.epoch, at) for one in of_rank for at in range(one.start, one.stop)] for of_rank in pieces]

    def change_leader(self) -> None:
        wire = msgspec.json.encode(self.ledger.snapshot())
        self.ledger = restored_ledger(msgspec.json.decode(wire, type=LedgerSnapshot))

    def break_ring(self) -> None:
        """All come back after the step that was void."""
        self.ledger.enter(self.members, self.ledger.step, self.batches)

    def resume(self, early: int) -> None:
        """From a checkpoint that was announced so many steps ahead, and made; the steps up to it were trained."""
        at = min(self.ledger.step + early, self.ledger.covered_step)
        saved = projected(self.ledger, at)
        self.train(at - self.ledger.step)
        if self.ledger.step < at:  # of an epoch that no script begins
            return
        self.life += 1
        self.ledger = restored_ledger(rebased(saved))
        self.ledger.extend(min(self.epochs, saved.spec.epochs))
        self.members = self.named()
        self.ledger.hand_over(self.members)
        self.ledger.enter(self.members, 0, self.batches)

    def change_size(self, leave: int, come: int) -> None:
        """Those in front leave; one that has been in the ring before stays."""
        self.changes += 1
        stay = self.members[min(leave, len(self.members) - 1) :]
        self.members = [*stay, *(f"come{self.changes}-{number}" for number in range(come))]
        self.batches = self.batches[:1] * len(self.members)
        self.ledger.enter(self.members, self.ledger.step, self.batches)
        self.ledger.grant(self.ledger.step)

    def ask_for_more(self) -> None:
        """As scripts do where the end is open: none begins an epoch before all of the one before is trained, unless
        samples came back after its last short batch.
        """
        if self.ledger.exhausted or self.ledger.stranded:
            self.ledger.extend(min(self.epochs, self.ledger.spec.epochs + 1))

    def finish(self, ahead: int) -> None:
        while not (self.ledger.exhausted and self.ledger.spec.epochs >= self.epochs):
            self.ask_for_more()
            self.grant(ahead)
            self.train(1)


@st.composite
def specs(draw: st.DrawFn) -> DataSpec:
    whole, by_sample, open_ended = draw(st.sampled_from(MODES))
    spec = DataSpec(
        draw(st.integers(1, 80)),
        draw(st.integers(1, MOST_EPOCHS)),
        batch=2,
        whole_epochs=whole,
        by_sample=by_sample,
        open_ended=open_ended,
    )
    return spec if spec.has_end else msgspec.structs.replace(spec, epochs=1)


EVENTS = st.one_of(
    st.tuples(st.just("grant"), st.integers(1, 30)),
    st.tuples(st.just("train"), st.integers(1, 12)),
    st.tuples(st.just("resume"), st.integers(0, 9)),
    st.tuples(st.sampled_from(("change_leader", "break_ring", "ask_for_more"))),
)


@settings(max_examples=examples(500), deadline=None)
@given(
    spec=specs(),
    batches=st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any),
    deals=st.sampled_from(DEALS),
    events=st.lists(EVENTS, max_size=25),
    ahead=st.integers(1, 20),
)
def test_the_samples_of_a_step_and_rank_are_those_of_the_definition(
    spec: DataSpec, batches: list[int], deals: tuple[int, int], events: list[tuple], ahead: int
) -> None:
    if spec.by_sample:
        batches = [spec.batch] * len(batches)
    epochs = spec.epochs if spec.has_end else MOST_EPOCHS
    with patch.multiple(rules, FIRST_DEAL=deals[0], LONGEST_DEAL=deals[1]):
        job = Job(spec, batches, epochs)
        for name, *numbers in events:
            getattr(job, name)(*numbers)
        job.finish(ahead)
    assert job.hands == by_definition(spec, epochs, batches, deals)


CHANGES = st.tuples(
    st.integers(0, 6),  # steps ahead that are leased
    st.integers(0, 6),  # and trained, as far as they are
    st.integers(0, 3),  # workers that leave
    st.integers(0, 2),  # and come
)


@settings(max_examples=examples(300), deadline=None)
@given(
    spec=specs(),
    deals=st.sampled_from(DEALS),
    changes=st.lists(CHANGES, min_size=1, max_size=5),
    aheads=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    early=st.integers(0, 6),
)
@example(  # the only sample is dealt to one that leaves, and no script asks for the second epoch meanwhile
    spec=DataSpec(1, 1, 1, whole_epochs=True, open_ended=True),
    deals=(1, 1),
    changes=[(2, 1, 1, 0)],
    aheads=(1, 2),
    early=0,
)
@example(  # a lease goes on for a step in which no worker has samples, and the earlier life trained up to that one
    spec=DataSpec(1, 2, 2, whole_epochs=False),
    deals=(1, 1),
    changes=[(1, 0, 1, 0), (2, 0, 1, 1)],
    aheads=(1, 1),
    early=2,
)
def test_after_changes_of_size_too_a_life_of_the_same_size_goes_on_as_the_one_before_would_have(
    spec: DataSpec, deals: tuple[int, int], changes: list[tuple[int, ...]], aheads: tuple[int, int], early: int
) -> None:
    epochs = spec.epochs if spec.has_end else MOST_EPOCHS
    with patch.multiple(rules, FIRST_DEAL=deals[0], LONGEST_DEAL=deals[1]):
        job = Job(spec, [spec.batch] * 3, epochs)
        for ahead, steps, leave, come in changes:
            job.grant(ahead)
            job.train(steps)
            job.change_size(leave, come)
        # A script that cuts batches itself is past its last short one where samples came back after it; in a new life
        # it is not.
        assume(not spec.by_sample or job.ledger.snapshot().late < job.ledger.epoch)
        other = copy.copy(job)
        other.hands, other.ledger = [*job.hands], restored_ledger(job.ledger.snapshot())
        other.resume(early)
        job.finish(aheads[0])
        other.finish(aheads[1])
    assert until_last_sample(other.hands) == until_last_sample(job.hands)


def until_last_sample(steps: list[Hands]) -> list[Hands]:
    """Without those at the end in which no worker has any: none is begun for them alone."""
    last = max((number for number, hands in enumerate(steps, 1) if any(hands)), default=0)
    return steps[:last]


def test_what_all_lost_after_the_last_short_batch_of_a_script_is_trained_in_the_next_life() -> None:
    """None of the next life is past that batch, and no lease is left that would say so."""
    job = Job(DataSpec(1, 1, 2, by_sample=True), [2] * 3, 1)
    job.grant(1)
    job.change_size(2, 0)
    job.train(1)
    job.resume(0)
    for _ in range(3):
        job.grant(1)
        job.train(1)
    assert job.ledger.exhausted
    assert [*chain(*job.hands[-1])] == [(0, 0)]
