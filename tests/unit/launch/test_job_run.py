"""From one life of a job to the next, without workers: what is begun with which checkpoint, and what a signal does."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from stored import folder_at, save

from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.checkpoint_writer import begin_life
from edl.checkpoints.resume_choice import to_go_on_from
from edl.config import Settings
from edl.launch import export_process, job_run
from edl.launch.job_records import Folder, LaunchRecord, launch_record
from edl.launch.life_outcome import KILLED, LaunchVerdict
from edl.launch.local_launch import Outcome
from edl.protocol.assignment import RingKind
from edl.protocol.record import JobState, Status

BY_SIGNAL = LaunchVerdict(1, "failed", "worker 0 was killed", cause=KILLED, exits="was killed by SIGKILL")
FINISHED = LaunchVerdict(0, "finished")
Ending = Callable[[Settings], Outcome]


class Place:
    """A home, a folder of checkpoints, and the lives that a run has had."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.begun: list[Settings] = []
        self.run: job_run.JobRun | None = None
        patch.setattr(logging.getLogger("edl"), "handlers", [])
        patch.setattr(job_run, "OrphanReaper", lambda *_: SimpleNamespace(dismiss=lambda: None))
        self._patch = patch

    def settings(self, **more: Any) -> Settings:
        folder = str(self.folder / "ck")
        return Settings(job="x", home=self.folder, checkpoint=folder, max_restarts=2, **more)

    def play(self, settings: Settings, *ends: Ending) -> Outcome:
        """Each life ends as one of `ends` says."""
        coming = iter(ends)

        def launch(settings: Settings, record: LaunchRecord, *_: object, **__: object) -> Any:
            async def run() -> Outcome:
                self.begun.append(settings)
                return next(coming)(settings)

            return SimpleNamespace(run=run, record=record, interrupt=lambda: None, ask_to_go=lambda: None)

        self._patch.setattr(job_run, "Launch", launch)

        async def whole() -> Outcome:
            self.run = job_run.JobRun(settings, launch_record(settings, ["true"]))
            return await self.run.run()

        outcome = asyncio.run(whole())
        assert next(coming, None) is None, "fewer lives than were expected"
        return outcome

    def record(self) -> LaunchRecord:
        record = Folder(self.folder / "jobs" / "x").read()
        assert record is not None
        return record

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in Folder(self.folder / "jobs" / "x").events.read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def killed_at(step: int) -> Ending:
    return lambda settings: Outcome(BY_SIGNAL, restarts=settings.max_restarts, newest_step=step, cause="killed")


def finished(settings: Settings) -> Outcome:
    return Outcome(FINISHED, restarts=settings.max_restarts)


def test_a_job_that_dies_is_begun_again_until_it_comes_to_its_end(place: Place) -> None:
    outcome = place.play(place.settings(), killed_at(5), killed_at(9), finished)
    assert outcome.verdict == FINISHED
    assert [one.life for one in place.begun] == [1, 2, 3]
    assert [one.max_restarts for one in place.begun] == [2, 1, 0]
    told = [(one["kind"], one["life"], one["from_step"], one["restarts_left"]) for one in place.events()]
    assert told == [("life_begun", 2, 0, 1), ("life_begun", 3, 0, 0)]
    assert (place.record().state, place.record().ended is not None) == ("finished", True)


def test_all_lives_have_the_ring_that_the_first_one_has_found(place: Place) -> None:
    seen = Status("x", JobState.FAILED, "", 1, 1, "", 5, 0, 2, 2, 1, 0, (), None, None, ring=RingKind.TORCH)
    place.play(
        place.settings(), lambda settings: msgspec.structs.replace(killed_at(5)(settings), status=seen), finished
    )
    assert [one.ring for one in place.begun] == ["auto", "torch"]


def test_it_is_resuming_meanwhile_and_lives_for_others(place: Place) -> None:
    seen: list[LaunchRecord] = []

    def looks(settings: Settings) -> Outcome:
        seen.append(place.record())
        return finished(settings)

    place.play(place.settings(), killed_at(5), looks)
    [record] = seen
    assert (record.state, record.reason, record.alive) == ("resuming", "worker 0 was killed", True)
    assert record.events_before == 1


def test_the_same_failure_again_is_its_end(place: Place) -> None:
    outcome = place.play(place.settings(), killed_at(5), killed_at(5))
    assert outcome.verdict.code == 1
    assert "nothing beyond step 5 was trained or saved in between" in outcome.verdict.reason
    assert (place.record().state, place.record().reason) == ("failed", outcome.verdict.reason)


def test_what_cannot_be_exported_ends_the_job_on_record(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise OSError("no room for its log")

    monkeypatch.setattr(export_process, "start", start)
    with pytest.raises(OSError, match="no room"):
        place.play(place.settings())
    assert (place.record().state, place.record().reason) == ("failed", "no room for its log")


def test_without_checkpoints_a_job_has_one_life(place: Place) -> None:
    settings = msgspec.structs.replace(place.settings(), checkpoint="")
    assert place.play(settings, killed_at(5)).verdict == BY_SIGNAL


def test_each_life_goes_on_from_the_newest_checkpoint_of_all(place: Place) -> None:
    def saves(settings: Settings) -> Outcome:
        save(folder_at(Path(settings.checkpoint), "x"), CheckpointName(settings.life, 1, 4))
        return killed_at(5)(settings)

    place.play(place.settings(), saves, finished)
    assert [Path(one.resume_from).name for one in place.begun] == ["", "0001-000001-000000000004"]


def test_resume_never_is_heeded_by_all_lives(place: Place) -> None:
    """What lies there of others than this run's own lives stays untouched."""
    folder = place.folder / "ck"
    begin_life(folder_at(folder, "x"))
    save(folder_at(folder, "x"), CheckpointName(1, 1, 4))
    place.play(place.settings(resume="never"), killed_at(1), finished)
    assert [(one.life, one.resume_from) for one in place.begun] == [(2, ""), (3, "")]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 1)])
def test_a_signal_between_two_lives_is_heeded_though_the_store_does_not_answer(
    place: Place, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals, code: int
) -> None:
    stuck = threading.Event()
    looks: list[Any] = []

    def find(*arguments: Any) -> Any:
        looks.append(arguments)
        if len(looks) == 1:
            return to_go_on_from(*arguments)
        os.kill(os.getpid(), signum)
        return stuck.wait(60)

    monkeypatch.setattr(job_run, "to_go_on_from", find)

    outcome = place.play(place.settings(), killed_at(5))
    stuck.set()
    assert outcome.verdict.code == code
    assert place.record().state == {75: "preempted", 1: "failed"}[code]
    assert len(place.begun) == 1


def test_a_folder_that_cannot_be_read_between_two_lives_ends_the_job_with_both_reasons(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(settings: Settings) -> Outcome:
        (place.folder / "ck" / "x" / "life-0001").unlink()
        (place.folder / "ck" / "x").rmdir()
        (place.folder / "ck" / "x").write_text("a file")
        return killed_at(5)(settings)

    outcome = place.play(place.settings(), ends)
    assert outcome.verdict.code == 1
    assert outcome.verdict.reason.startswith("worker 0 was killed; it cannot be begun again: ")
