"""With virtual workers the samples of a step follow from its place in the epoch alone, whatever became of workers, and
in whichever life.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edl.core.data.ledger_versions import ALL, LedgerVersions
from edl.protocol.checkpoint_record import Resumed
from edl.protocol.data_nouns import DataSpec, Range
from edl.protocol.job_policy import Batching, BatchRule
from edl.protocol.record import Plan
from examples import examples

EVENTS = ["train", "train", "train", "planned", "forced", "resumed"]


def by_definition(total: int, batch: int, epochs: int) -> list[tuple[Range, ...]]:
    starts = range(0, total, batch)
    return [(Range(epoch, at, min(at + batch, total)),) for epoch in range(epochs) for at in starts]


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_a_step_has_the_same_samples_whatever_happened_before(data: st.DataObject) -> None:
    draw = data.draw
    virtual = draw(st.integers(1, 5))
    whole = draw(st.booleans())
    part = draw(st.integers(1, 3)) * (virtual if whole else 1)
    batching = Batching(BatchRule.GLOBAL if whole else BatchRule.LOCAL)
    total, epochs = draw(st.integers(1, 70)), draw(st.integers(1, 3))
    spec = DataSpec(total, epochs, part, virtual=virtual, open_ended=draw(st.booleans()))
    expected = by_definition(total, part if whole else part * virtual, epochs)
    names = iter(range(10**6))

    def roster(size: int) -> tuple[str, ...]:
        return tuple(f"w{next(names)}" for _ in range(size))

    ring = roster(draw(st.integers(1, virtual)))
    versions = LedgerVersions(None, batching, {})
    versions.open(ring[0], spec, ring, 0)
    generation, base, step, trained = 1, 0, 0, 0
    ahead = draw(st.integers(1, 20))
    versions.reach(step + ahead)
    for event in draw(st.lists(st.sampled_from(EVENTS), max_size=25)) + ["train"] * len(expected):
        ledger = versions.ledger
        assert ledger is not None
        if trained == len(expected):
            break
        if event == "train":
            versions.reach(step + ahead)
            step, trained = step + 1, trained + 1
            found = [lease.whole(step) for lease in ledger.leases(ALL) if lease.after_step < step <= lease.until_step]
            assert found == [expected[trained - 1]]
            versions.commit(step)
        elif event == "planned":
            ring, generation = (*ring[1:], *roster(1))[:virtual], generation + 1
            planned = versions.planned(ring, step, ahead)
            assert planned is not None
            plan = Plan(generation, ring, step, ledger=planned.snapshot())
            versions.enter(plan, step, generation, (), ahead)
        elif event == "forced":
            ring, generation = ring[1:] or roster(1), generation + 1
            versions.enter(Plan(generation, ring, None, None), step, generation - 1, (), ahead)
        elif event == "resumed":
            base += step
            saved = versions.projected(step)
            versions = LedgerVersions(None, batching, {}, Resumed(base, 1, "saved", saved, ledger.epoch))
            ring, step = roster(draw(st.integers(1, virtual))), 0
            versions.open(ring[0], spec, ring, 0)
        assert versions.ledger is not None
        assert versions.ledger.outdated_until == 0, "no lease is ever cut anew"
        versions.ledger.validate()
    assert trained == len(expected)
