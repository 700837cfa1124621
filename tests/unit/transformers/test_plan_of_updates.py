"""How long a training of Hugging Face's is in updates, while the number of workers changes."""

from __future__ import annotations

from edl.transformers.hf_loop import UpdatePlan


def by_epochs(epochs: float = 2.0) -> UpdatePlan:
    return UpdatePlan(updates=20, workers=2, epochs=epochs, by_epochs=True)


def test_the_schedule_is_at_its_end_when_the_data_is_at_any_number_of_workers() -> None:
    for workers, updates in ((1, 40), (2, 20), (4, 10)):
        plan = by_epochs()
        for _ in range(updates):
            plan.advance(workers)
        assert plan.position == 20.0


def test_a_number_of_updates_that_the_script_has_said_is_one_at_any_size() -> None:
    plan = UpdatePlan(updates=5, workers=2, epochs=3.0, by_epochs=False)
    plan.advance(7)
    assert plan.position == 1
    assert not plan.is_over(9, 4, pass_over=True)
    assert plan.is_over(0, 5, pass_over=False)
    assert plan.most_updates(3, over=False) == 5


def test_epochs_end_with_their_data_and_not_with_a_count() -> None:
    plan = by_epochs()
    assert not plan.is_over(0, 100, pass_over=True)
    assert not plan.is_over(1, 100, pass_over=False)
    assert plan.is_over(1, 3, pass_over=True)
    assert plan.most_updates(100, over=False) == 101  # else callbacks would take it for the last one
    assert plan.most_updates(7, over=True) == 7


def test_a_part_of_an_epoch_ends_where_the_schedule_does() -> None:
    plan = by_epochs(1.5)
    plan.position = 19.0
    assert not plan.is_over(1, 19, pass_over=False)
    plan.position = 20.0
    assert plan.is_over(1, 20, pass_over=False)
    assert not plan.is_over(0, 20, pass_over=True)
