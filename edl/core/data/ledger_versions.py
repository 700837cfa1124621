"""The data of a job through its generations: which ledger is in force, and how far it is leased.

Owns: the ledger that goes with the present generation, the one that a plan would bring, and which of both counts when
a plan comes to nothing. Does not own: who trains what (`edl.core.data.sample_ledger`), nor when how much is leased
(`edl.core.data.lease_grants`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from edl.core.data.batching import batch_of_all, even_shares, weighted_shares
from edl.core.data.ledgers import new_ledger, restored_ledger
from edl.core.data.resume_position import inherited, is_inherited, projected, rebased
from edl.core.data.sample_ledger import Ledger
from edl.errors import UsageError
from edl.protocol.checkpoint_record import Resumed
from edl.protocol.data_nouns import DataSpec, LedgerSnapshot, ShardPart, held_by
from edl.protocol.job_policy import Batching, BatchRule
from edl.protocol.record import Plan

Epochs = tuple[int, ...]  # those that have ended
ALL: Final = "*"  # holds what all train, in a job with virtual workers; no worker's id is so


class LedgerVersions:
    """Ledger in force; there is none before a worker has said what is trained on."""

    def __init__(
        self,
        snapshot: LedgerSnapshot | None,
        batching: Batching,
        shares: Mapping[str, float],
        resumed: Resumed | None = None,
    ) -> None:
        self.batching = batching
        self.shares = shares
        self.resumed = resumed  # what this life of the job begins with
        self.ledger = None if snapshot is None else restored_ledger(snapshot)
        self._early: dict[int, ShardPart] = {}  # facts of parts that only the ledger of a plan has begun

    @property
    def step(self) -> int:
        return self.ledger.step if self.ledger is not None else 0

    @property
    def covered_step(self) -> int:
        return self.ledger.covered_step if self.ledger is not None else 0

    @property
    def spent(self) -> bool:
        """Tell whether all wanted data is trained, and no script is known to begin another epoch."""
        return self.ledger is not None and self.ledger.exhausted and not self.ledger.spec.open_ended

    def snapshot(self) -> LedgerSnapshot | None:
        return None if self.ledger is None else self.ledger.snapshot()

    def open(self, worker: str, spec: DataSpec, roster: Sequence[str], step: int) -> bool:
        """Return whether the data is news. Raises UsageError for contradictions."""
        if self.ledger is None:
            if spec.by_sample and self.batching != Batching():
                raise UsageError(_OWN_BATCHES)
            if spec.virtual:
                _check_virtual(spec, self.batching)
            self.ledger = self._first(worker, spec, roster, step)
            return True
        if differences := spec.differences(self.ledger.spec):
            named = ", ".join(f"{name}={getattr(spec, name)}" for name in differences)
            raise UsageError(f"worker {worker} trains on other data than the rest: {named}")
        if spec.epochs <= self.ledger.spec.epochs:
            return False
        self.ledger.extend(spec.epochs)
        return True

    def _first(self, worker: str, spec: DataSpec, roster: Sequence[str], step: int) -> Ledger:
        """Begin the ledger: with all samples, or with those that the previous life has left."""
        before = self.resumed
        if before is None or (before.ledger is None and not before.step):
            return new_ledger(spec, holders(spec, roster), step, self._batches(spec, roster))
        ledger = inherited(before, worker, spec, step)
        if roster:
            self._enter(ledger, roster, step)
        return ledger

    def _enter(self, ledger: Ledger, roster: Sequence[str], step: int, *, spare: int = 0) -> None:
        if is_inherited(ledger):
            ledger.hand_over(holders(ledger.spec, roster))
        ledger.enter(holders(ledger.spec, roster), step, self._batches(ledger.spec, roster), spare=spare)

    def reading(self, roster: Sequence[str]) -> tuple[str, ...]:
        """Return the members that have yet to find samples of a stream before more can be leased."""
        if self.ledger is None or not (virtual := self.ledger.spec.virtual):
            return () if self.ledger is None else self.ledger.reading
        lanes = self.ledger.awaited_lanes
        parts = {worker: held_by(rank, len(roster), virtual) for rank, worker in enumerate(roster)} if lanes else {}
        return tuple(worker for worker, (first, last) in parts.items() if any(first <= lane < last for lane in lanes))

    def projected(self, step: int) -> LedgerSnapshot | None:
        """Return the data as it will be after `step`, up to which it is leased.

        As long as no script has asked for the data, it is as the life before has left it.
        """
        if self.ledger is not None:
            return projected(self.ledger, step)
        before = None if self.resumed is None else self.resumed.ledger
        return None if before is None else rebased(before, step)

    def can_spare(self) -> bool:
        """Tell whether newcomers may have no samples in their first steps: batches are as many samples of each worker,
        not of all together, and edl cuts them.
        """
        if self.ledger is None or self.ledger.spec.by_sample or self.ledger.spec.virtual:
            return False
        return self.batching.rule is BatchRule.LOCAL

    def planned(
        self,
        roster: Sequence[str],
        after_step: int | None,
        ahead: int,
        read: int | None = None,
        *,
        spare: int = 0,
    ) -> Ledger | None:
        """Return the data as it will be after `after_step`, so that no worker asks for it inside the pause.

        `read`: no worker has read beyond this step, nor will; what is leased of later ones is leased anew. `spare`: in
        so many steps newcomers have no samples.
        """
        if self.ledger is None or after_step is None:
            return None
        ledger = restored_ledger(self.ledger.snapshot())
        if read is not None:
            ledger.rebatch(read)
        self._enter(ledger, roster, after_step, spare=spare)
        ledger.grant(after_step + ahead)
        return ledger

    def enter(
        self, plan: Plan, step: int, source: int, superseded: Iterable[Plan], ahead: int, read: int | None = None
    ) -> Epochs:
        """Bring `plan` into force after `step`; the steps up to it were trained by the leases of `source`.

        If the ring agreed on the planned step, or on the one that was foreseen, its leases were made for that and are
        in use already. Else the step is known only now, and no worker trains on before the leases are. `read`: as in
        `planned`.
        """
        if self.ledger is None:
            return ()
        before = self.ledger.epoch
        if source == plan.generation and plan.ledger is not None:
            self._take(plan.ledger)
        else:
            self.go_by(source, superseded)
            if read is not None:
                self.ledger.rebatch(read)
            self._enter(self.ledger, plan.roster, step)
            self.ledger.grant(step + ahead)
        self._recall(self.ledger)
        return tuple(range(before, self.ledger.epoch))

    def go_by(self, generation: int, plans: Iterable[Plan]) -> None:
        """Go by the leases of `generation`, by which the ring trained: those of a dropped plan, or ours."""
        for plan in plans:
            if plan.generation == generation and plan.ledger is not None:
                self._take(plan.ledger)

    def _take(self, snapshot: LedgerSnapshot) -> None:
        """Take over a snapshot, but keep the epochs: it may predate a worker's request, which is made only once. Keep
        what is known of a stream, too.
        """
        asked = self.ledger.spec.epochs if self.ledger is not None else 0
        known = self.ledger.facts() if self.ledger is not None else ()
        self.ledger = restored_ledger(snapshot)
        if known:
            self.ledger.learn(known)
        if asked > self.ledger.spec.epochs:
            self.ledger.extend(asked)

    def share_out(self, shares: Mapping[str, float]) -> None:
        """Share the batch out otherwise, in what is leased from now on."""
        self.shares = shares
        self.settle()

    def settle(self) -> bool:
        """Apply the batches of the present rule and shares to future leases. Return True if they changed."""
        if self.ledger is None:
            return False
        wanted = self._batches(self.ledger.spec, self.ledger.roster)
        if wanted == self.ledger.batches:
            return False
        self.ledger.resize(wanted)
        return True

    def _batches(self, spec: DataSpec, roster: Sequence[str]) -> tuple[int, ...]:
        if spec.virtual:
            return (batch_of_all(self.batching, spec.virtual, spec.batch),) * len(holders(spec, roster))
        batch = batch_of_all(self.batching, len(roster), spec.batch)
        if not self.shares.keys() & set(roster):
            return even_shares(batch, len(roster))
        return weighted_shares(batch, [self.shares.get(worker, 1.0) for worker in roster])

    def commit(self, step: int) -> Epochs:
        if self.ledger is None or step <= self.ledger.step:
            return ()
        return self.ledger.commit(min(step, self.ledger.covered_step))

    def reach(self, step: int) -> bool:
        """Lease up to `step`, as far as there are samples. Return True when that gave anything: samples, or parts of a
        stream to read.
        """
        if self.ledger is None:
            return False
        before = self.ledger.facts()
        granted = bool(self.ledger.grant(step))
        return self._recall(self.ledger) or granted or self.ledger.facts() != before

    def learn(self, told: Iterable[ShardPart]) -> bool:
        """Take in what a worker has found out about a stream; tell whether workers must hear of it.

        A member of a planned ring may tell of parts that it reads there, and the ledger in force has not begun. It
        tells once: this is remembered until they are begun.
        """
        if self.ledger is None:
            return False
        self._early |= {one.part: one for one in told if not self.ledger.has_begun(one.part)}
        news = self.ledger.learn(told)
        return self._recall(self.ledger) or news

    def _recall(self, ledger: Ledger) -> bool:
        """Let a ledger learn what was told too early, of parts that it has begun since; tell as `learn` does."""
        news = False
        while known := [one for part, one in self._early.items() if ledger.has_begun(part)]:
            self._early = {part: one for part, one in self._early.items() if not ledger.has_begun(part)}
            news = ledger.learn(known) or news
        return news


def holders(spec: DataSpec, roster: Sequence[str]) -> Sequence[str]:
    """Return in whose names samples are leased. Virtual workers take theirs by position, whatever becomes of workers:
    so all that is trained is leased in one name, and each worker takes its part of it.
    """
    return roster if not spec.virtual else (ALL,) if roster else ()


def _check_virtual(spec: DataSpec, batching: Batching) -> None:
    if 0 < spec.shards < spec.virtual:
        raise UsageError(
            f"each of {spec.virtual} virtual workers reads shards of its own, and the stream has {spec.shards}: give "
            f"more shards, or start the job with --virtual-workers {spec.shards}"
        )
    if spec.by_sample:
        raise UsageError(
            "virtual workers need batches that edl cuts: iterate elastic_shard_generator().batches(n) or "
            "edl.ElasticDataLoader, or start the job without --virtual-workers"
        )
    if (batch := batch_of_all(batching, spec.virtual, spec.batch)) < spec.virtual:
        raise UsageError(
            f"a step has {batch} samples, and {spec.virtual} virtual workers need one each: ask for a larger batch, or "
            f"start the job with --virtual-workers {batch}"
        )


_OWN_BATCHES = (
    "a batch policy needs batches that edl cuts: iterate elastic_shard_generator().batches(n), edl.ElasticDataLoader "
    "or edl.elastic_dataset, or start the job without --batch-policy"
)
