"""What a job of horovodrun goes on from: chosen once, and refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored import folder_at, save

from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.checkpoint_writer import begin_life
from edl.config import Settings
from edl.errors import CheckpointError
from edl.horovodrun.find_coordinator import GoesOnFrom, begin, name_of


async def test_the_next_life_goes_on_from_the_newest_checkpoint_and_says_so(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    assert begin_life(folder) == 1
    save(folder, CheckpointName(1, 12, 400))
    settings, said = Settings(job="mnist", home=tmp_path, checkpoint=str(tmp_path)), list[str]()
    path = f"{tmp_path}/mnist/0001-000012-000000000400"
    assert await begin(settings, said.append) == GoesOnFrom(2, path)
    assert [line.split(" step ")[0] for line in said] == ["job mnist goes on from"]
    assert said[0].endswith(path)
    assert await name_of(Settings(home=tmp_path, checkpoint=str(tmp_path))) == "mnist"


async def test_must_with_nothing_to_go_on_from_is_one_line(tmp_path: Path) -> None:
    settings = Settings(job="mnist", home=tmp_path, checkpoint=str(tmp_path / "ck"), resume="must")
    with pytest.raises(CheckpointError, match=r"^no checkpoint of job mnist in \S+ can be gone on from; .*$"):
        await begin(settings, lambda _: None)


async def test_a_job_that_is_not_saved_begins_as_ever(tmp_path: Path) -> None:
    assert await begin(Settings(job="mnist", home=tmp_path), lambda _: None) == GoesOnFrom()
