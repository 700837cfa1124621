"""Scripts whose job is gone, to be gone on with, and that are at something else: each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest

from edl.protocol.checkpoint_record import PREEMPTED_CODE

BEGIN = """
import ctypes, signal, sys, time
from edl.trainer.exit_paths import Interruption, leave_on_sigterm
interruption = Interruption(lambda: False)
leave_on_sigterm(lambda: None, interruption)
"""
LONG_S = 60


def ends(script: str) -> tuple[int, str, float]:
    """Its exit code, what it printed, and how long it went on after `interruption.begin`."""
    code = BEGIN + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S, check=False)
    assert "edl: it goes" in done.stderr, done.stderr
    return done.returncode, done.stdout, time.time() - float(done.stdout.split()[0])


@pytest.mark.integration  # processes that take seconds: not for scripts/check
def test_it_ends_where_it_is_and_does_what_is_in_finally() -> None:
    code, out, _ = ends(f"""
        print(time.time(), flush=True)
        interruption.begin("it goes")
        try:
            time.sleep({LONG_S})
        finally:
            time.sleep(1)
            print("closed")
    """)
    assert (code, out.split()[1:]) == (PREEMPTED_CODE, ["closed"])


@pytest.mark.integration  # processes that take seconds: not for scripts/check
def test_one_that_is_in_native_code_for_long_is_ended_with_its_process() -> None:
    """No signal reaches it there: Python takes one between two of its instructions."""
    code, _, took = ends(f"""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # else the system would end this call, too
        print(time.time(), flush=True)
        interruption.begin("it goes")
        ctypes.CDLL(None).sleep({LONG_S})
    """)
    assert code == PREEMPTED_CODE
    assert took < LONG_S / 4


@pytest.mark.integration  # processes that take seconds: not for scripts/check
def test_one_with_a_handler_of_its_own_ends_in_its_own_way() -> None:
    code, out, _ = ends("""
        ends = []
        signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
        print(time.time(), flush=True)
        interruption.begin("it goes")
        while not ends:
            time.sleep(0.01)
        time.sleep(1.5)
        print("mine")
        sys.exit(7)
    """)
    assert (code, out.split()[1:]) == (7, ["mine"])
