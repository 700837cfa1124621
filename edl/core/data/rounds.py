"""The arithmetic of a round of leases: how many samples for each, and what all of them make in each step.

Owns: dividing samples among members by the sizes of their batches. Does not own: which samples, and when
(`edl.core.data.sample_ledger`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from edl.protocol.data_nouns import Lease, Range, Totals


def evenly(available: int, steps: int, batches: Sequence[int]) -> tuple[int, list[int]]:
    """Return the steps and each member's samples: full batches, then in one more step what is left, by the batches'
    sizes.

    A member has two of that or none, where it can be: a model with batch norm cannot train on one.
    """
    a_step = sum(batches)
    full = min(steps, available // a_step)
    rest = available - full * a_step if full < steps else 0
    shares = [rest * batch // a_step for batch in batches]
    room = [index for index, (share, batch) in enumerate(zip(shares, batches, strict=True)) if share < batch]
    for index in room[: rest - sum(shares)]:  # rounding down left room in as many batches at least
        shares[index] += 1
    _put_singles_together(shares, batches)
    return full + (rest > 0), [full * batch + share for batch, share in zip(batches, shares, strict=True)]


def _put_singles_together(shares: list[int], batches: Sequence[int]) -> None:
    singles = [index for index, share in enumerate(shares) if share == 1 and batches[index] > 1]
    for one, other in zip(singles[::2], singles[1::2], strict=False):
        shares[one], shares[other] = 2, 0
    if len(singles) % 2:
        for index, share in enumerate(shares):
            if 1 < share < batches[index]:
                shares[index], shares[singles[-1]] = share + 1, 0
                break


def whole_batches(available: int, steps: int, batches: Sequence[int]) -> list[int]:
    """Return each member's samples in `steps` steps: as many whole batches as there are, none short."""
    a_step = sum(batches)
    if a_step == 0:
        return [0] * len(batches)
    full = min(steps, available // a_step)
    rest = available - full * a_step if full < steps else 0
    counts = []
    for batch in batches:
        one_more = batch if batch <= rest else 0
        counts.append(full * batch + one_more)
        rest -= one_more
    return counts


def deal(ranges: Iterable[Range], counts: Sequence[int]) -> list[tuple[Range, ...]]:
    pieces = deque(ranges)
    hands = []
    for count in counts:
        hand: list[Range] = []
        missing = count
        while missing:
            piece = pieces.popleft()
            split = min(piece.stop, piece.start + missing)
            hand.append(Range(piece.epoch, piece.start, split))
            if split < piece.stop:
                pieces.appendleft(Range(piece.epoch, split, piece.stop))
            missing -= split - piece.start
        hands.append(tuple(hand))
    return hands


def sums(leases: Iterable[Lease], after_step: int, until_step: int) -> tuple[Totals, ...]:
    """Return the sums of all `leases` in the steps after_step+1 .. until_step; equal sums in a row form one entry."""
    alike = Counter((lease.after_step, len(lease), lease.batch) for lease in leases)  # nearly all of a round are
    changes: Counter[int] = Counter()  # step -> by how much it differs from the step before
    for shape, times in alike.items():
        for step, change in _changes(*shape):
            changes[max(step, after_step + 1)] += times * change
    return _run_lengths(changes, until_step)


def _changes(after_step: int, samples: int, batch: int) -> Iterator[tuple[int, int]]:
    """Yield the steps at which a lease's share changes, and by how much; it is 0 before and after the lease."""
    full, short = divmod(samples, batch) if batch else (0, 0)
    first = after_step + 1
    yield first, batch if full else short
    if full:
        yield first + full, short - batch
    if short:
        yield first + full + 1, -short


def _run_lengths(changes: Mapping[int, int], until_step: int) -> tuple[Totals, ...]:
    runs: list[Totals] = []
    samples = 0
    steps = sorted(step for step in changes if step <= until_step)
    for step, following in zip(steps, [*steps, until_step + 1][1:], strict=True):
        samples += changes[step]
        if runs and runs[-1].samples == samples:
            runs.pop()
        runs.append(Totals(following - 1, samples))
    return tuple(runs)
