"""Notes of a worker that is measured: one line of JSON for each step, and what the measuring process sets by files.

Owns: the form of the lines, writing and reading them. Does not own: what is measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Note: TypeAlias = dict[str, Any]


class StepNotes:
    """The file to which one worker writes its notes; each line is written whole."""

    def __init__(self, folder: Path, clock_s: float = 0.0) -> None:
        """`clock_s` is added to this host's clock: all notes of a job tell times of one clock."""
        self._file = (folder / f"{os.getpid()}.jsonl").open("w", buffering=1)
        self._clock_s = clock_s

    def now(self) -> float:
        return time.monotonic() + self._clock_s

    def note(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, "at": self.now(), **values}) + "\n")

    def state(self, kind: str, edl: Any, task: Any, **values: Any) -> None:
        """Note the state of this worker after its newest step."""
        place = {"step": edl.step() - 1, "generation": edl.generation(), "size": edl.size()}
        self.note(kind, **place, digest=digest(task.weights()), **values)


def digest(arrays: Iterable[NDArray[Any]]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def until(folder: Path, name: str) -> int:
    """Return the step that the measuring process has set for something; a step that never comes if it has set none."""
    path = folder / name
    return int(path.read_text()) if path.exists() else 2**63


class NotedSteps:
    """The notes of a job's workers, by process id and kind. A line that was read is not read again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, int] = {}  # bytes of it
        self._found: dict[int, defaultdict[str, list[Note]]] = {}

    def read(self) -> dict[int, defaultdict[str, list[Note]]]:
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._known.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]  # a worker that is killed may leave half a line
            noted = self._found.setdefault(int(path.stem), defaultdict(list))
            if whole:
                self._known[path] = self._known.get(path, 0) + len(whole) + 1
                for line in whole.split(b"\n"):
                    note: Note = msgspec.json.decode(line)
                    noted[note["kind"]].append(note)
        return self._found

    def steps(self) -> dict[int, list[Note]]:
        return {pid: noted["step"] for pid, noted in self.read().items()}

    def all(self) -> list[Note]:
        return [note for noted in self.read().values() for notes in noted.values() for note in notes]

    def newest(self) -> int:
        """Return the newest step that any worker has noted."""
        return max((steps[-1]["step"] for steps in self.steps().values() if steps), default=0)


def set_file(path: Path, text: str) -> None:
    """Write the whole text at once, so that no reader sees a part of it."""
    working = path.with_name(f"{path.name}.new")
    working.write_text(text)
    working.rename(path)


def compared(notes: Iterable[Note]) -> dict[str, int]:
    """Compare the weights of all workers after each switch, or after the first step in each ring."""
    digests = defaultdict(set)
    for note in notes:
        if note["kind"] in ("switch", "end"):
            digests[note["kind"], note["step"]].add(note["digest"])
    return {"compared": len(digests), "different": sum(len(found) > 1 for found in digests.values())}
