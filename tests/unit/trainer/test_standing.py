"""What a newcomer does after an epoch's last step: what the others still have to do there, and no more."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from edl.errors import RingBroken
from edl.trainer.arrays import Arrays
from edl.trainer.data.rehearsals import Rehearsals
from edl.trainer.extras import STANDING
from edl.trainer.trainer import Trainer

STEP, EPOCH, PEERS_STEP = 7, 2, 8


class Shell:
    """Of a worker that is after `STEP`. A ring's end brings it the state of the newest step that a peer has."""

    def __init__(self, newest: int = STEP) -> None:
        self.rehearsals = Rehearsals()
        self.newest = newest
        self.machine = SimpleNamespace(
            step=STEP, begins_after=STEP, generation=1, size=2, rank=0, void=None, weightless=False,
            models_may_differ=False, check_is_due=False, orders=None, restarts=True,
        )  # fmt: skip
        self.link = SimpleNamespace(page=SimpleNamespace(attention_step=0))
        self.kept: list[str] = []

    def void(self, error: BaseException, *, keep: bool) -> None:
        self.machine.void = str(error)

    def end_batch(self, *, attention: bool) -> None:
        self.machine.step += 1

    def end_uncommitted_batch(self) -> None:
        self.machine.step, self.machine.void = self.newest, None

    def put_back(self) -> None:
        """Nothing was kept."""

    end_beside = weigh_if_known = complete_state = measure_state = put_back


class Evaluates:
    """One call of `make` for each evaluation; the ring breaks in those after the first."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.results = trainer, []  # type: Any, list[tuple[bytes, ...]]

    def begin_batch(self) -> None:
        """None is asked for since."""

    def take(self, step: int, results: Any) -> None:
        self.results = results

    def make(self, work: Any) -> None:
        if self.results:
            self.trainer.renew_ring(RingBroken("a peer is gone"))
        self.results = [*self.results, (b"",)]


def seat(newest: int = STEP) -> Any:
    trainer: Any = Trainer(SimpleNamespace(ring=None, apart=None, sort=Arrays()))
    trainer._settings = SimpleNamespace(step_timeout_s=1.0)
    trainer._shell = Shell(newest)
    trainer._machine = trainer._shell.machine
    trainer._leases = SimpleNamespace(
        at=lambda step: SimpleNamespace(epoch=EPOCH), ends_pass=lambda step: step == STEP, epoch=lambda step: EPOCH
    )
    trainer._rates = SimpleNamespace(count=lambda: None, tune=lambda: None, follow=lambda: None, rehearse=lambda: None)
    trainer._comparison = SimpleNamespace(finish=lambda timeout_s: False)
    trainer._evaluations = Evaluates(trainer)
    trainer._standing.register()
    return trainer


def survivor(newest: int = STEP) -> Any:
    """It has just ended the last step of an epoch."""
    trainer = seat(newest)
    trainer._machine.step = STEP - 1
    assert trainer._end_batch(None)
    assert trainer._machine.step == STEP
    return trainer


def newcomer(told: Any) -> tuple[list[int], Any]:
    """Of which epochs it makes the end, and itself."""
    trainer, rest = seat(), []  # type: Any, list[int]
    trainer._shards = SimpleNamespace(rest_of=rest.append)
    trainer._shell.rehearsals.add(1)
    trainer._extras._put(STANDING, told._extras._get(STANDING))
    trainer._take_standing()
    return rest, trainer


def test_while_the_others_stand_between_two_epochs_it_goes_there() -> None:
    rest, _ = newcomer(survivor())
    assert rest == [EPOCH]


def test_once_the_others_have_begun_the_next_epoch_it_does_not_end_the_one_before_again() -> None:
    """Though there are no results that would tell: this script never evaluates."""
    other = survivor()
    other.void(RingBroken("a peer is gone"))
    assert not other._end_batch(None)
    rest, _ = newcomer(other)
    assert rest == []


@pytest.mark.parametrize("evaluations", [1, 2])
def test_in_each_of_two_evaluations_it_joins_the_others(evaluations: int) -> None:
    other = survivor()
    for _ in range(evaluations):
        other.evaluate_shared(None)
    other.renew_ring(RingBroken("a peer is gone"))
    rest, _ = newcomer(other)
    assert rest == [EPOCH]


def test_after_a_void_mini_batch_the_evaluations_are_over() -> None:
    """Also for those who come with the ring in which they are settled."""
    other = survivor()
    other.evaluate_shared(None)
    other.void(RingBroken("a peer is gone"))
    other._end_batch(None)
    other.renew_ring(RingBroken("another one is gone"))
    rest, _ = newcomer(other)
    assert rest == []


def test_what_is_evaluated_after_a_usual_mini_batch_is_at_its_end() -> None:
    """Such a one is only counted, and the one before it may have been void."""
    other = survivor()
    other.void(RingBroken("a peer is gone"))
    other._end_batch(None)
    other.evaluate_shared(None)
    other.renew_ring(RingBroken("another one is gone"))
    assert other._standing.heard["at_end"]


def test_a_step_that_a_peer_has_applied_is_ended_and_no_other_is_begun() -> None:
    other = survivor(newest=PEERS_STEP)
    other.void(RingBroken("a peer is gone"))
    assert other._end_batch(None), "it is committed here, too"
    other.renew_ring(RingBroken("another one is gone"))
    assert other._standing.heard["step"] == PEERS_STEP
    assert other._standing.heard["at_end"]


def test_a_newcomer_tells_the_next_one_what_it_was_told() -> None:
    """When all the others die, it is the only one who knows."""
    _, first = newcomer(survivor())
    first.renew_ring(RingBroken("all the others are gone"))
    rest, _ = newcomer(first)
    assert rest == [EPOCH]


def test_models_are_equal_before_an_evaluation_before_the_first_mini_batch() -> None:
    trainer, heard = seat(), []  # type: Any, list[Any]
    trainer._machine.models_may_differ = True
    trainer._thread = threading.get_ident()
    trainer._shell.hear = heard.append
    trainer._shell.before_update = lambda: None
    trainer._framework.synchronize_rest = lambda root, *, only_statistics: heard.append("statistics")
    trainer.begin_evaluation()
    assert [type(one).__name__ for one in heard] == ["BatchBegins", "str"]
