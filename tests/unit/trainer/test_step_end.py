"""What a newcomer does after an epoch's last step: what the others still have to do there, and no more."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edl.core.worker.worker_states import TrainerState
from edl.errors import EdlError, JobFailed, RingBroken, UsageError
from edl.protocol.assignment import Assignment, Orders, Place, Verdict
from edl.trainer.data.epoch_cursor import PassSoFar
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.first_state import FirstState
from edl.trainer.registered_state import STANDING, RegisteredState
from edl.trainer.reported_metrics import FigureSender
from edl.trainer.sample_source import SampleSource
from edl.trainer.step_end import BatchEnds
from edl.trainer.updates_due import UpdatesDue
from edl.trainer.value_tree import Arrays
from edl.trainer.void_batches import CUT

STEP, EPOCH, PEERS_STEP = 7, 2, 8


class Shell:
    """Of a worker that is after `STEP`. A ring's end brings it the state of the newest step that a peer has."""

    def __init__(self, newest: int = STEP) -> None:
        self.rehearsals = Rehearsals()
        self.newest = newest
        self.machine = SimpleNamespace(
            step=STEP, begins_after=STEP, generation=1, size=2, rank=0, void=None, check_is_due=False, orders=None,
            supply=SimpleNamespace(weightless=False), model=SimpleNamespace(may_differ=False), restarts=True,
            failure="", state=TrainerState.TRAINING,
        )  # fmt: skip
        self.link = SimpleNamespace(page=SimpleNamespace(attention_step=0), folder=Path("/nowhere"), orders=None)
        self.has_gradients = False
        self.step_timeout_s = 1.0
        self.is_training_thread = True
        self.state_came: Any = None
        self.beside = SimpleNamespace(rehearse=lambda: None)
        self.kept = SimpleNamespace(put_back=lambda: None)

    def void(self, error: BaseException, *, keep: bool) -> None:
        self.machine.void = str(error)

    def end_batch(self, *, attention: bool) -> None:
        self.machine.step += 1

    def end_uncommitted_batch(self) -> None:
        self.machine.step, self.machine.void = self.newest, None

    def end_beside(self) -> None:
        """Nothing is done beside a step."""

    def looks_after(self, _step: int) -> bool:
        return False

    weigh_if_known = complete_state = measure_state = vote_at_end = end_beside


def untyped(stand_in: Any) -> Any:
    """For what wants the real one."""
    return stand_in


class Evaluates:
    """One call of `make` for each evaluation; the ring breaks in those after the first."""

    def __init__(self, ends: BatchEnds) -> None:
        self.ends, self.results = ends, []  # type: BatchEnds, list[tuple[bytes, ...]]

    def begin_batch(self) -> None:
        """None is asked for since."""

    def take(self, step: int, results: Any) -> None:
        self.results = results

    def make(self, work: Any) -> None:
        if self.results:
            self.ends.renew_ring(RingBroken("a peer is gone"))
        self.results = [*self.results, (b"",)]


class Shards:
    """Of a script that has had so many steps in its pass, and goes on in those of another one that it joins."""

    def __init__(self) -> None:
        self.steps, self.read_to = 1, STEP + 1
        self.joined: list[tuple[int, int | None, PassSoFar]] = []

    def so_far(self, step: int) -> PassSoFar:
        return PassSoFar(self.steps)

    def join(self, after: int, epoch: int | None, so_far: PassSoFar) -> None:
        self.joined.append((after, epoch, so_far))

    def pass_over(self, done: int, step: int) -> bool:
        return True

    def redeliver(self, more: int = 0) -> bool:
        return self.read_to <= STEP + 1


class Worker:
    """What it does at the ends of its mini-batches, with the parts that this goes through."""

    def __init__(self, newest: int = STEP) -> None:
        self.framework: Any = SimpleNamespace(ring=None, sort=Arrays(), updates_due=UpdatesDue())
        self.shell = untyped(Shell(newest))
        self.machine = self.shell.machine
        self.extras = RegisteredState(Arrays())
        leases: Any = SimpleNamespace(at=lambda step: SimpleNamespace(epoch=EPOCH), epoch=lambda step: EPOCH)
        rates: Any = SimpleNamespace(count=lambda: None, tune=lambda: None, follow=lambda: None, rehearse=lambda: None)
        resuming = FirstState(self.framework, self.extras, self.shell)
        self.samples = SampleSource(self.shell, leases, rates, resuming)
        self.shards = Shards()
        self.samples.shards = untyped(self.shards)
        self.ends = BatchEnds(
            framework=self.framework,
            shell=self.shell,
            leases=leases,
            extras=self.extras,
            samples=self.samples,
            rates=rates,
            resuming=resuming,
            figures=FigureSender(lambda values: None),
        )
        self.ends._evaluations = untyped(Evaluates(self.ends))
        self.ends.standing.register()

    def end_batch(self) -> bool:
        """As `BatchEnds.end` does; before what evaluations have come to is settled."""
        return self.ends._end(None)

    def fails(self) -> None:
        self.shell.void(RingBroken("a peer is gone"), keep=False)

    def evaluate(self) -> None:
        self.ends.evaluate(untyped(None))

    def renew_ring(self) -> None:
        self.ends.renew_ring(RingBroken("another one is gone"))


def survivor(newest: int = STEP) -> Worker:
    """It has just ended the last step of an epoch."""
    worker = Worker(newest)
    worker.machine.step = STEP - 1
    assert worker.end_batch()
    assert worker.machine.step == STEP
    return worker


def newcomer(told: Worker) -> tuple[list[int], Worker]:
    """Of which epoch its pass is what is left of the others', and itself."""
    worker = Worker()
    worker.shell.rehearsals.add(1)
    worker.extras.values[STANDING] = told.extras.values.get(STANDING)
    worker.shell.state_came()
    [(after, epoch, so_far)] = worker.shards.joined
    assert (after, so_far) == (STEP, told.shards.so_far(STEP))
    return [] if epoch is None else [epoch], worker


def test_while_the_others_stand_between_two_epochs_it_goes_there() -> None:
    rest, _ = newcomer(survivor())
    assert rest == [EPOCH]


def test_once_the_others_have_begun_the_next_epoch_it_does_not_end_the_one_before_again() -> None:
    """Though there are no results that would tell: this script never evaluates."""
    other = survivor()
    other.fails()
    assert not other.end_batch()
    rest, _ = newcomer(other)
    assert rest == []


def test_once_the_others_have_left_their_pass_it_is_in_the_one_that_follows() -> None:
    """Over a prepared loader a step may end after what lies between two passes: that is done, and comes with it."""
    other = Worker()
    other.machine.step, other.shards.steps = STEP - 1, 0
    assert other.end_batch()
    rest, _ = newcomer(other)
    assert rest == []


@pytest.mark.parametrize("evaluations", [1, 2])
def test_in_each_of_two_evaluations_it_joins_the_others(evaluations: int) -> None:
    other = survivor()
    for _ in range(evaluations):
        other.evaluate()
    other.renew_ring()
    rest, _ = newcomer(other)
    assert rest == [EPOCH]


def test_after_a_void_mini_batch_the_evaluations_are_over() -> None:
    """Also for those who come with the ring in which they are settled."""
    other = survivor()
    other.evaluate()
    other.fails()
    other.end_batch()
    other.renew_ring()
    rest, _ = newcomer(other)
    assert rest == []


def test_what_is_evaluated_after_a_usual_mini_batch_is_at_its_end() -> None:
    """Such a one is only counted, and the one before it may have been void."""
    other = survivor()
    other.fails()
    other.end_batch()
    other.evaluate()
    other.renew_ring()
    assert other.ends.standing.heard["at_end"]


def test_a_step_that_a_peer_has_applied_is_ended_and_no_other_is_begun() -> None:
    other = survivor(newest=PEERS_STEP)
    other.fails()
    assert other.end_batch(), "it is committed here, too"
    other.renew_ring()
    assert other.ends.standing.heard["step"] == PEERS_STEP
    assert other.ends.standing.heard["at_end"]


def test_a_newcomer_tells_the_next_one_what_it_was_told() -> None:
    """When all the others die, it is the only one who knows."""
    _, first = newcomer(survivor())
    first.renew_ring()
    rest, _ = newcomer(first)
    assert rest == [EPOCH]


def test_models_are_equal_before_an_evaluation_before_the_first_mini_batch() -> None:
    worker, heard = Worker(), []  # type: Worker, list[Any]
    worker.machine.model.may_differ = True
    worker.shell.hear = heard.append
    worker.framework.synchronize_rest = lambda root, *, only_statistics: heard.append("statistics")
    worker.ends.begin_evaluation()
    assert [type(one).__name__ for one in heard] == ["BatchBegins", "str"]


@pytest.mark.parametrize("void", [False, True])
def test_a_script_that_has_ended_tells_of_updates_after_its_last_step_but_of_none_that_is_void(void: bool) -> None:
    worker = survivor()
    worker.ends._comparison = untyped(SimpleNamespace(last=list))
    worker.framework.updates_due.note(0, STEP)
    worker.framework.updates_due.note(1, STEP + 1)
    if void:
        worker.fails()
    steps, updates = worker.ends.state_at_end()
    assert (steps.value, updates.value) == (str(STEP), "0" if void else "1")


@pytest.mark.parametrize("why", [CUT, "a peer is gone"])
def test_a_script_that_goes_on_after_an_exception_in_backward_is_told_that_and_not_of_pipelines(why: str) -> None:
    worker = Worker()
    worker.shards.read_to = STEP + 2
    worker.shell.void(RingBroken(why), keep=False)
    with pytest.raises(EdlError) as raised:
        worker.end_batch()
    assert ("call edl.notify_batch_end() in each mini-batch" in str(raised.value)) is (why == CUT)
    assert ("in_step(" in str(raised.value)) is (why != CUT)
    assert (worker.machine.void == CUT) is (why == CUT), "caught again, nothing of this worker goes into the model"


class Evaluated:
    """The steps after which it was evaluated, and how often the loader was told to end its mini-batch."""

    def __init__(self) -> None:
        self.worker = survivor()
        self.steps, self.ended = [], 0  # type: list[int], int
        self.worker.shell.has_gradients = True
        self.worker.ends._evaluations = untyped(self)
        self.breaks = False

    def begin_batch(self) -> None:
        """None is asked for since."""

    def make(self, work: Any) -> None:
        if self.breaks:
            self.worker.renew_ring()
        self.steps.append(self.worker.machine.step)

    def end(self) -> None:
        self.ended += 1
        self.worker.shell.has_gradients = False
        self.worker.shell.end_batch(attention=False)
        self.worker.ends.give_out(None)

    def changes_after(self, step: int, verdict: Verdict = Verdict.STAY) -> None:
        leaves = verdict is Verdict.LEAVE
        assignment = None if leaves else Assignment(Place(2, 0, 2, "w"), step, 0, follows=1)
        leave_after = step if leaves else 0
        self.worker.shell.link.orders = Orders(1, 1, verdict, "", leave_after, 0, 2, False, assignment, ())


def test_an_evaluation_once_there_are_gradients_is_refused_where_the_script_ends_its_mini_batches() -> None:
    evaluated = Evaluated()
    with pytest.raises(UsageError, match=f"step {STEP + 1}, .*: call notify_batch_end"):
        evaluated.worker.evaluate()
    evaluated.worker.shell.has_gradients = False
    evaluated.worker.evaluate()
    assert evaluated.steps == [STEP]


def test_an_evaluation_ends_the_mini_batch_that_a_loader_has_given_out() -> None:
    evaluated = Evaluated()
    evaluated.worker.ends.give_out(evaluated.end)
    evaluated.worker.evaluate()
    evaluated.worker.evaluate()
    assert (evaluated.ended, evaluated.steps) == (1, [STEP + 1, STEP + 1])


def test_gradients_that_follow_it_are_refused_until_the_next_one_is_given_out() -> None:
    evaluated = Evaluated()
    evaluated.worker.ends.give_out(evaluated.end)
    evaluated.worker.ends.check_open()
    evaluated.worker.evaluate()
    with pytest.raises(UsageError, match="prepared loader call it"):
        evaluated.worker.ends.check_open()
    evaluated.worker.ends.give_out(evaluated.end)
    evaluated.worker.ends.check_open()


@pytest.mark.parametrize("verdict", [Verdict.STAY, Verdict.LEAVE])
@pytest.mark.parametrize(("after", "ended"), [(STEP, 1), (STEP + 1, 0), (STEP + 2, 1)])
def test_where_the_ring_changes_after_the_mini_batch_it_is_evaluated_before(
    after: int, ended: int, verdict: Verdict
) -> None:
    """A newcomer's script has not come to this place."""
    evaluated = Evaluated()
    evaluated.worker.ends.give_out(evaluated.end)
    evaluated.changes_after(after, verdict)
    evaluated.worker.evaluate()
    assert (evaluated.ended, evaluated.steps) == (ended, [STEP + ended])


def test_a_ring_that_breaks_there_ends_the_worker() -> None:
    """Its mini-batch would come again, with its update made."""
    evaluated = Evaluated()
    evaluated.worker.ends.give_out(evaluated.end)
    evaluated.changes_after(STEP + 1)
    evaluated.breaks = True
    with pytest.raises(JobFailed, match=f"in an evaluation in step {STEP + 1}"):
        evaluated.worker.evaluate()


def test_a_void_mini_batch_is_ended_whatever_follows() -> None:
    evaluated = Evaluated()
    evaluated.worker.ends.give_out(evaluated.end)
    evaluated.changes_after(STEP + 1)
    evaluated.worker.fails()
    evaluated.worker.evaluate()
    assert evaluated.ended == 1
