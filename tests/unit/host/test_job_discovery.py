"""A second shell joins a job of this machine with its name alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edl.errors import ConfigError, UsageError
from edl.host.job_discovery import check_again, check_one_ring, joined

JOINED = {"EDL_JOB": "mnist", "EDL_COORDINATOR": "zk:2181"}


def test_a_job_that_was_not_started_here_needs_its_coordinator(tmp_path):
    with pytest.raises(ConfigError, match="EDL_JOB=x is given without a coordinator"):
        joined({"EDL_HOME": str(tmp_path), "EDL_JOB": "x"})


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "jobs" / "mnist"
    folder.mkdir(parents=True)
    (folder / "secret").touch(mode=0o600)
    (folder / "secret").write_text("abc")
    return folder


def write(folder: Path, **record: str) -> None:
    (folder / "record.json").write_text(json.dumps(record))


def test_the_record_completes_coordinator_and_secret(folder, tmp_path):
    write(folder, coordinator="localhost:4242", state="running")
    settings = joined({"EDL_HOME": str(tmp_path), "EDL_JOB": "mnist"})
    assert (settings.coordinator, settings.secret()) == ("localhost:4242", b"abc")


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (
            {"coordinator": "localhost:4242", "state": "finished"},
            r"that job is over \(finished\); start it again by",
        ),
        ({"coordinator": "", "state": "starting"}, "that job is just being started; try again in a moment"),
    ],
)
def test_the_record_of_a_job_that_is_over_or_not_yet_there_is_not_used(folder, tmp_path, record, complaint):
    write(folder, **record)
    with pytest.raises(ConfigError, match=complaint):
        joined({"EDL_HOME": str(tmp_path), "EDL_JOB": "mnist"})


def test_the_record_of_another_coordinator_is_not_used(folder, tmp_path):
    write(folder, coordinator="localhost:4242", state="running")
    settings = joined({"EDL_HOME": str(tmp_path), **JOINED})
    assert (settings.coordinator, settings.secret()) == ("zk:2181", b"")


def test_a_process_without_a_launcher_is_not_saved_over_what_it_would_not_go_on_from(tmp_path):
    """Nothing would choose a checkpoint for it, and its life would have the number of the first one."""
    environ = {"EDL_HOME": str(tmp_path), "EDL_CHECKPOINT": "/c"}
    for job in ({}, JOINED):
        with pytest.raises(ConfigError, match=r"^EDL_CHECKPOINT=/c: no launcher .* or unset EDL_CHECKPOINT$"):
            joined({**environ, **job})
        assert joined({**environ, **job, "EDL_LIFE": "1"}).checkpoint == "/c"


def test_what_was_joined_may_be_joined_again_and_nothing_else(tmp_path):
    settings = joined({**JOINED, "EDL_HOME": str(tmp_path)}, batch_size=8)
    check_again(settings, {"job": None, "batch_size": None}, left=False)
    check_again(settings, {"job": "mnist", "batch_size": 8}, left=False)
    with pytest.raises(UsageError, match=r"edl.init\(job='other'\): this process has joined already, with job='mnist'"):
        check_again(settings, {"job": "other"}, left=False)
    with pytest.raises(UsageError, match="a process joins its job once"):
        check_again(settings, {}, left=True)


@pytest.mark.parametrize(("comm", "process_sets"), [(None, None), ([], []), ((), None)])
def test_a_call_of_horovods_form_may_mean_all_workers(comm, process_sets):
    check_one_ring(comm, process_sets)


@pytest.mark.parametrize(
    ("comm", "process_sets", "said"),
    [
        ([0], None, r"comm=\[0\]"),
        (object(), None, "comm="),
        (None, [object()], "process_sets="),
        (None, "dynamic", "dynamic"),
    ],
)
def test_another_ring_than_that_of_all_is_refused(comm, process_sets, said):
    with pytest.raises(UsageError, match=said):
        check_one_ring(comm, process_sets)
