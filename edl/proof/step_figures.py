"""Figures of workers' notes: what a change of size costs the survivors, and what a kill does. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from edl.proof.step_notes import Note

BEFORE_STEPS, AFTER_STEPS = 60, 60
STEADY_STEPS = 40  # of those before: the first ones take longer
Figures: TypeAlias = dict[str, float]


def gaps(steps: list[Note]) -> list[tuple[float, float]]:
    """Return end and length of each step but the first."""
    return [(later["at"], later["at"] - earlier["at"]) for earlier, later in itertools.pairwise(steps)]


def pause_figures(survivors: list[list[Note]], asked: float) -> Figures:
    """Return the figures of the survivor that lost most: in milliseconds, but for the ratio `boot`. benchmarks/pause.py
    benchmarks/recovery.py says what each figure is.
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
    """The notes of one worker."""

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
        """Return when the last such call began and ended."""
        return [(call["began"], call["at"]) for call in self.noted[kind] if since < call["began"] < until][-1]


def recovery_figures(workers: list[NotedWorker], victim: int, killed: float, joins: float, size: int) -> Figures:
    """Return what a kill costs a job of `size` workers: in milliseconds, but for numbers of steps.

    benchmarks/recovery.py says what each figure is.
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
    """Return the seconds that a step takes."""
    return float(statistics.median(later["at"] - earlier["at"] for earlier, later in itertools.pairwise(steps)))


def longest_gap(steps: Iterable[Note], since: float) -> float:
    """Return the longest time between two steps, less the median."""
    ends = [step["at"] for step in steps]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends) if later > since]
    return float(max(gaps) - statistics.median(gaps))
