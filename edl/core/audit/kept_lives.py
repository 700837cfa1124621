"""Tell which steps a job has kept over all its lives.

Owns: the rule by which a life's steps count. Does not own: which of them its workers had kept
(`edl.core.audit.kept_steps`), nor which samples they trained (`edl.core.audit.sample_account`).

The newest life is the witness. It began anew, or with a checkpoint of an earlier one, after some step of that. Up to
there the steps of the earlier life count, and before them those of the life that the earlier one had begun with, and so
on. What a life has trained beyond that step is void, as all further training follows from the checkpoint. So is all of
a life that no later one has gone on from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.audit.kept_steps import Span, WorkerAudit, lineage
from edl.errors import UsageError
from edl.protocol.audit_lines import LifeAudited


@dataclass(frozen=True, slots=True)
class AuditedLife:
    begun: LifeAudited
    audits: tuple[WorkerAudit, ...]
    spans: tuple[Span, ...]  # all that it has made
    kept: int  # its steps 1 .. kept are the job's
    base: int | None  # steps that count of the lives before it; None: no later life has gone on from it

    @property
    def number(self) -> int:
        return self.begun.life

    @property
    def steps(self) -> int:
        return self.spans[-1].until_step if self.spans else 0

    @property
    def counts(self) -> bool:
        """Tell whether this life is the newest, or the newest one follows from it."""
        return self.base is not None


def lives(audits: Sequence[WorkerAudit]) -> tuple[AuditedLife, ...]:
    """Return all lives of a job in order. Raises UsageError if audits contradict each other or a life is missing."""
    by_number = _by_number(audits)
    spans = {number: lineage(found) for number, found in by_number.items()}
    made = {number: found[-1].until_step if found else 0 for number, found in spans.items()}
    kept: dict[int, int] = {}
    line = []
    number = max(by_number, default=0)
    while number:
        begun = by_number[number][0].begun
        line.append(begun)
        kept.setdefault(number, made[number])
        if begun.parent:
            _check_parent(begun, by_number, made)
            kept[begun.parent] = begun.step
        number = begun.parent
    bases: dict[int, int] = {}
    for begun in reversed(line):
        bases[begun.life] = bases[begun.parent] + begun.step if begun.parent else 0
    return tuple(
        AuditedLife(found[0].begun, tuple(found), spans[number], kept.get(number, 0), bases.get(number))
        for number, found in sorted(by_number.items())
    )


def _by_number(audits: Sequence[WorkerAudit]) -> dict[int, list[WorkerAudit]]:
    found: dict[int, list[WorkerAudit]] = defaultdict(list)
    for audit in audits:
        found[audit.begun.life].append(audit)
    for number, ones in found.items():
        if len({one.begun for one in ones}) > 1:
            raise UsageError(
                f"the workers of life {number} do not agree on what it began with: these are audits of more than one "
                "run; give each run a folder of its own"
            )
    return found


def _check_parent(begun: LifeAudited, by_number: dict[int, list[WorkerAudit]], made: dict[int, int]) -> None:
    went_on = f"life {begun.life} went on from step {begun.step} of life {begun.parent}"
    job = by_number[begun.life][0].job
    if begun.job != job:
        raise UsageError(f"{went_on} of job {begun.job}: what became of its samples cannot be told from {job} alone")
    if begun.parent >= begun.life:
        raise UsageError(f"{went_on}, which was not before it: lines are damaged")
    if begun.parent not in by_number:
        raise UsageError(f"{went_on}, of which there is no audit here: give the folders of all lives")
    if made[begun.parent] < begun.step:
        raise UsageError(f"{went_on}, whose workers say that it made {made[begun.parent]}: lines are missing")
