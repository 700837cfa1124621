"""Mutants of how a job is saved and resumed, and what must hold of it (see `test_checks`)."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from mutants import Calm, Mutant, Patch, expect_noticed, later

from edl.core.checkpoint.checkpoints import Checkpoints
from edl.core.data import ledger_versions, resume_position
from edl.core.data.ledger_versions import LedgerVersions
from edl.core.data.sample_ledger import Ledger
from edl.core.job.commit import BatchDecided, WriteManifest, Writing
from edl.core.job.leader_inputs import SavingPublished
from edl.core.job.leader_state import WorkingState
from edl.core.job.observations import Observations
from edl.core.worker import next_move, observed_trainer
from edl.core.worker.checkpoint_part import CheckpointPart
from edl.core.worker.observed_trainer import ObservedTrainer
from edl.core.worker.worker_inputs import TakeCopy
from edl.protocol.checkpoint_record import Checkpointing, PartInfo
from edl.protocol.data_nouns import DataSpec
from tests.model import Moment, Planned, SimFault, SimJob, scenario
from tests.model.model_lives import lives

SEEDS = 60
DATA = DataSpec(total=600, epochs=1, batch=2)
OFTEN = Checkpointing("memory:", every_steps=10)


# ------------------------------------------------------------------------------------------------------- the worker's


def copies_after_a_later_step(patch: Patch) -> None:
    heed = CheckpointPart.heed

    def late(self, save, generation, step, *, between, works=False):
        if save is None or save.number <= self.newest or generation != save.generation or not (between or works):
            return heed(self, save, generation, step, between=between, works=works)
        if step < save.after_step:
            return []
        self.newest = save.number
        return [TakeCopy(save, beside=works)]

    patch.setattr(CheckpointPart, "heed", late)


def copies_what_a_void_mini_batch_has_changed(patch: Patch) -> None:
    heed = CheckpointPart.heed
    patch.setattr(CheckpointPart, "heed", lambda self, *where, between, works=False: heed(self, *where, between=True))


def looks_too_late_at_its_orders(patch: Patch) -> None:
    step = next_move.attention_step

    def late(generation, orders, *copied):
        save = orders.save and msgspec.structs.replace(orders.save, after_step=orders.save.after_step + 1)
        return step(generation, msgspec.structs.replace(orders, save=save), *copied)

    patch.setattr(observed_trainer, "attention_step", late)


def takes_a_late_part_for_the_newest(patch: Patch) -> None:
    def stored(self: ObservedTrainer, number: int, info: PartInfo) -> None:
        self.saved_part = (max(number, self.status.copied.number), info)

    patch.setattr(ObservedTrainer, "stored", stored)


# ------------------------------------------------------------------------------------------------------- the leader's


def counts_parts_of_other_savings(patch: Patch) -> None:
    def any_part(self, worker, number):
        seen = self.observation(worker)
        return None if seen is None else seen.saved_part[1]

    patch.setattr(Observations, "saved_part", any_part)


def publishes_before_all_parts_are_durable(patch: Patch) -> None:
    follow = Checkpoints.follow

    def follows(self):
        follow(self)
        saving = self._working.record.checkpoints.saving
        if saving is not None and not saving.complete and len(self._stored) >= len(saving.roster) - 1:
            self._stored = {worker: self._stored.get(worker, PartInfo(())) for worker in saving.roster}
            follow(self)

    patch.setattr(Checkpoints, "follow", follows)


def tells_before_it_is_published(patch: Patch) -> None:
    patch.setattr(Checkpoints, "_publish", lambda self, saving: self.hear(SavingPublished(saving.number)))


def publishes_what_is_not_on_record(patch: Patch) -> None:
    handle = Writing.handle

    def at_once(self, happened):
        instructions = [one for one in handle(self, happened) if not isinstance(one, WriteManifest)]
        saving = happened.record.checkpoints.saving if isinstance(happened, BatchDecided) else None
        is_due = saving is not None and saving.number == happened.publishes
        return [WriteManifest(happened.record), *instructions] if is_due else instructions

    patch.setattr(Writing, "handle", at_once)


def begins_another_one_beside(patch: Patch) -> None:
    follow = Checkpoints.follow

    def follows(self):
        follow(self)
        if (
            self._working.record.checkpoints.saving is not None
            and self._why() is not None
            and self._can_begin(stands=False)
        ):
            self._begin_if_due()

    patch.setattr(Checkpoints, "follow", follows)


def uses_a_number_twice(patch: Patch) -> None:
    change = WorkingState.change

    def changes(self, **what):
        if "saves" in what:
            what["saves"] = max(1, what["saves"] - 1)
        change(self, **what)

    patch.setattr(WorkingState, "change", changes)


def saves_the_ledger_of_now(patch: Patch) -> None:
    patch.setattr(LedgerVersions, "projected", lambda self, _step: self.snapshot())


def saves_the_ledger_of_a_step_later(patch: Patch) -> None:
    def later(ledger: Ledger, step: int):
        return resume_position.projected(ledger, min(step + 1, ledger.covered_step))

    patch.setattr(ledger_versions, "projected", later)


def never_gives_up(patch: Patch) -> None:
    patch.setattr(Checkpoints, "_see_whether_it_comes", lambda _self, _saving: None)


def announces_without_haste(patch: Patch) -> None:
    change = WorkingState.change

    def changes(self, *, pressing=True, **what):
        change(self, pressing=pressing and "saves" not in what, **what)

    patch.setattr(WorkingState, "change", changes)


def forgets_what_the_leader_before_has_announced(patch: Patch) -> None:
    follow = Checkpoints.follow

    def follows(self):
        saving = self._working.record.checkpoints.saving
        if saving is not None and saving.number != self._known:
            self._working.change(saving=None)
        follow(self)

    patch.setattr(Checkpoints, "follow", follows)


def announces_a_step_that_is_over(patch: Patch) -> None:
    patch.setattr(Checkpoints, "_step", lambda self, _why, *, stands: self._working.ledgers.step or None)


# ------------------------------------------------------------------------------------------------------- another life


def trains_again_what_was_trained_of_a_lease(patch: Patch) -> None:
    def moved(leases, step, to_step):
        after = [max(one.after_step, step) - step + to_step for one in leases]
        return tuple(msgspec.structs.replace(one, after_step=at) for one, at in zip(leases, after, strict=True))

    patch.setattr(resume_position, "_moved", moved)


def forgets_what_was_leased(patch: Patch) -> None:
    def hand_over(self: Ledger, roster) -> None:
        self._members = {worker: type(one)(one.batch) for worker, one in self._members.items()}

    patch.setattr(Ledger, "hand_over", hand_over)


def begins_the_data_anew(patch: Patch) -> None:
    opens = LedgerVersions.open

    def anew(self, *asked):
        self.resumed = None
        return opens(self, *asked)

    patch.setattr(LedgerVersions, "open", anew)


# ------------------------------------------------------------------------------------------------------------ the jobs


def often(seed: int) -> SimJob:
    """It is saved as often as can be, and something strikes in the middle of it."""
    source = random.Random(seed)
    job = SimJob(DATA, seed=seed, workers=2 + seed % 2, checkpointing=OFTEN)
    faults = (SimFault.KILL, SimFault.CHANGE_LEADER, SimFault.RENEW_DAEMON, SimFault.CRASH_LEADER, SimFault.VANISH)
    moments = (Moment.SAVING, Moment.COPYING, Moment.STORING, Moment.PUBLISHING)
    job.plan([Planned(source.choice(faults), source.choice(moments), source.randint(1, 5)) for _ in range(2)])
    return job


def deaf(seed: int) -> SimJob:
    """The word reaches some late."""
    job = SimJob(DATA, seed=seed, workers=3, checkpointing=OFTEN)
    job.plan([Planned(SimFault.DEAFEN, Moment.STEPPING, 5 + 7 * number) for number in range(8)])
    job.plan(
        [Planned(SimFault.JOIN, 0.1), Planned(SimFault.JOIN, 0.3), Planned(SimFault.KILL, Moment.SAVING, 1 + seed % 5)]
    )
    return job


def broken_just_then(seed: int) -> SimJob:
    """The word reaches one late, and another one dies when it has copied: the mini-batch after that step is void."""
    job = SimJob(DATA, seed=seed, workers=4, checkpointing=OFTEN)
    job.savings.store_s, job.savings.store_fails, job.savings.store_late = 0.002, 0.0, 0.0
    for _ in range(2):
        job.plan([Planned(SimFault.DEAFEN, Moment.SAVING, 1), Planned(SimFault.KILL, Moment.STORING, 1 + seed % 2)])
    return job


def slow(seed: int) -> SimJob:
    """Many a part is late, or cannot be stored."""
    job = SimJob(DATA, seed=seed, workers=3, checkpointing=OFTEN)
    job.savings.store_fails, job.savings.store_late = 0.3, 0.5
    return job


def long(seed: int) -> SimJob:
    job = SimJob(DataSpec(total=3000, epochs=1, batch=1), seed=seed, workers=2, checkpointing=OFTEN)
    job.plan([Planned(SimFault.JOIN, 0.1), Planned(SimFault.KILL, Moment.SAVING, 1)])
    return job


def calm(seed: int) -> SimJob:
    return Calm(DATA, seed=seed, workers=2, checkpointing=OFTEN)


def saved(seed: int) -> SimJob:
    return scenario(seed, saves=True)


class All:
    """The lives of a job, played as one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def run(self) -> None:
        for _ in lives(self._seed):
            pass


def lived(seed: int) -> All:
    return All(seed)


MUTANTS: dict[Mutant, tuple[Callable[[int], SimJob | All], set[str]]] = {
    copies_after_a_later_step: (deaf, {"I16"}),
    copies_what_a_void_mini_batch_has_changed: (later(broken_just_then, 130), {"I16"}),
    looks_too_late_at_its_orders: (calm, {"I16"}),
    takes_a_late_part_for_the_newest: (slow, {"I16"}),
    counts_parts_of_other_savings: (often, {"I16"}),
    publishes_before_all_parts_are_durable: (often, {"I16"}),
    tells_before_it_is_published: (often, {"I16"}),
    publishes_what_is_not_on_record: (often, {"I9"}),
    begins_another_one_beside: (often, {"I16", "events"}),
    uses_a_number_twice: (often, {"I16", "events"}),
    saves_the_ledger_of_now: (calm, {"I16"}),
    saves_the_ledger_of_a_step_later: (calm, {"I16"}),
    never_gives_up: (long, {"I12"}),
    announces_without_haste: (calm, {"I16", "I11"}),
    forgets_what_the_leader_before_has_announced: (often, {"events"}),
    announces_a_step_that_is_over: (calm, {"I16", "I11"}),
    trains_again_what_was_trained_of_a_lease: (lived, {"I6"}),
    forgets_what_was_leased: (lived, {"I6"}),
    begins_the_data_anew: (lived, {"I6"}),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rule_of_saving_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    play, expected = MUTANTS[mutant]
    expect_noticed(mutant, play, expected, SEEDS, monkeypatch)  # type: ignore[arg-type]
