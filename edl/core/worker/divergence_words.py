"""Explain to people where workers of one ring differ: which of them, in what, and why that may be (I15).

Owns: the words. Does not own: who differs, nor what follows (`edl.core.worker.divergence_finder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edl.protocol.divergence_report import Divergence

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
    """Name the likely causes of a difference, for people; nothing where what differs first says its own."""
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
