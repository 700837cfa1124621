"""Mutants of what the processes of a worker agree on, and of what stands for all: whole jobs must notice.

Not here, as these jobs do not come to them (tried in 120 each): that limbs of another worker whose rings have agreed on
different votes are noticed, as limbs of simulated workers differ in nothing; that orders are not looked at which one
limb has never heard; that data is asked for, and a worker at its end, once all limbs are (within milliseconds);
that a mark is told before all look. `tests/unit/core/worker/test_limbs.py` and
`tests/unit/trainer/test_limb_agreement.py` hold these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from mutants import Mutant, Patch, expect_noticed

from edl.core.checkpoint import remnants
from edl.core.checkpoint.remnants import Remnants
from edl.core.worker import limb_votes
from edl.core.worker.limb_votes import Occasion, UpdateVote, heard
from tests.model import SimJob, scenario

SEEDS = 60


def limbed(seed: int) -> SimJob:
    return scenario(seed, limbs=True)


def _rows(name: str, wrong: Callable[..., Any]) -> Mutant:
    return lambda patch: patch.setattr(limb_votes, name, wrong)


def _status(**facts: Callable[[list[Any]], Any]) -> Mutant:
    """Another value of these facts in the status of a worker, made of its processes' statuses."""

    def mutate(patch: Patch) -> None:
        right = limb_votes.combined

        def wrong(statuses):
            return replace(right(statuses), **{name: value(statuses) for name, value in facts.items()})

        patch.setattr(limb_votes, "combined", wrong)

    return mutate


def _part(name: str, wrong: Callable[..., Any]) -> Mutant:
    return lambda patch: patch.setattr(limb_votes, name, wrong)


def _void_by_all(rows):
    said = heard(Occasion.UPDATE, rows)
    return UpdateVote(all(one[0] for one in said), any(one[1] for one in said))


def _void_by_first(rows):
    said = heard(Occasion.UPDATE, rows)
    return UpdateVote(bool(said[0][0]), any(one[1] for one in said))


def _newest(statuses):
    return max(statuses, key=lambda one: one.generation)


MUTANTS: dict[str, tuple[Mutant, set[str]]] = {
    "void is what all take for void": (_rows("update_of", _void_by_all), {"limbs"}),
    "void is what the first takes for void": (_rows("update_of", _void_by_first), {"limbs"}),
    "the oldest orders are looked at": (
        _rows("newest_orders", lambda rows: min((one[0], one[1]) for one in heard(Occasion.ORDERS, rows))),
        {"I12"},
    ),
    "a command has failed where all have": (
        _rows("failed_limb", lambda rows: None if any(one[1] for one in rows) else 0),
        {"limbs"},
    ),
    "each limb believes its own answer": (_rows("agreed", lambda answer, rows, *, sits: answer), {"limbs"}),
    "the most advanced limb stands for its worker": (_part("_least", _newest), {"I6"}),
    "a ring stands where that of one limb does": (
        _part("_prepared", lambda statuses: max(one.prepared for one in statuses)),
        {"I14"},
    ),
    "a copy is whole when one limb has taken its part": (
        _part("combined_copy", lambda copies: max(copies, key=lambda one: one.number)),
        {"I11"},
    ),
    "a worker leaves when all limbs were asked": (
        _status(leaving=lambda statuses: all(one.leaving for one in statuses)),
        {"limbs"},
    ),
    "a limb's death is not its worker's": (
        _part("ends_worker", lambda dead, *, others: False),
        {"limbs"},
    ),
    "a limb's good end is its worker's": (
        _part("ends_worker", lambda dead, *, others: True),
        {"limbs"},
    ),
}


@pytest.mark.parametrize(("mutant", "names"), MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_rule_is_noticed(mutant: Mutant, names: set[str], monkeypatch: Patch) -> None:
    expect_noticed(mutant, limbed, names, SEEDS, monkeypatch)


def _of_some_places(found, processes):
    return next((whole for count in range(processes, 0, -1) if (whole := WHOLE_WORKER(found, count))), ())


WHOLE_WORKER = remnants.whole_worker
OF_REMNANTS: dict[str, Mutant] = {
    "remnants of some places are a worker": lambda patch: patch.setattr(remnants, "whole_worker", _of_some_places),
    "remnants save nothing": lambda patch: patch.setattr(Remnants, "follow", lambda self, short: False),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", OF_REMNANTS.values(), ids=OF_REMNANTS)
def test_a_wrong_rule_of_remnants_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    expect_noticed(mutant, lambda seed: scenario(seed, remnants=True), {"I16"}, 4 * SEEDS, monkeypatch)
