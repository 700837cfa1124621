"""What a child that the script forks does of what edl has set up: nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, ctypes, os, signal, sys, threading, time
from edl import ownership
from edl.trainer.exit_paths import Interruption, leave_on_sigterm, note_failures

ownership.at_exit(lambda: print("edl's end", flush=True))
ownership.claim()
noted = []
note_failures(lambda reason, foreign: noted.append(reason))
interruption = Interruption(lambda: False)
leave_on_sigterm(lambda: print("leaves", flush=True), interruption)
ownership.in_children(ownership.skip_destructors)
kept = sys.exit

def forked(act):
    if (child := os.fork()) == 0:
        act()
        sys.exit()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

{}
"""


def run(script: str) -> tuple[int, list[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(script)], capture_output=True, text=True, check=False, timeout=50
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("act", "status", "said"),
    [
        ("lambda: None", 0, []),
        ("lambda: sys.exit(3)", 3, []),
        ("lambda: kept(3)", 3, []),
        ("lambda: (_ for _ in ()).throw(OSError('full'))", 1, []),
        ("lambda: os.kill(os.getpid(), signal.SIGTERM)", -15, []),
        ("lambda: ctypes.CDLL(None).printf(b'from C\\n')", 0, ["from C"]),
        ("lambda: atexit.register(print, 'its own', flush=True)", 0, ["its own"]),
        ("lambda: ownership.at_exit(lambda: print('its own', flush=True))", 0, ["its own"]),
        ("lambda: print('child of child', forked(lambda: sys.exit(4)), flush=True)", 0, ["child of child 4"]),
    ],
)
def test_a_child_ends_as_without_edl(act: str, status: int, said: list[str]) -> None:
    code, output, errors = run(f"print(forked({act}), noted, flush=True)")
    assert (code, output) == (0, [*said, f"{status} []", "edl's end"]), errors


def test_a_handler_of_the_scripts_that_hands_the_signal_on_ends_the_child() -> None:
    before = "before = signal.getsignal(signal.SIGTERM)\nsignal.signal(signal.SIGTERM, lambda *said: before(*said))\n"
    code, output, errors = run(before + "print(forked(lambda: os.kill(os.getpid(), signal.SIGTERM)), flush=True)")
    assert (code, output) == (0, ["-15", "edl's end"]), errors


def test_a_signal_that_comes_before_the_child_has_begun_ends_it() -> None:
    """Its parent sends it at once, as `with Pool()` does that is left early."""
    forks = """
found = set()
for _ in range(200):
    if (child := os.fork()) == 0:
        time.sleep(60)
    os.kill(child, signal.SIGTERM)
    found.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(found, signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
"""
    code, output, errors = run(forks)
    assert (code, output) == (0, ["{-15} set()", "edl's end"]), errors


def test_the_owner_still_leaves_by_the_signal() -> None:
    code, output, errors = run("forked(lambda: None)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(0.2)")
    assert (code, output) == (0, ["leaves", "edl's end"]), errors


def test_a_child_that_calls_init_itself_is_the_owner() -> None:
    """Its parent has only imported edl."""
    script = """
import os, sys
from edl import ownership
ownership.at_exit(lambda: print("edl's end", os.getpid() == parent, flush=True))
parent = os.getpid()
if (child := os.fork()) == 0:
    ownership.claim()
    sys.exit()
os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["edl's end False", "edl's end True"], done.stderr
