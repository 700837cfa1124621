"""When a process under horovodrun may not be split in two any more, and what its script is told."""

from __future__ import annotations

import os
import threading

import pytest
from horovodrun_told import TOLD

from edl.errors import UsageError
from edl.trainer import fork_stand_in


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TOLD.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it is split"))


def test_a_script_with_a_thread_is_told_to_call_init_before() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="loader")
    thread.start()
    try:
        with pytest.raises(UsageError, match=r"call edl\.init\(\) before any thread is started \(.*loader.* run\)$"):
            fork_stand_in.split()
    finally:
        over.set()
        thread.join()


def test_a_script_that_uses_a_gpu_is_told_to_call_init_at_its_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])
    monkeypatch.setattr(fork_stand_in, "_uses_gpu", lambda: True)
    with pytest.raises(UsageError, match=r"at the top of the script"):
        fork_stand_in.split()
