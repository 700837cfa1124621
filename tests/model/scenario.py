"""A whole job from one number: how large it is, and what goes wrong with it.

Most are small, as a fault hits a short job harder: there is less time in which nothing happens.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TypedDict, Unpack

import msgspec

from edl.protocol.checkpoint_record import Auto, Checkpointing
from edl.protocol.data_nouns import DataSpec
from edl.protocol.job_policy import Batching, BatchRule
from tests.model.model_faults import (
    Moment,
    Planned,
    SimFault,
    draw,
    draw_beside,
    draw_limbs,
    draw_remnants,
    draw_saved,
    draw_sending,
    draw_strays,
    with_witnesses,
)
from tests.model.model_rings import AWAITED_S
from tests.model.model_stream import of_stream
from tests.model.simulation import SimJob

OWN_DATA = 0.12  # of the jobs: their scripts bring data that the leader knows nothing of
AWAY = 0.1  # of the jobs: the coordinator is away once
CUT_OFF = 0.15  # a worker can be part of no ring from some moment on
PREPARES = (0.0, 0.7, 1.0, 1.0, 1.0, 1.0)  # of each worker: it can form a ring beside another
REFUSE = 0.03  # of what is tried beside another ring: after it the worker can form none so
SENDS = (0.0, 0.8, 1.0, 1.0)  # likewise: it can give its state to a newcomer beside a step
SAVES = 0.4  # of the jobs: they are saved every so often
WISHES = 0.4  # of these: their scripts ask for checkpoints, too
CHOOSES = 0.4  # of these: they choose how often
EVALUATES = 0.3  # of the jobs: their scripts do something of their own between steps
MOVES = 0.3  # of the jobs: they are asked to leave a host
STARTS = 0.9  # of those times something starts workers elsewhere
SMALL, MIDDLE, BIG = 0.87, 0.12, 0.01  # how often


class JobKind(TypedDict, total=False):
    """The kind of job that a seed tells of."""

    in_line: bool  # no ring is formed beside another, nor is it saved
    saves: bool | None  # whether it is saved; None: that is drawn
    sends_large: bool  # newcomers join, and get their states beside several steps; of what is drawn else, faults remain
    streams: bool  # what it trains on has no length
    limbs: bool  # each worker is several processes
    remnants: bool  # so it is, and workers lose different processes at about the same time


def scenario(seed: int, job_class: type[SimJob] = SimJob, **kind: Unpack[JobKind]) -> SimJob:
    """The job of `seed`, with its faults planned. Run it; it raises Violation if an invariant breaks."""
    saves, in_line, sends_large = kind.get("saves"), kind.get("in_line", False), kind.get("sends_large", False)
    remnants = kind.get("remnants", False)
    limbs = remnants or kind.get("limbs", False)
    source = random.Random(f"scenario {seed}")
    (size,) = source.choices((0, 1, 2), (SMALL, MIDDLE, BIG))
    workers = source.randint(*((1, 3), (2, 5), (5, 10))[size])
    workers = min(max(2, workers), 4) if remnants else workers
    batch = source.randint(1, 4)
    steps = source.randint(*((1, 60), (60, 250), (100, 300))[size])
    epochs = source.randint(1, 3)
    spec = DataSpec(
        total=max(1, steps * batch * workers // epochs - source.randint(0, batch * workers)),
        epochs=epochs,
        batch=batch,
        whole_epochs=source.random() < 0.5,
        by_sample=source.random() < 0.1 and not sends_large,
    )
    if spec.whole_epochs and not spec.by_sample:
        spec = msgspec.structs.replace(spec, open_ended=random.Random(f"end {seed}").random() < 0.5)
    items, spec = spec.total, of_stream(spec, random.Random(f"stream {seed}")) if kind.get("streams") else spec
    minimum, maximum = source.choice((1, 1, 1, min(2, workers))), source.choice((0, 0, workers + 2))
    own_data = not sends_large and random.Random(f"own data {seed}").random() < OWN_DATA
    beside = random.Random(f"beside {seed}")
    sending = random.Random(f"sending {seed}")
    saving = random.Random(f"saving {seed}")
    is_saved = saving.random() < ((0.0 if in_line else SAVES) if saves is None else saves) or remnants
    job = job_class(
        None if own_data else spec,
        seed=seed,
        steps=steps,
        workers=workers,
        minimum=minimum,
        maximum=maximum,
        lease_s=source.choice((0.2, 0.6, 1.2)),
        prepares=1.0 if sends_large else 0.0 if in_line else beside.choice(PREPARES),
        sends=1.0 if sends_large else sending.choice(SENDS),
        spread=seed % 3 == 0,
        items=items,
        checkpointing=_checkpointing(saving, seed) if is_saved else None,
        processes=random.Random(f"processes {seed}").choice((2, 3)) if limbs else 1,
        remnants=remnants,
        batching=Batching() if spec.by_sample or own_data else _batching(random.Random(f"batches {seed}")),
    )
    if sends_large:
        _send_large(job, random.Random(f"large {seed}"))
    within_s = 0.05 + 0.01 * steps
    witnessed = random.Random(f"witnessed {seed}")
    job.plan(with_witnesses(draw(source, source.choice((1, 2, 2, 3, 3, 4, 6, 9)) * (1 + size), within_s), witnessed))
    if source.random() < 0.3:
        job.after(0.3 * within_s, job.requests.demand, source.randint(minimum, maximum or 4))
    job.plan(_cut_off(random.Random(f"cut off {seed}")))
    if not in_line:
        job.next_rings.refuse = REFUSE
        job.plan(with_witnesses(draw_beside(beside), witnessed))
        job.plan(with_witnesses(draw_sending(sending), witnessed))
    if is_saved:
        job.plan(with_witnesses(draw_saved(saving), witnessed))
        _ask_for_checkpoints(job, saving, within_s)
    wishing = random.Random(f"wishing {seed}")
    if is_saved and wishing.random() < WISHES:
        job.savings.wishes = {wishing.randint(1, steps): wishing.random() < 0.5 for _ in range(4)}
    if limbs:
        job.plan(_of_limbs(seed, within_s, remnants=remnants))
    job.plan(draw_strays(random.Random(f"strays {seed}")))
    _disturb(job, seed, within_s)
    _evaluate(job, random.Random(f"evaluates {seed}"), within_s)
    _move(job, random.Random(f"moving {seed}"), workers, within_s)
    if not spec.by_sample and not own_data:
        _batch_anew(job, seed, within_s)
    return job


def _cut_off(source: random.Random) -> list[Planned]:
    """Draw, in few jobs, workers that can be part of no ring from some moment on."""
    if source.random() >= CUT_OFF:
        return []
    moments = (Moment.READY, Moment.SWITCHING, Moment.ENTERING, Moment.STEPPING, Moment.BOOTING)
    return [
        Planned(SimFault.CUT_OFF, source.choice(moments), source.randint(1, 4)) for _ in range(source.choice((1, 1, 2)))
    ]


def _ask_for_checkpoints(job: SimJob, source: random.Random, within_s: float) -> None:
    for number in range(source.choice((0, 1, 1, 3))):
        job.after(source.random() * within_s, job.requests.ask_checkpoint, f"r{number}")


def _disturb(job: SimJob, seed: int, within_s: float) -> None:
    away = random.Random(f"away {seed}")
    if away.random() < AWAY:
        job.plan([Planned(SimFault.AWAY, away.random() * within_s)])
    slow = random.Random(f"slow {seed}")
    if slow.random() < 0.2:
        job.after(slow.random() * within_s, job.requests.replace_one)


def _of_limbs(seed: int, within_s: float, *, remnants: bool) -> list[Planned]:
    deaths = draw_remnants(random.Random(f"remnants {seed}"), within_s) if remnants else []
    return [*draw_limbs(random.Random(f"limb faults {seed}")), *deaths]


def _evaluate(job: SimJob, source: random.Random, within_s: float) -> None:
    """Scripts do something of their own between two steps: all of them, or one for which the others wait."""
    if source.random() < EVALUATES:
        evaluate = partial(job.shells.evaluate, source.random() * AWAITED_S, alone=source.random() < 0.3)
        job.after(source.random() * within_s, evaluate)


def _batch_anew(job: SimJob, seed: int, within_s: float) -> None:
    uneven = random.Random(f"shares {seed}")
    if uneven.random() < 0.2:
        for _ in range(2):
            job.after(uneven.random() * within_s, job.requests.share_out)
    asking = random.Random(f"asks for batches {seed}")
    for _ in range(asking.choice((0, 0, 0, 0, 1, 3))):
        job.after(asking.random() * within_s, job.requests.ask_batch, asking.randint(1, 40))


def _move(job: SimJob, source: random.Random, workers: int, within_s: float) -> None:
    if source.random() < MOVES:
        for _ in range(source.choice((1, 1, 2))):
            begin = partial(
                job.migrations.begin, slots=source.choice((2, workers, 12)), starts=source.random() < STARTS
            )
            job.after(source.random() * within_s, begin)


def _checkpointing(source: random.Random, seed: int) -> Checkpointing:
    return Checkpointing(
        folder="memory:",
        every_s=source.choice((0.0, 0.1, 0.3, 1.0)),
        every_steps=source.choice((0, 0, 7, 30)),
        last=source.random() < 0.5,
        auto=chooses(seed),
    )


def chooses(seed: int) -> Auto | None:
    """Draw how a short-lived simulated job chooses its interval; None: it does not."""
    source = random.Random(f"chooses {seed}")
    auto = Auto(source.choice((0.05, 0.2, 1.0)), least_s=source.choice((0.05, 0.2)), fault_s=source.choice((0.3, 3.0)))
    return auto if source.random() < CHOOSES else None


def _batching(source: random.Random) -> Batching:
    table = tuple((workers, source.randint(workers, 12)) for workers in range(1, 8))
    return source.choice(
        (
            Batching(),
            Batching(BatchRule.LOCAL, most=source.randint(1, 12)),
            Batching(BatchRule.GLOBAL),
            Batching(BatchRule.TABLE, table=table),
        )
    )


def _send_large(job: SimJob, source: random.Random) -> None:
    """Newcomers come, and faults strike as they are sent portion after portion."""
    job.state_bytes = source.choice((10**8, 10**9))
    job.plan([Planned(SimFault.JOIN, 0.05 + 0.3 * source.random()) for _ in range(2)])
    strikes = (SimFault.KILL, SimFault.CUT_STATE, SimFault.VANISH, SimFault.LEAVE, SimFault.CRASH_LEADER)
    job.plan([Planned(source.choice(strikes), Moment.SENDING, source.randint(1, 20)) for _ in range(2)])
