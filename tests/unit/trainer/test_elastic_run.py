"""A training function in Horovod's shape: when a mini-batch of it ends, and when it is called anew."""

from __future__ import annotations

from typing import Any

import pytest

from edl.errors import RingBroken, UsageError
from edl.trainer.elastic_run import Run, State
from edl.trainer.registered_state import RegisteredState, RegisteredValues


class FakeTrainer:
    """A trainer whose ring changes when the test says so."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.count = 0
        self.number = 1
        self.changes_after: set[int] = set()
        self.anew = 0
        self.extras = RegisteredState()
        self.callbacks: list[Any] = []
        self.updates: int | None = 0
        self.rehearsals = 0

    @property
    def voided(self) -> bool:
        return self.error is not None

    def void(self, error: BaseException) -> None:
        self.error = self.error or error

    def generation(self) -> int:
        return self.number

    def rehearsing(self) -> bool:
        return self.rehearsals > 0

    def step(self) -> int:
        return self.count + 1

    def begin_batch(self) -> None: ...

    def expect_restarts(self) -> None: ...

    def begin_anew(self) -> None:
        self.anew += 1

    def notify_batch_end(self, samples: int | None = None) -> bool:
        void, self.error = self.voided, None
        if self.rehearsals > 1:
            self.rehearsals -= 1
            return False
        self.rehearsals = 0
        self.count += not void
        if void or self.count in self.changes_after:
            self.changes_after.discard(self.count)
            self.number += 1
            for callback in self.callbacks:
                callback(2, 3)
        return not void

    def register(self, **values: Any) -> RegisteredValues:
        return self.extras.add(values)

    def on_resize(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def is_failure(self, error: BaseException) -> bool:
        return isinstance(error, RingBroken)


@pytest.fixture
def trainer() -> FakeTrainer:
    return FakeTrainer()


@pytest.fixture
def run(trainer: FakeTrainer) -> Run:
    return Run(trainer, trainer, lambda: trainer.updates)


def update(trainer: FakeTrainer) -> None:
    assert trainer.updates is not None
    trainer.updates += 1


def test_a_commit_ends_a_mini_batch_once(run: Run, trainer: FakeTrainer) -> None:
    state = State(run, {"batch": 0}, {})

    @run
    def train(state: Any) -> str:
        for _ in range(3):
            state.commit()  # at the top of the loop, as some scripts have it: nothing was updated yet
            update(trainer)
            state.batch += 1
            state.commit()
            state.check_host_updates()
        return "done"

    assert train(state) == "done"
    assert (trainer.count, state.batch) == (3, 3)


def test_it_is_called_anew_after_a_change_with_the_values_of_that_moment(run: Run, trainer: FakeTrainer) -> None:
    state, calls = State(run, {"batch": 0}, {}), []
    seen: list[int] = []
    state.register_reset_callbacks([lambda: seen.append(state.batch)])
    trainer.changes_after = {2}

    @run
    def train(state: Any) -> None:
        calls.append(state.batch)
        while state.batch < 4:
            update(trainer)
            state.batch += 1
            state.commit()

    train(state)
    assert (calls, seen, trainer.count, trainer.anew) == ([0, 2], [2], 4, 1)


def test_a_void_mini_batch_is_undone_in_plain_values_only(run: Run, trainer: FakeTrainer) -> None:
    state, calls = State(run, {"batch": 0, "losses": []}, {}), []

    @run
    def train(state: Any) -> None:
        calls.append((state.batch, list(state.losses)))
        while state.batch < 3:
            state.losses.append(state.batch)
            if state.batch == 1 and len(calls) == 1:
                trainer.void(RingBroken("a peer is gone"))
            else:
                update(trainer)
            state.batch += 1
            state.commit()

    train(state)
    assert calls == [(0, []), (1, [0])]
    assert (trainer.count, state.losses) == (3, [0, 1, 2])


@pytest.mark.parametrize(("updated", "counts"), [(False, 2), (True, 3)])
def test_a_collective_of_the_script_that_fails(run: Run, trainer: FakeTrainer, updated: bool, counts: int) -> None:
    """Before the update the mini-batch is void; after it, it counts, as its update is never undone."""
    state, calls = State(run, {"left": 2}, {}), []

    @run
    def train(state: Any) -> None:
        calls.append(state.left)
        while state.left:
            if len(calls) == 1 and updated:
                update(trainer)
            if len(calls) == 1:
                raise RingBroken("a peer is gone")
            update(trainer)
            state.left -= 1
            state.commit()

    train(state)
    assert (len(calls), trainer.count) == (2, counts)


def test_other_errors_are_the_scripts_own(run: Run, trainer: FakeTrainer) -> None:
    @run
    def train(state: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(State(run, {}, {}))


def test_the_last_mini_batch_ends_with_the_function(run: Run, trainer: FakeTrainer) -> None:
    state = State(run, {}, {})
    run(lambda state: update(trainer))(state)
    assert trainer.count == 1


def test_a_function_that_returns_in_a_rehearsal_is_called_anew(run: Run, trainer: FakeTrainer) -> None:
    """It had one mini-batch to make from where it began, and the job may have more from where it stands."""
    trainer.rehearsals, trainer.changes_after = 2, {1}
    calls: list[int] = []

    def train(state: Any) -> str:
        calls.append(trainer.rehearsals)
        update(trainer)
        return "trained"

    assert run(train)(State(run, {}, {})) == "trained"
    assert calls == [2, 1, 0]


def test_where_updates_are_not_seen_every_commit_is_an_end(run: Run, trainer: FakeTrainer) -> None:
    trainer.updates = None
    run(lambda state: [state.commit() for _ in range(3)])(State(run, {}, {}))
    assert trainer.count == 3


def test_mini_batches_that_the_script_ends_are_not_ended_twice(run: Run, trainer: FakeTrainer) -> None:
    @run
    def fit(state: Any) -> None:
        for _ in range(3):
            update(trainer)
            trainer.notify_batch_end()

    fit(State(run, {}, {}))
    assert trainer.count == 3


def test_the_loop_of_another_takes_the_values_along_and_is_not_left(run: Run, trainer: FakeTrainer) -> None:
    """As Keras' `fit`: a void mini-batch counts for nothing, a change ends no call."""
    given, calls = [], []
    trainer.changes_after = {2}

    @run
    def train(state: Any) -> None:
        calls.append(state.batch)
        for at in range(4):
            state.batch += 1
            if at == 2:
                trainer.void(RingBroken("gone"))
            run.end_batch_of_loop()
            given.append(trainer.extras.values.get("elastic.1"))

    state: Any = State(run, {"batch": 0}, {})
    train(state)
    assert calls == [0]
    assert given == [{"batch": 1}, {"batch": 2}, {"batch": 2}, {"batch": 3}]
    assert (state.batch, trainer.anew, trainer.count) == (3, 0, 3)


def test_parts_of_a_state_go_along(run: Run, trainer: FakeTrainer) -> None:
    class Scheduler:
        epoch = 0

        def state_dict(self) -> dict[str, int]:
            return {"epoch": self.epoch}

        def load_state_dict(self, state_dict: dict[str, int]) -> None:
            self.epoch = state_dict["epoch"]

    scheduler, calls = Scheduler(), []
    state = State(run, {}, {"scheduler": scheduler})

    @run
    def train(state: Any) -> None:
        calls.append(state.scheduler.epoch)
        if len(calls) == 1:
            state.scheduler.epoch = 5
            state.commit()
            state.scheduler.epoch = 6
            trainer.void(RingBroken("a peer is gone"))

    train(state)
    assert calls == [0, 5]


def test_wrong_use_says_so(run: Run, trainer: FakeTrainer) -> None:
    with pytest.raises(UsageError, match=r"State\(best=\.\.\.\): a object cannot travel"):
        State(run, {"best": object()}, {})
    state = State(run, {}, {})
    update(trainer)
    with pytest.raises(UsageError, match="outside the training function"):
        state.commit()


def test_values_are_restored_and_an_update_is_not(run: Run, trainer: FakeTrainer) -> None:
    """Before the first update, as some scripts do it, and between two."""
    state: Any = State(run, {"batch": 0}, {})
    state.batch = 3
    state.commit()
    state.batch = 4
    state.restore()
    assert (state.batch, trainer.count) == (3, 0)
    said: list[str] = []

    @run
    def train(state: Any) -> None:
        update(trainer)
        state.commit()
        state.batch = 5
        state.restore()
        state.save()
        update(trainer)
        with pytest.raises(UsageError, match="updated since the last commit") as raised:
            state.restore()
        said.append(str(raised.value))

    train(state)
    assert (state.batch, len(said)) == (3, 1)


def test_a_sync_gives_what_rank_0_has(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = State(run, {"batch": 21}, {})
    monkeypatch.setattr(State, "_of_first", lambda _, values: dict.fromkeys(values, 20))
    state.sync()
    assert state.batch == 20
    state.batch = 7
    state.restore()
    assert state.batch == 20


def test_a_training_function_wants_a_state(run: Run) -> None:
    @run
    def train(state: Any) -> None: ...

    with pytest.raises(UsageError, match="train\\(\\) got a int as its first argument"):
        train(3)
