"""Mutants of the ring in place of a broken one, which threads begin beside void mini-batches (see `test_checks`)."""

from __future__ import annotations

import pytest
from mutants import Mutant, Patch, Play, expect_noticed

from edl.core.worker.next_ring import NextRing
from edl.protocol.data_nouns import DataSpec
from tests.model import Moment, Planned, SimFault, SimJob
from tests.model.model_worker import SimWorker

SEEDS = 40
DATA = DataSpec(total=1200, epochs=1, batch=2)


def forms_in_line_what_has_failed_beside(patch: Patch) -> None:
    def take(self, happened):
        commands = right(self, happened)
        self.failed = (0, "")
        return commands

    right = NextRing.take
    patch.setattr(NextRing, "take", take)


def forms_in_line_what_it_has_begun(patch: Patch) -> None:
    patch.setattr(NextRing, "join", lambda _self, _generation: False)


def begins_what_is_for_a_later_step(patch: Patch) -> None:
    def due(self, assignment, works_in):
        return assignment.place if assignment is not None and 0 < works_in < assignment.place.generation else None

    patch.setattr(NextRing, "_due", due)


def begins_the_ring_that_it_sits_in(patch: Patch) -> None:
    def due(self, assignment, works_in):
        forced = assignment is not None and assignment.after_step is None
        return assignment.place if forced and works_in else None

    patch.setattr(NextRing, "_due", due)


def keeps_what_it_has_begun(patch: Patch) -> None:
    def keeps(self):
        self.generation, self.stands = 0, False
        return []

    patch.setattr(NextRing, "release", keeps)


def bereaved(seed: int) -> SimJob:
    """Members die, others while the ring without them forms, and workers come and leave meanwhile."""
    job = SimJob(DATA, seed=seed, workers=5, prepares=1.0)
    job.plan([Planned(SimFault.KILL, 0.15), Planned(SimFault.KILL, Moment.PREPARING, 1), Planned(SimFault.JOIN, 0.2)])
    job.plan(
        [Planned(SimFault.KILL, 0.8), Planned(SimFault.LEAVE, 0.81), Planned(SimFault.CUT_OFF, Moment.PREPARED, 2)]
    )
    return job


def bereaved_without_data(seed: int) -> SimJob:
    """Scripts bring data of their own: they train as soon as a ring stands, before the leader knows of that."""
    job = SimJob(None, seed=seed, workers=3, prepares=1.0, steps=60)
    job.plan([Planned(SimFault.KILL, 0.15), *(Planned(SimFault.JOIN, 0.15 + 0.005 * at) for at in range(8))])
    return job


def newcomer_dies(seed: int) -> SimJob:
    """After the announcement."""
    job = SimJob(DATA, seed=seed, workers=2, prepares=1.0)
    job.plan([Planned(SimFault.JOIN, 0.3), Planned(SimFault.JOIN, 0.3), Planned(SimFault.KILL, Moment.SWITCHING, 2)])
    return job


MUTANTS: dict[Mutant, tuple[Play, set[str]]] = {
    forms_in_line_what_has_failed_beside: (bereaved, {"I14"}),
    forms_in_line_what_it_has_begun: (bereaved, {"I14"}),
    begins_what_is_for_a_later_step: (newcomer_dies, {"I14"}),
    begins_the_ring_that_it_sits_in: (bereaved_without_data, {"I14"}),
    keeps_what_it_has_begun: (bereaved, {"I14"}),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rule_of_a_ring_in_place_of_a_broken_one_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    play, expected = MUTANTS[mutant]
    expect_noticed(mutant, play, expected, SEEDS, monkeypatch)


class Begun:
    """Counts what becomes of the rings that threads begin."""

    def __init__(self, job: SimJob) -> None:
        self.count = 0
        self._begin, job.meetings.begin = job.meetings.begin, self._note  # type: ignore[method-assign]

    def _note(self, worker: SimWorker, place: object) -> None:
        self.count += 1
        self._begin(worker, place)  # type: ignore[arg-type]


def test_they_are_begun_and_stand() -> None:
    """Else the mutants above would be noticed for nothing."""
    jobs = [bereaved(seed) for seed in range(10)]
    counts = [Begun(job) for job in jobs]
    for job in jobs:
        job.run()
    assert sum(one.count for one in counts) > len(jobs)
