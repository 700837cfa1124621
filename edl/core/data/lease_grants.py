"""Track how far the data of a job is trained and leased, as its workers go on.

Owns: when a step is stable, when more is leased, what a change of generation does to the data, after which step it can
be. Does not own: the ledgers of the generations (`edl.core.data.ledger_versions`), how many seconds to be ahead
(`edl.core.job.lead_times`), when leases are cut anew (`edl.core.data.lease_recut`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from edl import facts
from edl.core.data import lease_recut
from edl.core.data.batching import batch_of_all, in_force
from edl.core.data.ledgers import restored_ledger
from edl.core.data.sample_ledger import Ledger
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Refuse
from edl.core.job.leader_state import WorkingState
from edl.core.worker.next_move import NEVER
from edl.errors import UsageError
from edl.protocol.data_nouns import DataSpec, LedgerSnapshot, ShardPart
from edl.protocol.job_policy import Rebatch
from edl.protocol.record import OVER, FailedBy, JobState, Plan, WorkerState

WORD_S = 0.2  # that orders take to reach every trainer, usually
MOST_WORDS = 8  # whose time that of a switch has, however large its ring
MOST_DOUBLED = 4  # times, as words came too late


@dataclass(frozen=True, slots=True)
class Crossing:
    """The step after which the next ring begins, its data, and the mark that both rest on."""

    after_step: int | None  # None: at once, as the ring is broken; then the data is not known beforehand
    ledger: LedgerSnapshot | None
    rebatch: Rebatch | None
    spares: int = 0  # in so many steps newcomers have no samples


@dataclass(frozen=True, slots=True)
class Unheard:
    """Leases that workers hear of only when they call for orders again."""

    version: int  # of the record, with them
    covered_before: int
    at: float


class LeaseGrants:
    """`lead_times` says how far the data is leased ahead of the workers."""

    def __init__(self, working: WorkingState, lead_times: LeadTimes) -> None:
        self._working = working
        self._lead_times = lead_times
        self._enough_until = 0  # until a worker has applied this step, no more need be leased
        self._unheard: list[Unheard] = []  # leases that did not press, of which some workers may not have heard yet
        self._late_words = 0  # so many switches in a row came to nothing, as their word came too late for all
        self._marked = (0, 0.0)  # the newest mark that this leader knows of, and since when
        self._marks_for_switch = False  # it is for a switch that is wanted
        self._batch_due = bool(working.record.sizing.asked_batch)  # what is leased may not be of the batch asked for
        self.word_took_s = 0.0  # the newest call, until all had answered: workers may share few cores
        self._slowest: set[str] = set()  # members of the ring that are not beyond the newest stable step

    def open(self, worker: str, spec: DataSpec) -> None:
        working = self._working
        try:
            newest = working.newest()[0]
            if working.ledgers.open(worker, spec, working.record.roster, newest):
                self._reach(self._to_be_saved())
                working.keep_ledger()
                self._project_anew(newest)
        except UsageError as error:
            working.end(JobState.FAILED, str(error), FailedBy.REFUSAL)

    def learn(self, told: tuple[ShardPart, ...]) -> None:
        ledger = self._working.ledgers.ledger
        if ledger is None or not told:
            return
        before = ledger.epoch
        if self._working.ledgers.learn(told):
            self._tell_ended(tuple(range(before, ledger.epoch)))
            self._working.keep_ledger()
            if ledger.has_nothing and self._working.ledgers.resumed is None:
                reason = "no shard of the stream has an item: see its files, and what its filter() keeps"
                self._working.end(JobState.FAILED, reason, FailedBy.REFUSAL)

    def _learn_again(self, roster: tuple[str, ...]) -> None:
        """Take in what workers have told last of a stream: a part that the ledger of before was through with, as it is
        empty, the ledger of a plan may still wait for, and no worker tells of it twice.
        """
        ledgers, ledger = self._working.ledgers, self._working.ledgers.ledger
        if ledger is None or not ledger.spec.shards:
            return
        before = ledger.epoch
        for worker in roster:
            if (seen := self._working.seen.observation(worker)) is not None:
                ledgers.learn(seen.stream)
        self._tell_ended(tuple(range(before, ledger.epoch)))

    def ask_batch(self, samples: int) -> None:
        """Set the global batch to `samples`: in leases granted from now on, and soon in those already granted."""
        working, record, ledger = self._working, self._working.record, self._working.ledgers.ledger
        workers = len(record.roster) or record.target
        if record.state in OVER:
            refusal = working.over()
        elif ledger is None:
            refusal = "it has read no samples of edl's: if its script has yet to begin, ask again later"
        elif ledger.spec.by_sample:
            refusal = "its script cuts batches itself: iterate elastic_shard_generator().batches(n), and start it again"
        elif ledger.spec.virtual:
            refusal = (
                f"its batch is of {ledger.spec.virtual} virtual workers for life: start another job for another one"
            )
        elif samples < workers:
            refusal = f"it has {workers} workers, and each needs a sample in each step: ask for {workers} at least"
        else:
            refusal = ""
        if refusal:
            working.commands.append(Refuse(refusal))
        elif samples != record.sizing.asked_batch and ledger is not None:
            before = in_force(record.job_policy.batching, record.sizing.asked_batch)
            working.ledgers.batching = in_force(record.job_policy.batching, samples)
            working.change(asked_batch=samples)
            batch = batch_of_all(before, workers, ledger.spec.batch)
            working.tell(facts.BatchAsked(batch=samples, before=batch, workers=workers))
            self._batch_due = True

    def matters(self, worker: str, step: int) -> bool:
        """Tell whether a worker's step matters: the last worker's becomes stable, the first worker's needs leases."""
        if self._working.ledgers.ledger is None:
            return False
        frees = False
        if worker in self._slowest and step > self._working.ledgers.step:
            self._slowest.discard(worker)
            frees = not self._slowest
        return frees or step >= self._enough_until

    # ------------------------------------------------------------------------------------ from one ring to another

    def switch_step(self, words: int = 1) -> int | None:
        """Return the first step that no trainer has passed when the announcement reaches the last of them.

        `words`: allow for so many message delays. None: nothing is left to be trained after that step.
        """
        working, ledger = self._working, self._working.ledgers.ledger
        newest, at = working.newest()
        step = self._mark(words)
        if ledger is None:
            return step
        if step > ledger.covered_step and self._reach(step):
            working.keep_ledger()
        if step < (end := ledger.wanted_step):
            return step
        # The data that is wanted ends before that. A worker that has trained all of it waits for more, where no word
        # reaches it, or has ended; so the word must be there before. Else the switch waits, for more epochs or the end.
        left_s = (end - newest) * self.step_time_s() - (working.now - at)
        if left_s > WORD_S:
            return end
        # Where epochs are over in a moment, it would wait so in each of them. What is leased on speculation goes on
        # beyond this one: the switch comes in an epoch that follows, or never, as the scripts end before. Where all
        # stand and wait for one of them, it may not go on that far: the switch waits until they train on.
        return step if step <= ledger.covered_step and self._has_short_epochs(ledger) else None

    def _reach(self, step: int) -> bool:
        """Lease up to `step`, as far as there are samples; return True when that gave anything."""
        ledger = self._working.ledgers.ledger
        if ledger is None:
            return False
        before, gave = ledger.epoch, self._working.ledgers.reach(step)
        self._tell_ended(tuple(range(before, ledger.epoch)))
        return gave

    def _has_short_epochs(self, ledger: Ledger) -> bool:
        """Tell whether epochs are requested singly, and each is too short for a switch to be announced in time."""
        epoch_s = math.ceil(ledger.spec.total / max(1, ledger.batch)) * self.step_time_s()
        return ledger.spec.open_ended and 0.0 < epoch_s < self._lead_times.notice_s + WORD_S

    def crossing(self, roster: tuple[str, ...], *, spare: int = 0, as_planned: bool = False) -> Crossing | None:
        """Return how a ring of `roster` can follow the one that trains; None: not now.

        `spare`: for so many steps newcomers get no samples, where that is possible. `as_planned`: the members will not
        agree on how the ring begins.
        """
        working, under_way = self._working, self._working.record.sizing.rebatch
        if under_way is not None:
            told = lease_recut.told_by(working.record.roster, under_way, working.seen)
            if told is not None and (cut := self._crossing_at(roster, under_way, told, spare=spare)) is not None:
                return cut
            if told is None and working.now - self._marked_since(under_way) < self._lead_times.torn_s:
                self._marks_for_switch = True
                return None
        # One member to which it comes late would break that ring, and of more members one is late more often.
        words = min(2 + len(roster) // 4, MOST_WORDS) if as_planned else 1
        step = self.switch_step(words * 2 ** min(self._late_words, MOST_DOUBLED))
        if step is None:
            return None
        ledger = working.ledgers.planned(roster, step, self._lease_steps(), spare=spare)
        if under_way is None and ledger is not None and ledger.outdated_until > (mark := self._mark(words=2)):
            self._set_mark(mark)
            self._marks_for_switch = True
            return None
        if ledger is None:
            return Crossing(step, None, None)
        return Crossing(step, ledger.snapshot(), None, min(spare, self._spares(ledger)))

    def in_place_of_broken(self, roster: tuple[str, ...]) -> Crossing:
        """Return the crossing to a ring that replaces a broken one. Its step and data are known once it stands
        (`enter`).

        Where a member would have no samples, all members stop reading now, and report how far they have read before
        they are in the new ring: so the samples beyond can be leased anew there.
        """
        working, mark = self._working, lease_recut.lifted(self._working.record)
        newest = working.newest()[0]
        if mark is None and working.record.generation and working.ledgers.ledger is not None:
            step = min(newest, working.ledgers.ledger.covered_step)
            ledger = working.ledgers.planned(roster, step, self._lease_steps())
            if ledger is not None and ledger.outdated_until > step:
                mark = Rebatch(working.record.sizing.rebatches + 1, newest, planned=True)
        return Crossing(None, None, mark)

    def foresee(self) -> None:
        """A ring is broken, and all its survivors have told how far they came: they will agree on the newest of these
        steps. What the next ring trains after it is leased now, while that ring forms, and not once it stands.

        If one more member is lost meanwhile, they may agree on an older one: then these leases hold for no member.
        """
        working, record = self._working, self._working.record
        plan, ledger = record.plan, working.ledgers.ledger
        if plan is None or plan.after_step is not None or plan.ledger is not None or not record.generation:
            return
        survivors = [worker for worker in plan.roster if worker in record.roster]
        if ledger is None or record.superseded or record.sizing.rebatch is not None or not survivors:
            return
        if not all(working.seen.breaks(worker, record.generation) for worker in survivors):
            return
        step = max(map(working.seen.step, survivors))
        if step > ledger.covered_step:
            return
        foreseen = working.ledgers.planned(plan.roster, step, self._lease_steps())
        assert foreseen is not None
        if foreseen.outdated_until <= step:
            working.change(plan=msgspec.structs.replace(plan, foreseen=step, ledger=foreseen.snapshot()))

    def put_off(self) -> None:
        """Double the time for the next announcement, as that of a switch came too late for all."""
        self._late_words += 1

    def mark_for(self, crossing: Crossing) -> None:
        mark, marks = crossing.rebatch, self._working.record.sizing.rebatches
        self._working.change(rebatch=mark, rebatches=marks if mark is None else max(marks, mark.number))

    def keep_mark(self) -> None:
        """Keep the mark under way for as long as all may tell: a switch is wanted, and cannot be planned yet."""
        mark = self._working.record.sizing.rebatch
        self._marks_for_switch = (
            mark is not None and self._working.now - self._marked_since(mark) < self._lead_times.torn_s
        )

    def beginning(self, roster: tuple[str, ...]) -> Crossing:
        ledger = self._working.ledgers.planned(roster, 0, self._lease_steps())
        return Crossing(0, None if ledger is None else ledger.snapshot(), None)

    def _spares(self, ledger: Ledger) -> int:
        return ledger.spares(set(ledger.roster) - set(self._working.record.roster))

    def _crossing_at(self, roster: tuple[str, ...], mark: Rebatch, told: list[int], *, spare: int) -> Crossing | None:
        """Return the crossing after the lowest reported step, which no member can pass; None: no sample is left."""
        ledger, after_step = self._working.ledgers.ledger, min(told)
        if ledger is None or after_step >= ledger.wanted_step:
            return None
        read = min(max(told), ledger.covered_step)
        planned = self._working.ledgers.planned(roster, after_step, self._lease_steps(), read, spare=spare)
        assert planned is not None
        self._working.tell(facts.LeasesCut(after_step=read, batch=planned.batch, workers=len(roster)))
        mark = msgspec.structs.replace(mark, planned=True)
        return Crossing(after_step, planned.snapshot(), mark, min(spare, self._spares(planned)))

    def _marked_since(self, mark: Rebatch) -> float:
        """Return when this leader first saw the mark: each leader waits anew."""
        if self._marked[0] != mark.number:
            self._marked = (mark.number, self._working.now)
        return self._marked[1]

    def _set_mark(self, step: int) -> None:
        number = self._working.record.sizing.rebatches + 1
        self._working.change(rebatch=Rebatch(number, step), rebatches=number)
        self._marked = (number, self._working.now)

    def enter(self, plan: Plan) -> int:
        """Bring the data to the generation that takes over; return the step that it takes over after."""
        working, self._late_words = self._working, 0
        seen = [worker for worker in plan.roster if working.seen.get(worker)]
        source = max(map(working.seen.leases_of, seen))
        planned = source == plan.generation and plan.leased_after is not None
        sit = (worker for worker in seen if working.seen.sits(worker, plan.generation))
        step = plan.leased_after if planned else min(map(working.seen.began, sit))
        assert step is not None
        read = None if planned or source != working.record.generation else self._read_by_survivors(plan, step)
        superseded, ahead = working.record.superseded, self._lease_steps()
        self._tell_ended(working.ledgers.enter(plan, step, source, superseded, ahead, read))
        self._learn_again(plan.roster)
        working.keep_ledger()
        if read is not None and working.ledgers.ledger is not None:
            batch = working.ledgers.ledger.batch
            working.tell(facts.LeasesCut(after_step=read, batch=batch, workers=len(plan.roster)))
        return step

    def _read_by_survivors(self, plan: Plan, step: int) -> int | None:
        """Return the step up to which survivors with leases may have read; None unless all of them keep to a mark."""
        ledger, mark = self._working.ledgers.ledger, self._working.record.sizing.rebatch
        if ledger is None or mark is None:
            return None
        survivors = [worker for worker in plan.roster if worker in ledger.roster]
        told = lease_recut.told_by(survivors, mark, self._working.seen)
        return max(step, min(max(told), ledger.covered_step)) if told else None

    # --------------------------------------------------------------------------------------------- step after step

    def commit_stable(self) -> None:
        """Mark samples as trained up to the step that all living members of the ring have applied (I5).

        This step is not worth a write of its own: a new leader learns it from the workers. It cannot learn the step of
        workers that were done and gone before its time; but a worker that is done has applied all steps.
        """
        working, record = self._working, self._working.record
        left = [worker for worker in record.roster if worker in working.members]
        told = [worker for worker in left if working.seen.get(worker) or working.state(worker) is not WorkerState.DONE]
        plan, stable = record.plan, working.seen.stable_step(told)
        if stable is None:
            return
        planned = plan is not None and plan.leased_after is not None
        if record.superseded or planned:
            # A daemon begun anew tells how far its trainer is a moment before it tells by whose leases that was.
            if any(working.seen.generation(worker) < record.generation for worker in told):
                return
            # The leases of a plan are told before it is in force; so some may be in its ring and go by them already.
            newest = max(working.seen.leases_of(worker) for worker in told)
            if all(working.state(worker) is WorkerState.DONE for worker in left):
                working.ledgers.go_by(newest, (*record.superseded, *([plan] if plan else [])))
            elif planned or newest > record.generation:
                return
        if ended := working.ledgers.commit(stable):
            self._tell_ended(ended)
            working.keep_ledger()

    def go_on_cutting(self) -> None:
        """Cut leases anew where a roster needs other samples and batches than were leased before it."""
        working, ledger = self._working, self._working.ledgers.ledger
        for_switch, self._marks_for_switch = self._marks_for_switch, False
        if for_switch:
            return
        if self._batch_due and working.record.plan is None:  # a plan's data is of the batch of before
            self._batch_due = False
            if working.ledgers.settle():
                working.keep_ledger(rebatch=lease_recut.lifted(working.record))
                ledger = working.ledgers.ledger
        if self._holds_up():
            self._supply_who_is_late()
            return
        match lease_recut.follows(working.record, ledger, working.seen, self._mark):
            case lease_recut.SetMark(step):
                self._set_mark(step)
            case lease_recut.Lift():
                working.change(rebatch=None)
            case lease_recut.Cut(step):
                assert ledger is not None
                ledger.rebatch(step)
                self._reach(max(step, working.newest()[0] + self._lease_steps(), self._to_be_saved()))
                working.keep_ledger(rebatch=None)
                self._project_anew(step)
                working.tell(facts.LeasesCut(after_step=step, batch=ledger.batch, workers=len(working.record.roster)))
            case None:
                pass

    def _to_be_saved(self) -> int:
        """Return the step that a checkpoint is announced for, in the ring that trains; 0: none is."""
        record = self._working.record
        saving = record.checkpoints.saving
        return 0 if saving is None or saving.generation != record.generation else saving.after_step

    def _project_anew(self, read: int) -> None:
        """Update the ledger of an announced checkpoint: leases beyond the step `read` have changed since then.

        A checkpoint whose parts are all durable keeps its ledger: its step is trained, whatever a new leader knows, and
        it may be published.
        """
        working, saving = self._working, self._working.record.checkpoints.saving
        if saving is not None and not saving.complete and read < self._to_be_saved() <= working.ledgers.covered_step:
            ledger = working.ledgers.projected(saving.after_step)
            working.change(saving=msgspec.structs.replace(saving, ledger=ledger), pressing=False)

    def _holds_up(self) -> bool:
        """Tell whether a member waits for samples at the mark of a plan that came to nothing, and cannot come to the
        ring that follows.

        While the plan itself is to come into force, a worker that got samples here would take them along to its ring.
        """
        mark, plan = self._working.record.sizing.rebatch, self._working.record.plan
        if mark is None or not mark.planned or plan is None or plan.after_step is not None:
            return False
        return any(self._working.seen.misses(worker, plan.generation) for worker in plan.roster)

    def _supply_who_is_late(self) -> None:
        """Lease on to members that wait at the mark in the previous ring, which they have not left.

        They go by the previous leases, or by a plan's if another member reads by these in its ring. So one ledger
        trains the samples that both have read (I7).
        """
        working, plans = self._working, self._working.record.superseded
        seen = (working.seen.leases_of(worker) for plan in plans for worker in plan.roster if working.seen.get(worker))
        working.ledgers.go_by(max(seen, default=0), plans)
        working.keep_ledger(rebatch=None)

    def grant(self) -> None:
        """Lease as far ahead as it takes, and see which members' steps matter next."""
        self._lease_ahead()
        self._supply_the_superseded()
        self._slowest = self._working.seen.up_to(self._working.ledgers.step, self._working.record.roster)

    def _lease_ahead(self) -> None:
        working, ledger, plan = self._working, self._working.ledgers.ledger, self._working.record.plan
        if ledger is None or not working.record.roster:
            return
        (newest, at), ahead, covered = working.newest(), self._lease_steps(), ledger.covered_step
        fewest = self._lead_times.fewest_steps(self.step_time_s())
        until, least = newest + ahead, newest + fewest
        if plan is not None and plan.leased_after is not None:
            until = least = plan.leased_after  # what comes after was leased with the plan
        # A broken ring's survivors go on being supplied: one that waits for samples would never find that it is broken.
        heard = self._heard_step(covered)
        presses = self._lead_times.presses((heard - newest) * self.step_time_s() - (working.now - at))
        if covered <= least and self._reach(until):
            # Of a stream that is as far as its readers have come, whose steps may be over before the next call ends.
            presses = presses or (bool(ledger.spec.shards) and ledger.covered_step < until)
            working.keep_ledger(pressing=presses)
            if not presses:
                self._unheard.append(Unheard(working.record.version, covered, working.now))
        elif self._waits_in_vain(ledger):
            ledger.idle()
            working.keep_ledger()
        # Where no more can be had now, another step asks in vain: what changes that is followed by this, too.
        self._enough_until = ledger.covered_step - fewest if ledger.covered_step > least else NEVER

    def _heard_step(self, covered: int) -> int:
        """Return the step up to which all workers know their leases."""
        working, oldest_s = self._working, self._working.now - self._lead_times.hold_s - WORD_S
        self._unheard = [one for one in self._unheard if one.version > working.pressing and one.at > oldest_s]
        return min([covered, *(one.covered_before for one in self._unheard)])

    def _waits_in_vain(self, ledger: Ledger) -> bool:
        """Tell whether a member of a broken ring waits for samples that are held back until others have trained theirs,
        which they cannot. A step without samples shows the member that its ring is broken.
        """
        record, seen = self._working.record, self._working.seen
        if record.plan is None or record.plan.after_step is not None or not ledger.holds_back:
            return False
        waiting = (worker for worker in record.roster if seen.trains(worker, record.generation))
        return any(seen.step(worker) >= ledger.covered_step for worker in waiting)

    def _supply_the_superseded(self) -> None:
        """A ring may stand and train whose plan came to nothing before the leader knew of it. One that waits there for
        samples hears of no other ring: a step without samples shows it that this one is broken.
        """
        record = self._working.record
        if record.superseded and record.plan is not None and record.plan.after_step is None:
            plans = tuple(map(self._with_an_idle_step, record.superseded))
            if plans != record.superseded:
                self._working.change(superseded=plans)

    def _with_an_idle_step(self, plan: Plan) -> Plan:
        """Add an empty step to the plan's ledger if a member waits there for samples in vain."""
        seen = self._working.seen
        waiting = [worker for worker in plan.roster if seen.trains(worker, plan.generation)]
        if plan.ledger is None or plan.ledger.closed or not waiting:
            return plan
        ledger = restored_ledger(plan.ledger)
        if all(seen.step(worker) < ledger.covered_step for worker in waiting):
            return plan
        ledger.idle()
        return msgspec.structs.replace(plan, ledger=ledger.snapshot())

    def _tell_ended(self, epochs: tuple[int, ...]) -> None:
        for epoch in epochs:
            self._working.tell(facts.EpochEnded(epoch=epoch))

    def _mark(self, words: int = 1) -> int:
        """Return a step that no worker reaches before the message, or before `words` messages in a row."""
        newest, at = self._working.newest()
        age_s = self._working.now - at + self._working.seen.newest_late_s(self._working.record.roster)
        return self._lead_times.switch_step(newest, age_s, self.step_time_s(), words, self.word_took_s)

    def step_time_s(self) -> float:
        """Return the shortest step time that a member of the ring reports; 0.0 when none knows."""
        return self._working.seen.step_time_s(self._working.record.roster)

    def _lease_steps(self) -> int:
        return self._lead_times.lease_steps(self.step_time_s())
