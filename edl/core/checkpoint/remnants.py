"""Save a job by what is left of its workers, where none of them is whole.

A worker of several processes is lost with each of them. The processes that are left of it are its *remnant*: their
daemon stops them, so that they keep what they hold, until a ring without the worker has made a step, or the job waits
for other workers. If by then no worker is left that has the model's state, and the remnants of several have all places
of a worker between them and have applied the same step, they copy what they hold as if they were one worker. Then the
job ends as it would without them, and a later life of it resumes from that step.

Owns: which remnants are on record, and which of them save the job. Does not own: the checkpoint
(`edl.core.checkpoint.checkpoints`), nor stopping and freeing the processes (`edl.daemon.limb_seats`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from edl.core.checkpoint.checkpoints import Checkpoints
from edl.core.job.leader_state import WorkingState
from edl.core.job.observations import overtaken
from edl.protocol.checkpoint_record import Remnant
from edl.protocol.leader_messages import Observation, Phase
from edl.protocol.tally import HELD

DAEMON_GONE = "the daemon of what is left of it is gone, too"


def whole_worker(remnants: Iterable[Remnant], processes: int) -> tuple[Remnant, ...]:
    """Return remnants of the newest step at which they have all places of a worker, each place once; or nothing."""
    by_step: dict[int, dict[int, Remnant]] = {}
    for one in remnants:
        holders = by_step.setdefault(one.step, {})
        for limb in one.limbs:
            holders.setdefault(limb, one)
    for _, holders in sorted(by_step.items(), reverse=True):
        if len(holders) == processes:
            chosen = dict.fromkeys(holder.worker for _, holder in sorted(holders.items()))
            return tuple(_of(worker, holders) for worker in chosen)
    return ()


def _of(worker: str, holders: dict[int, Remnant]) -> Remnant:
    limbs = tuple(sorted(limb for limb, holder in holders.items() if holder.worker == worker))
    return msgspec.structs.replace(holders[limbs[0]], limbs=limbs)


class Remnants:
    def __init__(self, working: WorkingState, checkpoints: Checkpoints, longest_s: float) -> None:
        """`longest_s`: for how long remnants are held where no step comes that makes them useless. A worker is
        replaced only after that.
        """
        self._working = working
        self._checkpoints = checkpoints
        self._longest_s = longest_s
        self._since: float | None = None  # as far as this leader knows

    def is_due(self) -> bool:
        return self._since is not None and self._working.now >= self._since + self._longest_s

    def note(self, worker: str, observation: Observation) -> None:
        """Put on record what is left of a worker that was lost from the ring."""
        record = self._working.record
        held = {limb: one.step for limb, one in enumerate(observation.limbs) if one.state == HELD}
        steps = set(held.values())
        step = steps.pop() if len(steps) == 1 else 0
        if step and record.job_policy.checkpointing.folder:
            remnant = Remnant(worker, tuple(held), step)
            self._working.change(remnants=(*record.checkpoints.remnants, remnant))

    def hear(self, worker: str, observation: Observation) -> bool:
        """Take a report about a remnant; return False where the worker has none that is on record."""
        record = self._working.record
        saves = record.checkpoints.saving is not None and any(
            one.worker == worker for one in record.checkpoints.saving.remnants
        )
        last = self._working.seen.observation(worker)
        if saves and observation.phase is Phase.FAILED and (last is None or not overtaken(observation, last)):
            self._working.seen.take(worker, observation, self._working.now)
        return saves or any(one.worker == worker for one in record.checkpoints.remnants)

    def lose(self, worker: str) -> None:
        """Do without the remnant of a worker whose daemon is gone."""
        record = self._working.record
        if any(one.worker == worker for one in record.checkpoints.remnants):
            self._working.change(remnants=tuple(one for one in record.checkpoints.remnants if one.worker != worker))
        if record.checkpoints.saving is not None and any(
            one.worker == worker for one in record.checkpoints.saving.remnants
        ):
            self._checkpoints.lose_remnant(f"{worker} was lost, and {DAEMON_GONE}")

    def follow(self, *, short: bool) -> bool:
        """Save the job by its remnants, if they alone can. Return True while the job's end waits for that.

        `short`: the job waits for other workers, and has one that is whole.
        """
        record, saving = self._working.record, self._working.record.checkpoints.saving
        if saving is not None and saving.remnants:
            return True
        if not record.checkpoints.remnants:
            self._since = None
            return False
        self._since = self._working.now if self._since is None else self._since
        if not self._is_lost():
            newest, _ = self._working.seen.newest_step(record.roster)
            kept = (
                ()
                if short or self.is_due()
                else tuple(one for one in record.checkpoints.remnants if one.step >= newest)
            )
            if kept != record.checkpoints.remnants:
                self._working.change(remnants=kept)
            return False
        if saving is not None:
            self._checkpoints.follow()  # its parts may all be durable
            if self._working.record.checkpoints.saving is not None:
                return True
        saved = self._working.record.checkpoints.saved
        chosen = whole_worker(record.checkpoints.remnants, record.processes)
        self._working.change(remnants=())
        if not chosen or (saved is not None and chosen[0].step <= saved.step):
            return False
        self._checkpoints.begin_by(chosen)
        return True

    def _is_lost(self) -> bool:
        """Tell whether no member has the model's state: none has sat in the newest rings."""
        working, record = self._working, self._working.record
        rosters = [record.roster, *(plan.roster for plan in (record.plan, *record.superseded) if plan is not None)]
        called = {worker for roster in rosters for worker in roster}
        return not any(
            worker in record.roster
            or working.seen.has_leases(worker)
            or (worker in called and working.seen.get(worker) is None)
            for worker in working.members
        )
