"""`edl hosts`: how a size is spread over hosts, and which size it is when no worker answers."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.cli import main
from edl.errors import ConfigError, StoreUnavailable
from edl.host.host_processes import process_start_time
from edl.launch import host_slots
from edl.launch.host_slots import Host, parse_hosts, spread
from edl.launch.job_records import Folder, LaunchRecord, claim

AWAY = "zk:2181"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    for name in [name for name in os.environ if name.startswith("EDL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def answer(monkeypatch):
    """What the coordinator answers: a size, None (no such job), or an error."""
    answers: list[int | Exception | None] = [None]

    async def recorded(coordinator: object, job: str) -> int | None:
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    monkeypatch.setattr(host_slots, "_recorded", recorded)
    return lambda now: answers.__setitem__(0, now)


def a_record(**changes: object) -> LaunchRecord:
    record = LaunchRecord(
        job="x", launcher_pid=os.getpid(), launcher_start=process_start_time(os.getpid()) or 0, mark="m", started=1.0,
        command=("python", "train.py"), np=2, min_workers=1, max_workers=None, own_coordinator=True,
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)


def printed(capsys, *arguments: str) -> tuple[list[str], list[str]]:
    assert main(["hosts", *arguments]) == 0
    out, err = capsys.readouterr()
    return out.splitlines(), err.splitlines()


# --------------------------------------------------------------------------------------------------------- spreading


@given(st.integers(0, 40), st.lists(st.integers(1, 9), max_size=6))
def test_hosts_are_filled_in_the_order_given(size: int, slots: list[int]) -> None:
    """As one by one into the first host that has a slot left."""
    allowed = [Host(f"h{number}", count) for number, count in enumerate(slots)]
    naive = [host.name for host in allowed for _ in range(host.slots)][:size]
    assert {host.name: host.slots for host in spread(size, allowed)} == {
        host.name: naive.count(host.name) for host in allowed if host.name in naive
    }


@given(st.integers(1, 40), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_one_worker_more_takes_no_slot_away(size: int, slots: list[int]) -> None:
    """Else horovodrun would take workers away while it adds one."""
    allowed = [Host(f"h{number}", count) for number, count in enumerate(slots)]
    before, after = ({host.name: host.slots for host in spread(n, allowed)} for n in (size, size + 1))
    assert all(after.get(name, 0) >= count for name, count in before.items())


def test_hosts_are_read() -> None:
    assert parse_hosts("node1:4, node2.example.org:2") == (Host("node1", 4), Host("node2.example.org", 2))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must be HOST:SLOTS"),
        ("node1", "must be HOST:SLOTS"),
        ("node1:2,", "must be HOST:SLOTS"),
        (":2", "must be HOST:SLOTS"),
        ("[::1]:2", "must be HOST:SLOTS"),
        ("node1:2:3", "must be HOST:SLOTS"),
        ("node1:two", "node1:two: the slots of a host must be a whole number of at least 1"),
        ("node1:0", "node1:0: the slots"),
        ("node1:-1", "node1:-1: the slots"),
        ("node1:2,node1:2", "names node1 twice: add up its slots"),
    ],
)
def test_wrong_hosts_are_one_line(text: str, complaint: str, capsys, monkeypatch) -> None:
    assert main(["hosts", "x", "--hosts", text]) == 2
    assert capsys.readouterr().err.startswith(f"edl: --hosts {text}: {complaint}")
    if text:
        monkeypatch.setenv("EDL_HOSTS", text)
        assert main(["hosts", "x"]) == 2
        assert capsys.readouterr().err.startswith(f"edl: EDL_HOSTS={text}: {complaint}")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "missing: JOB; see 'edl hosts --help'"),
        ("a/b", "a/b: must be 1 to 64 letters, digits, '.', '_' or '-'"),
        ("x -np 0", "-np 0: must be a whole number of at least 1"),
        ("x --coordinator zk", "--coordinator zk: must be HOST:PORT"),
    ],
)
def test_wrong_use_is_one_line(arguments: str, complaint: str, capsys) -> None:
    assert main(["hosts", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"edl: {complaint}")


# ------------------------------------------------------------------------------------------------- which size it is


def test_a_job_yet_to_come_begins_with_what_is_asked_for(capsys, monkeypatch, home) -> None:
    assert printed(capsys, "x") == (["localhost:1"], [])
    assert printed(capsys, "x", "-np", "3", "--hosts", "a:2,b:2") == (["a:2", "b:1"], [])
    monkeypatch.setenv("EDL_NP", "2")
    monkeypatch.setenv("EDL_HOSTS", "c:8")
    assert printed(capsys, "x") == (["c:2"], [])
    assert not home.exists()


def test_a_job_of_this_machine_wants_what_its_launcher_has_seen(capsys, home) -> None:
    folder = claim(home, a_record())
    assert printed(capsys, "x", "-np", "7") == (["localhost:2"], [])
    folder.write_status(b'{"job": "x", "target": 4}')
    assert printed(capsys, "x") == (["localhost:4"], [])
    folder.write(a_record(state="finished", ended=2.0))
    assert printed(capsys, "x") == (["localhost:4"], [])
    folder.write(a_record(launcher_start=1, coordinator="127.0.0.1:1"))  # killed
    assert printed(capsys, "x") == (["localhost:4"], [])


def test_a_job_that_is_over_may_begin_anew(capsys, home) -> None:
    folder = claim(home, a_record())
    folder.write_status(b'{"target": 1}')
    folder.write(a_record(state="finished", ended=2.0, own_coordinator=True))
    assert printed(capsys, "x") == (["localhost:1"], [])
    assert printed(capsys, "x", "-np", "3") == (["localhost:3"], [])


def test_a_job_elsewhere_wants_what_its_record_says(capsys, answer, home) -> None:
    answer(None)
    assert printed(capsys, "x", "-np", "2", "--coordinator", AWAY) == (["localhost:2"], [])
    answer(5)
    assert printed(capsys, "x", "-np", "2", "--coordinator", AWAY) == (["localhost:5"], [])
    folder = Folder(home / "jobs" / "x")
    assert [oct(path.stat().st_mode & 0o777) for path in (folder.path, folder.wanted)] == ["0o700", "0o600"]


def test_a_job_that_was_launched_here_and_lives_elsewhere_is_asked(capsys, answer, home) -> None:
    folder = claim(home, a_record(own_coordinator=False, coordinator=AWAY, state="failed", ended=2.0))
    folder.write_status(b'{"target": 4}')
    answer(3)
    assert printed(capsys, "x", "--coordinator", AWAY) == (["localhost:3"], [])


def test_a_record_of_another_coordinators_job_does_not_count(capsys, answer, home) -> None:
    claim(home, a_record(coordinator="127.0.0.1:1")).write_status(b'{"target": 4}')
    answer(3)
    assert printed(capsys, "x", "--coordinator", AWAY) == (["localhost:3"], [])


@pytest.mark.parametrize("fault", [ConfigError("nothing listens"), StoreUnavailable("not connected"), TimeoutError()])
def test_a_fault_never_looks_like_another_size(fault: Exception, capsys, answer) -> None:
    answer(5)
    printed(capsys, "x", "--coordinator", AWAY, "--hosts", "a:4,b:4")
    answer(fault)
    lines, warnings = printed(capsys, "x", "--coordinator", AWAY, "--hosts", "a:4,b:4", "-np", "1")
    assert lines == ["a:4", "b:1"]
    assert len(warnings) == 1
    assert warnings[0].startswith("edl: job x cannot be asked how many workers it wants, 5 it is: ")
    assert str(fault) in warnings[0]
    assert printed(capsys, "x", "--coordinator", AWAY, "--hosts", "a:4,b:4") == (["a:4", "b:1"], [])  # said once
    lines, _ = printed(capsys, "x", "--coordinator", "other:2181", "-np", "3")
    assert lines == ["localhost:3"]  # another job of that name


def test_what_was_never_known_is_what_the_job_begins_with(capsys, answer) -> None:
    answer(ConfigError("nothing listens"))
    assert printed(capsys, "x", "--coordinator", AWAY, "-np", "2")[0] == ["localhost:2"]
    assert printed(capsys, "x", "--coordinator", AWAY, "-np", "3")[0] == ["localhost:3"]


def test_too_few_slots_are_warned_of_once_until_that_changes(capsys, home) -> None:
    folder = claim(home, a_record())
    folder.write_status(b'{"target": 5}')
    lines, warnings = printed(capsys, "x", "--hosts", "a:2,b:2")
    assert lines == ["a:2", "b:2"]
    assert warnings == ["edl: job x wants 5 workers, and its hosts have slots for 4: add hosts or slots"]
    assert printed(capsys, "x", "--hosts", "a:2,b:2") == (["a:2", "b:2"], [])
    assert printed(capsys, "x", "--hosts", "a:2,b:3") == (["a:2", "b:3"], [])
    assert len(printed(capsys, "x", "--hosts", "a:2,b:2")[1]) == 1


def test_a_home_that_cannot_be_written_does_not_matter(capsys, answer, home) -> None:
    home.write_text("no folder")
    answer(3)
    assert printed(capsys, "x", "--coordinator", AWAY) == (["localhost:3"], [])


def test_what_is_kept_is_no_job(capsys, answer, home) -> None:
    answer(3)
    printed(capsys, "x", "--coordinator", AWAY)
    assert main(["status", "x"]) == 2
    assert "no job x was started on this machine" in capsys.readouterr().err
    claim(home, a_record())
    assert not Folder(home / "jobs" / "x").wanted.exists()
