"""A trainer of a library through all that can happen to a job: growth, a kill, a shrink, a preemption; and alone.

What each job trained, step by step over all its lives, is taken from its audits. The library alone, on one worker,
trains the same mini-batches, and must come to the same loss.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pace import patient
from saved_job import JOBS, Life, durable

from edl.core.audit.kept_steps import WorkerAudit, lineage
from edl.core.audit.sample_account import account
from edl.core.data.permutation import samples_at
from edl.protocol.audit_lines import BatchGiven, DataOpened
from edl.trainer.data.audit_files import read

SELDOM = ("--checkpoint-every", "1000000steps", "--max-np", "3")


class Story(NamedTuple):
    results: list[dict[str, Any]]  # of the workers that were there at the end
    alone: dict[str, Any]  # of the library alone
    epochs: int
    empty: int  # steps in which no worker had samples: who had those of an epoch's last one was gone


def tell(edl: Any, folder: Path, script: str, *arguments: str, at_least: int = 0) -> Story:
    """However long its workers boot, the job does not end before it was preempted; then it trains two epochs more, or
    as many as make `at_least` of them.
    """
    until = folder / "until"
    ways = ["--way", "story", "--until", str(until), *arguments]
    saved: dict[str, Any] = {"checkpoint": folder / "ck", "flags": SELDOM, "audit": True}
    environ = {"EDL_MAX_RESTARTS": "2"}
    slowly = ["--step-time", "0.3"]  # a replacement boots meanwhile
    first = Life(edl, folder / "first", script, *ways, *slowly, environ=environ, **saved)
    first.wait_size(2)
    first.wait_step(4)
    first.scale(3)
    first.wait_size(3)
    os.kill(first.pid(1), signal.SIGKILL)
    edl.wait(lambda: first.events("worker_lost"), "its loss is known", timeout_s=60)
    first.wait_size(3)
    os.kill(first.pid(0), signal.SIGTERM)  # edl's, whatever the library does with it
    first.wait_size(2)
    edl.wait(lambda: first.events("worker_left"), "it was told to leave, and is no loss", timeout_s=60)
    assert len(first.events("worker_lost")) == 1, first.events()
    first.wait_step(first.step() + 2)
    first.launcher.send_signal(signal.SIGTERM)
    first.finish(75)
    [_] = durable(folder / "ck")
    epochs = max(at_least, len(account(read(first.audit)).epochs) + 2)
    until.write_text(str(epochs))
    then = Life(edl, folder / "then", script, *ways, "--step-time", "0", **saved)
    assert "goes on from step" in then.finish(timeout_s=120)
    audits = [read(first.audit), read(then.audit)]
    found = account([one for audit in audits for one in audit])
    assert found.clean and len(found.epochs) == epochs, found
    assert all(epoch.over and epoch.trained == epoch.total for epoch in found.epochs), found
    steps = [step for audit in audits for step in global_batches(audit)]
    replayed = folder / "steps.json"
    replayed.write_text(json.dumps([step for step in steps if step]))
    alone = folder / "alone"
    command = [*edl.warm.command(JOBS / script), "--out", str(alone), "--replay", str(replayed), *ways]
    process = edl.start_command([*command, "--step-time", "0"])
    out, err = process.communicate(timeout=patient(120))
    assert process.returncode == 0, out + err
    [replay] = alone.glob("result-*.json")
    return Story(then.results(), json.loads(replay.read_text()), epochs, sum(not step for step in steps))


def global_batches(audits: Sequence[WorkerAudit]) -> Iterator[list[int]]:
    """The samples of each step of a life, of all workers."""
    spec = next(line.spec for one in audits for line in one.lines if isinstance(line, DataOpened))  # one order in all
    for span in lineage(audits):
        members = [one for one in audits if one.worker in span.members]
        given = [{line.step: line for line in one.lines if isinstance(line, BatchGiven)} for one in members]
        for step in range(span.after_step + 1, span.until_step + 1):
            pieces = [piece for lines in given if step in lines for piece in lines[step].ranges]
            yield [int(one) for piece in pieces for one in samples_at(spec, piece)]
