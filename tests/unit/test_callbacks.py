"""One run of the job's in MLflow and Weights & Biases, through a change of rank 0 and a life that goes on."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from tracked import FakeFace, through_it_all, train

from edl.callbacks import MOST, FiguresOfStep, MlflowCallback, RunOfJob, WandbCallback
from edl.errors import ConfigError, UsageError


class Kept(RunOfJob):
    """Keeps what a run would have."""

    kind = "kept"

    def __init__(self, edl: FakeFace, every: int, runs: dict[str, list[int]]) -> None:
        super().__init__(edl, every)
        self.runs, self.ends = runs, 0

    def reach(self) -> None:
        """Its server answers, or does not."""

    def _begin(self) -> int:
        self.reach()
        return max(self.runs.setdefault(self.run, []), default=-1)

    def _log(self, given: FiguresOfStep) -> None:
        self.runs[self.run].append(given.step)

    def _end(self) -> None:
        self.ends += 1


def test_each_step_is_written_once_by_whoever_has_rank_0() -> None:
    runs: dict[str, list[int]] = {}
    through_it_all(lambda face: Kept(face, 1, runs))
    assert list(runs.values()) == [list(range(1, 16))]


def test_only_each_so_many_steps_are_written_by_steps_of_all_lives() -> None:
    runs: dict[str, list[int]] = {}
    through_it_all(lambda face: Kept(face, 4, runs))
    assert list(runs.values()) == [[4, 8, 12]]


def test_a_worker_that_has_rank_0_no_more_ends_its_part_once() -> None:
    runs: dict[str, list[int]] = {}
    face = FakeFace(0, {})
    track = Kept(face, 1, runs)
    train([(face, track)], 1, 3)
    face.place = 1
    train([(face, track)], 4, 6)
    track.close()
    assert (track.ends, list(runs.values())) == (1, [[1, 2]])


def test_a_server_that_is_away_ends_no_worker_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Away(Kept):
        tries = 0

        def reach(self) -> None:
            self.tries += 1
            if self.tries < 3:
                raise ConnectionError("nobody is there")

    runs: dict[str, list[int]] = {}
    face = FakeFace(0, {})
    track = Away(face, 1, runs)
    train([(face, track)], 1, 6)
    track.close()
    assert list(runs.values()) == [[3, 4, 5, 6]]
    assert [line.getMessage() for line in caplog.records] == ["Away: figures are missing there: nobody is there"]


def test_a_server_that_goes_away_later_ends_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    class GoesAway(Kept):
        def _log(self, given: FiguresOfStep) -> None:
            raise ConnectionError("no more")

        def _end(self) -> None:
            raise ConnectionError("no more")

    face = FakeFace(0, {})
    track = GoesAway(face, 1, {})
    train([(face, track)], 1, 3)
    face.place = 1
    train([(face, track)], 4, 6)
    track.close()
    assert [line.getMessage() for line in caplog.records] == ["GoesAway: figures are missing there: no more"]


class Stalls(Kept):
    """Opens when it is told to."""

    def __init__(self, edl: FakeFace, every: int, runs: dict[str, list[int]]) -> None:
        super().__init__(edl, every, runs)
        self.is_asked, self.answers = threading.Event(), threading.Event()

    def reach(self) -> None:
        self.is_asked.set()
        assert self.answers.wait(60)


def test_a_server_that_stalls_holds_up_no_step_and_later_ones_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    runs: dict[str, list[int]] = {}
    face = FakeFace(0, {})
    track = Stalls(face, 1, runs)
    train([(face, track)], 1, 2)  # the thread takes the first
    assert track.is_asked.wait(60)
    train([(face, track)], 3, MOST + 9)
    track.answers.set()
    track.close()
    assert list(runs.values()) == [list(range(1, MOST + 2))]
    said = f"Stalls: figures are missing there: {MOST} steps wait to be written"
    assert [line.getMessage() for line in caplog.records] == [said]


def test_who_has_rank_0_no_more_does_not_wait_for_a_server_that_stalls() -> None:
    runs: dict[str, list[int]] = {}
    face = FakeFace(0, {})
    track = Stalls(face, 1, runs)
    train([(face, track)], 1, 3)
    face.place = 1
    train([(face, track)], 4, 6)
    assert runs == {}
    track.answers.set()
    face.place = 0
    train([(face, track)], 7, 8)
    track.close()
    assert (list(runs.values()), track.ends) == ([[1, 2, 7, 8]], 2)


def test_a_script_ends_though_a_server_stalls(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.callbacks.END_S", 0.01)
    face = FakeFace(0, {})
    track = Stalls(face, 1, {})
    train([(face, track)], 1, 3)
    track.close()
    monkeypatch.setattr("edl.callbacks.END_S", 60)
    track.close()  # once more, as the process ends
    track.answers.set()
    assert [line.getMessage() for line in caplog.records] == [
        "Stalls: figures are missing there: not written after 0.01 s"
    ]


def test_wrong_use_is_told() -> None:
    with pytest.raises(UsageError, match="every=0"):
        Kept(FakeFace(0, {}), 0, {})


@pytest.mark.parametrize(("callback", "library"), [(MlflowCallback, "mlflow"), (WandbCallback, "wandb")])
def test_a_library_that_is_not_there_is_named_with_its_remedy(
    callback: Any, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (library, "mlflow.entities"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"horovod-edl\[{library}\]"):
        callback(FakeFace(0, {}))
