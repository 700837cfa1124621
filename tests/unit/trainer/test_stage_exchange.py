"""Processes of one worker tell each other of their tensors when there may be others, and find their stages alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from edl.checkpoints.worker_stages import Holding
from edl.core.worker.limb_votes import UpdateVote
from edl.errors import UsageError
from edl.trainer.first_state import stage_here
from edl.trainer.limb_agreement import LimbAgreement, StageExchange


class Held:
    """Tensors of one process."""

    def __init__(self, name: str, contents: str = "", beside: tuple[int, ...] = ()) -> None:
        self.name, self.contents, self.beside, self.wrapped = name, contents, beside, 1

    def stamp(self) -> int:
        return self.wrapped

    def holding(self) -> Holding:
        first = (self.contents.encode(),)
        return Holding(
            self.name, (self.name,), (), self.beside, self.contents, placed=("",), pieces=("",), firsts=first
        )

    def sample(self) -> str:
        return self.contents


class Group:
    """The processes of a worker, each on a thread."""

    def __init__(self, *held: Held) -> None:
        self.held, self.barrier, self.given = held, Barrier(len(held), timeout=20), list[Any](held)
        self.limbs = [self.limb(number) for number in range(len(held))]
        self.gathered = 0

    def limb(self, number: int) -> LimbAgreement:
        def all_of(mine: Any) -> list[Any]:
            self.given[number] = mine
            self.barrier.wait()
            found = list(self.given)
            self.barrier.wait()
            return found

        def gather(payload: bytes) -> list[bytes]:
            self.gathered += not number
            return all_of(payload)

        rows: Any = SimpleNamespace(exchange=all_of, gather=gather)
        machine: Any = SimpleNamespace(sits=False)
        exchange = StageExchange(gather, number, len(self.held), self.held[number])
        return LimbAgreement(rows, machine, number, exchange)

    def vote(self) -> list[tuple[int, int]]:
        """Each process's stage, and of how many, before an update."""
        with ThreadPoolExecutor(len(self.limbs)) as pool:
            votes = list(pool.map(lambda limb: limb.vote(void=False, look=False), self.limbs))
        assert len(set(votes)) == 1 and isinstance(votes[0], UpdateVote)
        return [(limb.stages.stage.number, limb.stages.stage.of) for limb in self.limbs]


def test_stages_are_known_from_the_first_update_on_and_asked_once() -> None:
    group = Group(Held("a"), Held("b"))
    assert [limb.stages.stage.of for limb in group.limbs] == [1, 1]
    assert [group.vote() for _ in range(5)] == [[(0, 2), (1, 2)]] * 5
    assert group.gathered == 1


def test_processes_that_train_one_parameter_from_different_contents_are_refused_before_the_first_update() -> None:
    group = Group(Held("a", "1", (0, 1)), Held("a", "2", (0, 1)))
    with pytest.raises(UsageError, match=r"edl\.Optimizer: a differs between processes 0 and 1 of this worker"):
        group.vote()


def test_later_the_last_bits_may_differ() -> None:
    group = Group(Held("a", "1", (0, 1)), Held("a", "1", (0, 1)))
    group.vote()
    group.held[1].contents, group.held[1].wrapped = "2", 2
    assert group.vote() == [(0, 1), (0, 1)]


def test_all_tell_anew_where_one_of_them_has_something_more() -> None:
    group = Group(Held("a"), Held("b"))
    assert group.vote() == [(0, 2), (1, 2)]
    group.held[1].name, group.held[1].wrapped = "a", 2
    assert group.vote() == [(0, 1), (0, 1)]
    assert group.gathered == 2


def test_stages_that_began_alike_are_told_apart_as_they_train() -> None:
    group = Group(Held("w", "seed 5"), Held("w", "seed 5"))
    assert group.vote() == [(0, 1), (0, 1)]
    assert [limb.stages.witness() for limb in group.limbs] == ["seed 5", "seed 5"], "copies say what they contain"
    for held, contents in zip(group.held, ("first", "second"), strict=True):
        held.contents = contents
    assert [limb.stages.witness() for limb in group.limbs] == ["first", "second"]
    assert group.vote() == [(0, 2), (1, 2)]
    assert [limb.stages.witness() for limb in group.limbs] == ["", ""]


def test_copies_are_compared_more_and_more_rarely() -> None:
    group, asked = Group(Held("w"), Held("w")), []
    for update in range(1, 41):
        before = group.gathered
        assert group.vote() == [(0, 1), (0, 1)]
        asked += [update] * (group.gathered - before)
    assert asked == [1, 2, 4, 8, 16, 32]


def test_a_process_goes_on_from_its_own_stage() -> None:
    stages = [SimpleNamespace(processes=(0, 2), tensors=2), SimpleNamespace(processes=(1, 3), tensors=1)]
    manifest: Any = SimpleNamespace(heads=stages, tensors=("a", "b", "c"), processes=4)
    assert [stage_here(manifest, limb, 4) for limb in range(4)] == [
        (stages[0], ("a", "b")), (stages[1], ("c",)), (stages[0], ("a", "b")), (stages[1], ("c",)),
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"2 stages.*4 processes of each worker.*has 2: resume it by --processes 4"):
        stage_here(manifest, 0, 2)


def test_a_model_of_one_stage_goes_on_with_any_number_of_processes() -> None:
    manifest: Any = SimpleNamespace(heads=["whole"], tensors=("a",), processes=2)
    assert [stage_here(manifest, limb, 3) for limb in range(3)] == [("whole", ("a",))] * 3
