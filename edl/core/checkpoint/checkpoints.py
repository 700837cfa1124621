"""A job's checkpoints, from when one is due until it is durable, or comes to nothing and is tried again.

1. One is *announced*: on record is its number, the ring, the step after which all members copy what they have, and the
   data as of that step. The step is chosen as a switch's is, so that the word reaches every trainer before.
2. Each member *copies* after just that step, beside its next mini-batch, and its daemon makes that durable.
3. Once all parts are, that is put on record. So whatever becomes of the workers now, and of the leader, what is missing
   is known; and an old leader that has been deposed comes no further (I1).
4. It is *published*: its manifest is written, by the leader's shell. What is there already, and says the same, counts.
5. It is told to be durable (I16).

What is on record is decided: that one is announced, that all its parts are durable, which is the newest durable one,
and what became of requests. Which parts are durable meanwhile is only seen, and told to a new leader again; but for
those of workers whose end is taken, who say it no more: these are put on record with that.

A job that is to go is saved as soon as it can be: of a step ahead while its members train, which they do not train
beyond; where they stand (`step_speed.py`), of the step at which they do. What was announced for a later one, and is not
come to, is given up for that.

Where no worker is whole, what is left of several may save the job in the place of members
(`edl.core.checkpoint.remnants`).

At the end of a job a saving is given up; only a last one that was asked for is waited for, within bounds (I12).

Owns: the saving on record, its times, and its events. Does not own: when one is due and what is answered
(`edl.core.checkpoint.due_times`), whether members stand (`edl.core.checkpoint.step_speed`), nor storage.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from edl import facts
from edl.core.checkpoint import due_times
from edl.core.checkpoint.due_times import COSTS_KEPT, Interval, Timetable, interval_of
from edl.core.checkpoint.step_speed import SavingPace, stand
from edl.core.data.lease_grants import LeaseGrants
from edl.core.data.sample_ledger import Ledger
from edl.core.job.deadlines import Deadlines
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import NOT_BEGUN, PublishingFailed, PublishSaving, Refuse, SavingPublished
from edl.core.job.leader_state import WorkingState
from edl.core.job.observations import Observations
from edl.protocol.checkpoint_record import Cost, DurablePart, PartInfo, Remnant, Saved, Saving, Why, path_of
from edl.protocol.leader_messages import AskCheckpoint, Phase
from edl.protocol.record import OVER, Member, Record, WorkerState

# A saving needs a part of each member of one ring, all copied after the same step there: so all of them have applied
# that step, which is stable, and all have the same model. The ring itself may be gone by then: what is copied can be
# stored whatever follows. So a saving outlives a switch, planned or forced, once all have come to its step.
#
# A planned switch is announced later than a saving that is under way, and so is its step, as a rule. Where it is not,
# as steps have become longer meanwhile or the workers hold at a mark, the saving is given up, and not the switch put
# off: people wait for a switch, workers may be about to leave with it, and a saving costs nothing to be begun again.


@dataclass(frozen=True, slots=True)
class SavingVerdict:
    record: Record
    saving: Saving
    members: Mapping[str, Member]  # of the record, by id
    seen: Observations
    stored: Container[str]  # those whose parts are known to be durable
    ledger: Ledger | None


def why_not(now: SavingVerdict) -> str:
    if now.saving.remnants:  # they are no members, and nothing of them changes any more
        failed = (_failure_of(worker, now) for worker in now.saving.roster)
        return next(filter(None, failed), "")
    return _overtaken(now) or next(_lacking(now), "")


def _overtaken(now: SavingVerdict) -> str:
    """Tell why the ring will not reach the saving's step, though nothing is wrong with any member."""
    record, saving, plan = now.record, now.saving, now.record.plan
    if record.generation != saving.generation:
        return ""
    if plan is not None and plan.after_step is not None and plan.after_step < saving.after_step:
        return f"the switch to generation {plan.generation} comes before its step"
    if now.ledger is not None and now.ledger.covered_step < saving.after_step:
        return "the data ends before its step, as leases were cut anew"
    return ""


def _lacking(now: SavingVerdict) -> Iterator[str]:
    for worker in now.saving.roster:
        if worker not in now.stored and (why := _no_part_of(worker, now)):
            yield why


def _failure_of(worker: str, now: SavingVerdict) -> str:
    failure = now.seen.save_failed(worker, now.saving.number)
    return f"{worker} has no part to give: {failure}" if failure else ""


def _no_part_of(worker: str, now: SavingVerdict) -> str:
    saving, seen = now.saving, now.seen.observation(worker)
    if failure := _failure_of(worker, now):
        return failure
    if worker not in now.members:
        return f"{worker} was gone before its part was durable"
    if now.members[worker].state is WorkerState.DONE:  # a daemon tells of the end once the part is stored
        return f"the script of {worker} ended before its part was durable"
    if seen is None or seen.step >= saving.after_step:
        return ""
    if seen.generation > saving.generation or seen.phase is Phase.BROKEN:
        return f"the ring of {worker} was over before its step"
    return ""


PUBLISHINGS: Final = 3  # tries, before the saving is given up
STRETCH_WORDS: Final = 6  # in each stretch of the pace a word could arrive so many times: time for a few reports


class Checkpoints:
    """Begin savings and follow them. Times and parts seen belong to one leader: the next one waits anew."""

    def __init__(
        self, working: WorkingState, leasing: LeaseGrants, lead_times: LeadTimes, deadlines: Deadlines
    ) -> None:
        self._working = working
        self._leasing = leasing
        self._lead_times = lead_times
        self._store_s = deadlines.boot_s  # for all parts of a saving
        self._publish_s = deadlines.seat_s  # for one try
        self._timetable = Timetable(lead_times)
        self._pace = SavingPace(STRETCH_WORDS * lead_times.notice_s)
        self._lost_s: float | None = None  # to the saving whose parts are all durable
        self._look_at = 0.0  # before that, what is due is not looked at again
        self._known = 0  # number of the newest saving that this leader has looked at
        self._since: float | None = None  # when it was announced; None: by another leader
        self._until = 0.0  # for so long its parts are waited for, or what came of publishing it
        self._stored: dict[str, PartInfo] = {}  # by worker, the parts of it that are known to be durable
        self._published = 0  # tries
        self._waits = False  # for what comes of the newest of these
        self._going_since: float | None = None  # as far as this leader knows

    # ------------------------------------------------------------------------------------------------------ inputs

    def ask(self, asked: AskCheckpoint) -> None:
        """Take a request once, and answer it with its outcome so far."""
        working, record = self._working, self._working.record
        before = due_times.known(record, asked.request)
        if before is not None and (before.path or before.failure):
            working.commands.append(due_times.answer(before))
        elif record.state in OVER:
            working.commands.append(Refuse(working.over()))
        elif not record.arrivals:  # the first worker brings the folder
            working.commands.append(NOT_BEGUN)
        elif not record.job_policy.checkpointing.folder:
            why = "the job is not saved: it was started without a folder for checkpoints (edl run --checkpoint DIR)"
            working.commands.append(Refuse(why))
        else:
            if before is None:
                working.change(save_requests=due_times.taken(record, asked.request, working.newest()[0]))
            taken = due_times.known(working.record, asked.request)
            assert taken is not None
            working.commands.append(due_times.answer(taken))

    def heed(self, step: int) -> None:
        """Take a script's request, made in `step`; 0: none. Requests of all workers at one step count as one."""
        working, record = self._working, self._working.record
        if record.job_policy.checkpointing.folder and not due_times.covers(record, step):
            asked = due_times.taken(record, f"of the script, at step {step}", step - 1)
            working.change(save_requests=asked, save_wanted=step, pressing=False)

    def hear(self, happened: SavingPublished | PublishingFailed) -> None:
        """Ignore a late message about an abandoned saving."""
        saving = self._working.record.checkpoints.saving
        if saving is None or saving.number != happened.number or not saving.complete:
            return
        if isinstance(happened, SavingPublished):
            self._note_durable(saving)
        else:
            self._note_unpublished(happened.reason)

    def keep_part_of(self, worker: str) -> None:
        """Record that the part of `worker` is durable: its end is accepted, so it will not report the part again."""
        saving = self._working.record.checkpoints.saving
        if saving is None or saving.complete or any(part.worker == worker for part in saving.parts):
            return
        self._look(saving)
        if worker in self._stored:
            known = {worker, *(part.worker for part in saving.parts)}
            parts = tuple(part for part in self._parts(saving) if part.worker in known)
            kept = msgspec.structs.replace(saving, parts=parts)
            self._keep(kept)

    # ----------------------------------------------------------------------------------------------- what is under way

    @property
    def holds_end(self) -> bool:
        """Tell whether the job's end waits for the last saving, which may succeed. Within bounds."""
        saving = self._working.record.checkpoints.saving
        return saving is not None and saving.why in {Why.LAST, Why.REMNANTS}

    @property
    def interval(self) -> Interval | None:
        working = self._working
        return interval_of(working.record, working.newest()[0], self._leasing.step_time_s())

    def is_due(self) -> bool:
        working, record = self._working, self._working.record
        if record.checkpoints.saving is not None:
            return working.now >= self._until or self._is_out_of_reach(record.checkpoints.saving)
        if not record.job_policy.checkpointing.folder or working.now < self._look_at:
            return False
        if working.is_seen:
            self._pace.look(record.generation, working.newest())
        if self._why() is not None:
            return True
        self._look_again()
        return False

    def follow(self) -> None:
        saving = self._working.record.checkpoints.saving
        if saving is None:
            self._begin_if_due()
            return
        self._look(saving)
        if not saving.complete and len(self._stored) == len(saving.roster):
            saving = self._keep(msgspec.structs.replace(saving, parts=self._parts(saving)))
        if not saving.complete:
            self._see_whether_it_comes(saving)
        elif self._working.now >= self._until and not self._waits:
            self._publish(saving)
        elif self._working.now >= self._until:
            self._note_unpublished(f"it was not known to be within {self._publish_s:g} s")

    # -------------------------------------------------------------------------------------------------- it is announced

    def _look_again(self) -> None:
        # A thousand workers' inputs need not each be followed by a look; but a preempted job has no time to lose.
        working = self._working
        self._look_at = working.now + (
            0.0 if working.record.checkpoints.preemption is not None else self._lead_times.notice_s
        )

    def _why(self) -> Why | None:
        working = self._working
        record, ledger, step_time_s = working.record, working.ledgers.ledger, self._leasing.step_time_s()
        comes = self.members_stand is False
        return self._timetable.due(record, ledger, working.newest(), step_time_s, working.now, comes=comes)

    def _begin_if_due(self) -> None:
        working = self._working
        why = self._why()
        if why is None:
            return
        stands = self.members_stand if why is Why.PREEMPT else False
        step = None
        if stands is not None and self._can_begin(stands=stands):
            step = self._step(why, stands=stands)
        if step is None:
            self._look_again()
            return
        self._announce(self._saving(why, step, working.record.roster, stands=stands is True))

    def begin_by(self, remnants: tuple[Remnant, ...]) -> None:
        """Announce a saving by what is left of workers, in place of members."""
        workers = tuple(one.worker for one in remnants)
        saving = self._saving(Why.REMNANTS, remnants[0].step, workers, stands=True)
        self._announce(msgspec.structs.replace(saving, remnants=remnants))

    def lose_remnant(self, reason: str) -> None:
        """Give up the saving by remnants, as one of them is gone, unless all its parts are durable."""
        saving = self._working.record.checkpoints.saving
        if saving is not None and not saving.complete:
            self._give_up(reason)

    def _saving(self, why: Why, step: int, roster: tuple[str, ...], *, stands: bool) -> Saving:
        record, number = self._working.record, self._working.record.checkpoints.saves + 1
        return Saving(
            number=number,
            why=why,
            generation=record.generation,
            after_step=step,
            roster=roster,
            path=path_of(record.job_policy.checkpointing, record.job, number, step),
            ledger=self._working.ledgers.projected(step),
            stands=stands,
        )

    def _announce(self, saving: Saving) -> None:
        working = self._working
        working.change(saving=saving, saves=saving.number)
        if working.is_seen:
            self._pace.begin(saving.generation, working.newest())
        self._look(saving, since=working.now)
        working.tell(
            facts.CheckpointBegun(number=saving.number, why=saving.why.value, path=saving.path), saving.after_step
        )

    @property
    def members_stand(self) -> bool | None:
        """Tell whether the members of a preempted job make no steps; None: not known yet."""
        working, (_, at) = self._working, self._working.newest()
        preemption, roster = working.record.checkpoints.preemption, working.record.roster
        if preemption is None or not all(map(working.seen.get, roster)):  # another leader has yet to hear of them
            return False
        if self._going_since is None:
            self._going_since = working.now
        return stand(
            working.now - at,
            asked_s=working.now - self._going_since,
            step_time_s=self._leasing.step_time_s(),
            deadline_s=preemption.deadline_s,
            members=len(roster),
            lead_times=self._lead_times,
        )

    def _can_begin(self, *, stands: bool) -> bool:
        """Tell whether a saving can begin: no other ring is planned, no lease is about to be cut anew, and all members
        train.

        `stands`: the members make no steps. Then a planned switch or a cut does not matter, as it concerns later steps.
        """
        record, seen, plan = self._working.record, self._working.seen, self._working.record.plan
        if not record.generation or (plan is not None and not (stands and plan.after_step is not None)):
            return False
        if record.sizing.rebatch is not None and not stands:
            return False
        members = self._working.members
        return all(worker in members and seen.trains(worker, record.generation) for worker in record.roster)

    def _step(self, why: Why, *, stands: bool) -> int | None:
        if stands:
            newest, saved = self._working.newest()[0], self._working.record.checkpoints.saved
            return newest if newest > (saved.step if saved is not None else 0) else None
        ledger, step = self._working.ledgers.ledger, self._leasing.switch_step()
        if step is None or ledger is None or why is not Why.LAST:
            return step
        return ledger.covered_step

    def _is_out_of_reach(self, saving: Saving) -> bool:
        """Tell whether a preempted job's members will not reach the saving's step."""
        working = self._working
        if (
            working.record.checkpoints.preemption is None
            or saving.complete
            or saving.generation != working.record.generation
        ):
            return False
        return working.newest()[0] < saving.after_step and self.members_stand is True

    # ------------------------------------------------------------------------------------------------ and comes about

    def _look(self, saving: Saving, since: float | None = None) -> None:
        """Note the parts that are durable by now. `since`: when this leader announced the saving."""
        working = self._working
        if saving.number != self._known:
            self._known, self._since, self._until = saving.number, since, working.now + self._store_s
            self._stored = {}
            self._published, self._waits = 0, False
            self._lost_s = None
            if saving.complete:  # the leader before may have published it
                self._until = working.now
        self._stored |= {part.worker: part.info for part in saving.parts}
        for worker in saving.roster:
            if worker not in self._stored and (info := working.seen.saved_part(worker, saving.number)) is not None:
                self._stored[worker] = info

    def _see_whether_it_comes(self, saving: Saving) -> None:
        working = self._working
        now = SavingVerdict(working.record, saving, working.members, working.seen, self._stored, working.ledgers.ledger)
        reason = why_not(now)
        if not reason and working.now >= self._until:
            reason = f"its parts were not durable within {self._store_s:g} s"
        if reason:
            self._give_up(reason)
        elif self._is_out_of_reach(saving):
            self._give_up(f"the job is to go, and its workers stand after step {working.newest()[0]}", again=True)
            self._begin_if_due()

    def _publish(self, saving: Saving) -> None:
        working = self._working
        self._published, self._waits = self._published + 1, True
        self._until = working.now + self._publish_s
        working.commands.append(PublishSaving(saving.number))

    def _note_unpublished(self, reason: str) -> None:
        if self._published >= PUBLISHINGS:
            self._give_up(f"it could not be published: {reason}")
        else:
            self._waits, self._until = False, self._working.now + self._lead_times.torn_s

    def _note_durable(self, saving: Saving) -> None:
        working = self._working
        saved = Saved(saving.number, saving.after_step, saving.path)
        asked = due_times.served(working.record.checkpoints.save_requests, saved)
        seconds = None if self._since is None else round(working.now - self._since, 3)
        self._timetable.note_durable(working.now if self._since is None else self._since)
        stall_ms = max((part.info.stall_ms for part in saving.parts), default=0.0)
        costs = (*working.record.checkpoints.save_costs, Cost(stall_ms / 1000, self._lost_s, seconds))[-COSTS_KEPT:]
        working.change(
            saving=None, saved=saved, save_requests=asked, save_costs=costs, save_failure=None, pressing=False
        )
        next_one = self.interval
        durable = facts.CheckpointDurable(
            number=saving.number,
            path=saving.path,
            bytes=sum(file.bytes for part in saving.parts for file in part.info.files),
            seconds=seconds,
            stall_ms=stall_ms,
            lost_ms=None if self._lost_s is None else round(1000 * self._lost_s, 1),
            next_s=None if next_one is None else round(next_one.seconds, 1),
            why="" if next_one is None else next_one.why,
        )
        working.tell(durable, saving.after_step)

    def _give_up(self, reason: str, *, again: bool = False) -> None:
        """Give up the saving; training goes on. It is tried again: at once, where another way is open."""
        working, saving = self._working, self._working.record.checkpoints.saving
        assert saving is not None
        if not again:
            working.count_failed_saving(reason)
            self._timetable.note_failed(working.now, hurries=working.record.checkpoints.preemption is not None)
        working.give_up_saving(reason)
        asked = due_times.disappointed(working.record.checkpoints.save_requests, saving, reason)
        if asked != working.record.checkpoints.save_requests:
            working.change(save_requests=asked, pressing=False)

    def _parts(self, saving: Saving) -> tuple[DurablePart, ...]:
        return tuple(DurablePart(worker, self._stored[worker]) for worker in saving.roster if worker in self._stored)

    def _keep(self, saving: Saving) -> Saving:
        self._working.change(saving=saving, pressing=False)
        if saving.complete:
            self._until = self._working.now  # to be published at once
            self._lost_s = self._pace.end(self._working.record.generation, self._working.newest())
        return saving
