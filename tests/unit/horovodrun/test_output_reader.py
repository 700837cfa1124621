"""Noticing that no reader is left for what is printed, and whether horovodrun's driver is still there then."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from edl.horovodrun.driver_requests import Driver
from edl.horovodrun.worker_proxy import OutputReader


async def test_the_loss_of_all_readers_is_told_once() -> None:
    (one, out), (other, err) = os.pipe(), os.pipe()
    lost: list[int] = []
    hearing = OutputReader((out, err), lambda: lost.append(1))
    os.write(out, b"a line that was not read yet")
    os.close(one)
    await asyncio.sleep(0.05)
    assert lost == []  # `| head` on one of them is not the end of ssh
    os.close(other)
    await asyncio.sleep(0.05)
    assert lost == [1]
    hearing.stop()
    os.close(out)
    os.close(err)


async def test_files_are_no_sign_of_anything(tmp_path: Path) -> None:
    lost: list[int] = []
    with (tmp_path / "log").open("wb") as file:
        hearing = OutputReader((file.fileno(),), lambda: lost.append(1))
        await asyncio.sleep(0.05)
        hearing.stop()
    assert lost == []


@pytest.mark.parametrize("there", [True, False])
async def test_whether_the_driver_is_there(there: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        driver = Driver("127.0.0.1", server.getsockname()[1])
        if not there:
            server.close()
        assert await driver.is_there() is there
