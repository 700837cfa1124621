"""What a daemon makes of its trainer's words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edl.daemon.observer import Observer
from edl.protocol import link
from edl.protocol import messages as say
from edl.transport.page import Page


@pytest.mark.parametrize("message", [link.Ended("x" * 2_000_000), link.Broke(1, 3, "x" * 2_000_000)])
def test_an_exception_as_long_as_a_tensor_is_clipped_before_it_travels(
    tmp_path: Path, message: link.FromTrainer
) -> None:
    Page.create(tmp_path / "page")
    observer = Observer(Page.open(tmp_path / "page"))
    observer.hear(message)
    observation = observer.observe(0.0)
    assert observation.reason == "x" * 1997 + "..."
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(say.Report(observation)), type=say.Request)


def test_a_longer_reason_is_not_taken_either(tmp_path: Path) -> None:
    Page.create(tmp_path / "page")
    observation = Observer(Page.open(tmp_path / "page")).observe(0.0)
    long = say.Report(msgspec.structs.replace(observation, reason="x" * 2001))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(long), type=say.Request)


def test_what_a_trainer_says_of_rings_beside_its_own_is_reported(tmp_path: Path) -> None:
    Page.create(tmp_path / "page")
    observer = Observer(Page.open(tmp_path / "page"))
    assert (observer.observe(0.0).prepares, observer.observe(0.0).prepared) == (False, (0, ""))
    observer.hear(link.Hello(prepares=True))
    observer.hear(link.Prepared(4))
    assert (observer.observe(0.0).prepares, observer.observe(0.0).prepared) == (True, (4, ""))
    observer.hear(link.Prepared(5, "x" * 2_000_000))
    report = say.Report(observer.observe(0.0))
    assert report.observation.prepared == (5, "x" * 1997 + "...")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=say.Request) == report


def test_computing_is_what_is_neither_waiting_nor_loading_in_a_ring_and_never_shrinks(tmp_path: Path) -> None:
    page = Page.create(tmp_path / "page")
    page.add_waited(5_000_000_000)  # before this daemon came
    observer = Observer(Page.open(tmp_path / "page"))

    def computed(now: float) -> float:
        usage = observer.observe(now).usage
        assert usage is not None
        return usage.computed_s

    assert [computed(0.0), computed(3.0)] == [0.0, 0.0]  # it boots
    observer.hear(link.Entered(1, 0, 1, None))
    assert computed(5.0) == 2.0
    page.add_waited(1_500_000_000)  # known once it is over: what was taken for computing meanwhile is not taken back
    assert [computed(5.5), computed(6.0), computed(8.0)] == [2.0, 2.0, 3.5]
    page.add_loaded(1_000_000_000)
    assert computed(10.0) == 4.5


def test_the_step_time_is_the_shorter_mean_of_half_a_second_and_of_twenty(tmp_path: Path) -> None:
    """Steps are long for a moment as the next ring is prepared beside them, and short again by its switch."""
    page = Page.create(tmp_path / "page")
    observer = Observer(Page.open(tmp_path / "page"))
    observer.hear(link.Entered(1, 0, 1, None))
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


def _make_a_step(page: Page, now: float, took_s: float) -> float:
    page.count().step += 1
    return now + took_s
