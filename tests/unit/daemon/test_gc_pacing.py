"""Cycles do not pile up in a daemon, however few objects it makes."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

import pytest

from edl.daemon import daemon


class Cycle:
    def __init__(self) -> None:
        self.itself = self


async def test_cycles_are_gone_soon_though_python_would_not_look_for_long() -> None:
    gc.disable()
    collecting = asyncio.ensure_future(daemon.collect_regularly(0.01))
    try:
        cycle = weakref.ref(Cycle())
        assert cycle() is not None
        async with asyncio.timeout(5):
            while cycle() is not None:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        collecting.cancel()


async def test_where_looking_takes_long_it_is_done_seldom() -> None:
    looks = []

    def slow() -> None:
        looks.append(time.monotonic())
        time.sleep(0.05)

    collecting = asyncio.ensure_future(daemon.collect_regularly(0.01, slow))
    await asyncio.sleep(0.5)
    collecting.cancel()
    assert len(looks) == 1, "0.05 s is 0.1 % of 50 s"


def test_python_itself_looks_after_many_objects_and_never_at_those_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []
    monkeypatch.setattr("gc.freeze", lambda: told.append("freeze"))
    monkeypatch.setattr("gc.set_threshold", told.append)
    daemon.collect_seldom()
    assert told == ["freeze", daemon.YOUNG]
