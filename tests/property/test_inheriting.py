"""The data of a job as a checkpoint has it, and lives that go on from there: no sample is lost, and none repeated (I6).

A step's samples are taken from the leases, one by one, as scripts get them; what both lives have trained together must
be each sample just once.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from data_modes import MODES
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.core.data.ledger_versions import LedgerVersions
from edl.core.data.ledgers import new_ledger, restored_ledger
from edl.core.data.resume_position import is_inherited, projected, rebased
from edl.core.data.sample_ledger import Ledger
from edl.errors import InvalidTransition, UsageError
from edl.protocol.checkpoint_record import Resumed
from edl.protocol.data_nouns import DataSpec, LedgerSnapshot
from edl.protocol.job_policy import Batching
from examples import examples
from tests.model.saving_checks import trained_by

MOST_EPOCHS = 4

Sample = tuple[int, int]  # epoch, position


@st.composite
def specs(draw: st.DrawFn) -> DataSpec:
    whole, by_sample, open_ended = draw(st.sampled_from(MODES))
    spec = DataSpec(
        total=draw(st.integers(1, 60)),
        epochs=draw(st.integers(1, MOST_EPOCHS)),
        batch=draw(st.integers(1, 4)),
        whole_epochs=whole,
        by_sample=by_sample,
        open_ended=open_ended,
    )
    return spec if spec.has_end else msgspec.structs.replace(spec, epochs=1)


def roster(size: int, life: str = "w") -> list[str]:
    return [f"{life}{rank}" for rank in range(size)]


def samples(ledger: Ledger, worker: str, step: int) -> list[Sample]:
    """What `worker` is given in `step`."""
    pieces = [piece for lease in ledger.leases(worker) for piece in lease.between(step - 1, step)]
    return [(piece.epoch, at) for piece in pieces for at in range(piece.start, piece.stop)]


class Life:
    """Workers that train step by step, and whose scripts want so many epochs in the end."""

    def __init__(self, ledger: Ledger, epochs: int, ahead: int) -> None:
        self.ledger, self.epochs, self.ahead = ledger, epochs, ahead
        self.trained: list[Sample] = []
        self.hands: dict[int, list[list[Sample]]] = {}  # by step, of each rank

    def goes_on(self) -> bool:
        """There is another step for it, once all is leased that can be."""
        ledger = self.ledger
        while True:
            ledger.grant(ledger.step + self.ahead)
            first = ledger.leases(ledger.roster[0])
            if first and first[0].after_step <= ledger.step < first[0].until_step:
                return first[0].epoch < self.epochs
            if ledger.spec.epochs >= self.epochs:
                return False
            ledger.extend(ledger.spec.epochs + 1)

    def step(self) -> None:
        step = self.ledger.step + 1
        self.hands[step] = [samples(self.ledger, worker, step) for worker in self.ledger.roster]
        self.trained += [sample for hand in self.hands[step] for sample in hand]
        self.ledger.commit(step)
        self.ledger.validate()

    def run(self, steps: int | None = None) -> None:
        while steps != 0 and self.goes_on():
            self.step()
            steps = None if steps is None else steps - 1


def resumed(snapshot: LedgerSnapshot, spec: DataSpec, size: int, *, first: bool) -> Ledger:
    """The ledger of the next life. `first`: its ring stands before its first worker asks for data."""
    versions = LedgerVersions(None, Batching(), {}, Resumed(snapshot.step, 1, "/c/j/1", rebased(snapshot)))
    workers = roster(size, "v")
    assert versions.open("v0", spec, workers if first else (), 0)
    if first:
        assert versions.ledger is not None
        return versions.ledger
    kept = LedgerVersions(versions.snapshot(), Batching(), {}, versions.resumed)  # of another leader
    assert kept.ledger is not None and is_inherited(kept.ledger)
    planned = kept.planned(workers, 0, ahead=1)
    assert planned is not None
    return planned


@settings(max_examples=examples(300), deadline=None)
@given(
    spec=specs(),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    ahead=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    steps=st.integers(0, 40),
    early=st.integers(0, 6),
    first=st.booleans(),
)
def test_what_two_lives_train_together_is_each_sample_once(
    spec: DataSpec, sizes: tuple[int, int], ahead: tuple[int, int], steps: int, early: int, first: bool
) -> None:
    epochs = spec.epochs if spec.has_end else MOST_EPOCHS
    before = Life(new_ledger(spec, roster(sizes[0])), epochs, ahead[0])
    before.run(steps)
    more = before.goes_on()
    at = min(before.ledger.step + early, before.ledger.covered_step)
    saved = projected(before.ledger, at)
    while more and before.ledger.step < at and before.goes_on():
        before.step()
    if before.ledger.step < at:  # leased on speculation, of epochs that no script begins
        return
    assert trained_by(saved) == set(before.trained)
    after = Life(resumed(saved, spec, sizes[1], first=first), epochs, ahead[1])
    assert not is_inherited(after.ledger)
    after.run()
    whole = Counter(before.trained) + Counter(after.trained)
    assert whole == {(epoch, position): 1 for epoch in range(epochs) for position in range(spec.total)}


@settings(max_examples=examples(200), deadline=None)
@given(spec=specs(), size=st.integers(1, 5), ahead=st.integers(1, 20), steps=st.integers(0, 40), first=st.booleans())
def test_a_ring_of_the_same_size_goes_on_in_the_same_order(
    spec: DataSpec, size: int, ahead: int, steps: int, first: bool
) -> None:
    """Rank by rank and step by step, as far as it was leased when it was saved; what was leased on speculation, of
    epochs that no script had begun, is leased anew.
    """
    epochs = spec.epochs if spec.has_end else MOST_EPOCHS
    whole = Life(new_ledger(spec, roster(size)), epochs, ahead)
    whole.run(steps)
    whole.goes_on()
    saved, at, until = whole.ledger.snapshot(), whole.ledger.step, whole.ledger.wanted_step
    whole.run()
    after = Life(resumed(saved, spec, size, first=first), epochs, ahead)
    after.run()
    for step in range(at + 1, until + 1):
        if step in whole.hands:
            assert after.hands[step - at] == whole.hands[step]


@settings(max_examples=examples(300), deadline=None)
@given(spec=specs(), size=st.integers(1, 4), data=st.data())
def test_what_is_announced_is_what_the_ledger_comes_to(spec: DataSpec, size: int, data: st.DataObject) -> None:
    """Whatever is leased, extended or cut after the announcement; a cut before its step is told of anew."""
    ledger = new_ledger(spec, roster(size))
    ledger.grant(data.draw(st.integers(1, 20)))
    ledger.commit(data.draw(st.integers(0, ledger.covered_step)))
    at = data.draw(st.integers(ledger.step, ledger.covered_step))
    said, cut = projected(ledger, at), False
    for event in data.draw(st.lists(st.sampled_from(("grant", "extend", "cut", "commit", "resize")), max_size=12)):
        match event:
            case "grant":
                ledger.grant(ledger.covered_step + data.draw(st.integers(1, 9)))
            case "extend":
                ledger.extend(min(MOST_EPOCHS + 2, ledger.spec.epochs + 1))
            case "resize" if not spec.by_sample:
                ledger.resize(data.draw(st.lists(st.integers(1, 4), min_size=size, max_size=size)))
            case "commit":
                ledger.commit(data.draw(st.integers(ledger.step, min(at, ledger.covered_step))))
            case "cut":
                read = data.draw(st.integers(ledger.step, ledger.covered_step))
                ledger.rebatch(read)
                ledger.grant(max(read, at))
                cut = True
                if ledger.covered_step < at:
                    return  # the saving is given up
                if read < at:
                    said = projected(ledger, at)
            case _:
                pass
    ledger.commit(at)
    assert trained_by(ledger.snapshot()) == trained_by(said)
    assert ledger.epoch == said.ended
    if not cut:  # what was leased by then is in the same hands, in the same order
        for member in said.members:
            assert ledger.leases(member.worker)[: len(member.leases)] == member.leases


@settings(max_examples=examples(100), deadline=None)
@given(spec=specs(), size=st.integers(1, 4), until=st.integers(1, 30), data=st.data())
def test_counting_steps_anew_changes_nothing_else_and_does_no_harm_twice(
    spec: DataSpec, size: int, until: int, data: st.DataObject
) -> None:
    ledger = new_ledger(spec, roster(size))
    ledger.grant(until)
    ledger.commit(data.draw(st.integers(0, ledger.covered_step)))
    again = restored_ledger(rebased(ledger.snapshot()))
    again.validate()
    assert (again.step, again.covered_step) == (0, ledger.covered_step - ledger.step)
    assert trained_by(again.snapshot()) == trained_by(ledger.snapshot())
    assert rebased(rebased(ledger.snapshot())) == rebased(ledger.snapshot())


SPEC = DataSpec(total=40, epochs=3, batch=2)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (msgspec.structs.replace(SPEC, batch=4), "batch=4 for 2"),
        (msgspec.structs.replace(SPEC, shuffle=True, seed=7), "shuffle=True for False, seed=7 for 0"),
        (msgspec.structs.replace(SPEC, epochs=2), "epochs=2 for 3"),
    ],
)
def test_a_script_that_trains_on_other_data_is_told_in_one_line(now: DataSpec, said: str) -> None:
    ledger = new_ledger(SPEC, roster(2))
    ledger.grant(5)
    versions = LedgerVersions(None, Batching(), {}, Resumed(0, 1, "/c/j/1", ledger.snapshot()))
    with pytest.raises(UsageError) as error:
        versions.open("v0", now, (), 0)
    complaint = f"worker v0 trains on other data than what was saved in /c/j/1: {said}"
    assert str(error.value) == f"{complaint}; with --resume never the job begins anew"


def test_more_epochs_may_be_asked_for_and_one_by_one() -> None:
    ledger = new_ledger(SPEC, roster(2))
    versions = LedgerVersions(None, Batching(), {}, Resumed(0, 1, "/c/j/1", ledger.snapshot()))
    versions.open("v0", msgspec.structs.replace(SPEC, epochs=5), (), 0)
    assert versions.ledger.spec.epochs == 5
    by_epoch = msgspec.structs.replace(SPEC, by_sample=True)
    versions = LedgerVersions(None, Batching(), {}, Resumed(0, 1, "/c/j/1", new_ledger(by_epoch, roster(2)).snapshot()))
    versions.open("v0", msgspec.structs.replace(by_epoch, epochs=1), (), 0)
    assert versions.ledger.spec.epochs == 3


def test_scripts_that_brought_their_own_data_cannot_ask_for_some_now() -> None:
    versions = LedgerVersions(None, Batching(), {}, Resumed(9, 1, "/c/j/1"))
    with pytest.raises(UsageError, match="worker v0 asks for data, and the scripts that were saved in /c/j/1 did not"):
        versions.open("v0", SPEC, (), 0)


def test_a_job_that_was_saved_before_its_first_step_begins_its_data_then() -> None:
    versions = LedgerVersions(None, Batching(), {}, Resumed(0, 1, "/c/j/1"))
    versions.open("v0", SPEC, roster(2), 0)
    versions.reach(1)
    assert versions.ledger is not None
    assert samples(versions.ledger, "w0", 1) == samples(granted(new_ledger(SPEC, roster(2)), 1), "w0", 1)


@given(st.integers(1, 3), st.integers(0, 2))
def test_a_life_that_is_saved_before_its_scripts_ask_for_data_hands_on_what_it_began_with(size: int, own: int) -> None:
    """`own`: steps that its scripts made without."""
    ledger = granted(new_ledger(SPEC, roster(2)), 4)
    ledger.commit(3)
    versions = LedgerVersions(None, Batching(), {}, Resumed(3, 1, "/c/j/1", rebased(ledger.snapshot())))
    handed_on = versions.projected(own)
    assert handed_on is not None
    saved = rebased(handed_on)
    then = LedgerVersions(None, Batching(), {}, Resumed(3 + own, 2, "/c/j/2", saved))
    for one in (versions, then):
        one.open("v0", SPEC, roster(size, "v"), 0)
        one.reach(4)
    assert then.snapshot() == versions.snapshot()


def granted(ledger: Ledger, step: int) -> Ledger:
    ledger.grant(step)
    return ledger


def test_what_is_not_leased_yet_cannot_be_announced() -> None:
    ledger = new_ledger(SPEC, roster(2))
    ledger.grant(3)
    with pytest.raises(InvalidTransition):
        projected(ledger, 4)
