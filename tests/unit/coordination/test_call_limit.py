"""Calls in a queue: a slow coordinator is no silent one."""

from __future__ import annotations

import asyncio
import os

import pytest

from edl.coordination.dialing import CallLimit
from edl.errors import StoreUnavailable, UsageError


async def test_a_queue_longer_than_the_time_of_one_call_is_served():
    turns, served = CallLimit(1, answered_within_s=0.5), []

    async def call(number):
        async with turns.turn():
            await asyncio.sleep(0.05)
            served.append(number)

    await asyncio.gather(*(call(n) for n in range(20)))
    assert served == list(range(20))


async def test_those_that_wait_for_a_silent_coordinator_give_up_with_the_first():
    turns = CallLimit(1, answered_within_s=0.2)
    begun = []

    async def call(number):
        async with turns.turn():
            begun.append(number)
            await asyncio.Event().wait()

    outcomes = await asyncio.gather(*(call(n) for n in range(20)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {TimeoutError}
    assert begun == [0]


async def test_a_call_after_a_silence_has_its_own_time():
    turns = CallLimit(1, answered_within_s=0.1)
    with pytest.raises(TimeoutError):
        async with turns.turn():
            await asyncio.Event().wait()
    async with turns.turn():
        await asyncio.sleep(0)


async def test_a_cancelled_call_gives_its_turn_on():
    turns = CallLimit(1, answered_within_s=5)

    async def hold():
        async with turns.turn():
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    await asyncio.sleep(0)
    holder.cancel()
    async with turns.turn():
        assert holder.cancelled()


async def test_each_error_of_a_call_is_one_of_the_port(monkeypatch):
    turns = CallLimit(1, answered_within_s=0.1)

    async def call(*, closed=False):
        async with turns.call("there:1", closed=closed):
            await asyncio.Event().wait()

    with pytest.raises(StoreUnavailable, match=r"^no answer from the coordinator there:1 in time$"):
        await call()
    with pytest.raises(StoreUnavailable, match=r"^the store is closed$"):
        await call(closed=True)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    with pytest.raises(UsageError, match="does not survive a fork"):
        await call()
