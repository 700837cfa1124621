"""The part of `edl prove` on a host: its processes, what it tells of them and of files, and its end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.proof.host_part import (
    AskClock,
    FileGrown,
    HostPart,
    KillProcess,
    ProcessExited,
    ProcessKilled,
    ProcessStarted,
    PutFile,
    StartProcess,
    ToldClock,
    asked_by,
    line_of,
    told_by,
)


@pytest.fixture
def part(tmp_path: Path) -> Iterator[HostPart]:
    part = HostPart(tmp_path, "eth9")
    yield part
    part.end()


def started(part: HostPart, code: str, **environ: str) -> int:
    [answer] = part.handle(StartProcess([sys.executable, "-c", code], environ))
    assert isinstance(answer, ProcessStarted)
    return answer.pid


def seen(part: HostPart, kind: type, within_s: float = 20.0) -> list:
    """What is told until there is something of a kind."""
    found: list = []
    deadline = time.monotonic() + within_s
    while not any(isinstance(one, kind) for one in found):
        assert time.monotonic() < deadline, found
        found += part.look()
        time.sleep(0.01)
    return found


def test_a_process_is_told_the_hosts_own_folder_and_interface(part: HostPart, tmp_path: Path) -> None:
    code = "import os; open(os.environ['AT'], 'w').write(os.environ['GLOO_SOCKET_IFNAME'] + os.environ.get('X', ''))"
    pid = started(part, code, AT="{folder}/done it", X="{interface}")
    assert seen(part, ProcessExited) == [FileGrown("done it", "eth9eth9", True), ProcessExited(pid, 0, "")]


def test_files_are_told_as_they_grow_and_once(part: HostPart, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "7.jsonl").write_text("a\n")
    (tmp_path / "secret").write_text("not told")
    assert list(part.look()) == [FileGrown("7.jsonl", "a\n", True)]
    with (tmp_path / "7.jsonl").open("a") as file:
        file.write("b")
    (tmp_path / "audit" / "w1").write_bytes(b"\xff")
    assert set(part.look()) == {FileGrown("7.jsonl", "b", False), FileGrown("audit/w1", "\xff", True)}
    assert list(part.look()) == []


def test_a_failure_has_its_last_words_and_a_kill_is_answered_once_more(part: HostPart) -> None:
    pid = started(part, "import sys; sys.exit('no such luck')")
    [exited] = seen(part, ProcessExited)
    assert (exited.code, exited.last_words) == (1, "no such luck\n")
    [killed] = part.handle(KillProcess(pid))  # it has exited: nothing is killed, and the question is answered
    assert isinstance(killed, ProcessKilled)


def test_a_kill_is_told_with_its_moment(part: HostPart) -> None:
    pid = started(part, "import time; time.sleep(60)")
    before = time.monotonic()
    [killed] = part.handle(KillProcess(pid))
    assert isinstance(killed, ProcessKilled) and before <= killed.at <= time.monotonic()
    [exited] = seen(part, ProcessExited)
    assert (exited.pid, exited.code) == (pid, -9)


def test_a_clock_comes_after_all_that_was_written_before(part: HostPart, tmp_path: Path) -> None:
    list(part.handle(PutFile("turn 0 edl", "")))
    assert (tmp_path / "turn 0 edl").exists()
    (tmp_path / "done 0 edl 1").write_text("1 2")
    grown, told = part.handle(AskClock(3))
    assert grown == FileGrown("done 0 edl 1", "1 2", True)
    assert isinstance(told, ToldClock) and (told.number, told.written) == (3, 3)


def test_the_end_reaches_children_of_what_was_started(part: HostPart, tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "open(os.environ['TMPDIR'] + '/done pid', 'w').write(str(child.pid))\n"
    )
    started(part, code)
    [grown, _] = seen(part, ProcessExited)
    part.end()
    stat = Path(f"/proc/{grown.text}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_messages_are_read_back() -> None:
    asked = StartProcess(["a", "b c"], {"N": "v"})
    assert asked_by(line_of(asked)) == asked and line_of(asked).count(b"\n") == 1
    told = FileGrown("7.jsonl", "\xff\n", True)
    assert told_by(line_of(told)) == told


def test_a_part_whose_stdin_ends_removes_its_folder(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "edl.proof.host_part", "127.0.0.1"]
    environ = {"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(line, input=b"", capture_output=True, env=environ, timeout=120, check=True)
    assert b'"type":"HostReady"' in done.stdout and list(tmp_path.iterdir()) == []
