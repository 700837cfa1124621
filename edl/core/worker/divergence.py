"""Workers that must be equal and are not: which differ from which, in what, and what is made of it (I15).

Owns: whose state counts as the right one, what people are told, and when workers compare. Does not own: the digests
(`edl.core.worker.digest`), comparing them over the ring (`edl.trainer.comparison`), nor the end of a job for it
(`edl.core.job.machine`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.worker.moves import NEVER
from edl.protocol.divergence import Divergence, Fingerprint, OnDivergence

NAMED = 8  # workers, in a reason
CAUSES = (
    "something was changed outside the optimizer on some workers only; an `if` went another way on some of them; an "
    "operation does not give the same twice; or hardware erred"
)
NEWCOMERS_CAUSES = (
    "the model's forward pass changes weights, as spectral normalization in Keras does; or what is registered is "
    "changed after notify_batch_end(), where a newcomer has got it already: change it before"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Between the members of a ring, by rank."""

    first: str
    differing: int
    compared: int
    ranks: tuple[int, ...]  # those that differ from `root`
    root: int  # the lowest rank of the largest group that is alike; of two such groups, of the one with the lowest rank
    majority: bool
    newcomers: bool = False  # all that differ have just come


def difference(by_rank: Sequence[Sequence[Fingerprint]], new: Sequence[bool] = ()) -> Difference | None:
    """What differs, given the fingerprints of every rank, each in its own order. None: nothing does.

    `new`: of every rank, whether it got its state in this ring and has not been compared since. What the others have
    counts.
    """
    contents = [tuple(one.digest for one in fingerprints) for fingerprints in by_rank]
    if len(set(contents)) == 1:
        return None
    old = [rank for rank in range(len(contents)) if not (new and new[rank])] or list(range(len(contents)))
    right, _ = max(
        Counter(contents[rank] for rank in old).items(), key=lambda item: (item[1], -contents.index(item[0]))
    )
    root, followers = next(rank for rank in old if contents[rank] == right), contents.count(right)
    others = tuple(rank for rank, content in enumerate(contents) if content != right)
    differing = sorted({place for rank in others for place in _differing(contents[rank], right)})
    named = by_rank[root] if differing[0] < len(right) else max(by_rank, key=len)
    compared = max(len(content) for content in contents)
    majority, newcomers = 2 * followers > len(by_rank), not set(others) & set(old)
    return Difference(named[differing[0]].name, len(differing), compared, others, root, majority, newcomers)


def _differing(one: tuple[int, ...], other: tuple[int, ...]) -> list[int]:
    """The places at which two differ; where one is longer, the rest of it."""
    together = min(len(one), len(other))
    places = [place for place in range(together) if one[place] != other[place]]
    return places + list(range(together, max(len(one), len(other))))


def next_check(step: int, every: int, size: int) -> int:
    """The next step after `step` at whose end all members compare: a number that each of them knows by itself."""
    return (step // every + 1) * every if every and size > 1 else NEVER


def heals(divergence: Divergence, policy: OnDivergence) -> bool:
    """Whether those that differ take over the state that counts, and the job goes on."""
    return (policy is OnDivergence.HEAL or divergence.newcomers) and not divergence.persists


def causes(divergence: Divergence) -> str:
    """The likely ones."""
    return NEWCOMERS_CAUSES if divergence.newcomers else CAUSES


def told(divergence: Divergence) -> str:
    """For people."""
    who = ", ".join(divergence.workers[:NAMED])
    if len(divergence.workers) > NAMED:
        who += f" and {len(divergence.workers) - NAMED} others"
    extent = f"{divergence.differing} of {divergence.compared} differ" if divergence.differing > 1 else "only that"
    right = f"{divergence.root} and most others" if divergence.majority else f"{divergence.root}, the lowest rank's"
    if divergence.newcomers:
        who, right = f"{who}, just come,", divergence.root
    before = f" (after step {divergence.equal_step} they were equal)" if divergence.equal_step else ""
    return (
        f"the workers' states differ after step {divergence.step}{before}: {who} from {right}, first in "
        f"{divergence.first} ({extent}). Likely causes: {causes(divergence)}"
    )
