"""Jobs of one size train the same samples in the same steps: however long leases are, and in however many lives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain

import msgspec
import pytest
from mutants import Calm

from edl.core.data.resume_position import rebased
from edl.core.data.sample_ledger import Ledger
from edl.protocol.checkpoint_record import Checkpointing
from edl.protocol.data_nouns import DataSpec, Deal, Lease
from edl.protocol.job_policy import Batching, BatchRule
from edl.protocol.record import JobState
from tests.model import SimJob, model_lives
from tests.model.model_lives import next_life
from tests.model.model_rings import Sample

STEPS = 260  # in the first deals of 64 and 128 steps, and beyond
WHOLE = [DataSpec(0, 1, 2), DataSpec(0, 3, 2), DataSpec(0, 3, 2, open_ended=True)]
CUT_BY_SCRIPTS = [DataSpec(0, 1, 2, by_sample=True), DataSpec(0, 3, 2, whole_epochs=False, by_sample=True)]
STREAM = [DataSpec(0, 3, 2, whole_epochs=False)]
SAVED = Checkpointing("memory:", every_steps=40)


def sized(spec: DataSpec, workers: int) -> DataSpec:
    """About so many steps in all; each epoch ends in a short one."""
    total = STEPS * spec.batch * workers // spec.epochs - 1
    return DataSpec(total, spec.epochs, spec.batch, False, 0, spec.whole_epochs, spec.by_sample, "", spec.open_ended)


def alone(
    spec: DataSpec, workers: int, seed: int, lease_s: float, batching: Batching | None = None
) -> list[list[Sample]]:
    """The samples of each step, by rank, of a job that is never interrupted."""
    job = Calm(spec, seed=seed, workers=workers, lease_s=lease_s, batching=batching)
    job.run()
    assert job.durable.state is JobState.FINISHED
    return job.checks.training.samples_of_steps()


def in_lives(spec: DataSpec, workers: int, seed: int) -> Iterator[SimJob]:
    """It is told to go, or dies, a few times, and is resumed by as many workers, with leases of another length."""
    source = random.Random(seed)
    job: SimJob = Calm(spec, seed=seed, workers=workers, lease_s=0.2, checkpointing=SAVED)
    for life in range(4):
        at = 0.25 + 0.6 * source.random()
        if life % 2:
            job.run_until(at)
        else:
            job.after(at, job.requests.ask_to_go, 5.0)
            job.run()
        yield job
        lease_s = source.choice((0.05, 0.3, 0.6, 3.0))
        job = next_life(job, seed=seed + 1009 * life, workers=workers, job_class=Calm, lease_s=lease_s)
    job.run()
    assert job.durable.state is JobState.FINISHED
    yield job


def resumed(spec: DataSpec, workers: int, seed: int) -> list[list[Sample]]:
    """What all lives have trained in the line of steps that ends with the last one."""
    steps: list[list[Sample]] = []
    for job in in_lives(spec, workers, seed):
        del steps[0 if job.inherits is None else job.inherits.resumed.step :]
        steps += job.checks.training.samples_of_steps()
    return steps


@pytest.mark.parametrize("spec", [*WHOLE, *CUT_BY_SCRIPTS, *STREAM])
@pytest.mark.parametrize("workers", [1, 3])
def test_samples_of_a_step_do_not_depend_on_the_length_of_leases(spec: DataSpec, workers: int) -> None:
    spec = sized(spec, workers)
    short = alone(spec, workers, 1, 0.05)
    assert len(short) > 0.9 * STEPS
    assert alone(spec, workers, 2, 9.0) == short


@pytest.mark.parametrize("rule", [BatchRule.GLOBAL, BatchRule.LOCAL])
def test_nor_do_they_where_the_batch_of_all_is_shared_out(rule: BatchRule) -> None:
    """Unevenly."""
    spec, batching = DataSpec(total=260 * 7, epochs=1, batch=7), Batching(rule, most=7)
    assert alone(spec, 3, 1, 0.05, batching) == alone(spec, 3, 2, 2.0, batching)


@pytest.mark.parametrize("spec", [*WHOLE, *CUT_BY_SCRIPTS, *STREAM])
@pytest.mark.parametrize("seed", range(2))
def test_a_job_in_many_lives_of_one_size_trains_what_it_would_have_in_one(spec: DataSpec, seed: int) -> None:
    workers = 2 + seed
    spec = sized(spec, workers)
    assert resumed(spec, workers, seed) == alone(spec, workers, seed + 100, 0.6)


def test_it_is_noticed_where_samples_are_dealt_for_a_round_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    grant = Ledger.grant

    def dealt_anew(self: Ledger, until_step: int) -> dict[str, tuple[Lease, ...]]:
        self._deal = Deal()
        return grant(self, until_step)

    spec = sized(WHOLE[0], 2)
    monkeypatch.setattr(Ledger, "grant", dealt_anew)
    assert alone(spec, 2, 1, 0.05) != alone(spec, 2, 2, 9.0)


def test_it_is_noticed_where_the_next_life_deals_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = sized(WHOLE[0], 2)
    right = resumed(spec, 2, 0)
    monkeypatch.setattr(
        model_lives, "rebased", lambda snapshot: msgspec.structs.replace(rebased(snapshot), deal=Deal())
    )
    wrong = resumed(spec, 2, 0)
    assert wrong != right
    assert sorted(chain(*wrong)) == sorted(chain(*right))  # each sample once all the same
