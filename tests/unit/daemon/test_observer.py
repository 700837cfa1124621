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
