"""Workers that must be equal and are not: which differ from which, in what, and what is made of it (I15).

Owns: whose state counts as the right one, what follows from a difference, and when workers compare. Does not own: the
digests (`edl.core.worker.digest`), comparing them over the ring (`edl.trainer.divergence_check`), nor the end of a job
for it (`edl.core.job.leader_machine`).

A newcomer that differs says nothing against the others: its script does something else there than theirs, as it counts
batches by itself, say. So it goes, and they train on. What it does else may show only some steps after it got its
state. Members of a young ring compare after the first step, the fourth, the sixteenth and the sixty-fourth; and until
a newcomer was found equal after so many steps, it is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from edl.core.worker.next_move import NEVER
from edl.protocol.divergence_report import Divergence, EndState, Fingerprint, OnDivergence, SameValue

NAMED: Final = 8  # workers, in a reason
REGISTERED: Final = "edl.register("  # names of what scripts register begin so
CAUSES: Final = (
    "something was changed outside the optimizer on some workers only; an `if` went another way on some of them, or an "
    "exception was caught there; an operation does not give the same twice; or hardware erred"
)
OWN_VALUES: Final = "it is set by what is each worker's own, such as its loss, its time, or a count of its batches"
AT_FIRST: Final = (
    "the model's forward pass changes weights, as spectral normalization in Keras does; or what is registered is "
    "changed after notify_batch_end(), where a newcomer has got it already: change it before"
)
OWN_COUNT: Final = (
    "the script goes by a count of its own, which a newcomer begins anew, as with enumerate() or a schedule that is "
    "not registered: go by edl.step() and edl.epoch(), or edl.register() it"
)
OWN_SCHEDULE: Final = (
    "is a schedule not registered? edl.register(scheduler=...). Or does the script count batches by itself, which a "
    "newcomer begins anew? edl.step() and edl.epoch() are the same on all"
)
AFTERWARDS: Final = "some changed their model or optimizer after the last step: change a copy of it, or do so on all"
APART: Final = (
    "the script leaves its loop by a time or a count of its own: leave it by edl.step() or edl.epoch(), at the same "
    "step on all workers; or it catches an exception on some of them, without the update that others make: skip a "
    "mini-batch on all workers or on none"
)
LEFT_ALONE: Final = "call edl.local("  # a name with it ends by what is to be done, as only one cause is likely
UPDATES: Final = "the number of updates after the last step"
STEPS: Final = "the number of steps"  # what is told first of a worker whose script has ended


def causes(found: Divergence) -> str:
    """Return text for people; empty where the first difference names its own cause."""
    if LEFT_ALONE in found.first:
        return ""
    if found.at_end and found.first in {STEPS, UPDATES}:
        return APART
    set_by_script = bool(found.held)
    if found.newcomers and set_by_script:
        return OWN_COUNT if found.first.startswith(REGISTERED) else OWN_SCHEDULE
    if found.newcomers and found.at_end:
        return f"{OWN_COUNT}; or {AFTERWARDS}"
    if found.newcomers:
        return OWN_COUNT if found.equal_step else AT_FIRST
    likely = f"{OWN_VALUES}; or {CAUSES}" if set_by_script else CAUSES
    return f"{AFTERWARDS}; or {likely}" if found.at_end else likely


def told(found: Divergence) -> str:
    """Say in one line, for people, who differs from whom, in what, and why that may be."""
    if found.virtual >= 0:
        return _told_of_part(found)
    when = f"the workers' states differ after step {found.step}"
    when = "the workers' states differ at the end of their scripts" if found.at_end else when
    before = f" (after step {found.equal_step} they were equal)" if found.equal_step else ""
    extent = f"{found.differing} of {found.compared} differ" if found.differing > 1 else "only that"
    likely = causes(found)
    return f"{when}{before}: {_who(found)} ({extent}){likely and f'. Likely causes: {likely}'}"


def _told_of_part(found: Divergence) -> str:
    once_more = "; computed once more, they still differ" if found.persists else ""
    part = f"step {found.step}: {found.first} came out otherwise when another worker computed it again"
    if found.majority:
        return f"{part}: {named(found.workers)} computed wrongly, as a third worker has shown"
    return f"{part}: one of {named(found.workers)} computed wrongly, and a third could not tell which{once_more}"


def _who(found: Divergence) -> str:
    joined = _joined(found)
    if found.held:
        values = [f"{one.value} on {named(one.workers)}" for one in found.held]
        return f"{found.first} is {', '.join(values[:-1])} and {values[-1]}{joined and f', {joined}'}"
    right = f"{found.root} and most others" if found.majority else f"{found.root}, the lowest rank's"
    right = found.root if found.newcomers else right
    differ = "differs" if len(found.workers) == 1 else "differ"
    return f"{named(found.workers)}{joined and f', {joined},'} {differ} from {right}, first in {found.first}"


def _joined(found: Divergence) -> str:
    if not found.newcomers:
        return ""
    return "which joined after step " + " or ".join(map(str, sorted(set(found.joined))))


def named(workers: Sequence[str]) -> str:
    more = f" and {len(workers) - NAMED} others" if len(workers) > NAMED else ""
    return ", ".join(workers[:NAMED]) + more


END_STATES: Final = 4  # so many are kept: that they differ is known with the second
EARLY: Final = (1, 4, 16, 64)  # steps after a ring began at whose ends its members compare, besides the usual ones


class Consequence(StrEnum):
    HEAL = "heal"  # those that differ take over the state that counts, and the job goes on
    PART = "part"  # they leave the job, which goes on without them
    FAIL = "fail"
    TELL = "tell"  # the job goes on, and only tells of it


@dataclass(frozen=True, slots=True)
class Difference:
    first: str
    differing: int
    compared: int
    ranks: tuple[int, ...]  # those that differ from `root`
    root: int  # the lowest rank of the largest group that is alike; of two such groups, of the one with the lowest rank
    majority: bool
    newcomers: bool = False  # all that differ are new
    held: tuple[tuple[str, tuple[int, ...]], ...] = ()  # of `first`, where it is a plain value: which ranks have which


Contents = dict[tuple[str, int], Fingerprint]  # by name, and number among those of that name


def difference(
    by_rank: Sequence[Sequence[Fingerprint]], new: Sequence[bool] = (), joined: Sequence[int] = ()
) -> Difference | None:
    """Return what differs, given the fingerprints of every rank, each in its own order. None: nothing does.

    `new`: of every rank, whether it is a newcomer. What the others have counts. `joined`: after which step each rank
    got its state. Where a plain value differs first, such as a learning rate, the script has set it: then all count as
    newcomers that have come later than the first ones, if these are alike.
    """
    ranks = range(len(by_rank))
    contents = [_named(fingerprints) for fingerprints in by_rank]
    if len({tuple(one.digest for one in fingerprints) for fingerprints in by_rank}) < 2:
        return None
    found = _difference(contents, [rank for rank in ranks if not (new and new[rank])] or list(ranks))
    if found.held and joined and not found.newcomers:
        first = [rank for rank in ranks if joined[rank] == min(joined)]
        by_age = _difference(contents, first)
        return by_age if by_age.newcomers else found
    return found


def _difference(contents: Sequence[Contents], old: Sequence[int]) -> Difference:
    """Compare all ranks with the state that most of the `old` ranks have: theirs counts."""
    keys = [tuple((key, one.digest) for key, one in sorted(content.items())) for content in contents]
    right, _ = max(Counter(keys[rank] for rank in old).items(), key=lambda item: (item[1], -keys.index(item[0])))
    root, followers = next(rank for rank in old if keys[rank] == right), keys.count(right)
    others = tuple(rank for rank, one in enumerate(keys) if one != right)
    known = dict.fromkeys(key for rank in (root, *others) for key in contents[rank])  # in the order of the root
    differing = [key for key in known if len({_digest(contents[rank], key) for rank in (root, *others)}) > 1]
    first = differing[0]
    return Difference(
        first[0],
        len(differing),
        max(map(len, contents)),
        others,
        root,
        2 * followers > len(contents),
        not set(others) & set(old),
        _held([content.get(first) for content in contents]),
    )


def _named(fingerprints: Sequence[Fingerprint]) -> Contents:
    times = Counter[str]()
    named: Contents = {}
    for one in fingerprints:
        named[one.name, times[one.name]] = one
        times[one.name] += 1
    return named


def _digest(content: Contents, key: tuple[str, int]) -> int | None:
    one = content.get(key)
    return None if one is None else one.digest


def _held(by_rank: Sequence[Fingerprint | None]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Group the ranks by their value; empty where one of them has no plain value."""
    found: dict[str, list[int]] = {}
    for rank, one in enumerate(by_rank):
        if one is None or not one.value:
            return ()
        found.setdefault(one.value, []).append(rank)
    return tuple((value, tuple(ranks)) for value, ranks in found.items())


def at_end(finals: Sequence[EndState], generation: int, step: int) -> Divergence | None:
    """Find the difference between workers whose scripts have ended; None: they have ended in one state. That only
    newcomers differ says nothing against the others, unless these have ended after another step.
    """
    names = [worker for one in finals for worker in one.workers]
    states = [one.state for one in finals for _ in one.workers]
    joined = [one.joined.get(worker, 0) for one in finals for worker in one.workers]
    found = difference(states)
    if found is None:
        return None
    found = found if found.first in {STEPS, UPDATES} else difference(states, [step > 0 for step in joined])
    assert found is not None
    return Divergence(
        generation=generation,
        step=step,
        equal_step=0,
        first=found.first,
        differing=found.differing,
        compared=found.compared,
        workers=tuple(names[rank] for rank in found.ranks),
        root=names[found.root],
        majority=found.majority,
        newcomers=found.newcomers,
        joined=tuple(joined[rank] for rank in found.ranks),
        held=tuple(SameValue(value, tuple(names[rank] for rank in ranks)) for value, ranks in found.held),
        at_end=True,
    )


def ended_in(
    finals: Sequence[EndState], worker: str, state: tuple[Fingerprint, ...], joined: int = 0
) -> tuple[EndState, ...]:
    """Add a worker to those that have ended in the same `state`, up to so many states, and so many of newcomers alone.

    `joined`: the step after which it came, if it was a newcomer still.
    """
    digests, new = tuple(one.digest for one in state), {worker: joined} if joined else {}
    for place, known in enumerate(finals):
        if tuple(one.digest for one in known.state) == digests:
            among = EndState((*known.workers, worker), known.state, known.joined | new)
            return (*finals[:place], among, *finals[place + 1 :])
    like = [one for one in finals if (len(one.joined) == len(one.workers)) == bool(new)]
    return (*finals, EndState((worker,), state, new)) if len(like) < END_STATES else tuple(finals)


def up_to(finals: Sequence[EndState], step: int) -> tuple[EndState, ...]:
    """Keep the states of workers that had made no step beyond `step`, as their first fingerprint says."""
    return tuple(one for one in finals if int(one.state[0].value) <= step)


def next_check(step: int, every: int, size: int, began: int) -> int:
    """Return the next step after `step` at whose end all members of a ring compare: a number that each of them knows by
    itself. After step `began` all have had their state.
    """
    if size < 2:
        return NEVER
    early = (began + after for after in EARLY if began + after > step)
    return min(next(early, NEVER), (step // every + 1) * every if every else NEVER)


def is_proven(step: int, joined: int) -> bool:
    """A worker that got its state after step `joined`, and is equal to the others after `step`, is no newcomer more."""
    return step >= joined + EARLY[-1]


def is_corrupt(found: Difference, compute: float) -> bool:
    """Tell whether a difference counts as an error of hardware, in a job that looks for these: most workers are alike,
    and what differs is neither set by the script nor a newcomer's.
    """
    return compute > 0 and found.majority and not (found.newcomers or found.held)


def outcome(divergence: Divergence, policy: OnDivergence) -> Consequence:
    """A newcomer gets its state anew at its first comparison: it may have got it wrongly."""
    if divergence.corrupt:
        return Consequence.PART if divergence.majority else Consequence.TELL
    first = divergence.newcomers and not divergence.equal_step
    if (policy is OnDivergence.HEAL or first) and not divergence.persists and not divergence.at_end:
        return Consequence.HEAL
    return Consequence.PART if divergence.newcomers else Consequence.FAIL
