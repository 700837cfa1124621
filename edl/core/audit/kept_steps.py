"""Tell which steps a life of a job has kept, and which workers took part in each, from the lines that all workers
wrote.

Owns: the rule by which a step counts (I5). Does not own: which of them a later life went on from
(`edl.core.audit.kept_lives`), nor which samples they trained (`edl.core.audit.sample_account`).

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edl.errors import UsageError
from edl.protocol.audit_lines import FIRST_LIFE, Committed, LifeAudited, Line, Sat


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
