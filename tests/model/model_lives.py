"""A simulated job that dies with all its workers, and its next life, resumed from what is durable: one account of both.

Owns: what another life begins with. Does not own: either life (`tests.model.simulation`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from edl.core.data.resume_position import rebased
from edl.protocol.checkpoint_record import Checkpointing, Resumed, Saving
from edl.protocol.data_nouns import DataSpec
from tests.model.model_checkpoints import SimStore
from tests.model.model_faults import draw, draw_saved
from tests.model.model_rings import AWAITED_S
from tests.model.model_stream import of_stream
from tests.model.scenario import chooses
from tests.model.simulation import Inheritance, SimJob

CALM: Final = 0.3  # of the lives: nothing goes wrong until their end
OWN_DATA: Final = 0.1
ASKED: Final = 0.4  # of the lives: they are asked to go, and do not die
EVALUATES: Final = 0.5  # of these: their scripts are at something of their own then


def newest(store: SimStore) -> Saving | None:
    """Return the newest checkpoint that exists, whether any leader came to tell of it or not."""
    return max(store.manifests.values(), key=lambda saving: saving.path, default=None)


def inheritance(job: SimJob) -> Inheritance | None:
    """Return the state that the life after `job` begins with; None: no checkpoint came about."""
    saving = newest(job.savings.store)
    if saving is None:
        return None
    base = 0 if job.inherits is None else job.inherits.resumed.step
    mine = saving.path.split("/")[-1].startswith(f"{job.life:04d}")
    if not mine:  # nothing new is durable since this life has begun
        return job.inherits
    ledger = None if saving.ledger is None else rebased(saving.ledger)
    return Inheritance(
        resumed=Resumed(base + saving.after_step, job.life, saving.path, ledger),
        model=job.savings.store.parts[saving.path, 0].model,
        trained=frozenset(job.checks.training.trained_up_to(saving.after_step)),
        store=job.savings.store,
    )


def next_life(job: SimJob, *, seed: int, workers: int, job_class: type[SimJob] = SimJob, **more: Any) -> SimJob:
    """Return the next life of a job whose workers are all gone. Without a checkpoint the job begins anew."""
    inherits = inheritance(job)
    done = 0 if inherits is None else inherits.resumed.step
    checkpointing = Checkpointing(
        folder=job.checkpointing.folder,
        every_s=job.checkpointing.every_s,
        every_steps=job.checkpointing.every_steps,
        last=job.checkpointing.last,
        auto=job.checkpointing.auto,
        life=job.life + 1,
    )
    return job_class(
        job.spec,
        seed=seed,
        steps=max(0, job.whole_steps - done),
        workers=workers,
        checkpointing=checkpointing,
        inherits=inherits,
        stream=job.stream,
        **more,
    )


def lives(seed: int, job_class: type[SimJob] = SimJob, *, streams: bool = False) -> Iterator[SimJob]:
    """The lives of the job of `seed`, one after the other, each of them over: faults in all of them, and all but the
    last one end with the end of all its workers, wherever it is, or are preempted.
    """
    source = random.Random(f"lives {seed}")
    workers, steps = source.randint(1, 4), source.randint(20, 200)
    own_data = source.random() < OWN_DATA
    spec = _spec(source, workers, steps)
    items = spec.total
    if streams:
        spec = of_stream(spec, random.Random(f"stream {seed}"))
    every_s, every_steps, auto = source.choice((0.0, 0.1, 0.3)), source.choice((7, 20, 40)), chooses(seed)
    checkpointing = Checkpointing("memory:", every_s, 0 if auto else every_steps, auto=auto)
    asked = random.Random(f"asked to go {seed}")
    job = job_class(
        None if own_data else spec,
        seed=seed,
        steps=steps,
        workers=workers,
        checkpointing=checkpointing,
        prepares=1.0,
        items=items,
    )
    for life in range(source.choice((1, 1, 2))):
        _plan(job, source, steps)
        dies_at = source.random() * (0.1 + 0.012 * steps)
        if asked.random() < ASKED:  # in place of dying
            _keep_busy(job, asked, dies_at)
            job.after(dies_at, job.requests.ask_to_go, asked.choice((0.0, 0.1, 5.0, 5.0)))
            job.run()
        else:
            job.run_until(dies_at)
        yield job
        job = next_life(job, seed=seed + 1_000_003 * (life + 1), workers=source.randint(1, 5), prepares=1.0)
    _plan(job, source, steps)
    job.run()
    yield job


def _keep_busy(job: SimJob, source: random.Random, at: float) -> None:
    """Let the scripts evaluate about when the job is preempted: all of them, or one while others wait."""
    if source.random() < EVALUATES:
        begins = max(0.0, at + source.uniform(-0.3, 0.2))
        alone = source.random() < 0.3
        for_s = AWAITED_S if alone else source.choice((0.1, 0.5, 8.0))
        job.after(begins, partial(job.shells.evaluate, for_s, alone=alone))


def _spec(source: random.Random, workers: int, steps: int) -> DataSpec:
    """Draw the data as `tests.model.scenario` does."""
    batch, epochs = source.randint(1, 4), source.randint(1, 4)
    whole, by_sample = source.random() < 0.6, source.random() < 0.25
    return DataSpec(
        total=max(1, steps * batch * workers // epochs - source.randint(0, batch * workers)),
        epochs=epochs,
        batch=batch,
        whole_epochs=whole,
        by_sample=by_sample,
        open_ended=whole and not by_sample and source.random() < 0.5,
    )


def _plan(job: SimJob, source: random.Random, steps: int) -> None:
    if source.random() < CALM:
        return
    job.plan(draw(source, source.choice((1, 2, 3)), 0.05 + 0.01 * steps))
    job.plan(draw_saved(source))
