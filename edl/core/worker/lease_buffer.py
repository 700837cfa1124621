"""The leases of one worker: which have come, what its script may be given of them, and what each step weighs by them.

Owns: what this worker holds by the newest share; up to where its pipeline may read, which is the mark of a rebatching
under way (`edl.core.data.lease_recut`), and the epochs that a worker has begun; where its data ends. Does not own: who
grants leases (`edl.core.data.sample_ledger`), which ids their samples have (`edl.core.data.permutation`), nor waiting
for leases: a trainer's threads share a buffer behind a lock (`edl.trainer.data.shared_leases`), and each simulated
worker has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edl.core.worker.next_move import NEVER
from edl.errors import InvalidTransition
from edl.protocol.assignment import Share
from edl.protocol.data_nouns import Lease, ShardPart


class LeaseBuffer:
    """Leases of one worker, in order, and the totals of the present generation.

    All answers follow from the newest share, the epochs that the script asked for, and the samples it was handed. The
    leases are a dictionary by number that is replaced, never changed: other threads may look at it.
    """

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._share: Share | None = None
        self._newest = (0, 0)
        self._epochs = 0  # wanted here
        self._by_sample = False  # what comes back after an epoch's short last step goes along with the next epoch
        self._closed = False
        self._handed_out = 0  # the last step whose samples the script has been given
        self._rebatch = 0  # the one under way
        self._mark = NEVER  # while it is, nothing beyond this step is handed out

    # ---------------------------------------------------------------------------------------------- what happens

    def adopt(self, share: Share, stamp: tuple[int, int], at_work: int = 0) -> None:
        """Take a share of the present generation; `stamp` is the term and version of its orders. Old news is dropped.

        `at_work`: the step that is worked on. Its samples may be asked for already, so they are handed out in any case.
        """
        self._adopt(share, stamp, max(share.mark, self._handed_out, at_work))

    def adopt_alike(self, share: Share, stamp: tuple[int, int], step: int) -> None:
        """Adopt a share after `step`, with the other processes of this worker, some of which may have promised a mark
        meanwhile.
        """
        promised = self.promised(share, step)
        self._adopt(share, stamp, max(share.mark, self._handed_out) if promised is None else promised)

    def promised(self, share: Share, step: int) -> int | None:
        """Return the mark that a process can keep to which has heard of `share` after `step`, and adopts it with the
        others after two more at the latest. None: then the mark is still to come. Else it is the end of what is held.
        """
        held = None if self._share is None or share.mark >= step + 2 else self._share.covered_step
        return held if held is None else max(share.mark, self._handed_out, held)

    def _adopt(self, share: Share, stamp: tuple[int, int], mark: int) -> None:
        if stamp < self._newest:
            return
        self._newest, self._share = stamp, share
        self._leases = self._merged(share)
        if share.rebatch != self._rebatch:
            self._rebatch, self._mark = share.rebatch, mark if share.rebatch else NEVER

    def _merged(self, share: Share) -> dict[int, Lease]:
        """Keep an unchanged lease as the object that it was."""
        held = self._leases
        merged = {lease.number: lease for lease in _left_of(held.values(), share.leases, share.covered_step)}
        for lease in share.leases:
            known = held.get(lease.number)
            merged[lease.number] = lease if known is None or known != lease else known
        return merged

    def want(self, epochs: int, *, by_sample: bool = False) -> None:
        """Raise the number of wanted epochs: a share that was made for fewer says nothing about the end.

        Leases of later epochs are kept back until a worker wants these, too. A smaller number changes nothing.
        `by_sample`: the script cuts batches itself, and knows a pass to be over by its short last batch.
        """
        self._epochs = max(self._epochs, epochs)
        self._by_sample = self._by_sample or by_sample

    def hand_out(self, lease: Lease, step: int) -> bool:
        """Return False where the samples of `lease` must not be handed out, now or ever."""
        if step > self._mark or self._leases.get(lease.number) is not lease:
            return False
        if step > self._handed_out:  # noqa: PLR1730 - of each step: a call of `max` costs more
            self._handed_out = step
        return True

    def forget_before(self, step: int) -> None:
        self._leases = {number: lease for number, lease in self._leases.items() if lease.until_step >= step}

    def close(self) -> None:
        self._closed = True

    # ------------------------------------------------------------------------------------------------ what is so

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Return the leases in order, with those leased on speculation."""
        return tuple(self._leases.values())

    @property
    def handed_out(self) -> int:
        return self._handed_out

    @property
    def marked(self) -> tuple[int, int]:
        """Return the rebatching under way, and the step that nothing is handed out beyond; zeros without one."""
        return (self._rebatch, self._mark) if self._rebatch else (0, 0)

    def holds_at(self, step: int) -> bool:
        """Tell whether the continuation after `step`, here or in another ring, is about to be decided."""
        return bool(self._rebatch) and step >= self._mark

    @property
    def batch(self) -> int:
        """Return the samples of a full step, of all workers together; 0 before that is known."""
        return 0 if self._share is None else self._share.batch

    @property
    def parts(self) -> tuple[ShardPart, ...]:
        """Return the parts of a stream that this worker reads, or has leases of."""
        return () if self._share is None else self._share.parts

    def at(self, step: int) -> Lease | None:
        """Return the lease that gives `step` its share, whether that may be handed out or not."""
        for lease in self._leases.values():  # of each step: a generator expression costs more
            if lease.after_step < step <= lease.until_step:
                return lease
        return None

    def wanted_at(self, step: int) -> Lease | None:
        """Return the lease of `step` if a worker has begun its epoch. Beyond the mark it may yet change."""
        lease = self.at(step)
        return None if lease is None or self._is_beyond(lease) else lease

    def offers(self, step: int) -> bool:
        """Raise InvalidTransition where leases have a gap."""
        if self.at(step) is None and any(lease.after_step >= step for lease in self._leases.values()):
            raise InvalidTransition(self.leases, f"leases of a worker have no gaps (I7), and none is for step {step}")
        return step <= self._mark and self.wanted_at(step) is not None

    def covers(self, step: int) -> bool:
        share = self._share
        return share is not None and step <= min(share.covered_step, self._mark)

    def ends_before(self, step: int) -> bool:
        """Tell whether there is no data for `step`, and will be none."""
        share, lease = self._share, self.at(step)
        if self._closed or (lease is not None and self._is_beyond(lease)):
            return True
        if share is None or share.epochs < self._epochs:
            return False
        return share.last and step > share.covered_step

    def weight(self, step: int) -> float:
        """Return this worker's samples in `step` over all workers' samples. Only for a covered step."""
        lease, total = self.at(step), self.samples(step)
        return lease.share(step) / total if lease is not None and total else 0.0

    def own(self, step: int) -> int | None:
        """Return this worker's samples in `step`: 0 for placeholder samples; None: not known here."""
        lease = self.at(step)
        return None if lease is None else lease.share(step)

    def samples(self, step: int) -> int:
        """Return all workers' samples in a covered `step` that is not committed yet: then shares forget it."""
        totals = self._share.totals if self._share is not None else ()
        return next((total.samples for total in totals if step <= total.until_step), 0)

    def constant_until(self, step: int) -> int:
        """Return a step up to which `weight` stays what it is in `step`. Each placeholder step stands for itself."""
        share, lease = self._share, self.at(step)
        if share is None or lease is None or not lease.share(step):
            return step
        run = next((total.until_step for total in share.totals if step <= total.until_step), step)
        return max(step, min(run, _run_of_share(lease, step), self._mark))

    def epoch(self, step: int) -> int | None:
        """Return None where the pass of `step` is not known here."""
        lease = self.wanted_at(step)
        return None if lease is None else lease.epoch

    def epochs_before(self, step: int) -> int | None:
        """Return how many epochs are over once the step before `step` is committed, from the leases, which all workers
        have alike (I7), and the requested epochs; None: not known here.

        No lease says by itself that its last step is its epoch's: newcomers may take what is left beside it, and
        samples may come back. The next lease says so. Only scripts that cut batches themselves have ended their pass
        with it, and samples that come back wait for their next pass.
        """
        lease, share = self.at(step), self._share
        if self._by_sample and (before := self.at(step - 1)) is not None and self.ends_pass(step - 1):
            return before.epoch + 1
        if lease is not None:
            return lease.epoch
        return max(self._epochs, 0 if share is None else share.epochs) if self.ends_before(step) else None

    def ends_pass(self, step: int) -> bool:
        """Tell whether `step` is the last of its epoch (or of the stream), of all members of the roster alike."""
        lease = self.at(step)
        return lease is not None and lease.final and step == lease.until_step

    def _is_beyond(self, lease: Lease) -> bool:
        """Tell whether the lease is speculative: no worker is known to have begun its epoch."""
        share = self._share
        return lease.epoch >= max(self._epochs, 0 if share is None else share.epochs)


def _left_of(leases: Iterable[Lease], newer: Sequence[Lease], covered_step: int) -> tuple[Lease, ...]:
    """Return the `leases` before all of `newer`, which are in order: they are trained, as far as they were not cut.

    Speculative leases that were not begun may have been taken back.
    """
    number, after_step = (newer[0].number, newer[0].after_step) if newer else (NEVER, covered_step)
    return tuple(one.up_to(after_step) for one in leases if one.number < number and one.after_step < after_step)


def _run_of_share(lease: Lease, step: int) -> int:
    """Return the last step of `lease` with the same share as `step`, which has one: full batches come first."""
    return max(step, lease.after_step + len(lease) // lease.batch)
