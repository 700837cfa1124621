"""Notes of a worker that is measured, and figures of them: what a change of size costs survivors, what a kill does.

A note is one line of JSON for each step. Owns: the form of the lines, writing and reading them, the files by which the
measuring process sets something, and the figures. Does not own: what is measured.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

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


BEFORE_STEPS, AFTER_STEPS = 60, 60
STEADY_STEPS = 40  # of those before: the first ones take longer
Figures: TypeAlias = dict[str, float]


def gaps(steps: list[Note]) -> list[tuple[float, float]]:
    """Return end and length of each step but the first."""
    return [(later["at"], later["at"] - earlier["at"]) for earlier, later in itertools.pairwise(steps)]


def pause_figures(survivors: list[list[Note]], asked: float) -> Figures:
    """Return the figures of the survivor that lost most: in milliseconds, but for the ratio `boot`. See
    benchmarks/pause.py and benchmarks/recovery.py for each figure.
    """
    found = []
    for steps in survivors:
        sizes = [note["size"] for note in steps]
        changed = max(at for at, size in enumerate(sizes) if size != sizes[-1]) + 1  # the first at the newest size
        took = gaps(steps)
        earlier = [gap for end, gap in took if end < asked][-BEFORE_STEPS:]
        before = statistics.median(earlier)
        (changed_at, pause), *later = took[changed - 1 :]
        booting = [gap for end, gap in took if asked < end < changed_at]
        after = [gap for _, gap in later[:AFTER_STEPS]]
        beyond = [gap - statistics.median(after) for gap in after]
        usual = [gap - before for gap in earlier[-STEADY_STEPS:]]
        found.append(
            {
                "pause": 1000 * (pause - before),
                "first step": 1000 * beyond[0],
                "longest step": 1000 * max(beyond),
                "together": 1000 * (sum(beyond) - sum(usual) * len(beyond) / len(usual)),
                "boot": statistics.median(booting) / before if booting else 1.0,
                "step": 1000 * before,
            }
        )
    return max(found, key=lambda one: one["pause"])


class NotedWorker(NamedTuple):
    pid: int
    noted: dict[str, list[Note]]

    def since(self, moment: float) -> list[Note]:
        """Return steps in rings that began later."""
        return [step for step in self.noted["step"] if step["ring"][2] > moment]

    def before(self, moment: float) -> list[Note]:
        return [step for step in self.noted["step"] if step["ring"][2] <= moment]

    def trains(self, size: int, since: float, steps: int) -> bool:
        last = self.since(since)[-steps:]
        return len(last) == steps and all(step["ring"][1] == size for step in last)

    def ended(self, kind: str, since: float, until: float) -> tuple[float, float]:
        """Return when the last call of this kind began and ended, of those that began in that time."""
        return [(call["began"], call["at"]) for call in self.noted[kind] if since < call["began"] < until][-1]


def recovery_figures(workers: list[NotedWorker], victim: int, killed: float, joins: float, size: int) -> Figures:
    """Return what a kill costs a job of `size` workers: in milliseconds, but for numbers of steps. See
    benchmarks/recovery.py for each figure.
    """
    old = [one for one in workers if one.pid != victim and one.before(killed)]
    survivors = [one for one in old if one.since(killed)] or [one for one in workers if one.since(killed)]
    newest = max(step["step"] for one in old for step in one.before(killed))
    after = [one.since(killed) for one in survivors]
    first = max(steps[0]["at"] for steps in after)
    new = max(next(step["at"] for step in steps if step["step"] > newest) for steps in after)
    alive = [one.since(killed) for one in workers if one.since(killed)]
    back = max(next(step["at"] for step in steps if step["ring"][1] == size) for steps in alive)
    found = {
        "first": 1000 * (first - killed),
        "new": 1000 * (new - killed),
        "again": max(newest + 1 - steps[0]["step"] for steps in after) + holes(survivors, newest),
        "void": max(sum(note["at"] > killed for note in one.noted["void"]) for one in survivors),
        "back": 1000 * (back - killed),
        "step": 1000 * max(step_s(one.before(killed)) for one in old),
    }
    if any(step["ring"][1] == size - 1 for steps in after for step in steps):
        found["joining"] = 1000 * max(longest_gap(steps, joins) for steps in after)
    return found


def holes(survivors: list[NotedWorker], newest: int) -> int:
    """Count steps that a survivor should have made by the newest of before the kill, and has not."""
    return sum(
        len(set(range(1, newest + 1)) - {step["step"] for step in one.noted["step"]})
        for one in survivors
        if one.noted["step"][0]["step"] == 1
    )


def step_s(steps: Iterable[Note]) -> float:
    """Return the median seconds of a step."""
    return float(statistics.median(later["at"] - earlier["at"] for earlier, later in itertools.pairwise(steps)))


def longest_gap(steps: Iterable[Note], since: float) -> float:
    """Return the longest time between two steps, less the median."""
    ends = [step["at"] for step in steps]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends) if later > since]
    return float(max(gaps) - statistics.median(gaps))
