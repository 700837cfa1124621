"""`edl scale` for a job of a cluster: which jobs are one's, what is refused, how long is waited, and the words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edl.cli import cluster_scale, commands, main
from edl.cli.cluster_scale import cluster_of, far, has, scale_in_cluster
from edl.cluster.queue.job_view import JobShown, ShownWorker, shown
from edl.cluster.queue.queue_entries import JobEntry, JobPhase, Submission
from edl.errors import ConfigError, EdlError, NoSuchJob, StoreUnavailable, TimedOut
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome

ASKED = Submission("a", ("train",), "/", "ann", 1.0, np=1, min_np=1, max_np=3)


def job(here: int, leaving: int = 0, **of: Any) -> JobShown:
    workers = [ShownWorker(f"a-{n}", "n1", n, "run") for n in range(here)]
    workers += [ShownWorker(f"a-{n}", "n1", n, "leave") for n in range(here, here + leaving)]
    entry = shown(JobEntry(ASKED, phase=JobPhase.RUNNING), 2.0)
    return msgspec.structs.replace(entry, workers=tuple(workers), **of)


class Plays:
    """A cluster whose job is seen so, one look after the other; the last one stays."""

    def __init__(self, *looks: JobShown | Exception) -> None:
        self.looks = list(looks)
        self.asked: list[object] = []

    def job(self, _: str) -> JobShown:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, BaseException):
            raise look
        return look

    def jobs(self) -> tuple[JobShown, ...]:
        return (msgspec.structs.replace(job(1), name="ab"),)

    def scale(self, name: str, np: int) -> None:
        self.asked.append((name, np))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_scale, "LOOK_S", 0.001)


def scaled(cluster: Plays, size: int, **how: Any) -> int:
    return scale_in_cluster(cluster, "a", size, **{"timeout_s": None, "wait": False, **how})  # type: ignore[arg-type]


def test_the_words_are_those_of_a_lone_job(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Plays(job(1))
    assert scaled(cluster, 3) == 0
    assert (cluster.asked, capsys.readouterr().out) == ([("a", 3)], "job a: 3 workers asked for\n")


def test_it_waits_until_so_many_train_and_none_is_on_its_way(capsys: pytest.CaptureFixture[str]) -> None:
    stages = [job(1), job(1, wanted=2), job(2, wanted=2, state="scaling"), job(2, 1, wanted=2), job(2, wanted=2)]
    assert scaled(Plays(job(1), *stages), 2, wait=True) == 0
    printed = capsys.readouterr()
    assert printed.out == "job a has 2 workers\n"
    assert "1 of 2 workers are there; running; 1 more has no device yet" in printed.err
    assert "2 of 2 workers are there; running; 1 leaves" in printed.err


def test_when_it_has_them() -> None:
    assert has(job(2, wanted=2), 2)
    assert not has(job(2), 2)  # the wish was not taken yet
    assert not has(job(2, 1, wanted=2), 2)
    assert not has(job(1, wanted=2), 2)
    assert not has(job(2, wanted=2, state="starting"), 2)
    assert far(job(0, wanted=2, state="queued"), 2) == "0 of 2 workers are there; queued; 2 more have no device yet"


@pytest.mark.parametrize(
    ("looks", "size", "said"),
    [
        ([job(1)], 4, "job a cannot have 4 workers: it was submitted for 1 to 3"),
        ([NoSuchJob("the cluster has no job a")], 2, "the cluster has no job a"),
        ([job(1), job(1, wanted=2), job(1, wanted=3)], 2, "job a was asked for 3 workers meanwhile"),
        ([job(1), job(1, wanted=2), job(1)], 2, "job a was asked for 1 worker meanwhile"),
        ([job(1), job(0, wanted=2, state="finished")], 2, "job a is over: finished"),
        ([job(1), KeyboardInterrupt()], 2, "interrupted; 2 workers stay asked for: `edl status a`"),
        ([KeyboardInterrupt()], 2, "interrupted$"),
    ],
)
def test_what_comes_to_nothing_is_said_in_a_line(looks: list[Any], size: int, said: str) -> None:
    cluster = Plays(*looks)
    with pytest.raises(EdlError, match=said):
        scaled(cluster, size, wait=True)
    assert cluster.asked == ([("a", size)] if len(looks) > 1 else [])


def test_who_has_waited_long_enough_is_told_that_the_request_stands() -> None:
    with pytest.raises(TimedOut, match=r"has 1 worker, and not 2 within 0\.01 s; 2 workers stay asked for"):
        scaled(Plays(job(1)), 2, wait=True, timeout_s=0.01)


def test_a_coordinator_that_is_away_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scaled(Plays(job(1), StoreUnavailable("away"), job(2, wanted=2)), 2, wait=True) == 0
    monkeypatch.setattr(cluster_scale, "PATIENCE_S", 0.0)
    with pytest.raises(StoreUnavailable):
        scaled(Plays(job(1), StoreUnavailable("away")), 2, wait=True)


# ------------------------------------------------------------------------------------------------------- whose job


Choose = Callable[..., Any]


@pytest.fixture
def choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choose:
    """What `edl scale a 2` asks, where the cluster answers so."""
    home = ClusterHome(tmp_path)
    home.make()
    home.write(ClusterConfig((), "fifo", {}, {}, "127.0.0.1:7", True, 1, 1.0, 0.0))
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    monkeypatch.delenv("EDL_COORDINATOR", raising=False)

    def chosen(answer: Any, *, runs: bool = False, url: str | None = None, coordinator: str = "") -> Any:
        cluster = Plays(answer)
        monkeypatch.setattr(cluster_scale, "reached", lambda _: cluster)
        record = SimpleNamespace(read=lambda: SimpleNamespace(alive=runs))
        monkeypatch.setattr(cluster_scale, "find", lambda *_: record if runs else None)
        if coordinator:
            monkeypatch.setenv("EDL_COORDINATOR", coordinator)
        found = cluster_of(SimpleNamespace(job="a", given={}, cluster=url))  # type: ignore[arg-type]
        return found is cluster

    return chosen


def test_a_job_of_the_cluster_is_asked_for_there(choose: Choose) -> None:
    assert choose(job(1))
    assert choose(job(1), coordinator="127.0.0.1:7")  # else it would be scaled behind the queue's back


def test_a_job_that_edl_run_has_under_way_comes_first(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not choose(job(1), runs=True)
    assert choose(job(1), runs=True, url="http://localhost:1")
    assert not choose(NoSuchJob("no"), runs=True, url="http://localhost:1")
    with pytest.raises(StoreUnavailable):
        choose(StoreUnavailable("away"), runs=True, url="http://localhost:1")
    monkeypatch.setenv("EDL_CLUSTER", "http://localhost:1")
    assert not choose(StoreUnavailable("away"), runs=True, url="http://localhost:1")
    with pytest.raises(StoreUnavailable):
        choose(StoreUnavailable("away"), url="http://localhost:1")


def test_what_is_no_job_of_the_cluster_is_a_lone_one(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no job a, and none .* here: did you mean ab\? `edl queue`"):
        choose(NoSuchJob("no"))
    assert not choose(NoSuchJob("no"), coordinator="127.0.0.1:7")
    monkeypatch.delenv("EDL_COORDINATOR")
    assert not choose(EdlError("the cluster does not run"))
    assert not choose(job(1), coordinator="zk9:2181")
    with pytest.raises(NoSuchJob):
        choose(NoSuchJob("no"), url="http://localhost:1")


def test_a_cluster_that_does_not_run_is_said_to_where_the_job_is_its(choose: Choose, tmp_path: Path) -> None:
    ClusterHome(tmp_path).job_logs("a").mkdir(parents=True)
    with pytest.raises(EdlError, match="does not run"):
        choose(EdlError("the cluster does not run"))


@pytest.mark.parametrize("size", ["0", "-1", "x"])
def test_sizes_that_are_none(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--cluster", "http://localhost:1", "--", "a", size]) == 2
    assert "the number of workers must be a whole number of at least 1" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------- one verb for both kinds


@pytest.mark.parametrize(("verb", "said"), [("stop", "job a has ended"), ("cancel", "job a is to be cancelled")])
def test_stop_waits_for_the_end_of_a_job_of_a_cluster_and_cancel_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, said: str
) -> None:
    class Cancels(Plays):
        def cancel(self, name: str) -> JobShown:
            self.asked.append(name)
            return job(1)

        def wait(self, name: str, *_: object) -> JobShown:
            self.asked.append("its end")
            return job(0, state="cancelled")

    cluster = Cancels(job(1))
    monkeypatch.setattr(commands, "cluster_with", lambda _: cluster)
    assert main([verb, "a"]) == 0
    assert (cluster.asked, capsys.readouterr().out) == (["a", "its end"][: 1 + (verb == "stop")], f"{said}\n")


@pytest.mark.parametrize(
    ("phase", "state"),
    [(phase, "starting" if phase == "queued" else "failed" if phase == "cancelled" else phase) for phase in JobPhase],
)
def test_programs_see_the_status_of_any_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], phase: JobPhase, state: str
) -> None:
    monkeypatch.setattr(commands, "cluster_with", lambda _: Plays(job(0, state=phase.value, reason="so")))
    assert main(["status", "a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["job"], found["state"], found["size"], found["target"]) == ("a", state, 0, 1)
    assert found["reason"] == ("so" if state == phase else f"{phase.value}: so")
