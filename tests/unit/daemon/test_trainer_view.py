"""What a daemon makes of its trainer's words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edl.daemon.trainer_view import TrainerView
from edl.protocol import leader_messages as say
from edl.protocol.data_nouns import DataSpec
from edl.protocol.trainer_messages import FromTrainer, Hello, TrainerStatus
from edl.transport.shared_page import SharedPage

TRAINING = TrainerStatus(phase=say.Phase.TRAINING, generation=1, began=0)


def test_a_longer_reason_is_not_taken_either(tmp_path: Path) -> None:
    SharedPage.create(tmp_path / "page")
    observation = TrainerView(SharedPage.open(tmp_path / "page")).observe(0.0)
    long = say.Report(msgspec.structs.replace(observation, reason="x" * 2001))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(long), type=say.Request)


def test_what_a_trainer_says_goes_into_the_report_as_it_is(tmp_path: Path) -> None:
    """Each field of it, but for those that only its daemon needs."""
    SharedPage.create(tmp_path / "page")
    observer = TrainerView(SharedPage.open(tmp_path / "page"))
    status = TrainerStatus(
        phase=say.Phase.BROKEN,
        generation=4,
        began=7,
        leases_of=3,
        data=DataSpec(10, 1, 1),
        pause=say.Pause(1.0, 2.0, 3.0, 6.0),
        leaving=True,
        reason="reset",
        missed=2,
        marked=(1, 9),
        joined=5,
        booted=True,
        prepares=True,
        sends_state=True,
        state_bytes=6,
        prepared=(5, "no route to host"),
        offer=80,
        save_wanted=8,
        foreign=True,
        void=say.Void(4),
        whereabouts=say.ScriptPlace(8, "train.py:3"),
        bits="held",
        figures={"loss": 0.5},
    )
    hello = Hello(status, member=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(hello), type=FromTrainer) == hello
    observer.hear(status)
    report = say.Report(observer.observe(0.0))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=say.Request) == report
    for name in say.TrainerFacts.__struct_fields__:
        assert getattr(report.observation, name) == getattr(status, name)
    assert report.observation.usage is not None
    assert report.observation.usage.reported == {"loss": 0.5}


def test_computing_is_what_is_neither_waiting_nor_loading_in_a_ring_and_never_shrinks(tmp_path: Path) -> None:
    page = SharedPage.create(tmp_path / "page")
    page.add_waited(5_000_000_000)  # before this daemon came
    observer = TrainerView(SharedPage.open(tmp_path / "page"))

    def computed(now: float) -> float:
        usage = observer.observe(now).usage
        assert usage is not None
        return usage.computed_s

    assert [computed(0.0), computed(3.0)] == [0.0, 0.0]  # it boots
    observer.hear(TRAINING)
    assert computed(5.0) == 2.0
    page.add_waited(1_500_000_000)  # known once it is over: what was taken for computing meanwhile is not taken back
    assert [computed(5.5), computed(6.0), computed(8.0)] == [2.0, 2.0, 3.5]
    page.add_loaded(1_000_000_000)
    assert computed(10.0) == 4.5


def test_the_step_time_is_the_shorter_mean_of_half_a_second_and_of_twenty(tmp_path: Path) -> None:
    """Steps are long for a moment as the next ring is prepared beside them, and short again by its switch."""
    page = SharedPage.create(tmp_path / "page")
    observer = TrainerView(SharedPage.open(tmp_path / "page"))
    observer.hear(TRAINING)
    now = 0.0
    assert observer.observe(now).step_time_s == 0.0
    for _ in range(100):
        now = _make_a_step(page, now, 0.1)
        observer.observe(now)
    assert observer.observe(now).step_time_s == pytest.approx(0.1)
    for _ in range(5):
        now = _make_a_step(page, now, 0.4)
        observer.observe(now)
    assert 0.1 < observer.observe(now).step_time_s < 0.15
    for _ in range(60):
        now = _make_a_step(page, now, 0.05)
        observer.observe(now)
    assert observer.observe(now).step_time_s == pytest.approx(0.05, rel=0.1)


def test_another_ring_has_step_times_of_its_own_and_other_news_changes_none(tmp_path: Path) -> None:
    page = SharedPage.create(tmp_path / "page")
    observer = TrainerView(SharedPage.open(tmp_path / "page"))
    observer.hear(TRAINING)
    observer.observe(0.0)
    page.count().step = 9  # it has come to where the others are: that is no nine steps
    observer.hear(msgspec.structs.replace(TRAINING, generation=2, began=9))
    assert observer.observe(1.0).step_time_s == 0.0
    observer.hear(msgspec.structs.replace(TRAINING, generation=2, began=9, save_wanted=9))
    page.count().step = 10
    assert observer.observe(1.5).step_time_s == pytest.approx(0.5)


def test_the_first_of_long_steps_tells_how_long_they_take(tmp_path: Path) -> None:
    page = SharedPage.create(tmp_path / "page")
    observer = TrainerView(SharedPage.open(tmp_path / "page"))
    observer.hear(TRAINING)
    observer.observe(0.0)
    now = _make_a_step(page, 0.0, 5.0)
    assert observer.observe(now).step_time_s == 5.0


def test_a_first_reading_in_the_midst_of_a_step_is_soon_forgotten(tmp_path: Path) -> None:
    page = SharedPage.create(tmp_path / "page")
    observer = TrainerView(SharedPage.open(tmp_path / "page"))
    observer.hear(TRAINING)
    observer.observe(now := 0.0)
    page.count().step += 1
    observer.observe(now := 0.001)  # of the step there was that left
    for _ in range(10):
        now = _make_a_step(page, now, 0.05)
        observer.observe(now)
    assert observer.observe(now).step_time_s == pytest.approx(0.05, rel=0.01)


def _make_a_step(page: SharedPage, now: float, took_s: float) -> float:
    page.count().step += 1
    return now + took_s
