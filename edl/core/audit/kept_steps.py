"""Tell which steps a job has kept over all its lives, and who took part in each, from the lines that workers wrote.

Owns: the rule by which a step counts (I5). Does not own: which samples steps trained (`edl.core.audit.sample_account`).

A worker alone cannot know whether a step of its own counts. It may have applied one that its colleagues take for void,
and be killed with it; and it may be killed before it has written that it applied one that they keep. So:

- What came after is the witness. All members of a generation began in the state of one step, on which they agreed in
  the ring (`edl.core.worker.agreement`). A step of an earlier generation counts iff no later generation began before
  it: the state in which that one began has the step's update in it, or has not, and all further training follows from
  it.
- In the newest generation, which nothing follows, a step counts once any member wrote that it has applied it.
- All members of its generation took part in a step that counts, also one that was killed in it: an all-reduce that
  succeeds anywhere has the gradients of all in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edl.errors import UsageError
from edl.protocol.audit_lines import FIRST_LIFE, Committed, LifeAudited, Line, PartsComputed, Sat


@dataclass(frozen=True, slots=True)
class WorkerAudit:
    """Lines of one worker, in its order, after its first line."""

    worker: str
    job: str
    lines: tuple[Line, ...]
    begun: LifeAudited = FIRST_LIFE


@dataclass(frozen=True, slots=True)
class Span:
    """Steps after_step+1 .. until_step, which count as those of this generation."""

    generation: int
    after_step: int
    until_step: int
    members: tuple[str, ...]


@dataclass(slots=True)
class _Generation:
    number: int
    seats: dict[int, str] = field(default_factory=dict)  # rank -> worker
    sizes: set[int] = field(default_factory=set)
    begins: set[int] = field(default_factory=set)  # the step that members say it began after: one, or all is in doubt
    steps: set[int] = field(default_factory=set)  # applied by any member


def lineage(audits: Sequence[WorkerAudit]) -> tuple[Span, ...]:
    """Return the spans of one life in order, without gaps and each step once.

    Raises UsageError where audits contradict each other.
    """
    later: int | None = None  # the earliest beginning of all later generations
    spans = []
    for one in reversed(_generations(audits)):
        (began,) = one.begins
        until = max(one.steps, default=began) if later is None else later
        if until > began:
            _check_complete(one, range(began + 1, until + 1))
            spans.append(Span(one.number, began, until, tuple(one.seats[rank] for rank in sorted(one.seats))))
        later = began if later is None else min(later, began)
    return tuple(reversed(spans))


def _generations(audits: Sequence[WorkerAudit]) -> list[_Generation]:
    found: dict[int, _Generation] = {}
    for worker, line in _lines(audits):
        if isinstance(line, Sat):
            one = found.setdefault(line.generation, _Generation(line.generation))
            if line.rank in one.seats:
                raise UsageError(
                    f"{one.seats[line.rank]} and {worker} both have rank {line.rank} in generation {line.generation}: "
                    "these are audits of more than one run; give each run a folder of its own"
                )
            one.seats[line.rank] = worker
            one.sizes.add(line.size)
            one.begins.add(line.step)
        elif isinstance(line, Committed):
            if line.generation not in found or worker not in found[line.generation].seats.values():
                raise UsageError(f"{worker} says that it trained in generation {line.generation}, where it has no seat")
            found[line.generation].steps.add(line.step)
    for one in found.values():
        if len(one.sizes) > 1 or len(one.begins) > 1:
            raise UsageError(f"the members of generation {one.number} do not agree on its size, or on where it began")
    return [found[number] for number in sorted(found)]


def _lines(audits: Sequence[WorkerAudit]) -> Iterator[tuple[str, Line]]:
    return ((audit.worker, line) for audit in audits for line in audit.lines)


def _check_complete(one: _Generation, steps: range) -> None:
    missing = set(range(*one.sizes)) - set(one.seats)
    if missing:
        raise UsageError(
            f"there is no audit of rank {min(missing)} of the {max(one.sizes)} workers of generation {one.number}: put "
            "the files of all machines into one folder"
        )
    unsaid = next((step for step in steps if step not in one.steps), None)
    if unsaid is not None:
        raise UsageError(
            f"step {unsaid} was kept by the job, but no worker says that it applied it in generation {one.number}: "
            "lines are missing"
        )


# The newest life is the witness. It began anew, or with a checkpoint of an earlier one, after some step of that. Up to
# there the steps of the earlier life count, and before them those of the life that the earlier one had begun with, and
# so on. What a life has trained beyond that step is void, as all further training follows from the checkpoint. So is
# all of a life that no later one has gone on from.


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


# Compare the digests of parts of steps, as a run's workers have kept them, with those of a replay.


class PartKey(NamedTuple):
    step: int  # counted over all lives
    loop: int  # over the parts of the step
    virtual: int


@dataclass(frozen=True, slots=True)
class ReplayedPart:
    key: PartKey
    here: int  # digest
    in_run: tuple[int, ...]  # digests: several, where a step was void, or a life went on from before it

    @property
    def is_same(self) -> bool:
        """Tell whether it came out each time as here."""
        return set(self.in_run) == {self.here}


Digests = Mapping[PartKey, tuple[int, ...]]


def digests_of(audits: Sequence[WorkerAudit]) -> Digests:
    """Return the digests of each part, each digest once."""
    found: dict[PartKey, dict[int, None]] = {}
    for line in (line for audit in audits for line in audit.lines if isinstance(line, PartsComputed)):
        for virtual, digest in line.digests:
            found.setdefault(PartKey(line.step, line.loop, virtual), {})[digest] = None
    return {key: tuple(digests) for key, digests in found.items()}


def compared(run: Digests, replay: Digests) -> list[ReplayedPart]:
    """Compare the parts that both have, in their order."""
    return [ReplayedPart(key, digests[0], run[key]) for key, digests in sorted(replay.items()) if key in run]
