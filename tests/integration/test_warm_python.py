"""A worker that is forked is what `python script.py` would be, to a process that starts it, looks at it or kills it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_job import Job
from stub import ask, read_number
from warm_python import WarmPython

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
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
    script = """
import time
signal.signal(15, lambda *_: sys.exit(7))
print('{}', flush=True)
while True:
    time.sleep(0.1)  # a signal that comes just before a sleep is handled after it
"""
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
    warm = WarmPython(own=True)
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


# ---------------------------------------------------------------------------------------- processes of edl, as forks

SHOWS = (
    "import json, os, sys; print(json.dumps([sys.argv, sys.orig_argv, sys.path[0], os.getcwd(), __name__]), flush=True)"
)


def test_code_runs_as_it_would_on_a_command_line(warm: WarmPython, tmp_path: Path) -> None:
    code = f"{SHOWS}; sys.exit('no more')"
    words = {}
    for name, line in {"forked": warm.line(code), "booted": [sys.executable, "-c", code]}.items():
        done = subprocess.run([*line, "a", "b"], cwd=tmp_path, capture_output=True, text=True, check=False)
        words[name] = (done.returncode, json.loads(done.stdout), done.stderr)
    assert words["forked"] == words["booted"]


def test_what_outlives_its_asker_lives_on_and_its_end_is_told(warm: WarmPython, tmp_path: Path) -> None:
    """As a daemon does, which its trainer has started, and a guard, which its launcher has."""
    said = tmp_path / "said"

    def start(statement: str) -> tuple[Any, int]:
        command = ["-P", "-m", "timeit", "-n1", "-r1", f"print({str(tmp_path)!r}, flush=True); {statement}"]
        with said.open("ab") as out:
            streams = (0, out.fileno(), out.fileno())
            asker = ask(str(warm.socket("edl")), command, dict(os.environ), str(tmp_path), streams, True)
        return asker, read_number(asker)

    asker, _ = start("import os; os._exit(3)")
    with asker:
        assert read_number(asker) == 3
    asker, pid = start(WAITS)
    handle = os.pidfd_open(pid)
    asker.close()
    try:
        assert wait_lines(said, 2) == [str(tmp_path)] * 2
        assert b"timeit" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert not select.select([handle], [], [], 0.3)[0], "it has died with its asker"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(handle)


def wait_lines(file: Path, count: int) -> list[str]:
    deadline = time.monotonic() + 30.0
    while len(lines := file.read_text().splitlines()) < count:
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)
    return lines


def test_the_daemons_and_the_guard_of_a_warm_job_are_forks(edl: Any, tmp_path: Path) -> None:
    """Their command lines say nothing of it; the parent of each is the zygote of edl, as of the launcher itself."""
    job = Job(edl, tmp_path / "out", 1)
    [worker] = job.wait_size(1)["workers"]
    [guard] = edl.wait_process("edl.launch.orphan_reaper")
    parents = {parent_of(pid) for pid in (worker["daemon_pid"], guard)}
    assert len(parents) == 1 and parents != {1}
    assert b"edl" in Path(f"/proc/{parents.pop()}/cmdline").read_bytes().split(b"\0")
    job.finish()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
