"""Check a simulated job's checkpoints: durable or absent; of one step, one model and one ledger (I16)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from edl.core.checkpoint.remnants import whole_worker
from edl.core.job.leader_inputs import Tell
from edl.facts import CheckpointFailed
from edl.protocol.checkpoint_record import Save, Saving
from edl.protocol.data_nouns import ITEMS, LedgerSnapshot
from edl.protocol.record import JobState, Record
from tests.model.model_faults import SimFault
from tests.model.model_rings import Sample
from tests.model.model_stream import SimStream
from tests.model.models import Model

if TYPE_CHECKING:
    from tests.model.model_checkpoints import Copy
    from tests.model.simulation import SimJob

AS_MEANT: Final = ("the job is over", "the switch to", "the data ends", "the script of")
NONE_HAS_IT: Final = "no worker is left that has the model's state"
OF_SCRIPTS: Final = "of the script, at step "
BOUND_S: Final = 5.0  # for its parts, and three tries to publish it


class SavingChecks:
    def __init__(self, job: SimJob) -> None:
        self._job = job
        self._told: dict[int, Saving] = {}  # by number, as it was announced
        self.begun_at: dict[int, float] = {}
        self.durable_at: dict[int, float] = {}
        self._steps_when_asked: dict[str, int] = {}  # by worker: what it had committed when the job was asked to go

    # ------------------------------------------------------------------------------------------------- as it happens

    def copies(self, copy: Copy) -> None:
        save = copy.save
        told = self._told.get(save.number)
        if save.limbs:
            if told is None or (copy.worker, save.limbs) not in [(one.worker, one.limbs) for one in told.remnants]:
                self._violated(f"{copy.worker} copies what is left of it, {save.limbs}, and on record is {told}")
            return
        if (copy.generation, copy.step) != (save.generation, save.after_step):
            where = f"after step {copy.step} in ring {copy.generation}"
            self._violated(f"{copy.worker} copies {where} what was to be of {save.after_step} in {save.generation}")
        if told is None or told.roster[save.part] != copy.worker or len(told.roster) != save.parts:
            self._violated(f"{copy.worker} copies part {save.part} of {save.parts}, and on record is {told}")

    def published(self, saving: Saving) -> None:
        store = self._job.savings.store
        if saving.remnants:
            self._is_whole(saving)
            return
        parts = [store.parts.get((saving.path, rank)) for rank in range(len(saving.roster))]
        present = [part for part in parts if part is not None]
        if len(present) < len(parts):
            self._violated(
                f"checkpoint {saving.number} is published, and {len(present)} of {len(parts)} parts are there"
            )
        workers = tuple(part.worker for part in present)
        if workers != saving.roster or any(not _is_of(part.save, saving) for part in present):
            self._violated(f"checkpoint {saving.number} of {saving.roster} has parts of others: {present}")
        if len({part.model for part in present}) > 1:
            self._violated(f"the parts of checkpoint {saving.number} are of different models: {present}")
        if present[0].model.learned != self._job.checks.training.learned_by(saving.after_step):
            self._violated(f"checkpoint {saving.number} has another model than that of step {saving.after_step}")
        before = store.manifests.get(saving.path)
        if before is not None and before != saving:
            self._violated(f"two checkpoints lie in {saving.path}")
        self._has_its_ledger(saving)

    def _is_whole(self, saving: Saving) -> None:
        """Check that what remnants have saved is all of one worker, each place of it once, and of one model."""
        parts = [self._job.savings.store.parts.get((saving.path, limb)) for limb in range(self._job.processes)]
        places = sorted(limb for one in saving.remnants for limb in one.limbs)
        if None in parts or places != list(range(self._job.processes)):
            self._violated(f"checkpoint {saving.number} is of {saving.remnants}, and its parts are {parts}")
        learned = self._job.checks.training.learned_by(saving.after_step)
        if {part.model.learned for part in parts if part is not None} != {learned}:
            self._violated(f"checkpoint {saving.number} of remnants has another model than that of its step: {parts}")
        self._has_its_ledger(saving)

    def durable(self, before: Record, record: Record) -> None:
        gives_up = record.state is JobState.FAILED is not before.state and record.reason.startswith(NONE_HAS_IT)
        whole = whole_worker(before.checkpoints.remnants, self._job.processes) if gives_up else ()
        if whole and (record.checkpoints.saved is None or whole[0].step > record.checkpoints.saved.step):
            self._violated(f"the job ends, and what is left of its workers holds step {whole[0].step}: {whole}")
        if record.checkpoints.saving is not None and self._job.now > self._bound(record.checkpoints.saving.number):
            self._job.checks.violated(
                "I12", f"saving {record.checkpoints.saving.number} is neither durable nor given up"
            )
        if record.checkpoints.save_requests != before.checkpoints.save_requests:
            self._are_asked_for(record)
        if (
            record.checkpoints.saving is before.checkpoints.saving
            and record.checkpoints.saved is before.checkpoints.saved
        ):
            return
        old, new = before.checkpoints.saving, record.checkpoints.saving
        if new is not None and (old is None or old.number != new.number):
            self._is_announced(before, record, new)
        if record.checkpoints.saved is not None and record.checkpoints.saved != before.checkpoints.saved:
            self._is_durable(record)

    def _are_asked_for(self, record: Record) -> None:
        """However many workers ask at a step, and however often, it is one request."""
        asked = [one.request for one in record.checkpoints.save_requests]
        steps = {f"{OF_SCRIPTS}{step}" for step in self._job.savings.wishes}
        if len(asked) != len(set(asked)) or not {one for one in asked if one.startswith(OF_SCRIPTS)} <= steps:
            self._violated(f"requests for checkpoints are taken twice, or were never made: {asked}")

    def asked_to_go(self) -> None:
        """Note the first time that the job was asked to go."""
        if not self._steps_when_asked:
            self._steps_when_asked = {one.id: one.count.step for one in self._job.workers.values() if one.alive}

    def has_gone(self, record: Record) -> None:
        """Check a job that ended unsaved, as nothing was new: no worker that could report had made more steps."""
        if " is saved: " in record.reason or "could not be saved" in record.reason:
            return
        saved = record.checkpoints.saved.step if record.checkpoints.saved is not None else 0
        here = (self._job.workers[worker] for worker in record.roster)
        able = (one for one in here if one.alive and not (one.stalled or one.cut_off or one.deaf_until))
        if behind := {one.id: step for one in able if (step := self._steps_when_asked.get(one.id, 0)) > saved}:
            self._violated(f"the job says: {record.reason}; and when it was asked they were at steps {behind}")

    def has_answered(self, request: str) -> bool:
        """The record says what has come of it."""
        return any(
            one.request == request and (one.path or one.failure) for one in self._job.durable.checkpoints.save_requests
        )

    def told(self, told: Iterable[Tell]) -> None:
        """Events that go with a record. Where nothing goes wrong with anything, no saving fails but for a switch."""
        for fact in (one.fact for one in told):
            if isinstance(fact, CheckpointFailed) and self._is_calm and not fact.reason.startswith(AS_MEANT):
                self._violated(f"saving {fact.number} has failed, and nothing is wrong: {fact.reason}")

    @property
    def _is_calm(self) -> bool:
        job = self._job
        return not job.savings.fails and not job.late and job.struck.keys() <= {SimFault.JOIN, SimFault.SCALE}

    def _bound(self, number: int) -> float:
        """Return when a saving is over at the latest, as each leader counts from its own beginning."""
        return max(self.begun_at.get(number, self._job.now), self._job.calm_at) + BOUND_S

    def _is_announced(self, before: Record, record: Record, saving: Saving) -> None:
        if saving.number != record.checkpoints.saves or saving.number in self._told:
            self._violated(f"saving {saving.number} is announced, after {before.checkpoints.saves} others")
        if any(one.path == saving.path for one in self._told.values()):
            self._violated(f"{saving.path} is used twice")
        if saving.remnants:
            whole = (self._job.workers[member.identity.id] for member in record.members)
            able = [one for one in whole if one.alive and not one.stalled]
            if having := [one.id for one in able if one.step >= saving.after_step > 0]:
                self._violated(f"remnants save step {saving.after_step}, and {having} have it")
        elif saving.roster != record.roster or saving.generation != record.generation:
            self._violated(f"saving {saving.number} is of {saving.roster}, and ring {record.generation} trains")
        self._told[saving.number] = saving
        self.begun_at[saving.number] = self._job.now

    def _is_durable(self, record: Record) -> None:
        saved = record.checkpoints.saved
        assert saved is not None
        manifest = self._job.savings.store.manifests.get(saved.path)
        if manifest is None or (manifest.number, manifest.after_step) != (saved.number, saved.step):
            self._violated(f"checkpoint {saved.number} counts as durable, and has no manifest")
        self.durable_at[saved.number] = self._job.now

    def _has_its_ledger(self, saving: Saving) -> None:
        """Check that the saving's ledger has as trained just the samples that are."""
        if saving.ledger is None:
            if self._job.spec is not None and saving.after_step > 0:
                self._violated(f"checkpoint {saving.number} has no ledger")
            return
        if self._job.stream is not None:
            self._has_its_stream(saving, self._job.stream)
            return
        says, truth = trained_by(saving.ledger), self._job.checks.training.trained_up_to(saving.after_step)
        if says != truth:
            wrong = f"{sorted(says - truth)[:5]} too many, {sorted(truth - says)[:5]} too few"
            self._violated(f"checkpoint {saving.number} after step {saving.after_step} has samples as trained: {wrong}")

    def _has_its_stream(self, saving: Saving, stream: SimStream) -> None:
        """Check that of a stream just what is untrained is left: by its parts, or not begun."""
        assert saving.ledger is not None and saving.ledger.stream is not None
        says, truth = untrained(saving.ledger, stream), self._job.checks.training.trained_up_to(saving.after_step)
        wrong = (says & truth) | (stream.samples(saving.ledger.spec.epochs) - says - truth)
        if wrong:
            self._violated(f"checkpoint {saving.number} after step {saving.after_step} is wrong of {sorted(wrong)[:5]}")

    # ------------------------------------------------------------------------------------------------- another life

    def begins(self, model: Model) -> None:
        if self._job.begins_with is not None and model.learned != self._job.begins_with.learned:
            self._violated("a life that is resumed begins with another model than that of its checkpoint")

    def _violated(self, complaint: str) -> None:
        self._job.checks.violated("I16", complaint)


def _is_of(save: Save, saving: Saving) -> bool:
    return (save.number, save.generation, save.after_step) == (saving.number, saving.generation, saving.after_step)


def untrained(snapshot: LedgerSnapshot, stream: SimStream) -> set[Sample]:
    """Return the items that are leased and not trained, that are returned, and that were never leased."""
    assert snapshot.stream is not None
    shards, parts = snapshot.spec.shards, {one.part: one for one in snapshot.stream.parts}
    left = {
        (piece.epoch, place)
        for member in snapshot.members
        for lease in member.leases
        for piece in lease.left(snapshot.step)
        for place in range(piece.start, piece.stop)
    }
    for part in range(snapshot.spec.epochs * shards):
        epoch, shard = divmod(part, shards)
        one = parts.get(part)
        if one is None and part < snapshot.stream.begun:
            continue
        fresh = [(0 if one is None else one.next, stream.lengths[shard])]
        for start, stop in (*fresh, *(() if one is None else one.returned)):
            left.update((epoch, shard * ITEMS + item) for item in range(start, stop))
    return left


def trained_by(snapshot: LedgerSnapshot) -> set[Sample]:
    """Return all samples that were leased, without those returned and those left in leases."""
    total = snapshot.spec.total
    left = {place for start, stop in snapshot.returned for place in range(start, stop)}
    for member in snapshot.members:
        for lease in member.leases:
            for piece in lease.left(snapshot.step):
                left.update(range(piece.epoch * total + piece.start, piece.epoch * total + piece.stop))
    return {divmod(place, total) for place in range(snapshot.frontier) if place not in left}
