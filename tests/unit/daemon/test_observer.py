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
