"""What a job's launcher has kept of its events, read while that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edl.launch.job_records import Folder
from edl.launch.locate_job import Whereabouts, story


class Taken:
    """A file that is gone the moment after it was there: another job of that name has been started."""

    def exists(self) -> bool:
        return True

    def open(self, mode: str) -> Any:
        raise FileNotFoundError(mode)


async def told(folder: Folder) -> list[dict[str, Any]]:
    where = Whereabouts("job", folder, None, None, b"")
    return [event async for event in story(where, follow=False)]


async def test_a_folder_that_another_job_takes_over_meanwhile_has_no_events(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.events = Taken()  # type: ignore[assignment]
    assert await told(folder) == []


async def test_half_a_line_is_not_told_yet(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.events.write_bytes(b'{"kind": "scaled"}\n{"kind": "wor')
    assert await told(folder) == [{"kind": "scaled"}]
