"""`edl data verify`: account for every sample of a job, from the audits that its workers wrote."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edl.cli import tables
from edl.core.audit.sample_account import (
    Account,
    EpochAccount,
    ItemSpan,
    LifeAccount,
    Offender,
    Portion,
    StreamAccount,
    Weighed,
    account,
)
from edl.trainer.data.audit_files import read

UNCLEAN = 1


def verify(arguments: argparse.Namespace) -> int:
    found = account([audit for folder in arguments.folders for audit in read(Path(folder))])
    if arguments.json:
        tables.say_json(as_json(found))
    else:
        show_account(found)
    return 0 if found.clean else UNCLEAN


def as_json(found: Account) -> dict[str, Any]:
    return {"clean": found.clean, **msgspec.to_builtins(found)}


def show_account(found: Account) -> None:
    job = f"job {found.job}: " if found.job else ""
    many = len(found.lives) > 1
    tables.say(
        f"{job}{tables.counted(found.steps, 'step')}, {f'{len(found.lives)} lives, ' if many else ''}"
        f"{tables.counted(found.workers, 'worker')} and {tables.counted(found.generations, 'generation')} in all"
    )
    if many:
        tables.table(("life", "workers", "goes on from", "steps", "kept"), [_life_row(life) for life in found.lives])
        tables.say(
            "trained again, as later lives went on from before: "
            f"{tables.counted(found.void_steps, 'step')}, {tables.counted(found.again, 'sample')}"
        )
    if found.updates is not None:
        tables.say(_updates(found.steps, found.updates, found.weightless))
    for epoch in found.epochs:
        if epoch.stream is not None:
            tables.say(_shards(epoch, epoch.stream))
    rows = [_row(epoch) for epoch in found.epochs]
    tables.table(("epoch", "total", "trained", "lost", "repeated", ""), rows)
    for epoch in found.epochs:
        _show_offenders(epoch)
    for taken in found.first_wrong:
        tables.say(f"{taken.worker} was given other samples in {_step(taken)} than those of its positions")
    for one in found.first_misweighed:
        tables.say(f"{one.worker} went into {_step(one)} with weight {one.weight:g}, and {one.right:g} is right")
    if len(found.epochs) < found.epochs_wanted:
        tables.say(f"{len(found.epochs)} of {found.epochs_wanted} epochs have begun")
    lost, repeated = (sum(getattr(epoch, what) for epoch in found.epochs) for what in ("lost", "repeated"))
    wrong = f", {tables.counted(found.wrong, 'wrong batch', 'es')}" if found.wrong else ""
    wrong += f", {tables.counted(found.misweighed, 'wrong weight')}" if found.misweighed else ""
    tables.say(f"{lost} lost, {repeated} repeated{wrong}", "" if found.clean else "red")


def _life_row(life: LifeAccount) -> tuple[str, ...]:
    if life.begins_anew:
        begun = "-"
    else:
        begun = f"step {life.parent_step} of life {life.parent}"
        begun += f", {life.base} in all" if life.base not in (None, life.parent_step) else ""
    return (str(life.life), str(life.workers), begun, str(life.steps), str(life.kept))


def _updates(steps: int, updates: int, weightless: int) -> str:
    told = f"{tables.counted(updates, 'update')}, {tables.counted(weightless, 'step')} weighed nothing"
    others = steps - updates - weightless
    return told + (f", {tables.counted(others, 'step')} made no update" if others > 0 else "")


def _row(epoch: EpochAccount) -> tuple[str, ...]:
    lost = str(epoch.lost) if epoch.over else "-"
    note = "" if epoch.over else "in progress"
    return (str(epoch.epoch), str(epoch.total), str(epoch.trained), lost, str(epoch.repeated), note)


def _shards(epoch: EpochAccount, stream: StreamAccount) -> str:
    tokens = f", {epoch.trained * stream.unit} tokens" if stream.unit > 1 else ""
    told = f"epoch {epoch.epoch}: {stream.ended} of {stream.shards} shards read to their ends{tokens} trained"
    skipped = ", ".join(map(str, stream.skipped))
    return told + (f"; without the rest of what could not be read: shard {skipped}" if skipped else "")


def _span(one: ItemSpan) -> str:
    tokens = "" if one.tokens is None else f" (tokens {one.tokens[0]}..{one.tokens[1]})"
    return f"items {one.first}..{one.last}{tokens} of shard {one.shard}"


def _show_spans(epoch: EpochAccount, stream: StreamAccount) -> None:
    for word, spans, offenders in (
        ("lost", stream.first_lost, epoch.first_lost),
        ("repeated", stream.first_repeated, epoch.first_repeated),
    ):
        for one, had in zip(spans, offenders, strict=True):
            tables.say(
                f"epoch {epoch.epoch}: {_span(one)} are {word}: {_list(had.steps) or 'no worker was given them'}"
            )


def _show_offenders(epoch: EpochAccount) -> None:
    if epoch.stream is not None:
        _show_spans(epoch, epoch.stream)
        return
    for one in epoch.first_lost:
        had = f"; {_list(one.steps)} had it, which does not count" if one.steps else "; no worker was given it"
        tables.say(f"epoch {epoch.epoch}: sample {one.sample} is lost{had}")
    for one in epoch.first_repeated:
        tables.say(f"epoch {epoch.epoch}: sample {one.sample} is repeated: {_list(one.steps)}")
    for word, count, named in _kinds(epoch):
        if count > len(named):
            tables.say(f"epoch {epoch.epoch}: and {count - len(named)} more are {word}")


def _kinds(epoch: EpochAccount) -> tuple[tuple[str, int, Sequence[Offender]], ...]:
    return ("lost", epoch.lost, epoch.first_lost), ("repeated", epoch.repeated, epoch.first_repeated)


def _list(steps: Sequence[Portion]) -> str:
    return ", ".join(f"{taken.worker} in {_step(taken)}" for taken in steps)


def _step(at: Portion | Weighed) -> str:
    return f"step {at.step}" if at.life == 1 else f"step {at.step} of life {at.life}"
