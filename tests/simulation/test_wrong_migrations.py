"""Mutants of how a job leaves a host, and what must hold of it (see `test_checks`)."""

from __future__ import annotations

from functools import partial

import pytest
from mutants import Calm, Mutant, Patch, expect_noticed, later

from edl.core.resize import host_migration
from edl.core.resize.host_migration import MigrationAnswers
from edl.protocol.data_nouns import DataSpec
from edl.protocol.record import WorkerState
from tests.model import SimJob

SEEDS = 6
DATA = DataSpec(total=3000, epochs=1, batch=2)


def lets_all_leave_for_one(patch: Patch) -> None:
    def outgoing(record, able):
        some = any(one.identity.id in able for one in host_migration.arrived(record))
        return frozenset(host_migration.leavers(record)) if some else frozenset()

    patch.setattr(host_migration, "outgoing", outgoing)


def lets_each_in_as_it_is_ready(patch: Patch) -> None:
    patch.setattr(host_migration, "held_back", lambda record: frozenset())


def counts_a_host_as_left_while_workers_leave_it(patch: Patch) -> None:
    def complete(record):
        stays = any(one.state is not WorkerState.LEAVING for one in record.members if one.identity.host == "host0")
        return record.migration is not None and record.plan is None and not stays

    patch.setattr(host_migration, "is_complete", complete)


def counts_it_as_left_when_the_newcomers_are_ready(patch: Patch) -> None:
    patch.setattr(
        host_migration, "is_complete", lambda record: record.migration is not None and host_migration.all_ready(record)
    )


def waits_for_newcomers_for_ever(patch: Patch) -> None:
    patch.setattr(MigrationAnswers, "is_due", lambda self: False)


def forgets_to_tell(patch: Patch) -> None:
    def end(self, failure, why):
        self._working.change(migration=None)

    patch.setattr(MigrationAnswers, "_end", end)


def moving(seed: int) -> SimJob:
    job = Calm(DATA, seed=seed, workers=3, prepares=1.0, sends=1.0)
    job.after(0.3, partial(job.migrations.begin, slots=4, starts=True))
    return job


def staying(seed: int) -> SimJob:
    """No worker is started elsewhere."""
    job = Calm(DATA, seed=seed, workers=3)
    job.after(0.1, partial(job.migrations.begin, slots=4, starts=False))
    return job


@pytest.mark.parametrize(
    ("mutant", "play", "names"),
    [
        (lets_all_leave_for_one, moving, {"migrations"}),
        (lets_each_in_as_it_is_ready, moving, {"migrations"}),
        (counts_a_host_as_left_while_workers_leave_it, later(moving, 24), {"migrations"}),
        (counts_it_as_left_when_the_newcomers_are_ready, moving, {"migrations"}),
        (waits_for_newcomers_for_ever, staying, {"I12"}),
        (forgets_to_tell, moving, {"migrations"}),
    ],
)
def test_a_wrong_rule_is_noticed(mutant: Mutant, play, names: set[str], monkeypatch: Patch) -> None:
    expect_noticed(mutant, play, names, SEEDS, monkeypatch)
