"""What a process knows of its own end before it has ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edl.trainer.exit_paths import EXPLAINED

SCRIPT = """
import atexit, sys
from edl.trainer.exit_paths import note_failures
noted = []
note_failures(lambda reason, foreign: noted.append(reason + "!" * foreign))
atexit.register(lambda: print(noted))
{}
"""


@pytest.mark.parametrize(
    ("end", "status", "noted"),
    [
        ("", 0, []),
        ("sys.exit()", 0, []),
        ("sys.exit(0)", 0, []),
        ("sys.exit(3)", 3, ["SystemExit: 3"]),
        ("sys.exit('no space left')", 1, ["SystemExit: no space left"]),
        ("raise OSError('no space left')", 1, ["OSError: no space left"]),
        ("raise OSError('line\\n' * 99)", 1, [f"OSError: {'line ' * 99}"[:159] + "…"]),
        ("from edl.errors import *; raise UsageError('x' * 200 + ': do so')", 1, [f"UsageError: {'x' * 200}: do so"]),
        ("from edl.errors import *; raise NotResumed('gone')", 1, ["NotResumed: gone"]),
        ("from edl.errors import *; raise ForeignCheckpoint('another model')", 1, ["another model!"]),
        ("from edl.trainer.exit_paths import exit_preempted; exit_preempted()", 75, ["SystemExit: 75"]),
        ("from edl.trainer.exit_paths import *\ntry: exit_preempted()\nexcept SystemExit: pass", 0, []),
        ("try: sys.exit(3)\nexcept SystemExit as error: assert (error.code, error.args) == (3, (3,))", 0, []),
    ],
)
def test_the_end_of_a_script_is_noted_where_it_is_a_failure(end, status, noted):
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(end)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, f"{noted}\n"), done.stderr


UNCHAINED = """
import atexit, sys, threading
from edl.trainer.exit_paths import note_failures
noted = []
atexit.register(lambda: print(noted))
{}
note_failures(lambda reason, foreign: noted.append(reason))
sys.excepthook = lambda kind, error, trace: print("shown:", kind.__name__)
{}
"""


@pytest.mark.parametrize(
    ("before", "end", "shown", "noted"),
    [
        ("", "raise OSError('full')", ["shown: OSError"], ["OSError: full"]),
        ("", "import os, signal; os.kill(os.getpid(), signal.SIGINT)", ["shown: KeyboardInterrupt"], ["interrupted"]),
        ("", "raise SystemExit(0)", [], []),
        ("", "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", [], []),
        (
            "",
            "import code; (lambda: code.InteractiveInterpreter().runcode('1 / 0'))()",
            ["shown: ZeroDivisionError"],
            [],
        ),
        ("", "from edl.trainer.exit_paths import Leaving; raise Leaving", [], []),
        ("", "sys.ps1 = '>>> '; raise OSError('full')", ["shown: OSError"], []),
        ("try: 1 / 0\nexcept Exception as e: sys.last_value, sys.last_traceback = e, e.__traceback__", "", [], []),
    ],
)
def test_what_a_hook_of_the_scripts_shows_and_hands_to_no_other_is_noted_as_the_process_ends(
    before: str, end: str, shown: list[str], noted: list[str]
) -> None:
    script = UNCHAINED.format(before, end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [*shown, f"{noted}"], done.stderr


def test_what_a_hook_of_the_scripts_hands_on_is_noted_once():
    end = "hook = sys.excepthook\nsys.excepthook = lambda *error: hook(*error)\nraise OSError('full')"
    script = UNCHAINED.format("", "").replace("sys.excepthook = lambda", "_ = lambda") + end
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["['OSError: full']"], done.stderr


def test_a_preempted_process_does_what_was_registered_for_its_end_and_takes_nothing_else_down():
    end = """
from edl.trainer.exit_paths import exit_preempted
class Kept:
    def __del__(self): print("taken down")
kept = sys.kept = Kept()
atexit.register(sys.stdout.write, "registered, ")
try: exit_preempted()
finally: print("finally", end=", ")
"""
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(end)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (75, "finally, registered, ['SystemExit: 75']\n"), done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("JobFailed('nobody has\\nthe model')", "edl: this worker ends with its job: nobody has the model\n"),
        ("NotResumed('gone')", "edl: gone\n"),
    ],
)
def test_what_is_no_fault_of_the_scripts_is_said_in_one_line(error, said):
    end = f"from edl.errors import *; raise {error}"
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(end)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, said)


def test_a_script_that_is_interrupted_says_so_in_one_line_and_is_ended_by_the_signal():
    end = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(end)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-2, "['interrupted']\n", "edl: interrupted\n")


@pytest.mark.parametrize("error", ["NoSuchJob('it asked for another one')", "UsageError('x')"])
def test_what_may_be_is_shown_where_it_was(error):
    end = f"from edl.errors import *; raise {error}"
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(end)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")


ALONE = "init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)"


@pytest.mark.parametrize(
    ("end", "begin"),
    [
        ("init_process_group('gloo')", "edl forms no process group"),
        (f"{ALONE}\ntorch.distributed.device_mesh.init_device_mesh('cpu', (2, 2))", "a mesh or a group lies within"),
    ],
)
def test_what_torch_says_of_process_groups_is_explained(end: str, begin: str) -> None:
    """All that is explained: tests/unit/torch/test_group_world.py."""
    end = f"import torch\ntorch.distributed.{end}"
    environ = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(end)], capture_output=True, text=True, check=False, env=environ
    )
    [line] = {one for one in EXPLAINED.values() if one.startswith(begin)}
    assert (done.returncode, done.stdout) == (1, f"{[line]}\n")
    assert done.stderr.splitlines()[-1].removeprefix("[rank0]: ") == f"edl: {line}" and "Traceback" in done.stderr
