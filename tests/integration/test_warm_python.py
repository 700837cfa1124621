"""A worker that is forked is what `python script.py` would be, to a process that starts it, looks at it or kills it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from warm_python import WarmPython

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(os.environ.get("EDL_TEST_COLD")), reason="EDL_TEST_COLD: nothing is forked"),
]

SCRIPT = """
import atexit, json, os, signal, sys, threading
atexit.register(print, "ended", flush=True)
here = {"argv": sys.argv, "cwd": os.getcwd(), "name": __name__, "path": sys.path[0], "modules": "torch" in sys.modules,
        "threads": len(os.listdir("/proc/self/task")), "marks": os.environ.get("MARK"), "pid": os.getpid(),
        "session": os.getsid(0), "padding": os.environ.get("PADDING"), "numbers": __import__("numpy").random.rand()}
print(json.dumps(here), flush=True)
exec(sys.argv[1])
"""
WAITS = "import time; time.sleep(600)"

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(warm: WarmPython, tmp_path: Path) -> Iterator[Start]:
    started = []
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*warm.command(Path("script.py"), "torch"), code],
            env={**os.environ, "MARK": "ü", "TMPDIR": str(tmp_path)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str]) -> dict:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    return json.loads(line)


def wait_gone(pid: int) -> None:
    handle = os.pidfd_open(pid)
    try:
        assert select.select([handle], [], [], 30.0)[0], f"{pid} lives on"
    finally:
        os.close(handle)


def test_it_is_what_it_would_be(start: Start, tmp_path: Path) -> None:
    one, other = start(WAITS), start(WAITS)
    here, there = told(one), told(other)
    assert here["argv"] == ["script.py", WAITS]
    assert (here["cwd"], here["path"], here["name"]) == (str(tmp_path), str(tmp_path), "__main__")
    assert (here["marks"], here["padding"], here["modules"], here["threads"]) == ("ü", None, True, 1)
    assert here["session"] == here["pid"]
    assert here["numbers"] != there["numbers"]
    shown = Path(f"/proc/{here['pid']}")
    assert (shown / "cmdline").read_bytes().split(b"\0")[1:3] == [b"script.py", WAITS.encode()]
    assert "MARK=ü".encode() in (shown / "environ").read_bytes().split(b"\0")
    assert not [word for word in (shown / "environ").read_bytes().split(b"\0") if word.startswith(b"PADDING=")]


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('it is over')", 1, "it is over"),
        ("raise ValueError('no')", 1, "ValueError: no"),
        ("threading.Thread(target=lambda: print('a thread', file=sys.stderr)).start()", 0, "a thread"),
    ],
)
def test_it_ends_as_a_script_does(start: Start, code: str, status: int, said: str) -> None:
    process = start(code)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[1:]) == (status, ["ended"])
    assert said in err


def test_a_signal_to_either_reaches_the_script(start: Start) -> None:
    script = f"signal.signal(15, lambda *_: sys.exit(7)); print('{{}}', flush=True); {WAITS}"
    for mine in (True, False):
        process = start(script)
        pid = told(process)["pid"]
        assert told(process) == {}
        os.kill(process.pid if mine else pid, signal.SIGTERM)
        assert process.wait(30) == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_who_has_started_it_sees_what_it_was_killed_by(start: Start, number: signal.Signals) -> None:
    process = start(WAITS)
    os.kill(told(process)["pid"], number)
    assert process.wait(30) == -number


def test_it_does_not_outlive_who_stands_for_it(start: Start) -> None:
    process = start(f"import subprocess; subprocess.Popen(['sleep', '600']); {WAITS}")
    pid = told(process)["pid"]
    os.killpg(process.pid, signal.SIGKILL)
    wait_gone(pid)
    assert process.wait(30) == -signal.SIGKILL


def test_no_worker_outlives_the_zygote(tmp_path: Path) -> None:
    warm = WarmPython()
    try:
        (tmp_path / "script.py").write_text(SCRIPT)
        command = [*warm.command(tmp_path / "script.py", "nothing"), WAITS]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        pid = told(process)["pid"]
    finally:
        warm.close()
    wait_gone(pid)
    assert process.wait(30) == 1
    assert process.communicate() == ("", None)
